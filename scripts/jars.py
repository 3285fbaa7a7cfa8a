"""Get jars from Maven Central: those that ``scripts/jars.sha256`` lists, several at a time.

``python scripts/jars.py get DIRECTORY KIND...`` puts those of each kind into DIRECTORY/KIND.
``python scripts/jars.py lock`` writes the list anew, after a change of ``scripts/jars.xml`` or
``scripts/hdfs.xml``. Ivy, which PySpark includes, resolves them: it downloads the description of
every artifact one after the other, which takes more than a minute.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from stillframe.spark.session import find_java

SCRIPTS = Path(__file__).parent
LIST = SCRIPTS / "jars.sha256"
"""As sha256sum writes it. A name is the kind, and then the path at Maven Central."""
MAVEN = "https://repo1.maven.org/maven2"
THREAD_COUNT = 8
TIMEOUT_S = 60.0
RETRY_COUNT = 3
PATTERN = "[conf]/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"


def get(directory: Path, kinds: list[str]) -> None:
    """Download the jars of these kinds.

    Raises:
        SystemExit: one could not be downloaded, or is not the one that is listed.
    """
    wanted = [
        (digest, kind, path)
        for digest, kind, path in map(parts_of, LIST.read_text().splitlines())
        if kind in kinds
    ]
    for kind in kinds:
        (directory / kind).mkdir(parents=True)
    transport = httpx.HTTPTransport(retries=RETRY_COUNT)

    def get_one(one: tuple[str, str, str]) -> None:
        digest, kind, path = one
        answer = client.get(f"{MAVEN}/{path}").raise_for_status()
        if hashlib.sha256(answer.content).hexdigest() != digest:
            sys.exit(f"{answer.url} is not the file that {LIST.name} lists")
        (directory / kind / Path(path).name).write_bytes(answer.content)

    with (
        httpx.Client(transport=transport, timeout=TIMEOUT_S) as client,
        ThreadPoolExecutor(THREAD_COUNT) as pool,
    ):
        try:
            for _ in pool.map(get_one, wanted):
                pass
        except httpx.HTTPError as error:
            sys.exit(f"Maven Central cannot be reached, or lacks a file: {error!r}")


def parts_of(line: str) -> tuple[str, str, str]:
    """Return the hash, the kind and the path of a line."""
    digest, _, name = line.partition("  ")
    kind, _, path = name.partition("/")
    return digest, kind, path


def lock() -> None:
    """Resolve the dependencies, and write the list."""
    [ivy] = Path(sys.prefix).glob("lib/python3*/site-packages/pyspark/jars/ivy-*.jar")
    java = find_java() / "bin" / "java"
    lines = []
    with tempfile.TemporaryDirectory() as place:
        for name in ("jars", "hdfs"):
            subprocess.run(
                [
                    *(java, "-jar", ivy, "-warn", "-ivy", SCRIPTS / f"{name}.xml"),
                    *("-types", "jar", "bundle", "-cache", f"{place}/cache"),
                    *("-retrieve", f"{place}/{name}/{PATTERN}"),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            for file in Path(place, name).rglob("*.jar"):
                kind, organisation, *rest = file.relative_to(Path(place, name)).parts
                path = "/".join([kind, *organisation.split("."), *rest])
                lines.append(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {path}\n")
    LIST.write_text("".join(sorted(lines, key=lambda line: line.partition("  ")[2])))


def main() -> None:
    """Get jars, or write the list of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    getting = commands.add_parser("get")
    getting.add_argument("directory", type=Path)
    getting.add_argument("kinds", nargs="+")
    commands.add_parser("lock")
    options = parser.parse_args()
    if options.command == "get":
        get(options.directory, options.kinds)
    else:
        lock()


if __name__ == "__main__":
    main()
