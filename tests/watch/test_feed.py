"""Listeners are told what holds, then what happens; who does not keep up is let go."""

import asyncio

from stillframe.watch.feed import BEHIND_COUNT_MAX, Feed, encoded


def test_a_listener_hears_what_holds_then_the_news_until_the_end() -> None:
    """In the order in which it was said; what holds already is not said again."""

    async def main() -> list[bytes]:
        feed = Feed()
        feed.hold("system", {"n": 1})
        feed.hold("system", {"n": 2})
        heard = []
        listening = feed.listen([encoded("past", [])])
        heard.append(await anext(listening))
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
        b'event: system\ndata: {"n":3}\n\n',
        b'event: judged\ndata: "one\\ntwo"\n\n',
    ]


def test_a_listener_who_does_not_keep_up_is_let_go() -> None:
    """What waits for one is bounded; the others do not notice."""

    async def main() -> None:
        feed = Feed()
        slow, quick = feed.listen([b"x"]), feed.listen([b"x"])
        assert await anext(slow) == await anext(quick) == b"x"
        for number in range(BEHIND_COUNT_MAX + 1):
            feed.say("n", number)
            assert await anext(quick) == encoded("n", number)
        assert feed.listener_count == 1
        assert [event async for event in slow] == []

    asyncio.run(main())
