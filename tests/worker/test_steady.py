"""What a worker keeps of the jobs that it has done."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from statistics import linear_regression

import pytest

import worker.daemon
import worker.stats
from engine.config import EngineConfig
from engine.fake import FakeConfig
from ops.bench.overhead.stand_in_worker import StandInMedia
from queueing.client import AsyncClient
from queueing.flows import Submission
from worker.config import EngineSettings, WatchConfig, WorkerConfig
from worker.daemon import Daemon

ROUND, ROUNDS = 200, 6
FORGOTTEN = 1.3
"""Objects a job: the name and the number of one entry that stays in a table are two, and as many as 0.6 are noise."""


async def _let_go_of_timers() -> None:
    """The loop keeps cancelled timers until more than half of all are: time-outs of some hundred jobs."""
    loop = asyncio.get_running_loop()
    for _ in range(1000):
        loop.call_later(60.0, int).cancel()
    await asyncio.sleep(0)


async def _used_after_rounds(daemon: Daemon, url: str, count: int) -> list[int]:
    """Python's objects after each round of jobs, in the worker and in a client beside it."""
    running = asyncio.create_task(daemon.run())
    used = []
    async with AsyncClient(url, model="m") as client:
        for _ in range(count):
            handles = await client.submit_many([Submission(input="/a.wav")] * ROUND)
            await asyncio.gather(*(client.result(str(handle), timeout=60) for handle in handles))
            await _let_go_of_timers()
            gc.collect()
            used.append(sys.getallocatedblocks())
    daemon.request_stop()
    assert await running == 0
    return used


def test_a_worker_forgets_its_jobs(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its records of the last minutes are full, worker and client hold no more objects after more jobs."""
    monkeypatch.setattr(worker.daemon, "MediaSupervisor", StandInMedia)
    # Records that are bounded, but by more jobs than a test has time for.
    monkeypatch.setattr(worker.stats, "MAX_JOBS", 16)
    for name, value in FakeConfig(decode_steps=1).environment().items():
        monkeypatch.setenv(name, value)
    command = (sys.executable, "-m", "engine.fake")
    engine = EngineSettings(serve=("m",), process=EngineConfig(aliases={"m": "fake"}), command=command)
    config = WorkerConfig(
        redis_url=redis_url,
        queue="main",
        name="w",
        spool_dir=tmp_path,
        engine=engine,
        watch=WatchConfig(canary=False, keep_awake=False),
    )
    used = asyncio.run(_used_after_rounds(Daemon(config), redis_url, ROUNDS))
    # The first rounds fill records and pools.
    slope = linear_regression(range(2, ROUNDS), used[2:]).slope
    assert slope / ROUND < FORGOTTEN, used
