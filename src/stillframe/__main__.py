"""``stillframe``, and ``python -m stillframe``: the command line."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # The current directory: the commands that need it add it, after all that Python has.
    del sys.path[0]

import errno
import os
from typing import NoReturn, TextIO

_EXIT_UNWRITTEN = 2
_EXIT_CLOSED_PIPE = 141
_ANSWERS = (None, 0, 1)
"""The exit codes of a result: done or yes, and no."""


def main() -> None:
    """Run the command line and end the program with an exit code.

    Ctrl-C ends it without a traceback, also while the commands are being loaded. If a result could
    not be written, the exit code is that of an error.
    """
    if sys.stdout is None:
        # Descriptor 1 is free: the next file that a command opens would get it.
        _refuse(OSError(errno.EBADF, "it is closed"))
    try:
        from stillframe.cli.app import app  # noqa: PLC0415 - see above

        app(prog_name="stillframe")
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as ending:
        if (error := _flush(sys.stdout)) is not None and ending.code in _ANSWERS:
            if isinstance(error, BrokenPipeError):
                sys.exit(_EXIT_CLOSED_PIPE)
            _refuse(error)
        raise
    finally:
        _flush(sys.stderr)


def _flush(stream: TextIO | None) -> OSError | None:
    """Flush stdout or stderr; return the error, if any."""
    if stream is None:  # it was closed before the start
        return None
    try:
        stream.flush()
    except OSError as error:
        # What is still buffered would be tried once more when the program ends, with exit code 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def _refuse(error: OSError) -> NoReturn:
    from stillframe.cli import output  # noqa: PLC0415 - see above

    with output.answering(is_json="--json" in sys.argv):
        sentence = f"stdout: {error.strerror}: nothing can be written to it"
        output.say_error("OSError", sentence, _EXIT_UNWRITTEN)
    sys.exit(_EXIT_UNWRITTEN)


if __name__ == "__main__":
    main()
