"""The modules of the page: what one calls of another, it imports."""

import re
from importlib.resources import files
from itertools import chain

import pytest

from stillframe.pages import self_contained_page

PAGE = files("stillframe.pages") / "assets"
MODULES = sorted(path.name for path in PAGE.iterdir() if path.name.endswith(".js"))
EXPORTS = {
    name: set(re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", code, re.MULTILINE))
    for name in MODULES
    for code in [self_contained_page.read(name)]
}


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_calls_of_others_it_imports(name: str) -> None:
    """A name that is missing shows only when somebody clicks."""
    code = self_contained_page.read(name)
    imported = set(
        re.findall(r"\w+", " ".join(re.findall(r"^import \{(.*?)\}", code, re.MULTILINE)))
    )
    own = EXPORTS[name] | set(re.findall(r"(?:function|const|let|class) (\w+)", code))
    foreign = set(chain.from_iterable(EXPORTS.values())) - own
    called = set(re.findall(r"(?<![\w.$])(\w+)\(", code))
    assert (called & foreign) - imported == set()
    assert (
        imported - set(re.findall(r"\w+", re.sub(r"^import .*$", "", code, flags=re.MULTILINE)))
        == set()
    )


@pytest.mark.parametrize("entry", ["live.js", "file.js"])
def test_no_two_things_of_a_script_have_one_name(entry: str) -> None:
    """In a script the modules stand behind each other."""
    begin = r"^(?:export )?(?:async )?(?:function\*?|const|let|class) (\w+|[{\[].*?[}\]])"
    found = re.findall(begin, self_contained_page.bundle(entry), re.MULTILINE)
    names = list(chain.from_iterable(re.findall(r"\w+", name) for name in found))
    assert len(names) > 100
    assert sorted(names) == sorted(set(names))


def test_no_module_imports_what_the_script_would_not_hold() -> None:
    """Every import is of the form that is taken out."""
    for entry in ("live.js", "file.js"):
        assert (
            re.findall(
                r"^\s*(?:import|export)\b.*", self_contained_page.bundle(entry), re.MULTILINE
            )
            == []
        )
