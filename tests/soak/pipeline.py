"""The kill soak of a pipeline: a Spark driver, services and coordinators are killed with -9.

``python -m tests.soak.pipeline --kills 50 --seed 1`` prints ``SEED=`` first. After so many kills it
lets the pipeline come to its end, and compares every channel, service state and query state with
what is computed from the input, and with a run in which nobody was killed. It exits with 1 and says
what differs. The short form runs with the tests. ``--place s3://BUCKET/DIR`` keeps the pipeline in
an object store.
"""

import time
from pathlib import Path
from typing import Any

from stillframe.model import Abandoned, Reason
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.state_codec import StateCodec
from stillframe.storage.location import Location
from tests.soak.pipeline_outputs import differences, outputs, reader
from tests.soak.pipeline_programs import KillSoak, Program, run_as_program
from tests.soak.pipeline_shop import FRESH_COUNT, Books, Feed, create, expected, sent_count

SERVICES = ("feed", "books")
MOMENTS = (
    "driver in a snapshot",
    "service in a snapshot, then the restore",
    "coordinator",
    "restore",
    "driver",
    "service",
    "service in a snapshot",
    "driver while it starts",
)
MODES = ("aligned", "unaligned", "retained")
LOCAL = "local[2]"
TIMEOUT_S = 300.0
"""For a snapshot; a micro-batch takes half a second, on a busy machine twenty."""

REST_ACTION_COUNT = 40
"""How many actions the feed takes after the last kill."""


