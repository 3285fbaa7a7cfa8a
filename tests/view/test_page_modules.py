"""The modules of the page: what one calls of another, it imports."""

import re
from itertools import chain

import pytest

from stillframe.view import one_file
from stillframe.watch.server import page_files

MODULES = [name for name in page_files() if name.endswith(".js")]
EXPORTS = {
    name: set(re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", code, re.MULTILINE))
    for name in MODULES
    for code in [one_file.read(name)]
}


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_calls_of_others_it_imports(name: str) -> None:
    """A name that is missing shows only when somebody clicks."""
    code = one_file.read(name)
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


def test_no_two_modules_export_one_name() -> None:
    """In a file to send they stand behind each other."""
    names = list(chain.from_iterable(EXPORTS.values()))
    assert sorted(names) == sorted(set(names))
