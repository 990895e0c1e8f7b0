"""Progress and partial text on their way to Redis: gathered for a moment, sent together, never waited for."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from queueing.protocol import Delivery, Queue
from worker.link import Link, LinkDown

log = logging.getLogger("decibatch.events")

FLUSH_S = 0.05
MAX_PENDING = 2048


class Outbox:
    """Events are a courtesy: while Redis is away they are dropped, and so is what is over the bound."""

    def __init__(self, link: Link, queue: Queue) -> None:
        self._link = link
        self._queue = queue
        self._pending: list[tuple[Delivery, str, dict[str, Any]]] = []
        self._some = asyncio.Event()
        self.dropped = 0

    def put(self, delivery: Delivery, kind: str, data: dict[str, Any]) -> None:
        """Queue an event. Of several partial texts of one chunk only the last is sent."""
        if kind == "partial":
            self._pending = [
                item
                for item in self._pending
                if not (item[0] is delivery and item[1] == kind and item[2].get("chunk") == data.get("chunk"))
            ]
        if len(self._pending) >= MAX_PENDING:
            self.dropped += 1
            return
        self._pending.append((delivery, kind, data))
        self._some.set()

    def withdraw(self, delivery: Delivery) -> None:
        """Forget what has not been sent of an attempt that ends: the server would refuse it, and its end says more."""
        self._pending = [item for item in self._pending if item[0] is not delivery]

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(FLUSH_S)
            self._some.clear()
            batch, self._pending = self._pending, []
            if not batch:
                continue
            try:
                await self._link.run(self._queue.events(batch))
            except LinkDown:
                self.dropped += len(batch)
                await self._link.wait_up()
