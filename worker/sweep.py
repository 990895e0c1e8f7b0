"""Looks for jobs whose place in the queue was deleted beneath them, a few at a time, so that they wait again."""

from __future__ import annotations

import asyncio
import logging

from queueing.protocol import Queue
from worker.link import Link, LinkDown

log = logging.getLogger("decibatch.sweep")

PAUSE_S = 1.0
HURRY_S = 0.02
"""Between two looks while a loss is suspected."""


class Sweeper:
    """Shares the work with all workers of the queue: the server knows how far they have come together."""

    def __init__(self, link: Link, queue: Queue) -> None:
        self._link = link
        self._call = queue.sweep(pause_ms=int(PAUSE_S * 1000))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._link.wait_up()
            more = await self._look()
            await asyncio.sleep(HURRY_S if more else PAUSE_S)

    async def _look(self) -> bool:
        """Look once. True where it is worth looking again soon."""
        try:
            swept = await self._link.run(self._call)
        except LinkDown:
            return False
        for job_id in swept.requeued:
            log.error("redis lost the place of a job; it waits again", extra={"job": job_id})
        return swept.more
