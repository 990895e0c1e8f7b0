"""A cancellation of whoever uses the asyncio client arrives, whatever lies beneath does with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from queueing.client import AsyncClient
from tests.support.bench import Bench

LONG_S = 30.0


class Swallower:
    """Wraps a coroutine function: says when its work is done, waits to be cancelled, and returns all the same,
    as ``asyncio.wait_for`` did below Python 3.12 where both came in the same moment."""

    def __init__(self, work: Callable[..., Awaitable[Any]]) -> None:
        self._work = work
        self.done = asyncio.Event()
        self.swallowed = 0

    async def __call__(self, *args: Any) -> Any:
        answer: Any = None
        error: BaseException | None = None
        try:
            answer = await self._work(*args)
        except Exception as exc:
            error = exc
        self.done.set()
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            self.swallowed += 1
        if error is not None:
            raise error
        return answer


def test_a_swallowed_cancellation_arrives(
    bench: Bench, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is cancelled while a command ends is cancelled, though redis-py returned the reply."""
    job_id = bench.add()

    async def act() -> None:
        async with AsyncClient(redis_url, poll_s=LONG_S) as client:
            await client.status(job_id)
            swallower = Swallower(client._redis.evalsha)
            monkeypatch.setattr(client._redis, "evalsha", swallower)
            task = asyncio.create_task(client.result(job_id))
            await swallower.done.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, LONG_S)
            assert swallower.swallowed == 1

    asyncio.run(act())


def test_a_swallowed_cancellation_outranks_an_error(
    bench: Bench, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the command failed in that moment, the task is cancelled all the same, and does not try again."""
    job_id = bench.add()

    async def fail(*_: Any) -> Any:
        raise ConnectionResetError

    async def act() -> None:
        async with AsyncClient(redis_url, patience_s=LONG_S) as client:
            swallower = Swallower(fail)
            monkeypatch.setattr(client._redis, "evalsha", swallower)
            task = asyncio.create_task(client.status(job_id))
            await swallower.done.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, LONG_S)

    asyncio.run(act())


def test_a_timeout_around_a_call_stays_a_timeout(bench: Bench, redis_url: str) -> None:
    """asyncio.timeout around a wait raises TimeoutError, and the task goes on and can use the client again."""
    job_id = bench.add()

    async def act() -> None:
        async with AsyncClient(redis_url, poll_s=LONG_S) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.result(job_id)
            assert (await client.status(job_id)).state == "waiting"

    asyncio.run(act())


def test_a_task_that_refused_to_be_cancelled_may_go_on(bench: Bench, redis_url: str) -> None:
    """A cancellation that the user has dealt with before the call does not end the call."""
    job_id = bench.add()

    async def stubborn() -> str:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            async with AsyncClient(redis_url) as client:
                return (await client.status(job_id)).state.value
        return ""

    async def act() -> None:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        task.cancel()
        assert await task == "waiting"

    asyncio.run(act())
