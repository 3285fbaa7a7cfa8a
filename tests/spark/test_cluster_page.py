"""``docs/spark-cluster.md`` on a real cluster, whose executors know nothing of us."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stillframe.analytics.compaction import read_catalog
from stillframe.storage.location import ObjectPath
from tests.doc_pages import blocks
from tests.eventlog.test_remote import copied
from tests.spark.standalone import Cluster, Driver

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "spark-cluster.md").read_text()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("cluster")
def test_commands_and_program_of_the_page_run_on_a_cluster(
    cluster: Cluster, driver: Driver, tmp_path: Path, moto_bucket: str
) -> None:
    """Each command ends with 0; the audit says yes of every snapshot, and the tables have them.
    From an object store, no directory is shared."""
    bank, _ = blocks("python", (ROOT / "README.md").read_text())
    program, _ = blocks("python", PAGE)
    _, session, remote, _ = blocks("console", PAGE)
    (tmp_path / "bank.py").write_text(bank)
    subprocess.run(
        [
            *(Path(sys.executable).with_name("stillframe"), "run", "bank:bank"),
            *("--store", "bank.store", "--event-log", "bank.log"),
            *("--every", "200ms", "--duration", "1s"),
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    copy = ("store", "copy", "bank.store", f"{moto_bucket}/bank.store")
    subprocess.run(
        [Path(sys.executable).with_name("stillframe"), *copy],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    copied(tmp_path / "bank.log", ObjectPath(moto_bucket, "bank.log"))
    session += remote.replace("s3://bucket", moto_bucket)
    places = [tmp_path / name for name in ("commands", "cluster.py", "report")]
    for path, text in zip(places, (session.replace("$ stillframe ", ""), program), strict=False):
        there = text.replace("spark://head.example:7077", cluster.address)
        path.write_text(there.replace("/shared", str(tmp_path)))
    driver.run("tests.spark.cluster_page_program", *places, place=tmp_path)
    answer = places[-1].read_text()
    assert "the total is 300 in all of them" in answer
    tables = read_catalog(ObjectPath(moto_bucket, "bank.tables"))
    assert tables.snapshots == read_catalog(tmp_path / "bank.tables").snapshots
    assert re.search(r"^[1-9]\d* snapshots$", answer, re.MULTILINE)
