"""Values of columns as JSON text, so that columns of any kinds can be compared and shown."""

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe import columns as fields

_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}


def as_json(value: Column, kind: str) -> Column:
    """Return a value of a column of that kind (``columns.Column.kind``) as JSON text; None is
    ``null``. Equal texts are equal values, down to the sign of zero."""
    if kind == "json":
        return F.coalesce(value, F.lit("null"))
    if kind in ("bool", "int"):
        return F.coalesce(value.cast("string"), F.lit("null"))
    # What Spark writes as JSON is a list or an object; the brackets are taken off again.
    listed = F.to_json(F.array(value), _OPTIONS)
    return F.coalesce(listed.substr(F.lit(2), F.length(listed) - 2), F.lit("null"))


def as_object(columns: Iterable[tuple[fields.Column, Column]]) -> Column:
    """Return a JSON object with these fields."""
    members: list[Column] = []
    for field, value in columns:
        name = '"' + field.name + '":'
        members += [F.lit(("," if members else "") + name), as_json(value, field.kind)]
    return F.concat(F.lit("{"), *members, F.lit("}"))


def converted(value: Column, kind: str, wanted: str) -> Column:
    """Return a value as a column of another kind holds it, one where several classes meet."""
    if kind == wanted:
        return value
    if wanted == "json":
        return F.when(value.isNotNull(), as_json(value, kind))
    return value.cast("double")
