"""What a simulated run must keep, and what is said when it does not."""

import enum

import msgspec


class Promise(enum.Enum):
    """What must always hold; the value is the sentence for people."""

    ONCE = "every message is accepted at most once, after it was sent, and in order"
    BOOKS = "the books of every channel balance"
    CONSISTENT = "no message that was accepted before the cut was sent after it"
    EXACT = "the recorded states and messages are exactly those at the cut"
    MARKERS = "one marker travels on each channel for each snapshot, behind what was sent before"
    ATOMIC = "recording a state and sending the markers is one step"
    WHOLE = "a snapshot is published whole, or abandoned with the names of the missing"
    UNCHANGED = "a snapshot changes nothing: without it the processes do the same"
    EPOCHS = "after a restore the epoch is higher, and nothing of an older one is accepted"
    RESTORED = (
        "a restore goes back to the last restore point, and what was on its channels is first"
    )
    ORDERED_WORLD = "the recording rules find nothing wrong with a channel that keeps order"
    TAKEN = "each thing that is let happen does what it says, once, and nothing else"
    ARRIVED = "in the end every message that was sent is accepted"
    POINTS = "the restore point is the last snapshot that was begun after the one before was whole"
    TIMES = "a snapshot says rightly when and in which epoch it was taken"
    REASON = "a snapshot is given up for a reason that is there, and not before its deadline"
    HEARD = "who has heard that a snapshot is over does not record it any more"
    TOLD = "every process is told of every restore point once, in their order, and of nothing else"
    CAUSED = "a snapshot that shows what was told of another one has that one's cut behind it"
    LIVE = "when nothing goes wrong any more, a snapshot is published"


class Violation(msgspec.Struct, frozen=True):
    """A promise that was not kept, and how that shows."""

    promise: Promise
    detail: str

    def __str__(self) -> str:
        return f"not kept: {self.promise.value}\n  {self.detail}"
