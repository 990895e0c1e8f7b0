"""The real engine under the real daemon: jobs share its batches, and memory governs their size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from ops.bench.memory import record
from queueing.client import Client
from queueing.keys import GROUP, Keys
from tests.support.worker_process import WorkerProcess, speech, write_wav

KEYS = Keys("main")


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as client:
        yield client


def clips(folder: Path, count: int, seconds: float) -> list[Path]:
    return [write_wav(folder / f"clip{n}.wav", speech(seconds, 1.5 + n)) for n in range(count)]


def test_one_encoder_call_and_one_decoder_step_hold_several_jobs(
    redis_url: str, client: Client, tmp_path: Path
) -> None:
    """Of eight clips submitted together, at least four are rows of one encoder call, and of one decoder step."""
    worker = WorkerProcess(redis_url, tmp_path)
    try:
        worker.wait_ready()
        for job in client.submit_many(clips(tmp_path, 8, 4.0)):
            assert client.result(job, timeout=120).text
        for kind in ("encode", "decode"):
            shared = max(len(set(step["jobs"])) for step in worker.steps() if step["kind"] == kind)
            assert shared >= 4, f"at most {shared} jobs shared a {kind} step"
    finally:
        worker.close()


def rows_of_batches(worker: WorkerProcess) -> list[int]:
    """Rows of each batch, in the order in which they ran."""
    rows: dict[int, int] = {}
    for step in worker.steps():
        if step["kind"] == "decode":
            rows[step["batch"]] = max(rows.get(step["batch"], 0), len(step["rows"]))
    return list(rows.values())


@pytest.mark.timeout(420)
def test_a_tight_budget_cuts_batches_and_leaves_work_in_redis(
    redis_url: str, client: Client, tmp_path: Path, queue_redis: redis.Redis
) -> None:
    """Where a full batch needs more than the budget, work waits in Redis, batches are cut, and memory stays under."""
    credits, log = 12, tmp_path / "memory.jsonl"
    # At full precision throughout: at 8 bits a dozen rows would fit.
    worker = WorkerProcess(
        redis_url,
        tmp_path,
        memory_budget_mb=420,
        memory_min_bits=0,
        batch_audio_s=1000,
        credits=credits,
        memory_log=log,
    )
    try:
        worker.wait_ready()
        # Long enough that the attention to the audio of a dozen rows takes more than the weights leave of the budget.
        jobs = client.submit_many(clips(tmp_path, 12, 22.0) * 2)
        seen = []
        for job in jobs:
            assert client.result(job, timeout=300).text
            seen.append(pending(queue_redis))
        assert max(seen) <= credits
    finally:
        worker.close()
    assert max(rows_of_batches(worker)) < 12
    told = record.read(log)
    assert record.greatest(told) <= 1.05 * told.budget


def pending(server: redis.Redis) -> int:
    return int(server.xpending(KEYS.stream("tiny.en", "normal"), GROUP)["pending"])
