"""The same measurement for everybody. Runs in the peers' environments too: imports nothing of ours.

A side is a program of its own with two coroutines, ``enqueue(paths)`` and ``read(handles)``. It says on
standard output, as one JSON object, how long it took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

READERS = 16
"""Results that are waited for at the same time."""

Enqueue = Callable[[list[str]], Awaitable[Sequence[Any]]]
Read = Callable[[Any], Awaitable[Any]]


async def measure(enqueue: Enqueue, read: Read, jobs: int, idle: int) -> None:
    """Warm up, enqueue so many jobs and read every result, then so many one at a time; print the times.

    Raises what ``enqueue`` and ``read`` raise, and ValueError for an answer that is not the right one.
    """
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


async def _read_all(handles: Sequence[Any], read: Read) -> list[Any]:
    answers: list[Any] = [None] * len(handles)
    left = iter(range(len(handles)))

    async def reader() -> None:
        for index in left:
            answers[index] = await read(handles[index])

    await asyncio.gather(*(reader() for _ in range(READERS)))
    return answers
