"""What a driver does on a real cluster, for ``test_cluster``.

It makes a store whose snapshots are based on each other, their fragments, an event log, and
observations of services in a bucket. It asks for the history, a difference, large tables and
amounts, and assembles the fragments. REPORT is one JSON object: what was found, and what had to be.
"""

import json
import sys
from pathlib import Path
from typing import Any

from stillframe.analytics import (
    assemble,
    compact_store,
    compacted_tables,
    diff_store,
    marker_paths,
    marker_steps,
    observation_tables,
    snapshot_history,
)
from stillframe.model import Snapshot
from stillframe.storage.location import locate
from stillframe.store.observation_tables import amounts_of
from stillframe.store.store import Store
from tests.analytics.chains import make_chains
from tests.analytics.test_marker_paths import RING, write
from tests.analytics.test_store_diff import changes
from tests.fragments import write_fragments
from tests.spark.standalone import cluster_session
from tests.store import keyed_samples
from tests.store.observation_samples import filled, observed


def main(directory: str, cluster: str, report: str, bucket: str) -> None:
    """Ask on the cluster, and write down what was found."""
    root = Path(directory)
    store, out = root / "store", root / "out"
    recorded: list[Snapshot] = []
    cuts = make_chains(store, 1, took=recorded.append)
    write_fragments(root / "parts", keyed_samples.DESCRIPTION, recorded)
    write(root / "log", RING)
    spark = cluster_session(cluster)
    hops = marker_paths(marker_steps(spark, root / "log")).orderBy("hop").collect()
    first, *_, last = cuts
    keys = diff_store(spark, store, str(first), str(last)).keys
    compact_store(spark, store, out)
    accounts = compacted_tables(spark, out)["Bank_accounts"]
    verdicts = assemble(spark, root / "parts", root / "again").collect()
    seen = locate(f"{bucket}/seen")
    filled(seen, "losses", 1).close()
    amounts = observation_tables(spark, seen)["amounts"].orderBy("observation", "unit")
    found: dict[str, Any] = {
        "amounts": [row.asDict() for row in amounts.collect()],
        "assembled": sorted(row["snapshot"] for row in verdicts if not row["why"]),
        "snapshots": snapshot_history(spark, store).count(),
        "hops": [[row["source"], row["target"], row["travelled_ms"]] for row in hops],
        "changed_count": keys.count(),
        "account_count": accounts.count(),
        "amount": accounts.where("value > 0").agg({"value": "sum"}).collect()[0][0],
    }
    both = [cuts[snapshot] for snapshot in (first, last)]
    tables = [Store.open(store).tables(snapshot)["Bank_accounts"] for snapshot in cuts]
    values = [value for table in tables for value in table.column("value").to_pylist()]
    again = Store.open(root / "again")
    for snapshot in cuts:
        again.verify(snapshot)
    expected = {
        "amounts": [
            {"observation": observation.number} | row
            for observation in observed("losses", 1)[0]
            for row in amounts_of(observation)
        ],
        "assembled": sorted(map(str, cuts)),
        "snapshots": len(cuts),
        "hops": [["P1", "P2", 2.0], ["P2", "P3", 0.5], ["P3", "P1", 6.0]],
        "changed_count": sum(
            len(some)
            for bank in both[0]
            for field in both[0][bank]
            for some in changes(both[0][bank][field], both[1][bank][field]).values()
        ),
        "account_count": len(values),
        "amount": sum(value for value in values if value > 0),
    }
    Path(report).write_text(json.dumps({"found": found, "expected": expected}))


if __name__ == "__main__":
    main(*sys.argv[1:])
