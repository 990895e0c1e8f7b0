"""Takes deliveries, as many as there are credits for and not one more: the rest waits in Redis for anybody."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable

from queueing.protocol import Queue, StreamName, Taken
from worker.identity import Identity
from worker.link import Link, LinkDown

log = logging.getLogger("decibatch.intake")

POLL_S = 1.0
"""Look again after so long, whatever was or was not said."""
GAP_S = 0.004
"""Between two looks while there is plenty to do: credits that come back one by one are spent together."""


class Intake:
    def __init__(
        self,
        link: Link,
        queue: Queue,
        identity: Identity,
        *,
        wire: int,
        credits_left: Callable[[], int],
        streams: Callable[[], list[StreamName]],
        on_taken: Callable[[Taken], None],
        plenty: Callable[[], bool] = lambda: False,
    ) -> None:
        self._link = link
        self._queue = queue
        self._me = identity
        self._wire = wire
        self._credits_left = credits_left
        self._streams = streams
        self._on_taken = on_taken
        self._plenty = plenty
        self._looked_at = -math.inf
        self._poked = asyncio.Event()
        self._hungry = True
        """Whether there may be work that was left for want of credits."""

    def poke(self) -> None:
        """There may be work, or there are credits again."""
        self._poked.set()

    def credits_back(self) -> None:
        """There are credits again: worth a look only where the last one ended for want of them.

        One that found less than it asked for has emptied the streams, and whoever fills an empty stream says so.
        """
        if self._hungry:
            self._poked.set()

    async def run(self) -> None:
        """Take until cancelled."""
        while True:
            await self._link.wait_up()
            if self._plenty():
                await asyncio.sleep(self._looked_at + GAP_S - time.monotonic())
            # Cleared before looking: what is said while we look makes us look again.
            self._poked.clear()
            if not await self._take():
                # Not wait_for: below Python 3.12 it wraps what it waits for in a task of its own.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._poked.wait()

    async def _take(self) -> bool:
        """Take once. True where it is worth looking again at once."""
        credits_left, streams = self._credits_left(), self._streams()
        self._hungry = True
        if credits_left < 1 or not streams:
            return False
        self._looked_at = time.monotonic()
        call = self._queue.take(self._me.consumer, self._me.owner, credits_left, streams, wire=self._wire)
        try:
            taken = await self._link.run(call)
        except LinkDown:
            return False
        self._on_taken(taken)
        self._hungry = len(taken.deliveries) == credits_left
        return self._hungry
