"""The worker's line to a real server, through a line that can be made to fail."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

import worker.link
from ops.bench.faults.proxy import Handle, Switchboard
from queueing.keys import Keys
from queueing.protocol import Queue
from queueing.scripts import Call, arun_all
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until
from worker.config import LeaseConfig
from worker.control import ControlReader
from worker.daemon import cancel_all
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


def test_calls_of_one_moment_share_a_round_trip(line: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many calls asked together each gets its own answer, in few round trips of bounded length."""
    trips: list[int] = []

    async def counted(redis: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        trips.append(len(calls))
        return await arun_all(redis, calls)

    monkeypatch.setattr(worker.link, "arun_all", counted)

    async def work(link: Link) -> None:
        names = [f"consumer-{number}" for number in range(100)]
        calls = [link.run_together(QUEUE.adopt(name, name, 60_000)) for name in names]
        assert await asyncio.gather(*calls) == [(1, "")] * 100
        again = [link.run_together(QUEUE.adopt(name, "another", 60_000)) for name in names]
        assert await asyncio.gather(*again) == [(0, name) for name in names]
        assert trips == [64, 36] * 2

    with_link(line, work, LONG_S)


def test_scripts_that_were_forgotten_are_sent_again(line: Handle) -> None:
    """Calls that share a round trip are answered by a server that has just lost its scripts."""

    async def work(link: Link) -> None:
        await link.redis.script_flush()
        assert await asyncio.gather(*(link.run_together(PING) for _ in range(5))) == [None] * 5

    with_link(line, work, LONG_S)


def test_a_call_that_fails_fails_alone(line: Handle) -> None:
    """An answer that cannot be read, of one call among several, spoils that call and no other."""

    async def work(link: Link) -> None:
        def unreadable(reply: object) -> None:
            raise ValueError("unreadable")

        bad = dataclasses.replace(PING, parse=unreadable)
        first, second, third = await asyncio.gather(
            *(link.run_together(call) for call in (PING, bad, PING)), return_exceptions=True
        )
        assert (first, third) == (None, None)
        assert isinstance(second, ValueError)
        assert link.up

    with_link(line, work, LONG_S)


def test_together_insists_until_the_server_is_back(line: Handle, redis_server: RedisServer) -> None:
    """Calls that were under way together when the server went away are all answered once it is back."""

    async def work(link: Link) -> None:
        await at_once(link, 1)
        redis_server.kill()
        callers = [asyncio.create_task(link.insist(PING, together=True)) for _ in range(20)]
        await asyncio.to_thread(redis_server.start)
        assert await asyncio.gather(*callers) == [None] * 20

    with_link(line, work, LONG_S)


def test_large_calls_go_alone(line: Handle) -> None:
    """What waits together is bounded in size too: large outcomes are sent one after the other, small ones together."""

    async def work(link: Link) -> None:
        sizes = (10, 600_000, 600_000, 10, 2_000_000, 10)
        calls = [dataclasses.replace(PING, args=("x" * size,)) for size in sizes]
        future = asyncio.get_running_loop().create_future()
        link._gathered.extend((call, future, 0) for call in calls)
        batches = []
        while link._gathered:
            batches.append([call.size for call, _, _ in link._next_batch()])
        assert batches == [[10, 600_000], [600_000, 10], [2_000_000], [10]]

    with_link(line, work, LONG_S)


def test_an_old_lines_end_is_no_outage(line: Handle, redis_server: RedisServer) -> None:
    """The reader of wake-ups whose connection dates from before the last return fails without marking the line down."""

    def readers() -> list[str]:
        with redis_server.connect() as client:
            return [one["id"] for one in client.client_list() if one["cmd"] == "xread"]

    async def changed(before: list[str]) -> list[str]:
        def other() -> list[str]:
            now = readers()
            return [] if now == before else now

        found: list[str] = await asyncio.to_thread(wait_until, other, "another connection")
        return found

    async def work(link: Link) -> None:
        url = f"redis://127.0.0.1:{line.port}/0"
        control = ControlReader(url, QUEUE.keys, link, on_wake=lambda: None, on_cancel=lambda job_id: None)
        reading = asyncio.create_task(control.run())
        try:
            old = await changed([])
            link.mark_down(ConnectionError("found by a command"))
            await link.wait_up()
            outages = link.outages
            with redis_server.connect() as client:
                client.client_kill_filter(_id=old[0])
            new = await changed(old)
            assert (link.outages, link.up) == (outages, True)
            with redis_server.connect() as client:
                client.client_kill_filter(_id=new[0])
            await asyncio.to_thread(wait_until, lambda: link.outages > outages, "an outage of the new line")
        finally:
            await cancel_all([reading])
            await control.close()

    with_link(line, work, timeout_s=LONG_S)
