"""The kill soak of a pipeline over Kafka: its driver, its service, coordinators and the broker are
killed -9.

``python -m tests.soak.topics --kills 50 --seed 1`` prints ``SEED=`` first. Restores go to snapshots
and to the newest point of everything dead, and zombies of old epochs keep writing. At the end every
topic, without the records that do not count, is compared with what is computed from the orders, and
every snapshot with the records of all topics. It exits with 1 and says what differs. The short form
runs with the tests. ``--place s3://BUCKET/DIR`` keeps the pipeline in an object store.
"""

import contextlib
import functools
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from confluent_kafka import Producer

from stillframe.errors import Unavailable
from stillframe.model import Abandoned
from stillframe.pipeline.kafka import Broker, KafkaRecord, settings_of
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.pipeline.topics import HEADER, Counting, Label, counting, counting_on
from stillframe.storage.location import Location, ObjectPath
from tests.soak.pipeline_programs import KillSoak, Program, run_as_program
from tests.soak.topics_shop import (
    QUERIES,
    SERVICE,
    WRITERS,
    Feed,
    create,
    differences,
    make_topics,
)
from tests.spark.flows import wait_until
from tests.spark.outside import KafkaServer, jars, s3a_variables

MOMENTS = (
    "driver while it writes",
    "service while it writes",
    "coordinator",
    "driver between write and commit",
    "broker",
    "restore",
    "driver between write and commit, then the restore",
    "frozen driver",
    "driver",
    "broker, then the driver",
    "driver while it starts",
    "service",
    "frozen service",
)
"""When and what is killed, or does nothing for a while."""
WAYS = ("continue", "snapshot", "newest")
"""What follows a kill: all start again; a restore to a snapshot; a snapshot while all are
dead, and a restore to that."""
AWAY_S = 25.0
"""How long a broker is away: a producer tries to deliver for 20 s, and other calls take 15 s."""
BURST = 8000
ZOMBIE_MAX = 300


class Seen:
    """All records of the topics, read once each."""

    def __init__(self, servers: str) -> None:
        self.topics: dict[str, dict[int, list[KafkaRecord]]] = {name: {} for name in WRITERS}
        self._ends: dict[str, dict[int, int]] = {name: {} for name in WRITERS}
        self._servers = servers

    def read(self) -> None:
        """Read what was added."""
        with Broker(self._servers) as broker:
            for topic, partitions in self.topics.items():
                ends = broker.end_offsets(topic)
                ranges = {p: (self._ends[topic].get(p, 0), end) for p, end in ends.items()}
                for record in broker.records(topic, ranges):
                    partitions.setdefault(record.partition, []).append(record)
                self._ends[topic] = ends

    def of(self, topic: str) -> Iterator[KafkaRecord]:
        """Yield the records of a topic, partition by partition."""
        return itertools.chain.from_iterable(self.topics[topic].values())

    def spans(self, topic: str) -> dict[tuple[Label, int], tuple[int, int]]:
        """Return the first and the last offset of each label in each partition of a topic."""
        spans: dict[tuple[Label, int], tuple[int, int]] = {}
        for record in self.of(topic):
            if (label := record.label) is not None:
                first, _ = spans.get((label, record.partition), (record.offset, 0))
                spans[label, record.partition] = first, record.offset
        return spans

    def labelled(self, label: Label) -> int:
        """Return how many records have a label."""
        return sum(record.label == label for name in WRITERS for record in self.of(name))


