"""Listeners are told what holds, then what happens; who does not keep up is let go."""

import asyncio

from stillframe.watch.feed import BEHIND_COUNT_MAX, Feed, encoded


def test_a_listener_hears_what_holds_then_the_news_until_the_end() -> None:
    """In the order in which it was said; what holds already is not said again."""

    async def main() -> list[bytes]:
        feed = Feed()
        feed.open()
        feed.hold("system", {"n": 1})
        feed.hold("system", {"n": 2})
        heard = []
        seen = 0

        def seen_one() -> None:
            nonlocal seen
            seen = feed.listener_count

        async def first() -> list[bytes]:
            feed.say("judged", "meanwhile")
            return [encoded("past", [])]

        listening = feed.listen(first, seen_one)
        heard.append(await anext(listening))
        assert seen == 1
        heard.append(await anext(listening))
        feed.hold("system", {"n": 2})
        feed.hold("system", {"n": 3})
        feed.say("judged", "one\ntwo")
        feed.close()
        heard += [event async for event in listening]
        assert feed.listener_count == 0
        return heard

    assert asyncio.run(main()) == [
        b'event: system\ndata: {"n":2}\n\n',
        b"event: past\ndata: []\n\n",
        b'event: judged\ndata: "meanwhile"\n\n',
        b'event: system\ndata: {"n":3}\n\n',
        b'event: judged\ndata: "one\\ntwo"\n\n',
    ]


def test_a_listener_who_does_not_keep_up_is_let_go() -> None:
    """What waits for one is bounded; the others do not notice."""

    async def main() -> None:
        feed = Feed()
        feed.open()

        async def first() -> list[bytes]:
            return [b"x"]

        slow, quick = (feed.listen(first, lambda: None) for _ in range(2))
        assert await anext(slow) == await anext(quick) == b"x"
        for number in range(BEHIND_COUNT_MAX + 1):
            feed.say("n", number)
            assert await anext(quick) == encoded("n", number)
        assert feed.listener_count == 1
        assert [event async for event in slow] == []

    asyncio.run(main())
