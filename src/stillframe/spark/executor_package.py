"""Sends this package to the executors of a cluster, where nobody has installed it.

Executors run ``source``, ``cut`` and ``records``, which import Arrow and PySpark and nothing else.
"""

import re
import tempfile
import weakref
import zipfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

_directories: list[tempfile.TemporaryDirectory[str]] = []
_shipped: "weakref.WeakSet[SparkContext]" = weakref.WeakSet()


def add_package(spark: SparkSession) -> None:
    """Send the package to the executors of a session, once for all sessions that share them."""
    context = spark.sparkContext
    if context in _shipped:
        return
    if re.match(r"local($|\[)", str(context.master)):
        return
    package = Path(__file__).parent.parent
    # Executors that come later fetch it too: it stays until this program ends.
    directory = tempfile.TemporaryDirectory(prefix="stillframe-")
    _directories.append(directory)
    archive = Path(directory.name) / "stillframe.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(package.rglob("*.py")):
            file.write(path, Path("stillframe") / path.relative_to(package))
    context.addPyFile(str(archive))
    _shipped.add(context)
