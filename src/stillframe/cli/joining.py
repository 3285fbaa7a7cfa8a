"""``stillframe join`` and ``stillframe certificates``: a process of its own, and its papers."""

import importlib.util
import sys
from pathlib import Path

import typer
import uvloop

from stillframe.cli import output
from stillframe.cli.supervision import Stop
from stillframe.errors import UsageError
from stillframe.imports import add_cwd_to_path
from stillframe.runtime.control import ORPHANED_S, LaunchSpec, OutputDirs
from stillframe.runtime.network.addresses import COORDINATOR_PORT, Address
from stillframe.runtime.network.certificates import check_own
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.os_process import current_process
from stillframe.runtime.supervisor.child_processes import run_until_stopped


def join(
    reference: str,
    process: str,
    coordinator: str,
    listen: str,
    tls: Path,
    traces: OutputDirs,
    *,
    is_json: bool,
) -> None:
    """Run `process` of the topology of `reference` here until somebody says stop.

    Raises:
        UsageError: an address is none, or the certificates are not what they must be.
        typer.Exit: it was refused.
    """
    add_cwd_to_path()
    tls = tls.absolute()
    check_own(tls, process)
    launch = LaunchSpec(
        me=Credentials(process, 0, "", b"", str(tls)),
        reference=reference,
        search_path=sys.path,
        coordinator=Address.parse(coordinator, port=COORDINATOR_PORT),
        listen=Address.parse(listen, port=0),
        supervisor=current_process(),
        orphaned_s=ORPHANED_S,
        outputs=traces,
        is_elsewhere=True,
    )

    def emit(what: str, words: str) -> None:
        if is_json:
            output.put_json({"event": what, "process": process, "detail": words})
        output.say(f"process {process}: {words}")

    async def until_stop() -> int:
        return await run_until_stopped(launch, Stop().asked, emit)

    if code := uvloop.run(until_stop()):
        raise typer.Exit(code)


def make_certificates(directory: Path, processes: list[str], days: int, *, is_json: bool) -> None:
    """Make a CA in `directory`, unless it is there, and certificates.

    Raises:
        UsageError: the extra ``tls`` is not installed, or they cannot be made.
    """
    if importlib.util.find_spec("cryptography") is None:
        raise UsageError("certificates need the extra 'tls': pip install 'stillframe[tls]'")
    from stillframe.runtime.network.certificate_authority import CA_KEY_FILE, issue_certificates  # noqa: PLC0415 - needs the extra

    folders = issue_certificates(directory, processes, days=days)
    if is_json:
        output.put_json({"folders": [str(folder) for folder in folders], "days": days})
    else:
        output.put_lines(map(str, folders))
    output.say(
        f"valid for {days} days; copy each folder to its machine and give it to --tls there; keep "
        f"{directory / CA_KEY_FILE} where nobody else can read it"
    )
