"""Dataflows of streaming queries and services whose channels are logs on disk.

`Pipeline` is what its users hold, `channel` describes a channel, and ``Pipeline.join_service`` lets
a Python program take part as a service. Nothing here needs Spark; the
streaming source is in ``stillframe.spark``.

``dataflow`` describes the participants and channels, ``metadata`` the current epoch, ``log`` one
channel. ``participant_logs`` applies the barrier rules (``protocol.aligner``), and ``checkpoint``
alone knows Spark's directories. ``coordinator``, ``restore`` and ``retention`` act on the whole.

What reads a file raises Damaged if it is missing or not what was written, and StoreError if it
cannot be read. What writes raises StoreError if the disk is full or failed; then all is as it was.
"""

from typing import TYPE_CHECKING, Any

from stillframe.errors import check_assertions
from stillframe.pipeline.cut_view import PipelineView
from stillframe.pipeline.dataflow import Dataflow, Log, Topic, channel, kafka_channel
from stillframe.pipeline.kafka import KafkaRecord
from stillframe.pipeline.log import LogBatch
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.progress import Awaited, AwaitedChannel, Progress
from stillframe.pipeline.service import JoinedService
from stillframe.pipeline.snapshot_manifest import ChannelCut, Manifest, TopicCut
from stillframe.pipeline.stopped import NotAtRest
from stillframe.pipeline.topic_service import JoinedTopicService
from stillframe.pipeline.topics import Counting, Label, LabelRange
from stillframe.protocol.aligner import Mode
from stillframe.public_names import public_attribute

__all__ = [
    "Awaited",
    "AwaitedChannel",
    "ChannelCut",
    "Counting",
    "Dataflow",
    "JoinedService",
    "JoinedTopicService",
    "KafkaRecord",
    "Label",
    "LabelRange",
    "Log",
    "LogBatch",
    "Manifest",
    "Mode",
    "NotAtRest",
    "Pipeline",
    "PipelineView",
    "Progress",
    "Topic",
    "TopicCut",
    "channel",
    "kafka_channel",
]

check_assertions()

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return what had this name in the last release."""
        return public_attribute(__name__, name)
