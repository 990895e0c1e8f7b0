"""Leases: renewed while the work goes on, given up when it does not, taken over when they lapse."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from queueing.protocol import Queue, StreamName, Taken
from worker.config import LeaseConfig
from worker.held import HeldJob, Ledger
from worker.identity import Identity
from worker.link import Link, LinkDown

log = logging.getLogger("decibatch.lease")


class Leases:
    """Renews what is held and reclaims what others have let lapse."""

    def __init__(
        self,
        link: Link,
        queue: Queue,
        identity: Identity,
        ledger: Ledger,
        config: LeaseConfig,
        *,
        wire: int,
        progressing: Callable[[], bool],
        on_lost: Callable[[HeldJob, str], None],
        on_taken: Callable[[Taken], None],
        streams: Callable[[], list[StreamName]],
        credits_left: Callable[[], int],
    ) -> None:
        self._link = link
        self._queue = queue
        self._me = identity
        self._ledger = ledger
        self._config = config
        self._wire = wire
        self._progressing = progressing
        self._on_lost = on_lost
        self._on_taken = on_taken
        self._streams = streams
        self._credits_left = credits_left
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """A deadline has passed: renew now, which ends the job."""
        self._poked.set()

    async def run(self) -> None:
        """Renew and reclaim until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), self._config.renew_s)
            self._poked.clear()
            await self._link.wait_up()
            try:
                await self.renew()
                await self.reclaim()
            except LinkDown:
                continue

    async def renew(self) -> None:
        """Renew every lease, unless the engine hangs: then let them lapse, so that others can go on."""
        held = list(self._ledger)
        if not held or not self._progressing():
            return
        asked = [one.delivery for one in held]
        words = await self._link.run(self._queue.renew(self._me.consumer, asked))
        for one, delivery, word in zip(held, asked, words, strict=True):
            # A newer attempt of the same job may have come into our hands meanwhile: nothing was said about that.
            if word != "ok" and one.delivery is delivery:
                if word == "gone":
                    log.error("redis lost a job in our hands", extra={"job": delivery.job_id})
                self._on_lost(one, word)

    async def resume(self) -> None:
        """Take up what is pending for us and not in our hands: our last life's, or of a reply that was lost."""
        taken = await self._link.run(
            self._queue.resume(
                self._me.consumer, self._me.owner, self._ledger.entries, self._streams(), wire=self._wire
            )
        )
        self._on_taken(taken)

    async def reclaim(self) -> None:
        """Take over lapsed deliveries, as far as there are credits.

        Not before the line has been up for one lease: during an outage every lease lapses, also those of
        workers that are only waiting for the same server and will renew as soon as it is back.
        """
        credits_left = self._credits_left()
        if credits_left < 1 or time.monotonic() - self._link.up_since < self._config.lease_s:
            return
        taken = await self._link.run(
            self._queue.reclaim(
                self._me.consumer,
                self._me.owner,
                credits_left,
                int(self._config.lease_s * 1000),
                self._ledger.entries,
                self._streams(),
                wire=self._wire,
            )
        )
        self._on_taken(taken)
