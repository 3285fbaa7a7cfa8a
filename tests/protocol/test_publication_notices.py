"""When a publication may be announced: not while an older snapshot could still show it."""

from stillframe.model import SnapshotId
from stillframe.protocol.policy import PublicationNotices

A, B, C, D = (SnapshotId("P1", number) for number in range(1, 5))


def test_what_nothing_overlaps_is_announced_at_once() -> None:
    """Without a snapshot under way there is nothing to wait for."""
    announcements = PublicationNotices()
    assert announcements.published(A, ()) == [A]
    assert announcements.published(B, ()) == [B]


def test_an_announcement_waits_for_what_was_under_way() -> None:
    """Until all of it has ended, and for nothing that begins later."""
    announcements = PublicationNotices()
    assert announcements.published(C, (A, B)) == []
    assert announcements.ended(A) == []
    assert announcements.ended(D) == []
    assert announcements.ended(B) == [C]
    assert announcements.ended(B) == []


def test_announcements_keep_the_order_of_publishing() -> None:
    """A later one does not overtake one that waits."""
    announcements = PublicationNotices()
    assert announcements.published(B, (A,)) == []
    assert announcements.published(C, ()) == []
    assert announcements.ended(A) == [B, C]
