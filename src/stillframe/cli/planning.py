"""From the options of ``run`` and ``restore`` to a plan."""

from pathlib import Path

from stillframe.cli import quantities
from stillframe.cli.supervision import Plan
from stillframe.protocol.policy import Policy
from stillframe.runtime.control import OutputDirs

MARKER_WAIT_S_MAX = 1.0


def plan_of(
    every: str,
    initiators: list[str] | None,
    timeout: str,
    marker_wait: str,
    for_: str | None,
    is_json: bool,
    pipeline: Path | None,
    until: str | None = None,
    *,
    may_migrate: bool = False,
    keep: int | None,
    policy: Policy,
    tolerated_count: int | None,
    log: Path | None,
    fragments: Path | None,
) -> Plan:
    """Return what the options of ``run`` and ``restore`` say; each argument is named as its option.

    Raises:
        UsageError: a duration cannot be read.
    """
    every_s = quantities.parse_interval("--every", every)
    timeout_s = quantities.parse_duration("--timeout", timeout)
    marker_wait_s = quantities.parse_wait("--marker-wait", marker_wait, max_s=MARKER_WAIT_S_MAX)
    for_s = None if for_ is None else quantities.parse_duration("--for", for_)
    return Plan(
        every_s=every_s,
        initiators=tuple(initiators or ()),
        timeout_s=timeout_s,
        for_s=for_s,
        is_json=is_json,
        pipeline=pipeline,
        until=until,
        marker_wait_s=marker_wait_s,
        may_migrate=may_migrate,
        keep_count=keep,
        policy=policy,
        tolerated_count=tolerated_count,
        outputs=output_dirs(log, fragments),
    )


def output_dirs(log: Path | None, fragments: Path | None) -> OutputDirs:
    """Return what ``--log`` and ``--fragments`` say; processes are in the same directories, or in
    others of the same name elsewhere."""
    return OutputDirs(
        log=None if log is None else str(log.absolute()),
        fragments=None if fragments is None else str(fragments.absolute()),
    )
