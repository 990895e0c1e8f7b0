"""The worker's line to Redis: one place where its absence is noticed, waited out and reported."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.exceptions import RedisError

from queueing.connect import connect_async
from queueing.scripts import Call, arun, arun_all

T = TypeVar("T")
log = logging.getLogger("decibatch.link")

BACKOFF_FIRST_S = 0.05
BACKOFF_CAP_S = 5.0
TOGETHER = 64
"""Calls in one round trip at most, so that no other client of the server waits long behind them."""
TOGETHER_SIZE = 1 << 20
"""Characters of all calls in one round trip; one that is larger goes alone."""
FLAP_S = 2.0
"""A line that broke again within so many seconds was not really up."""


Asked = tuple[Call[Any], asyncio.Future[Any], int]
"""A call, who waits for it, and the number of the return after which it was asked."""


class LinkDown(Exception):
    """Redis did not answer, or not as a server in service would (LOADING, READONLY, OOM, ...).

    What was sent may have been carried out or not.
    """


class Link:
    """Runs calls; after a failure, tries again with growing pauses until the server is back.

    ``on_return`` runs on every return, before anybody who waits is let go: leases are renewed and
    our own pending deliveries are read before anything else happens.
    """

    def __init__(
        self, url: str, *, pause_cap_s: float = BACKOFF_CAP_S, rng: random.Random | None = None
    ) -> None:
        self.redis = connect_async(url)
        self._pause_cap_s = min(BACKOFF_CAP_S, pause_cap_s)
        self.on_return: Callable[[], Awaitable[None]] | None = None
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._down.set()
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._pause = BACKOFF_FIRST_S
        self._noticed = False
        self._returns = 0
        self.up_since = -math.inf
        """Monotonic seconds of the last return."""
        self.outages = 0
        self.last_error = ""
        self._gathered: deque[Asked] = deque()
        self._sending: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        return self._up.is_set()

    async def wait_up(self) -> None:
        await self._up.wait()

    async def run(self, call: Call[T]) -> T:
        """Run a call. Raises LinkDown where Redis did not answer it as it should."""
        returns = self._returns
        try:
            return await arun(self.redis, call)
        except (RedisError, OSError) as exc:
            # What was sent before the last return died with the old line, and says nothing about the new one.
            if returns == self._returns:
                self.mark_down(exc)
            raise LinkDown(self.last_error) from exc

    async def run_together(self, call: Call[T]) -> T:
        """As :meth:`run`, but what is asked in the same moment, or while others are under way, shares a round trip.

        A call that fails fails alone. Who gives up waiting takes nothing back: the call may be carried out.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._gathered.append((call, future, self._returns))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_gathered(), name="link-together")
        return await future

    async def _send_gathered(self) -> None:
        """Until nothing is left. Cancelled, it cancels those who wait."""
        while self._gathered:
            batch = self._next_batch()
            answers: list[Any]
            try:
                if len(batch) == 1:
                    answers = [await arun(self.redis, batch[0][0])]
                else:
                    answers = await arun_all(self.redis, [call for call, _, _ in batch])
            except Exception as exc:
                answers = [exc] * len(batch)
            except BaseException:
                for _, future, _ in (*batch, *self._gathered):
                    future.cancel()
                self._gathered.clear()
                raise
            for (_, future, returns), answer in zip(batch, answers, strict=True):
                self._hand_over(future, returns, answer)

    def _next_batch(self) -> list[Asked]:
        batch = [self._gathered.popleft()]
        size = batch[0][0].size
        while self._gathered and len(batch) < TOGETHER:
            size += self._gathered[0][0].size
            if size > TOGETHER_SIZE:
                break
            batch.append(self._gathered.popleft())
        return batch

    def _hand_over(self, future: asyncio.Future[Any], returns: int, answer: Any) -> None:
        failed = isinstance(answer, RedisError | OSError)
        if failed and returns == self._returns:
            self.mark_down(answer)
        if future.done():
            return
        if failed:
            error = LinkDown(self.last_error)
            error.__cause__ = answer
            future.set_exception(error)
        elif isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    async def insist(self, call: Call[T], *, together: bool = False) -> T:
        """Run a call until it has been answered. For what may safely run twice.

        :param together: many are expected at once, and may share round trips.
        """
        run = self.run_together if together else self.run
        while True:
            await self.wait_up()
            try:
                return await run(call)
            except LinkDown:
                await asyncio.sleep(0)

    def mark_down(self, exc: BaseException) -> None:
        """The server is away, as a call of ours found, or somebody else on a connection of their own."""
        # The class and the server's own words; never the URL, which may hold a password.
        self.last_error = f"{type(exc).__name__}: {str(exc)[:200]}"
        if self._up.is_set() or not self._noticed:
            self._noticed = True
            self.outages += 1
            log.warning("redis is away", extra={"error": self.last_error})
        self._up.clear()
        self._down.set()

    async def keep(self) -> None:
        """Bring the line back whenever it is down. Runs until cancelled."""
        while True:
            await self._down.wait()
            await self._reconnect()

    async def _reconnect(self) -> None:
        # A server that answers PING but refuses the commands is not back: pauses go on growing over such returns.
        flapped = time.monotonic() - self.up_since < FLAP_S
        pause = self._pause if flapped else BACKOFF_FIRST_S
        flap_pause = pause
        if flapped:
            await asyncio.sleep(pause)
        await self._drop_connections()
        while True:
            # Cleared first: a failure during the return sets it again.
            self._down.clear()
            try:
                await self.redis.ping()
                if self.on_return is not None:
                    await self.on_return()
            except (RedisError, OSError, LinkDown) as exc:
                self.mark_down(exc)
            if not self._down.is_set():
                break
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(self._pause_cap_s, pause * 2)
        # Of returns that did not last, not of the outage: a server that was away for long and is back is back.
        self._pause = min(self._pause_cap_s, flap_pause * 2)
        self.up_since = time.monotonic()
        self._returns += 1
        self._up.set()
        self._noticed = False
        log.info("redis is there", extra={"outages": self.outages})

    async def _drop_connections(self) -> None:
        """Trust none of those that lie idle: each that the server has closed, or that is dead without a word, would
        fail once more after the return. Those in use are left to their users, who may be in the middle of a write."""
        with contextlib.suppress(RedisError, OSError):
            await self.redis.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await self.redis.aclose()