class Soak(KillSoak):
    """One run: what was done, and what was seen.

    Args:
        seed: of all that is random.
        directory: for what the programs write.
        place: where the pipeline is created, a directory or an address.
        server: the broker, which runs.
        burst: how many orders are sent for one kill.
    """

    def __init__(
        self, seed: int, directory: Path, place: Location, server: KafkaServer, burst: int = BURST
    ) -> None:
        super().__init__(seed, directory)
        self.server = server
        self.burst = burst
        make_topics(server.address)
        self.pipeline = create(place / "shop.pipeline", server.address)
        self.feed = Feed(server.address, random.Random(f"{seed}: feed"))
        self.seen = Seen(server.address)
        self.driver: Program | None = None
        self.service: Program | None = None
        self.snapshots: list[Manifest] = []
        self.cut_short: list[tuple[Label, int]] = []
        ways = list(WAYS)
        self.random.shuffle(ways)
        self._ways = itertools.cycle(ways)

    # Programs.

    def start_driver(self) -> Program:
        """Start the Spark driver; it is not running yet when this returns."""
        return self.start("topics_driver", str(self.pipeline.path), *self.settings)

    def start_service(self) -> Program:
        """Start the service; it has not joined yet when this returns."""
        return self.start("topics_service", str(self.pipeline.path))

    def start_missing(self) -> None:
        """Start every participant that does not run, and wait until all do."""
        if self.service is None:
            self.service = self.start_service()
            self.service.expect("joined")
        if self.driver is None:
            self.driver = self.start_driver()
            self.driver.expect("running")

    def running_driver(self) -> Program:
        """Return the driver, which has not ended for another reason than a kill."""
        assert self.driver is not None
        self.driver.check_alive()
        return self.driver

    def kill_driver(self) -> None:
        """Kill -9 the driver; sometimes only the Python process. Remember how much of the newest
        micro-batch of each query is in its topic."""
        self.running_driver().kill(alone=self.random.random() < 0.3)
        self.driver = None

    def kill_service(self) -> None:
        """Kill -9 the service. Its transaction stays open until it starts again."""
        assert self.service is not None
        self.service.check_alive()
        self.service.kill()
        self.service = None

    def note_cut_short(self) -> None:
        """Remember how many records of its newest micro-batch each topic has."""
        self.seen.read()
        epoch = self.pipeline.epoch
        for name in WRITERS:
            labels = [r.label for r in self.seen.of(name) if r.label and r.label.epoch == epoch]
            if labels:
                self.cut_short.append((max(labels), self.seen.labelled(max(labels))))

    # Snapshots and restores.

    def snapshot(self) -> None:
        """Take a snapshot."""
        outcome = self.pipeline.snapshot()
        assert not isinstance(outcome, Abandoned), str(outcome)
        self.published(outcome)

    def published(self, manifest: Manifest) -> None:
        """Count a snapshot."""
        self.snapshots.append(manifest)
        self.done["snapshots published"] += 1
        self.done["snapshots that left a micro-batch out"] += bool(manifest.staleness_s)

    def begin_snapshot(self) -> Program:
        """Let another program begin a snapshot."""
        root = str(self.pipeline.path)
        coordinator = self.start("pipeline_coordinator", "snapshot", root, "retained")
        coordinator.expect("begins")
        return coordinator

    def end_snapshot(self, coordinator: Program) -> None:
        """Wait for the end of a snapshot during which the broker was killed: it may fail."""
        line = coordinator.line()
        if line is None or line.startswith("abandoned"):
            self.done["snapshots abandoned"] += 1
        else:
            self.published(self.pipeline.find(line))

    def stop(self) -> None:
        """Stop the service and the queries, these with the driver or without."""
        if self.service is not None:
            self.stop_service()
        if self.driver is not None:
            if self.random.random() < 0.2:
                self.kill_driver()
            else:
                self.running_driver().tell("stop")
                self.driver.expect("stopped")

    def stop_service(self) -> None:
        """Let the service leave, if it has not failed."""
        assert self.service is not None
        self.service.process.terminate()
        while (line := self.service.line()) not in ("stopped", "failed"):
            assert line is not None, self.service.last_words()
        self.service.end()
        self.service = None

    def restore(self, *, to_newest: bool = False) -> None:
        """Stop everything, go back, let zombies write, and start everything again."""
        self.stop()
        if to_newest:
            self.snapshot()
            snapshot = self.snapshots[-1].snapshot
            self.done["restores to the newest point of everything dead"] += 1
        else:
            latest = self.pipeline.latest().snapshot
            # One of an abandoned epoch, too.
            recent = [manifest.snapshot for manifest in self.pipeline.snapshots()[-3:]]
            snapshot = latest if self.random.random() < 0.6 else self.random.choice(recent)
        self.pipeline.restore(str(snapshot))
        self.done["restores"] += 1
        self.go_on()

    def go_on(self) -> None:
        """Start everything after a restore, and let zombies write before and after that."""
        self.write_as_zombie()
        driver = self.driver
        if driver is not None:
            driver.tell("start")
        self.start_missing()
        if driver is not None:
            driver.expect("running")
        self.write_as_zombie()

    def write_as_zombie(self) -> None:
        """Write as programs of an older epoch that were frozen in the middle of a micro-batch or a
        transaction, and do not know of any restore: repeat records, with labels that no snapshot
        contains."""
        self.seen.read()
        head = read_metadata(self.pipeline.path)
        epoch = self.random.randrange(head.epoch)
        manifests = [one for one in self.pipeline.snapshots() if one.epoch == epoch]
        producer = Producer(settings_of(self.server.address))
        for name in WRITERS:
            records = list(self.seen.of(name))
            batches = [one.fragment(name).version for one in manifests]
            began = max((s.first for s in head.batches[name] if s.epoch <= epoch), default=0)
            batch = max([*batches, began]) + 1 + self.random.randrange(2)
            one = counting(self.pipeline.path, head, head.dataflow.topic(name))
            label = one.label(epoch, batch)
            assert not one.counts(label), label
            count = min(len(records), self.random.randrange(ZOMBIE_MAX))
            for record in self.random.sample(records, count):
                headers: list[tuple[str, str | bytes | None]] = [(HEADER, label.encoded)]
                producer.produce(name, record.value, record.key, headers=headers)
                self.done["records of zombies"] += 1
        assert producer.flush() == 0

    def recover(self) -> None:
        """After a kill: start what is dead again, or restore, in one of the ways."""
        match next(self._ways):
            case "continue":
                if self.random.random() < 0.5:
                    self.snapshot()
                self.start_missing()
                self.done["kills without a restore"] += 1
            case "snapshot":
                self.restore()
            case _:
                self.restore(to_newest=True)

    # Kills.

    def strike(self, moment: str) -> None:
        """Kill -9 one program at a random moment of one kind, and see that all run again."""
        match moment:
            case "coordinator":
                self.feed.send(self.burst // 2)
                coordinator = self.begin_snapshot()
                self.pause(0.6)
                self.done["snapshots killed"] += coordinator.process.poll() is None
                coordinator.kill()
            case "restore":
                self._strike_restore()
            case "frozen driver":
                self._strike_frozen()
            case "service" | "service while it writes":
                self._strike_service(moment)
            case "frozen service":
                self._strike_frozen_service()
            case "broker" | "broker, then the driver":
                self._strike_broker(with_driver="driver" in moment)
            case _:
                self._strike_driver(moment)
        self.done[f"kills: {moment}"] += 1

    def _strike_driver(self, moment: str) -> None:
        match moment:
            case "driver while it writes":
                self._wait_for_writing("unique")
                # It has sent only a part of the micro-batch when its broker stops answering.
                with self.server.frozen():
                    self.kill_driver()
                self.note_cut_short()
                self.recover()
                return
            case "driver while it starts":
                self.feed.send(self.burst // 2)
                self.pause(1)
                self.kill_driver()
                self.driver = self.start_driver()
                self.pause(12)
            case "driver":
                self.feed.send(self.burst // 2)
                self.pause(4)
            case _:
                driver = self.running_driver()
                driver.tell("stop")
                driver.expect("stopped")
                driver.tell(f"start {self.random.choice(QUERIES)}")
                self.feed.send(self.burst // 2)
                driver.expect("written")
                # Readers may go on with what is not committed: then a cut has to leave it out.
                self.pause(4)
        self.kill_driver()
        self.note_cut_short()
        if moment.endswith("restore"):
            self._strike_restore()
        else:
            self.recover()

    def _strike_service(self, moment: str) -> None:
        if moment == "service":
            self.feed.send(self.burst // 2)
            self.pause(4)
            self.kill_service()
        else:
            self._wait_for_writing(SERVICE)
            # It may have sent a part of the transaction when its broker stops answering.
            with self.server.frozen():
                self.pause(0.3)
                self.kill_service()
        self.recover()

    def _strike_frozen_service(self) -> None:
        """Freeze the service while it writes. In a directory it keeps its lock, and no other one
        can start; in an object store that lapses, and when it wakes it cannot commit any more."""
        self._wait_for_writing(SERVICE)
        frozen = self.service
        assert frozen is not None
        frozen.freeze()
        self.snapshot()
        other = self.start_service()
        if not isinstance(self.pipeline.path, ObjectPath):
            other.expect("failed")
            frozen.wake()
            # If it was frozen for as long as a transaction may take, it fails.
            self._wait_for_survivors()
            return
        other.expect("joined")
        self.service = other
        self.feed.send(self.burst // 2)
        frozen.wake()
        frozen.expect("failed")
        self.done["frozen services that woke when another one had their place"] += 1

    def _wait_for_writing(self, name: str) -> None:
        driver = self.running_driver()
        with Broker(self.server.address) as broker:
            before = broker.end_offsets(name)
            self.feed.send(self.burst)
            wait_until(lambda: _is_over(driver) or broker.end_offsets(name) != before)
        driver.check_alive()

    def _strike_broker(self, *, with_driver: bool) -> None:
        """Kill the broker, for longer than a producer tries to deliver. Nothing else ends."""
        sending = threading.Thread(target=self.feed.send, args=(self.burst // 2,))
        coordinator = self.begin_snapshot() if self.random.random() < 0.5 else None
        sending.start()
        self.pause(2)
        self.server.kill()
        if with_driver:
            self.kill_driver()
        time.sleep(AWAY_S)
        self.server.start()
        sending.join()
        if coordinator is not None:
            self.end_snapshot(coordinator)
        if with_driver:
            self.note_cut_short()
            self.recover()
        before = dict(self.done)
        self._wait_for_survivors()
        assert self.done == before, "the broker was away, and something ended"

    def _wait_for_survivors(self) -> None:
        """Wait until each participant has written again, or has failed because the broker was away
        for too long: then start it again."""
        driver, service = self.driver, self.service
        assert driver is not None
        assert service is not None
        with Broker(self.server.address) as broker:
            before = {name: broker.end_offsets(name) for name in WRITERS}

            def has_written(name: str, program: Program) -> bool:
                return _is_over(program) or broker.end_offsets(name) != before[name]

            self.feed.send(self.burst // 2)
            for name in ("unique", "sums"):
                wait_until(functools.partial(has_written, name, driver))
            if _is_over(driver):
                self.done["drivers that failed without the broker"] += 1
                self.driver = None
                self.note_cut_short()
                self.start_missing()
            wait_until(functools.partial(has_written, SERVICE, service))
        if _is_over(service):
            service.expect("failed")
            self.done["services that failed without the broker"] += 1
            self.service = None
            self.start_missing()

    def _strike_restore(self) -> None:
        self.feed.send(self.burst // 2)
        self.stop()
        snapshot = str(self.random.choice(self.pipeline.snapshots()[-3:]).snapshot)
        program = self.start("pipeline_coordinator", "restore", str(self.pipeline.path), snapshot)
        program.expect("begins")
        self.pause(0.3)
        self.done["restores that were done before the kill"] += program.process.poll() == 0
        program.kill()
        self.restore(to_newest=self.random.random() < 0.5)

    def _strike_frozen(self) -> None:
        """Freeze a driver while it writes. In a directory it keeps its locks, and a restore is
        refused; in an object store they lapse, and it wakes in a later epoch."""
        self._wait_for_writing(self.random.choice(QUERIES))
        frozen = self.running_driver()
        frozen.freeze()
        if not isinstance(self.pipeline.path, ObjectPath):
            self.snapshot()
            with contextlib.suppress(Unavailable):
                self.pipeline.restore(str(self.snapshots[-1].snapshot))
                raise AssertionError("restored while a driver was frozen")
            if self.random.random() < 0.5:
                frozen.wake()
            else:
                self.kill_driver()
                # If only Python was killed, Java continues its work.
                with contextlib.suppress(ProcessLookupError):
                    frozen.wake()
                self.note_cut_short()
                self.recover()
            return
        self.driver = None
        self.stop_service()
        self.pipeline.restore(str(self.pipeline.latest().snapshot))
        self.done["restores"] += 1
        waking = threading.Timer(self.random.random() * 10, frozen.wake)
        waking.start()
        self.go_on()
        waking.join()
        # Its next micro-batch finds that its lease has lapsed, if it has not failed before.
        while frozen.line() is not None:
            pass
        self.done["frozen drivers that woke after a restore"] += 1

    def run(self, moments: list[str]) -> list[str]:
        """Kill at these moments, let the pipeline come to its end, and return what is wrong."""
        self.start_missing()
        self.feed.send(self.burst // 2)
        self.snapshot()
        for index, moment in enumerate(moments):
            self.strike(moment)
            print(f"{time.strftime('%H:%M:%S')} {index + 1:>3} {moment}", flush=True)
            self.pause(3)
            self.snapshot()
        return self.finish()

    # The end.

    def finish(self) -> list[str]:
        """Let everything come to its end and return what is not as computed."""
        self.feed.send(self.burst // 2)
        assert self.service is not None
        self.service.expect(str(self.feed.count))
        self.stop_service()
        driver = self.running_driver()
        driver.tell("finish")
        driver.end()
        self.seen.read()
        head = read_metadata(self.pipeline.path)
        ones = {n: counting(self.pipeline.path, head, head.dataflow.topic(n)) for n in WRITERS}
        found = {n: [r for r in self.seen.of(n) if _counts(ones[n], r)] for n in WRITERS}
        whole = {n: Counter(record.label for record in found[n]) for n in WRITERS}
        for label, count in self.cut_short:
            total = sum(counts[label] for counts in whole.values())
            self.done["micro-batches whose rest was written later"] += 0 < count < total
        self.done["orders"] = self.feed.count
        self.done["records that count"] = sum(map(len, found.values()))
        every = sum(1 for name in WRITERS for _ in self.seen.of(name))
        self.done["records that do not"] = every - self.done["records that count"]
        wrong = differences(self.feed.count, found)
        spans = {name: self.seen.spans(name) for name in WRITERS}
        return wrong + [text for one in self.snapshots for text in self._wrong_in(one, spans)]

    def _wrong_in(
        self, manifest: Manifest, spans: Mapping[str, dict[tuple[Label, int], tuple[int, int]]]
    ) -> Iterator[str]:
        """Yield a sentence for each label with which a cut is not consistent. `spans` are those of
        each topic."""
        for cut in manifest.topics:
            topic = manifest.dataflow.topic(cut.channel)
            if topic.source is None:
                continue
            one = counting_on(self.pipeline.path, topic, manifest.batches[topic.source])
            chosen = manifest.fragment(topic.source).version
            for (label, partition), (first, last) in spans[topic.name].items():
                if not (one.is_own(label) and one.counts(label)):
                    continue
                where = f"{manifest.snapshot}: {topic.name} {partition} {first} to {last}"
                if label.batch <= chosen and last >= cut.ends[partition]:
                    yield f"{where} is of the cut, and beyond its end"
                for target, positions in cut.positions.items():
                    if label.batch > chosen and first < positions.get(partition, 0):
                        yield f"{where} is consumed by {target}, and not written"


def _is_over(program: Program) -> bool:
    return program.process.poll() is not None


def _counts(one: Counting, record: KafkaRecord) -> bool:
    label = record.label
    return label is not None and one.is_own(label) and one.counts(label)


def chosen_moments(kill_count: int, seed: int) -> list[str]:
    """Return when to kill: every moment as often as the others, in random order."""
    moments = [MOMENTS[index % len(MOMENTS)] for index in range(kill_count)]
    random.Random(f"{seed}: moments").shuffle(moments)
    return moments


def variables_of_s3() -> dict[str, str]:
    """Return the variables with which the programs of a soak in an object store find it."""
    return s3a_variables(others=jars("spark"))


def soak(
    seed: int,
    moments: list[str],
    *,
    directory: Path,
    place: Location | None = None,
    burst: int = BURST,
) -> tuple[Soak, list[str]]:
    """Run the soak; return what was done, and what is not as computed. The pipeline is in `place`,
    or in the `directory` with everything else."""
    kafka = directory / "kafka"
    kafka.mkdir()
    server = KafkaServer(kafka)
    try:
        server.start()
        run = Soak(seed, directory, directory if place is None else place, server, burst)
        try:
            wrong = run.run(moments)
        finally:
            run.close()
    finally:
        server.kill()
    return run, wrong


def main() -> None:
    """Run the full form."""
    run_as_program(
        __doc__, run_fully, "every record that counts is as computed, every snapshot is consistent"
    )


def run_fully(
    seed: int, kill_count: int, directory: Path, place: Location | None
) -> tuple[Soak, list[str]]:
    """Run the soak with `kill_count` kills, in an object store if `place` is in one."""
    if isinstance(place, ObjectPath):
        os.environ.update(variables_of_s3())
    return soak(seed, chosen_moments(kill_count, seed), directory=directory, place=place)


if __name__ == "__main__":
    main()
