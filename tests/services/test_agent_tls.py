"""Agents that connect over TLS: a certificate is for one service, and for all of its instances."""

import shutil
from pathlib import Path

import pytest

from stillframe.errors import UsageError
from stillframe.services.attachment import connected_agent
from tests.runtime.certificate_dirs import everybody, papers
from tests.services.deployment import SECRET
from tests.services.test_observer import Collected, agent, linked, run


def collected() -> Collected:
    """Return a collector that listens with TLS."""
    return Collected(certificates=str(everybody()))


def test_instances_of_the_right_service_are_accepted() -> None:
    """Two of them, with one certificate."""
    over_tls = collected()

    async def body() -> None:
        agents = agent("A"), agent("A")
        async with (
            over_tls.listening(),
            linked(over_tls.address, *agents, certificates=papers() / "A"),
        ):
            await over_tls.connected(2)
            await over_tls.observer.observe()
        assert {*over_tls.published[0].fragments} == {one.rules.name for one in agents}
        assert over_tls.warnings == []

    run(body)


def test_the_certificate_of_another_service_is_refused() -> None:
    """Both ends say why."""
    over_tls = collected()

    async def body() -> None:
        async with (
            over_tls.listening(),
            linked(over_tls.address, agent("A"), certificates=papers() / "B") as warnings,
        ):
            await over_tls.until(lambda: bool(warnings))
        why = "its certificate is for B.process.stillframe, not for A.process.stillframe"
        assert why in over_tls.warnings[0]
        assert why in warnings[0]
        assert over_tls.members == []

    run(body)


@pytest.mark.parametrize("name", ["B-01234567", "A", "A-B-01234567", "A-0123456"])
def test_an_instance_cannot_pass_for_one_of_another_service(name: str) -> None:
    """Its name must be that of its service, with the digits of an instance."""
    over_tls = collected()

    async def body() -> None:
        liar = agent("A")
        liar.rules.name = name
        async with (
            over_tls.listening(),
            linked(over_tls.address, liar, certificates=papers() / "A"),
        ):
            await over_tls.until(lambda: bool(over_tls.warnings))
        assert f"'{name}' is not the name of an instance of A" in over_tls.warnings[0]
        assert over_tls.members == []

    run(body)


def test_an_application_with_the_wrong_certificate_does_not_start() -> None:
    """The error names the file, and the name that it lacks."""
    with pytest.raises(UsageError, match=r"B/cert\.pem is for B.*, not for A\.process\.stillframe"):
        connected_agent(
            service="A",
            state={},
            collector="collector",
            secret=SECRET,
            certificates=str(papers() / "B"),
        )


def test_files_that_cannot_be_read_later_are_named(tmp_path: Path) -> None:
    """Once; the agent connects when they are back."""
    over_tls = collected()
    files = tmp_path / "A"

    async def body() -> None:
        async with (
            over_tls.listening(),
            linked(over_tls.address, agent("A"), certificates=files) as warnings,
        ):
            await over_tls.until(lambda: bool(warnings))
            shutil.copytree(papers() / "A", tmp_path / "copied")
            (tmp_path / "copied").rename(files)
            await over_tls.until(lambda: len(warnings) > 1)
        assert warnings[0] == f"{files}/ca.pem cannot be read: No such file or directory"
        assert "connected to the collector" in warnings[1]

    run(body)


@pytest.mark.parametrize("collector", ["10.0.0.5", "collector.example:8650", "[fd00::1]:8650"])
def test_a_collector_on_another_machine_needs_certificates(collector: str) -> None:
    """As `observe` does on such an address. The agent says so at once, not when it cannot
    connect."""
    with pytest.raises(UsageError, match="TLS is required; give a directory of certificates"):
        connected_agent(service="A", state={}, collector=collector, secret=SECRET)
