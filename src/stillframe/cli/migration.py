"""``stillframe restore --dry-run``: what a restore would do with the code as it is now."""

from pathlib import Path

from stillframe.cli import output, quantities
from stillframe.errors import UsageError
from stillframe.imports import add_cwd_to_path, load_topology
from stillframe.migration.migrate import Migration, migrate
from stillframe.model import SnapshotId
from stillframe.runtime.supervisor.recovery import needs_agreement
from stillframe.store.store import Store


def foretell(path: Path, name: str | None, pipeline: Path | None, *, is_json: bool) -> None:
    """Say what a restore of the snapshot `name` of the store at `path`, or of the current one,
    would do. Everything is read and decoded, and nothing is changed.

    Raises:
        UsageError: it could not go on; why is named.
    """
    if pipeline is not None:
        raise UsageError("--dry-run is for a system alone: leave out --pipeline")
    store = Store.open(path)
    entry = store.current() if name is None else store.entry(store.find(name))
    if entry is None:
        raise UsageError(
            f"the store {path} holds no snapshot yet: start the system with 'stillframe run'"
        )
    add_cwd_to_path()
    topology = load_topology(reference_of(store))
    migration = migrate(store.load(entry.id), store.description_of(entry.id), topology)
    is_agreed = not needs_agreement(store, entry.id, topology)
    state = migration.snapshot.state
    if is_json:
        output.put_json(
            {
                "snapshot": entry.id,
                "process_count": len(state.processes),
                "channel_count": len(state.channels),
                "message_count": state.message_count,
                "needs_migrate": not is_agreed,
                "is_lossy": bool(migration.losses),
                "changes": migration.changes,
            }
        )
    elif migration.changes:
        rows = [(c.subject, c.sentence, "lost" if c.is_loss else "") for c in migration.changes]
        output.put_table("changes of code", ["what", "change", "recorded values"], rows, texts=3)
    output.say(_sentence(entry.id, migration, is_agreed=is_agreed))


def reference_of(store: Store) -> str:
    """Return where the topology of a store is defined.

    Raises:
        UsageError: it does not say.
    """
    if store.reference is None:
        raise UsageError(
            f"the store {store.path} does not say where its topology is defined: it was not made "
            "by 'stillframe run'"
        )
    return store.reference


def _sentence(snapshot: SnapshotId, migration: Migration, *, is_agreed: bool) -> str:
    state = migration.snapshot.state
    lost = quantities.count(len(migration.losses), "change")
    agreement = "" if is_agreed else ", with --migrate, since the code is not what the store is of"
    return (
        f"a restore would go on from snapshot {snapshot}: "
        f"{quantities.count(len(state.processes), 'process')}, "
        f"{quantities.count(state.message_count, 'message')} in channels{agreement}"
        + (f"; recorded values would be LOST by {lost}" if migration.losses else "")
        + "; nothing was changed"
    )
