package stillframe;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, which starts no program to set a permission or to look for a link.
 *
 * Without its native library, which PySpark does not bring, Hadoop starts chmod for each file that it
 * creates and readlink for each that it renames: half of the CPU time of a query with small
 * micro-batches. Here the Java library does the same work.
 */
public class LocalFiles extends RawLocalFileSystem {
    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
        Files.setAttribute(
            this.pathToFile(path).toPath(), "unix:mode", Integer.valueOf(permission.toShort()));
    }

    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
        if (Files.isSymbolicLink(this.pathToFile(path).toPath())) {
            return super.getFileLinkStatus(path);
        }
        return this.getFileStatus(path);
    }

    /** What FileSystem uses for file:/ (fs.file.impl). */
    public static class Checked extends LocalFileSystem {
        public Checked() {
            super(new LocalFiles());
        }
    }

    /** What FileContext uses for file:/ (fs.AbstractFileSystem.file.impl). */
    public static class CheckedContext extends ChecksumFs {
        public CheckedContext(URI uri, Configuration settings)
            throws IOException, URISyntaxException {
            super(new Context(settings));
        }
    }

    /** The same without checksums. */
    public static class Context extends DelegateToFileSystem {
        public Context(Configuration settings) throws IOException, URISyntaxException {
            super(FsConstants.LOCAL_FS_URI, new LocalFiles(), settings, "file", false);
        }

        @Override
        public boolean isValidName(String name) {
            return true; // the operating system decides
        }
    }
}
