"""A consumer name of one's own: stable over restarts, never shared.

The name is locked by an expiring key whose value says who holds it. A worker that was killed leaves
the lock behind for a while; its next life, on the same machine, sees that the holder is dead, takes
the lock over, and with the name all that was pending for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import uuid
from dataclasses import dataclass

import psutil

from queueing.protocol import Queue
from worker.link import Link

log = logging.getLogger("decibatch.identity")

MAX_NAMES = 64


@dataclass(frozen=True, slots=True)
class Identity:
    consumer: str
    incarnation: int
    value: str
    """Value of the lock."""

    @property
    def owner(self) -> str:
        return f"{self.consumer}#{self.incarnation}"


def host_id() -> str:
    """This machine, as far as process ids mean anything on it."""
    return f"{socket.gethostname()}/{uuid.getnode():x}"


def lock_value() -> str:
    process = psutil.Process()
    return json.dumps(
        {
            "host": host_id(),
            "pid": process.pid,
            "started": process.create_time(),
            "nonce": secrets.token_hex(8),
        },
        sort_keys=True,
    )


def holder_is_dead(value: str) -> bool:
    """True only where the holder was a process of this machine that is certainly gone."""
    try:
        holder = json.loads(value)
        host, pid, started = holder["host"], int(holder["pid"]), float(holder["started"])
    except (ValueError, KeyError, TypeError):
        return False
    if host != host_id():
        return False
    if pid == os.getpid():
        # An earlier life in this very process (tests) has ended before this one asks.
        return True
    try:
        return bool(abs(psutil.Process(pid).create_time() - started) > 1.0)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


async def adopt(link: Link, queue: Queue, name: str, ttl_ms: int) -> Identity:
    """Lock ``name``, or the first of name-2, name-3, ... that no living worker holds."""
    value = lock_value()
    for number in range(1, MAX_NAMES + 1):
        consumer = name if number == 1 else f"{name}-{number}"
        incarnation, holder = await link.insist(queue.adopt(consumer, value, ttl_ms))
        if not incarnation and holder_is_dead(holder):
            incarnation, holder = await link.insist(queue.adopt(consumer, value, ttl_ms, over=holder))
        if incarnation:
            if number > 1:
                log.warning("consumer name was taken", extra={"name": name, "consumer": consumer})
            return Identity(consumer, incarnation, value)
        await asyncio.sleep(0)
    raise RuntimeError(f"{MAX_NAMES} workers named {name!r} are alive already")
