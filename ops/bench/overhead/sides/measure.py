"""The same measurement for everybody. Runs in the peers' environments too: imports nothing of ours.

A side is a program of its own with two coroutines, ``enqueue(paths)`` and ``read(handles)``. It says on
standard output, as one JSON object, how long it took.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

URL_VARIABLE = "OVERHEAD_URL"
"""The server, in the environment: an argument could be read by everybody on the machine."""

READERS = 16
"""Results that are waited for at the same time."""

Enqueue = Callable[[list[str]], Awaitable[Sequence[Any]]]
Read = Callable[[Any], Awaitable[Any]]


def server_url() -> str:
    """Where the server is. Raises KeyError where nobody has said."""
    return os.environ[URL_VARIABLE]


async def measure(enqueue: Enqueue, read: Read) -> None:
    """Warm up, enqueue JOBS jobs and read every result, then IDLE one at a time; print the times, seconds.

    JOBS and IDLE are the first two arguments of the program. Raises what ``enqueue`` and ``read`` raise.
    """
    jobs, idle = int(sys.argv[1]), int(sys.argv[2])
    for handle in await enqueue(["/warm/up.wav"] * 20):
        await read(handle)
    began = time.perf_counter()
    handles = await enqueue([f"/audio/{number}.wav" for number in range(jobs)])
    enqueued = time.perf_counter()
    answers = await _read_all(handles, read)
    ended = time.perf_counter()
    latencies = []
    for number in range(idle):
        # A moment of idleness first: a worker that is still busy with the last one is not idle.
        await asyncio.sleep(0.005)
        start = time.perf_counter()
        (handle,) = await enqueue([f"/idle/{number}.wav"])
        await read(handle)
        latencies.append(time.perf_counter() - start)
    told = {
        "answered": sum(answer is not None for answer in answers),
        "seconds": ended - began,
        "enqueue_s": enqueued - began,
        "latencies": latencies,
    }
    sys.stdout.write(json.dumps(told) + "\n")


async def by_sixteen(paths: list[str], one: Callable[[str], Awaitable[Any]]) -> list[Any]:
    """Enqueue with a call for each, sixteen under way: for those that have no call for many."""
    made: list[Any] = []
    for start in range(0, len(paths), 16):
        made += await asyncio.gather(*(one(path) for path in paths[start : start + 16]))
    return made


async def _read_all(handles: Sequence[Any], read: Read) -> list[Any]:
    answers: list[Any] = [None] * len(handles)
    left = iter(range(len(handles)))

    async def reader() -> None:
        for index in left:
            answers[index] = await read(handles[index])

    await asyncio.gather(*(reader() for _ in range(READERS)))
    return answers
