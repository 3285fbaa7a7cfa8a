"""``docs/kubernetes.md``: its manifests fit together, and their commands make a system here.

No cluster is there to run them on. What a cluster would do for a container is done here: it gets
its variables, its volumes under their paths, and the names of other pods.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doc_pages import blocks, called
from tests.ports import free_port
from tests.reader import wait_until

PAGE = (Path(__file__).parent.parent / "docs" / "kubernetes.md").read_text()
PROCESSES = ("p1", "p2", "p3")
Manifest = dict[str, Any]


def manifests() -> dict[str, Manifest]:
    """Return every manifest as it would be applied, by kind and name."""
    coordinator, process = blocks("yaml", PAGE)
    texts = [coordinator, *(process.replace("PROCESS", name) for name in PROCESSES)]
    found = [one for text in texts for one in yaml.safe_load_all(text)]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def pod_of(manifest: Manifest) -> Manifest:
    """Return the pod that a StatefulSet makes."""
    pod: Manifest = manifest["spec"]["template"]
    return pod


def test_the_manifests_fit_together() -> None:
    """Selectors select, mounts are of volumes, secrets are those that are made, names resolve."""
    found = manifests()
    assert list(found) == [
        *("Service/bank", "StatefulSet/bank-coordinator"),
        *(f"StatefulSet/bank-{name}" for name in PROCESSES),
    ]
    service = found.pop("Service/bank")
    assert service["spec"]["clusterIP"] == "None"
    for name, one in found.items():
        assert one["apiVersion"] == "apps/v1"
        spec, pod = one["spec"], pod_of(one)
        labels = pod["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        assert service["spec"]["selector"].items() <= labels.items()
        assert spec["serviceName"] == service["metadata"]["name"]
        assert spec["replicas"] == 1
        (container,) = pod["spec"]["containers"]
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        (secret,) = (volume["secret"] for volume in pod["spec"]["volumes"])
        assert secret["secretName"] == one["metadata"]["name"], name
        assert [variable["name"] for variable in container["env"]] == ["POD_IP"]
    assert len({str(pod_of(one)["metadata"]["labels"]) for one in found.values()}) == len(found)
    assert "for who in coordinator p1 p2 p3; do kubectl create secret" in PAGE
    port = service["spec"]["ports"][0]["port"]
    assert f"bank-coordinator-0.bank:{port}" in PAGE


class Machine:
    """Runs containers of the manifests as programs of this machine."""

    def __init__(self, place: Path, port: int) -> None:
        self.place, self.port = place, port
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def log(self, name: str) -> str:
        """Return what a container said."""
        return (self.place / f"{name}.log").read_text()

    def start(self, name: str, manifest: Manifest) -> None:
        """Start the container of a StatefulSet."""
        (container,) = pod_of(manifest)["spec"]["containers"]
        secret = manifest["metadata"]["name"].removeprefix("bank-")
        address = f"127.0.0.1:{self.port}" if secret == "coordinator" else "127.0.0.1"
        words = [*container["command"], *container.get("args", ())]
        for name_there, here in (
            ("/store/bank", str(self.place / "store" / "bank")),
            ("/tls", str(self.place / "tls" / secret)),
            ("bank-coordinator-0.bank:8640", f"127.0.0.1:{self.port}"),
            ("$(POD_IP)", address),
        ):
            words = [word.replace(name_there, here) for word in words]
        with (self.place / f"{name}.log").open("ab") as said:
            self.running[name] = subprocess.Popen(
                words,
                cwd=self.place,
                env={
                    **os.environ,
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                    "POD_IP": address,
                },
                stdout=said,
                stderr=said,
            )

    def wait_for(self, name: str, words: str) -> None:
        """Wait until a container has said something."""
        wait_until(lambda: words in self.log(name), f"{name} says {words!r}")

    def close(self) -> None:
        """End what runs, the coordinator first: without the others it would wait for them."""
        for name in sorted(self.running, key=lambda name: name != "coordinator"):
            self.running[name].terminate()
            self.running[name].wait()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine with the program and the certificates of the page."""
    (program,) = blocks("python", PAGE)
    (tmp_path / "bank.py").write_text(program)
    (tmp_path / "store").mkdir()
    begun = Machine(tmp_path, free_port())
    yield begun
    begun.close()


def said(command: str, place: Path) -> str:
    """Call a command of the page; return what it says."""
    done = called(command.replace("/store/bank", str(place / "store" / "bank")), place)
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_their_commands_make_a_system_that_outlives_its_coordinator(machine: Machine) -> None:
    """Every container starts, in any order, and the commands of the page work in that of the
    coordinator; when it is killed and started again, the same processes go on in the same epoch."""
    found = manifests()
    lines = "".join(blocks("console", PAGE)).replace("$ ", "").splitlines()
    (certificates,) = [line for line in lines if line.startswith("stillframe certs")]
    said(certificates, machine.place)
    for name in PROCESSES:
        machine.start(name, found[f"StatefulSet/bank-{name}"])
    machine.start("coordinator", found["StatefulSet/bank-coordinator"])
    machine.wait_for("coordinator", "epoch 1: the system runs")
    for line in lines:
        _, exec_, command = line.partition("kubectl exec bank-coordinator-0 -- ")
        assert not exec_ or said(command, machine.place)
    coordinator = machine.running["coordinator"]
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    machine.start("coordinator", found["StatefulSet/bank-coordinator"])
    machine.wait_for("coordinator", "epoch 1: the processes kept running without a supervisor")
    said("stillframe snapshot /store/bank", machine.place)
    assert all(machine.running[name].poll() is None for name in PROCESSES)
    assert "epoch 2" not in machine.log("coordinator")
