"""The worker's line to a real server, through a line that can be made to fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from ops.bench.faults.proxy import Handle, Switchboard
from queueing.keys import Keys
from queueing.protocol import Queue
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until
from worker.config import LeaseConfig
from worker.link import Link, LinkDown

QUEUE = Queue(Keys("main"))
PING = QUEUE.status("nobody")
LONG_S = 30.0


@pytest.fixture
def line(redis_url: str, redis_server: RedisServer) -> Iterator[Handle]:
    with Switchboard() as board:
        yield board.line(redis_server.socket_path)


def with_link(line: Handle, work: Callable[[Link], Coroutine[Any, Any, None]], timeout_s: float) -> None:
    """Run ``work`` with a link that is up."""

    async def act() -> None:
        link = Link(f"redis://127.0.0.1:{line.port}/0?socket_timeout={timeout_s}")
        keep = asyncio.create_task(link.keep())
        try:
            await asyncio.wait_for(link.wait_up(), LONG_S)
            await asyncio.wait_for(work(link), LONG_S)
        finally:
            keep.cancel()
            await asyncio.gather(keep, return_exceptions=True)
            await link.close()

    asyncio.run(act())


async def at_once(link: Link, count: int) -> list[object]:
    """So many calls at the same time, each on a connection of its own."""
    calls: list[Awaitable[object]] = [link.run(PING) for _ in range(count)]
    return await asyncio.gather(*calls, return_exceptions=True)


def test_one_outage_is_one(line: Handle, redis_server: RedisServer) -> None:
    """Connections that were idle when the server went away do not fail once more after it is back."""

    async def work(link: Link) -> None:
        await at_once(link, 8)
        redis_server.restart()
        await at_once(link, 1)
        await link.wait_up()
        seen = link.outages
        assert await at_once(link, 8) == [None] * 8
        assert link.outages == seen

    with_link(line, work, timeout_s=LONG_S)


def test_a_dead_line_costs_one_time_out(line: Handle) -> None:
    """Where nothing passes and nobody says so, all is well again after the first call that times out."""

    async def work(link: Link) -> None:
        await at_once(link, 8)
        line.go_dead()
        first = asyncio.create_task(link.run(PING))
        with pytest.raises(LinkDown):
            await first
        line.revive(close=True)
        began = time.monotonic()
        await link.wait_up()
        assert await at_once(link, 8) == [None] * 8
        assert time.monotonic() - began < 2 * 0.5

    with_link(line, work, timeout_s=0.5)


def test_a_failure_of_the_old_line_says_nothing_about_the_new_one(line: Handle) -> None:
    """A call sent before the last return fails without making the line look broken again."""

    async def work(link: Link) -> None:
        returned = asyncio.Event()
        late = asyncio.create_task(_fail_late(link, returned))
        await asyncio.sleep(0)
        link.mark_down(ConnectionError("gone"))
        await link.wait_up()
        returned.set()
        with pytest.raises(LinkDown):
            await late
        assert link.up

    with_link(line, work, timeout_s=LONG_S)


async def _fail_late(link: Link, returned: asyncio.Event) -> None:
    """A call whose answer, an error, comes when it is told to."""

    class Late:
        async def evalsha(self, *_: object) -> None:
            await returned.wait()
            raise ConnectionError("of the old line")

    real, link.redis = link.redis, Late()  # type: ignore[assignment]
    call = asyncio.create_task(link.run(PING))
    await asyncio.sleep(0)
    link.redis = real
    await call


def test_a_refusing_server_is_not_asked_in_a_rush(line: Handle) -> None:
    """While scripts are refused and PING is answered, the pauses between two returns grow."""

    async def work(link: Link) -> None:
        line.refuse("READONLY You can't write against a read only replica.")
        caller = asyncio.create_task(link.insist(PING))
        began = time.monotonic()
        await asyncio.to_thread(wait_until, lambda: line.refused >= 5)
        # 0.05 + 0.1 + 0.2 + 0.4 s between five refusals
        assert time.monotonic() - began > 0.5
        line.refuse("")
        assert await caller is None

    with_link(line, work, timeout_s=LONG_S)


@pytest.mark.parametrize("lease_s", [0.3, 1.0, 15.0, 600.0])
def test_a_name_is_kept_between_two_beats(lease_s: float) -> None:
    """Two signs of life fit into the time that the lock on the name lives, whatever the lease."""
    assert LeaseConfig(lease_s=lease_s).beat_s * 2 < lease_s
