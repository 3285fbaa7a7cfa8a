"""The commands for systems on several machines: ``join`` and ``certificates``."""

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from stillframe.cli import output
from stillframe.cli.command import Command, with_bundles
from stillframe.cli.options import AsJson, TopologyName, TraceOptions
from stillframe.cli.supervision import StopSignals, output_dirs
from stillframe.errors import UsageError
from stillframe.imports import add_cwd_to_path
from stillframe.runtime.control import ORPHANED_S, LaunchSpec
from stillframe.runtime.network.addresses import COORDINATOR_PORT, Address
from stillframe.runtime.network.certificates import check_own
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.os_process import current_process
from stillframe.runtime.supervisor.child_processes import run_until_stopped

DAYS_MAX = 3650

app = typer.Typer(rich_markup_mode=None)


@app.command(
    cls=Command,
    epilog="Example: stillframe join examples.bank:bank P2 --coordinator 10.0.0.1 --listen "
    "10.0.0.2 --tls certificates/P2",
)
@with_bundles
def join(
    reference: TopologyName,
    process: Annotated[str, typer.Argument(metavar="PROCESS", help="Which process to run.")],
    *,
    coordinator: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]", help="Where the coordinator listens; port 8640 if none is given."
        ),
    ],
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS[:PORT]",
            help="Where this process listens: an address of this machine at which the others reach "
            "it; any free port if none is given.",
        ),
    ],
    tls: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of its ca.pem, cert.pem and key.pem.")
    ],
    traces: TraceOptions,
    is_json: AsJson = False,
) -> None:
    """Run one process of a system on this machine, the system being started on another with 'run
    --elsewhere PROCESS'. It waits for the coordinator, and joins again, from the recorded state,
    after every restore, until Ctrl-C or SIGTERM; exit 2 if it is refused at its first coming."""
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
        outputs=output_dirs(traces),
        is_elsewhere=True,
    )

    def emit(what: str, words: str) -> None:
        if is_json:
            output.put_json({"event": what, "process": process, "detail": words})
        output.say(f"process {process}: {words}")

    async def until_stop() -> int:
        return await run_until_stopped(launch, StopSignals().requested, emit)

    if code := uvloop.run(until_stop()):
        raise typer.Exit(code)


@app.command(cls=Command, epilog="Example: stillframe certificates certificates P2 P3")
def certificates(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of the CA; made if it is not there.")
    ],
    processes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROCESS...", help="Processes that run elsewhere than the coordinator."
        ),
    ] = None,
    *,
    days: Annotated[int, typer.Option(help="How long they are valid.", min=1, max=DAYS_MAX)] = 90,
    is_json: AsJson = False,
) -> None:
    """Make a CA, a certificate for the coordinator's machine and one for each process elsewhere,
    for a test or a small system; a CA that is there already signs again. In production use the CA
    that you have."""
    if importlib.util.find_spec("cryptography") is None:
        raise UsageError("certificates need the extra 'tls': pip install 'stillframe[tls]'")
    from stillframe.runtime.network.certificate_authority import (  # noqa: PLC0415 - needs the extra
        CA_KEY_FILE,
        issue_certificates,
    )

    folders = issue_certificates(directory, processes or [], days=days)
    if is_json:
        output.put_json({"folders": [str(folder) for folder in folders], "days": days})
    else:
        output.put_lines(map(str, folders))
    output.say(
        f"valid for {days} days; copy each folder to its machine and give it to --tls there; keep "
        f"{directory / CA_KEY_FILE} where nobody else can read it"
    )
