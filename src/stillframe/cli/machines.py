"""The commands for systems on several machines, and the options that place one there."""
# ruff: noqa: PLC0415 - see app.py

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from stillframe.cli.options import AsJson, ToEventLog, ToFragments, TopologyName
from stillframe.cli.verdict import Command

if TYPE_CHECKING:
    from stillframe.cli.supervision import Plan

DAYS_MAX = 3650

app = typer.Typer(rich_markup_mode=None)


def on_site(
    plan: "Plan", listen: str | None, tls: Path | None, elsewhere: list[str] | None
) -> "Plan":
    """Return `plan` with what the options ``--listen``, ``--tls`` and ``--elsewhere`` say.

    Raises:
        UsageError: the address cannot be listened on without TLS, or is none.
    """
    from stillframe.runtime.network.addresses import (
        ANY_PORT,
        COORDINATOR_PORT,
        Address,
        require_tls_off_loopback,
    )
    from stillframe.runtime.supervisor.config import Placement

    address = ANY_PORT if listen is None else Address.parse(listen, port=COORDINATOR_PORT)
    certificates = None if tls is None else str(tls.absolute())
    require_tls_off_loopback(address, certificates)
    return msgspec.structs.replace(
        plan, placement=Placement(address, certificates, tuple(elsewhere or ()))
    )


@app.command(
    cls=Command,
    short_help="Run one process of a system here.",
    epilog="Example: stillframe join examples.bank:bank P2 --coordinator 10.0.0.1 --listen "
    "10.0.0.2 --tls certificates/P2",
)
def join(
    topology: TopologyName,
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
        Path,
        typer.Option(metavar="DIR", help="Directory of its ca.pem, cert.pem and key.pem."),
    ],
    log: ToEventLog = None,
    fragments: ToFragments = None,
    as_json: AsJson = False,
) -> None:
    """Run one process of a system on this machine, the system being started on another with 'run
    --elsewhere PROCESS'. It waits for the coordinator, and joins again, from the recorded state,
    after every restore, until Ctrl-C or SIGTERM; exit 2 if it is refused at its first coming."""
    from stillframe.cli import joining
    from stillframe.cli.planning import output_dirs

    traces = output_dirs(log, fragments)
    joining.join(topology, process, coordinator, listen, tls, traces, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Make certificates for several machines.",
    epilog="Example: stillframe certificates certificates P2 P3",
)
def certificates(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of the CA; made if it is not there.")
    ],
    processes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROCESS...",
            help="Processes that run elsewhere than the coordinator.",
            show_default=False,
        ),
    ] = None,
    *,
    days: Annotated[int, typer.Option(help="How long they are valid.", min=1, max=DAYS_MAX)] = 90,
    as_json: AsJson = False,
) -> None:
    """Make a CA, a certificate for the coordinator's machine and one for each process elsewhere,
    for a test or a small system; a CA that is there already signs again. In production use the CA
    that you have."""
    from stillframe.cli import joining

    joining.make_certificates(directory, processes or [], days, is_json=as_json)
