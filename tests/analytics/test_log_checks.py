"""What tasks make of an event log, without Spark: all that is wrong with it, and nothing else."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.analytics.log_checks import (
    COUNTS,
    CUT,
    FAULTS,
    IN_TRANSIT,
    MARKER_NOT_ACCEPTED,
    aggregate_splits,
    check_group,
    plan_splits,
)
from stillframe.errors import Damaged
from stillframe.eventlog.segments import SCHEMA
from tests.eventlogs import Execution, Fault, corrupt, faults_of, write
from tests.nightly import seeds

SEEDS = seeds("judging", *range(60), night=3000)


def found_in(directory: Path) -> pa.Table:
    """Return all findings of an event log."""
    batch = pa.RecordBatch.from_pylist(plan_splits(directory))
    counts = pa.Table.from_batches(aggregate_splits([batch]), COUNTS).to_pylist()
    keys = dict.fromkeys((row["epoch"], row["source"], row["target"]) for row in counts)
    return pa.concat_tables(
        check_group(
            key,
            pa.Table.from_pylist(
                [row for row in counts if (row["epoch"], row["source"], row["target"]) == key],
                schema=COUNTS,
            ),
        )
        for key in keys
    )


def faults_in(findings: list[dict[str, Any]]) -> set[Fault]:
    """Return what is wrong, message by message, as the oracle says it."""
    return {
        (row["snapshot"], row["source"], row["target"], row["what"], number)
        for row in findings
        if row["what"] in (*FAULTS, MARKER_NOT_ACCEPTED)
        for number in ((None,) if row["first"] is None else range(row["first"], row["last"] + 1))
    }


@pytest.mark.parametrize("column", SCHEMA.names)
def test_a_changed_byte_of_any_column_is_damage(column: str, tmp_path: Path) -> None:
    """Also of those that no rule needs."""
    chance = random.Random(1)
    write(Execution(chance).log(), tmp_path, 1, chance)
    path = next(tmp_path.rglob("*.parquet"))
    group = pq.read_metadata(path).row_group(0)
    chunks = (group.column(index) for index in range(group.num_columns))
    chunk = next(one for one in chunks if one.path_in_schema.split(".")[0] == column)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray(path.read_bytes())
    content[begin + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(Damaged, match=f"{path} is not an intact file of an event log"):
        found_in(tmp_path)


@pytest.mark.slow
@pytest.mark.nightly(part="verdicts")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_is_judged_as_by_brute_force(seed: int, tmp_path: Path) -> None:
    """A right log has no fault; in a wrong one those are found that the oracle finds."""
    chance = random.Random(seed)
    log = Execution(chance).log()
    write(log, tmp_path / "right", 1, chance)
    findings = found_in(tmp_path / "right")
    assert faults_in(findings.to_pylist()) == set() == faults_of(log)
    assert {CUT, IN_TRANSIT} <= {*findings.column("what").to_pylist()}
    changed = corrupt(log, chance)
    if changed is None:
        return
    wrong, kind, (source, target), number = changed
    write(wrong, tmp_path / "wrong", 1, chance)
    faults = faults_in(found_in(tmp_path / "wrong").to_pylist())
    assert faults == faults_of(wrong)
    named = {fault[1:3] + fault[4:] for fault in faults}
    assert (source, target, number) in named, (kind, faults)
