"""Hosts keep their names where a process can have them, and get readable ones elsewhere."""

from hypothesis import given
from hypothesis import strategies as st

from stillframe.importer.names import name_processes
from stillframe.model import check_process_id


def test_names_stay_readable() -> None:
    """What cannot stay is replaced, what begins with a digit gets a letter."""
    assert name_processes(["24464", "main[5,main]", "ok-1", "", "é", "_x"]) == {
        "": "P",
        "24464": "P24464",
        "_x": "P_x",
        "main[5,main]": "main-5-main",
        "ok-1": "ok-1",
        "é": "P-2",
    }


def test_a_host_whose_name_fits_keeps_it() -> None:
    """A stranger never takes the name of a host that can have its own."""
    assert name_processes(["a/b", "a-b", "a:b"]) == {"a-b": "a-b", "a/b": "a-b-2", "a:b": "a-b-3"}


def test_hosts_come_as_people_count() -> None:
    """Numbers in names are compared as numbers."""
    assert list(name_processes(["p10", "p9", "p010", "a", "p1"])) == [
        "a",
        "p1",
        "p9",
        "p010",
        "p10",
    ]


@given(hosts=st.lists(st.text(max_size=80), unique=True, max_size=30))
def test_every_host_gets_a_name_of_its_own(hosts: list[str]) -> None:
    """Whatever the hosts are called, each gets one valid name and no two the same."""
    names = name_processes(hosts)
    assert set(names) == set(hosts)
    assert len(set(names.values())) == len(hosts)
    assert [check_process_id(name) for name in names.values()] == list(names.values())