class Soak(KillSoak):
    """One run: what was done, and what was seen.

    Args:
        seed: of all that is random.
        directory: for what the programs write of themselves.
        place: where the pipeline is created, a directory or an address.
        cluster: Spark's URL of where it runs.
    """

    def __init__(self, seed: int, directory: Path, place: Location, cluster: str = LOCAL) -> None:
        super().__init__(seed, directory)
        self.cluster = cluster
        self.pipeline = create(place / "shop.pipeline")
        self.root = str(self.pipeline.path)
        self.limit = directory / "limit"
        self.report = directory / "states.json"
        self.running: dict[str, Program] = {}

    # Programs.

    def start_driver(self) -> Program:
        """Start the Spark driver; it is not running yet when this returns."""
        return self.start(
            "pipeline_driver", self.root, str(self.report), self.cluster, *self.settings
        )

    def start_missing(self) -> None:
        """Start whoever does not run, and wait until all do."""
        if "driver" not in self.running:
            self.running["driver"] = self.start_driver()
            self.running["driver"].expect("running")
        for name in SERVICES:
            if name not in self.running:
                self.running[name] = self.start(
                    "pipeline_services", name, self.root, str(self.limit)
                )
                self.running[name].expect("joined")

    def kill(self, name: str) -> None:
        """Kill -9 a program; of the driver sometimes only the Python process."""
        alone = name == "driver" and self.random.random() < 0.5
        self.running.pop(name).kill(alone=alone)

    # Snapshots and restores.

    def snapshot(self) -> None:
        """Take a snapshot with everybody running, and check what it recorded."""
        for program in self.running.values():
            program.check_alive()
        outcome = self.pipeline.snapshot(self.random.choice(MODES), timeout_s=TIMEOUT_S)
        assert not isinstance(outcome, Abandoned), str(outcome)
        self.check(outcome)
        self.done["snapshots"] += 1
        self.done["records in transit"] += outcome.record_count

    def check(self, manifest: Manifest) -> None:
        """Check that the states of the services say what the books of the channels say."""
        feed, books = Feed(), Books()
        for name, state in (("feed", feed), ("books", books)):
            recorded = manifest.fragment(name).service
            assert recorded is not None
            StateCodec(type(state)).restore(state, recorded.encoded)
        cuts = {(cut.log, cut.target): cut for cut in manifest.channels}
        sent = sum(cuts["orders", "unique"].sent_counts)
        assert sent == sent_count(feed.actions), f"{manifest.snapshot}: the feed sent {sent}"
        booked = sum(cuts["unique", "books"].received_counts)
        assert booked == books.order_count, f"{manifest.snapshot}: the books received {booked}"
        paid = sum(cuts["payments", "settled"].sent_counts)
        assert paid == sum(books.paid.values()), f"{manifest.snapshot}: the books paid {paid}"

    def begin_snapshot(self) -> Program:
        """Let another program begin a snapshot, and some random time go by."""
        mode = self.random.choice(MODES)
        coordinator = self.start("pipeline_coordinator", "snapshot", self.root, mode)
        coordinator.expect("begins")
        self.pause(1.5)
        return coordinator

    def end_snapshot(self, coordinator: Program) -> None:
        """Wait for the end of a snapshot during which somebody was killed."""
        line = coordinator.line()
        assert line is not None, coordinator.last_words()
        if line.startswith("abandoned"):
            assert str(Reason.NOT_AT_REST) in line, line
            self.done["snapshots abandoned"] += 1
        else:
            self.check(self.pipeline.find(line))
            self.done["snapshots with a death in them"] += 1
        coordinator.end()

    def stop(self) -> None:
        """Stop everybody: the driver's queries, with the driver or without, and the services."""
        driver = self.running.get("driver")
        if driver is not None:
            if self.random.random() < 0.2:
                self.kill("driver")
            else:
                driver.tell("stop")
                driver.expect("stopped")
        for name in SERVICES:
            if name in self.running:
                self.kill(name)

    def restore(self) -> None:
        """Stop everybody, go back to a snapshot, mostly the latest, and start everybody."""
        self.stop()
        snapshot = str(self.pipeline.latest().snapshot)
        if self.random.random() < 0.25:
            snapshot = str(self.random.choice(self.pipeline.snapshots()[-4:]).snapshot)
            self.done["restores, maybe of an older one"] += 1
        self.pipeline.restore(snapshot)
        self.done["restores"] += 1
        self.go_on()

    def go_on(self) -> None:
        """Start everybody after a restore."""
        if "driver" in self.running:
            self.running["driver"].tell("start")
            self.running["driver"].expect("running")
        self.start_missing()

    def after_driver(self) -> None:
        """After the death of the driver alone: start it again, or go back to a snapshot."""
        if self.random.random() < 0.5:
            self.restore()
            return
        if self.random.random() < 0.5:
            self.end_snapshot(self.begin_snapshot())
        self.start_missing()
        self.done["drivers that continued without a restore"] += 1

    # Kills.

    def strike(self, moment: str) -> None:
        """Kill -9 one program at a random moment of one kind, and see to it that all run again."""
        victim = moment.split(maxsplit=1)[0]
        if victim == "service":
            victim = self.random.choice(SERVICES)
        match moment:
            case "restore":
                self._strike_restore()
            case "coordinator":
                self.begin_snapshot().kill()
            case "driver while it starts":
                self.kill("driver")
                self.running["driver"] = self.start_driver()
                self.pause(10)
                self.kill("driver")
                self.after_driver()
            case "driver" | "driver in a snapshot":
                coordinator = self.begin_snapshot() if "snapshot" in moment else None
                self.kill("driver")
                if coordinator is not None:
                    self.end_snapshot(coordinator)
                self.after_driver()
            case _:
                coordinator = self.begin_snapshot() if "snapshot" in moment else None
                self.kill(victim)
                if coordinator is not None:
                    self.end_snapshot(coordinator)
                if "restore" in moment:
                    self._strike_restore()
                else:
                    self.restore()
        self.done[f"kills: {moment}"] += 1

    def _strike_restore(self) -> None:
        self.stop()
        snapshot = str(self.random.choice(self.pipeline.snapshots()[-3:]).snapshot)
        program = self.start("pipeline_coordinator", "restore", self.root, snapshot)
        program.expect("begins")
        self.pause(0.2)
        self.done["restores that were done before the kill"] += program.process.poll() == 0
        program.kill()
        self.restore()

    def run(
        self, kill_count: int, *, action_count: int | None = None, is_short: bool = False
    ) -> dict[str, Any]:
        """Kill so often, let the pipeline come to its end, and return all that came out.

        Args:
            kill_count: how often.
            is_short: whether one snapshot is taken before each kill, and not two.
            action_count: how many actions the feed takes; None for some more after the last kill.
        """
        moments = [MOMENTS[index % len(MOMENTS)] for index in range(kill_count)]
        self.random.shuffle(moments)
        self.start_missing()
        for index, moment in enumerate(moments):
            if not is_short:
                self.snapshot()
                self.pause(2)
            self.snapshot()
            self.strike(moment)
            print(f"{time.strftime('%H:%M:%S')} {index + 1:>3} {moment}", flush=True)
        return self.finish(action_count)

    def finish(self, action_count: int | None) -> dict[str, Any]:
        """Let everything come to its end and return all that came out."""
        if action_count is None:
            action_count = reader(self.pipeline, "orders").tail(0) + REST_ACTION_COUNT
        partial = self.limit.with_suffix(".partial")
        partial.write_text(str(action_count))
        partial.rename(self.limit)
        self.snapshot()
        for name in SERVICES:
            self.running.pop(name).end()
        driver = self.running.pop("driver")
        driver.tell("finish")
        driver.end()
        self.done["orders"] = action_count * FRESH_COUNT
        return outputs(self.pipeline, self.report)


def soak(
    seed: int,
    *,
    kill_count: int,
    directory: Path,
    place: Location | None = None,
    is_short: bool = False,
) -> tuple[Soak, list[str]]:
    """Run the soak; return what was done, and what differs from what is computed from the input
    and, unless it `is_short`, from a run without kills. The pipelines are in `place`, or in the
    `directory` with everything else."""
    place = directory if place is None else place
    (directory / "killed").mkdir()
    run = Soak(seed, directory / "killed", place / "killed")
    try:
        found = run.run(kill_count, is_short=is_short)
    finally:
        run.close()
    action_count = run.done["orders"] // FRESH_COUNT
    wrong = differences(found, expected(action_count))
    if is_short:
        return run, wrong
    (directory / "unbroken").mkdir()
    unbroken = Soak(seed, directory / "unbroken", place / "unbroken")
    try:
        whole = unbroken.run(0, action_count=action_count)
    finally:
        unbroken.close()
    wrong += [f"unlike the unbroken run: {text}" for text in differences(found, whole)]
    return run, wrong


def main() -> None:
    """Run the full form."""
    run_as_program(
        __doc__,
        lambda seed, kill_count, directory, place: soak(
            seed, kill_count=kill_count, directory=directory, place=place
        ),
        "every channel and every state is as computed, and as in the unbroken run",
    )


if __name__ == "__main__":
    main()
