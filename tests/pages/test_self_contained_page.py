"""A page in one file: nothing is loaded, nothing else runs, foreign text stays text."""

import re

import pytest

from stillframe.pages import self_contained_page


def test_a_document_cannot_leave_its_element() -> None:
    """What a process called itself ends neither the element nor the title that it stands in."""
    text = self_contained_page.render(
        {"kind": "none", "name": "</script><script>alert(1)</script>"},
        title="</title><script>alert(2)</script>",
    )
    assert "alert(1)</script>" not in text
    assert "<script>alert" not in text
    assert text.count("<script") == 2


def test_nothing_is_imported_or_loaded() -> None:
    """The script has no import or export left, and the file names no other file."""
    script = self_contained_page.bundle(self_contained_page.ENTRY)
    assert re.search(r"^(import|export)\b", script, re.MULTILINE) is None
    text = self_contained_page.render({"kind": "none"}, title="nothing")
    assert re.search(r"\b(src|href)=", text.partition("<script")[0]) is None
    assert "default-src 'none'" in text


@pytest.mark.parametrize("name", ["style.css", "dom.js"])
def test_the_files_of_the_page_are_in_the_package(name: str) -> None:
    """They are read as resources, wherever the package is."""
    assert self_contained_page.read(name)


def test_no_two_modules_give_one_name_to_two_things() -> None:
    """In one script a browser would refuse all of it."""
    script = self_contained_page.bundle(self_contained_page.ENTRY)
    names = re.findall(
        r"^(?:async )?(?:function|const|let|class) (\w+)", script, flags=re.MULTILINE
    )
    assert [name for name in names if names.count(name) > 1] == []
