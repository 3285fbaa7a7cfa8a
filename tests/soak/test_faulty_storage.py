"""A system runs while the object store is slow, answers wrongly, or does not answer at all."""

import json
import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stillframe.storage.location import locate
from stillframe.store.history import SnapshotAbandoned, SnapshotPublished, read_history
from stillframe.store.store import Store
from tests.faulty_proxy import (
    CUT_AFTER,
    CUT_BEFORE,
    TRUNCATED,
    Answer,
    Fault,
    Request,
    faulty_proxy,
)
from tests.nightly import Figure, seeds
from tests.s3_servers import S3Server, environment

ROOT = Path(__file__).parent.parent.parent
SLOW = Fault(Answer.WHOLE, delay_s=0.3)
OUTAGE_S = 30.0
WRONG = [
    *(Fault(503, is_forwarded=forwarded) for forwarded in (False, True)),
    *(TRUNCATED, CUT_BEFORE, CUT_AFTER, SLOW),
]
WRONG_WRITES = [*WRONG, *(Fault(412, is_forwarded=forwarded) for forwarded in (False, True))]


def published(run: "subprocess.Popen[str]", count: int) -> None:
    """Wait until a system has published so many more snapshots."""
    assert run.stdout is not None
    for line in run.stdout:
        count -= "SnapshotPublished" in json.dumps(json.loads(line))
        if count == 0:
            return
    raise AssertionError(f"it ended with code {run.wait()}")


@pytest.mark.slow
@pytest.mark.nightly(part="storage", only=True)
@pytest.mark.parametrize("seed", seeds("faulty storage", night=1) or (21,))
def test_a_system_outlives_the_faults_of_its_object_store(
    seed: int, versitygw_server: S3Server, versitygw_bucket: str, tmp_path: Path, figure: Figure
) -> None:
    """Snapshots are abandoned with the cause, or published; later ones are, too. All that are there
    are whole, none that was abandoned is, and no money is lost."""
    chance = random.Random(seed)
    place = f"{versitygw_bucket}/bank"

    def call(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "stillframe", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    def wrong(request: Request) -> Fault | None:
        if chance.random() > 0.2:
            return None
        return chance.choice(WRONG_WRITES if request.method == "PUT" else WRONG)

    with (
        faulty_proxy(versitygw_server.port) as proxy,
        (tmp_path / "messages").open("w+") as messages,
        subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "stillframe",
                    "run",
                    "stillframe.examples.bank:bank",
                    "--json",
                ),
                *("--store", place, "--interval", "200ms", "--keep", "20"),
            ],
            cwd=ROOT,
            env=os.environ | environment(versitygw_server, port=proxy.port),
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
        ) as run,
    ):
        published(run, 5)
        proxy.plan = lambda request: SLOW
        published(run, 5)
        proxy.plan = lambda request: CUT_BEFORE
        select.select([], [], [], OUTAGE_S)
        proxy.plan = lambda request: None
        published(run, 5)
        proxy.plan = wrong
        published(run, 30)
        proxy.plan = lambda request: None
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
        messages.seek(0)
        assert run.returncode == 0, messages.read()[-3000:]
    store = Store.open(locate(place))
    store.verify_all(lambda *_: None)
    happened = [line.what for line in read_history(store.path)]
    abandoned = [what for what in happened if isinstance(what, SnapshotAbandoned)]
    assert any("closed the connection" in what.detail for what in abandoned), abandoned
    assert not {entry.id for entry in store.entries()} & {what.snapshot for what in abandoned}
    assert "nothing is missing" in call("detect", place, "loss").stdout
    assert call("verify", place).returncode == 0
    resumed = call("resume", place, "--interval", "200ms", "--duration", "2s")
    assert resumed.returncode == 0, resumed.stderr
    count = sum(isinstance(what, SnapshotPublished) for what in happened)
    figure("snapshots published and abandoned", f"{count} and {len(abandoned)}")
