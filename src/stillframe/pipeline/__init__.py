"""Dataflows of streaming queries and services whose channels are logs on disk.

`Pipeline` is what its users hold, `channel` describes a channel, and `join` lets a Python program
take part as a service. Nothing here needs Spark: the streaming source that does is in
``stillframe.spark``.

``dataflow`` says what there is, ``head`` which epoch it is in, ``log`` holds a channel, ``member``
applies the barrier rules (``protocol.aligner``), ``checkpoint`` is the only file that knows Spark's
directories, ``taking``, ``restoring`` and ``dropping`` act on the whole.
"""

from stillframe.pipeline.dataflow import channel
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.service import Participant, join

__all__ = ["Participant", "Pipeline", "channel", "join"]
