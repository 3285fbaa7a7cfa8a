"""Dataflows of streaming queries and services whose channels are logs on disk.

`Pipeline` is what its users hold, `channel` describes a channel, and `join` lets a Python program
take part as a service. Nothing here needs Spark: the streaming source that does is in
``stillframe.spark``.

``dataflow`` describes the participants and channels, ``metadata`` the current epoch, ``log`` one
channel. ``participant_logs`` applies the barrier rules (``protocol.aligner``), and ``checkpoint``
alone knows Spark's directories. ``coordinator``, ``restore`` and ``retention`` act on the whole.

What reads a file raises Damaged if it is missing or not what was written, and StoreError if it
cannot be read. What writes raises StoreError if the disk is full or failed; then all is as it was.
"""

from stillframe.pipeline.dataflow import channel
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.service import Participant, join

__all__ = ["Participant", "Pipeline", "channel", "join"]
