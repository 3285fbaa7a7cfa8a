"""The names that moved to ``stillframe.analytics`` still work from ``stillframe.spark``."""

import pytest

from stillframe import analytics, spark

pytest.importorskip("pyspark", reason="needs PySpark")

MOVED = set(analytics.__all__) - {"summary"}
MODULES = ("audit", "compacted", "compaction", "detection", "difference", "eventrows")


@pytest.mark.parametrize("name", sorted(MOVED))
def test_a_function_is_the_same_in_both_places(name: str) -> None:
    """Whichever package a program imports it from."""
    assert getattr(spark, name) is getattr(analytics, name)


def test_the_modules_that_the_pages_named_are_found() -> None:
    """With the classes that functions return, and the summary of a detection."""
    found = {name: getattr(spark, name) for name in MODULES}
    assert found["detection"].summary is analytics.summary
    classes = {"audit": "Audit", "compacted": "Compacted", "compaction": "Compaction"}
    classes |= {"difference": "Difference", "eventrows": "Message"}
    for module, name in classes.items():
        assert getattr(found[module], name).__module__.startswith("stillframe.analytics.")


def test_any_other_name_is_missing() -> None:
    """A name of neither is an error as anywhere."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spark.nothing
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = analytics.nothing
