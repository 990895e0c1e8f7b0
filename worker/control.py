"""Listens for what Redis tells all workers: there is work again, a job was cancelled.

One connection of its own blocks in XREAD. Nothing depends on a message arriving: takes are tried
every second anyway, and the renewal of a lease says when its job has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from queueing.connect import connect_blocking
from queueing.keys import Keys
from worker.link import Link

log = logging.getLogger("decibatch.control")

BLOCK_S = 5.0


class ControlReader:
    def __init__(
        self,
        url: str,
        keys: Keys,
        link: Link,
        *,
        on_wake: Callable[[], None],
        on_cancel: Callable[[str], None],
    ) -> None:
        self._redis = connect_blocking(url, block_s=BLOCK_S)
        self._keys = keys
        self._link = link
        self._on_wake = on_wake
        self._on_cancel = on_cancel

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self._link.wait_up()
            line = self._link.up_since
            try:
                await self._read()
            except (RedisError, OSError) as exc:
                # What began before the last return died with the old line, and says nothing about the new one.
                if line == self._link.up_since:
                    self._link.mark_down(exc)
                await self._redis.connection_pool.disconnect()

    async def _read(self) -> None:
        last: dict[Any, Any] = {
            name: await self._latest(name) for name in (self._keys.control, self._keys.wake)
        }
        # Whatever was said before this line is covered by one look at everything.
        self._on_wake()
        while True:
            reply = await self._redis.xread(last, block=int(BLOCK_S * 1000))
            for raw_name, entries in _pairs(reply):
                name = raw_name.decode()
                last[name] = entries[-1][0]
                if name == self._keys.wake:
                    self._on_wake()
                    # Who was woken asks for the work first; only then do we listen again.
                    await asyncio.sleep(0)
                    continue
                for _, fields in entries:
                    if b"cancel" in fields:
                        self._on_cancel(fields[b"cancel"].decode())

    async def _latest(self, name: str) -> bytes:
        newest: Any = await self._redis.xrevrange(name, count=1)
        return bytes(newest[0][0]) if newest else b"0-0"

    async def close(self) -> None:
        await self._redis.aclose()


def _pairs(reply: object) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """XREAD's reply as (stream, entries): a list in RESP2, a mapping in RESP3, its values wrapped once more."""
    if not reply:
        return []
    if isinstance(reply, dict):
        return [(name, entries[0]) for name, entries in reply.items()]
    assert isinstance(reply, list)
    return [(item[0], item[1]) for item in reply]
