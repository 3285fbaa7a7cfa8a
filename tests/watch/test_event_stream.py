"""Listeners are told what holds, then what happens; who does not keep up is let go."""

import asyncio

from stillframe.watch.target import BACKLOG_COUNT_MAX, EventStream, encode_event


def test_a_listener_hears_what_holds_then_the_news_until_the_end() -> None:
    """In the order in which it was said; what holds already is not said again."""

    async def main() -> list[bytes]:
        stream = EventStream()
        stream.open()
        stream.retain("system", {"n": 1})
        stream.retain("system", {"n": 2})
        heard = []
        seen = 0

        def seen_one() -> None:
            nonlocal seen
            seen = stream.subscriber_count

        async def first() -> list[bytes]:
            stream.publish("judged", "meanwhile")
            return [encode_event("past", [])]

        listening = stream.subscribe(first, seen_one)
        heard.append(await anext(listening))
        assert seen == 1
        heard.append(await anext(listening))
        stream.retain("system", {"n": 2})
        stream.retain("system", {"n": 3})
        stream.publish("judged", "one\ntwo")
        stream.close()
        heard += [event async for event in listening]
        assert stream.subscriber_count == 0
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
        stream = EventStream()
        stream.open()

        async def first() -> list[bytes]:
            return [b"x"]

        slow, quick = (stream.subscribe(first, lambda: None) for _ in range(2))
        assert await anext(slow) == await anext(quick) == b"x"
        for number in range(BACKLOG_COUNT_MAX + 1):
            stream.publish("n", number)
            assert await anext(quick) == encode_event("n", number)
        assert stream.subscriber_count == 1
        assert [event async for event in slow] == []

    asyncio.run(main())
