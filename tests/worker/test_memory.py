"""Memory in a real worker, with the stand-in engine: what it does when memory is short, and what it says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from engine.fake import FakeConfig
from ops.bench.memory import record
from queueing.client import Client
from queueing.errors import JobFailed
from queueing.keys import Keys
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess
from tests.worker.conftest import StartWorker

MIB = 2**20
KEYS = Keys("main")
MODEL = "tiny.en"


def events(server: redis.Redis, what: str | None = None) -> list[dict[str, Any]]:
    said = [json.loads(fields[b"event"]) for _, fields in server.xrange(KEYS.memory)]
    return [event for event in said if what in (None, event["what"])]


def all_done(client: Client, clip: Path, count: int) -> list[int]:
    """Bits at which each of so many jobs ran."""
    jobs = client.submit_many([clip] * count)
    return [client.result(job, timeout=90).bits for job in jobs]


def bits(worker: WorkerProcess) -> Any:
    return worker.health().get("memory", {}).get("bits", {}).get(MODEL)


def test_a_model_that_leaves_no_room_is_quantized_at_load(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """Weights at three quarters of the budget go to 8 bits before work is crawled through; results say so."""
    fake = FakeConfig(base_bytes=60 * MIB, row_bytes=4 * MIB)
    worker = start_worker(fake=fake, memory_budget_mb=80)
    wait_until(lambda: bits(worker) == 8, "8 bits")
    assert set(all_done(client, clip, 8)) == {8}
    (moved,) = events(queue_redis, "requantized")
    assert (moved["bits_before"], moved["bits"], moved["canary"]["words_changed"]) == (32, 8, 0)
    assert moved["freed"] > 30 * MIB


def test_a_change_that_fails_is_made_by_a_restart(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """Where weights cannot be changed in place the engine ends and comes back with fewer bits; no job is lost."""
    fake = FakeConfig(base_bytes=60 * MIB, row_bytes=4 * MIB, fails_requantize=True)
    worker = start_worker(fake=fake, memory_budget_mb=80)
    wait_until(lambda: bits(worker) == 8, "8 bits")
    assert set(all_done(client, clip, 8)) == {8}
    assert [event["code"] for event in events(queue_redis, "requantize_failed")] == ["failed"]
    assert worker.health()["engine"]["restarts"] == 1


def test_a_budget_that_is_too_small_is_said(start_worker: StartWorker, queue_redis: redis.Redis) -> None:
    """Where the weights do not fit at the fewest bits the worker is not ready, and says why."""
    fake = FakeConfig(base_bytes=300 * MIB)
    worker = start_worker(fake=fake, memory_budget_mb=100)
    wait_until(lambda: "budget_too_small" in worker.health().get("reasons", []), "a reason")
    assert bits(worker) == 8
    assert events(queue_redis, "budget_too_small")


def test_a_leak_ends_in_a_planned_restart(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """Growth that no work explains is told, then the engine is renewed between batches: every job in one attempt."""
    fake = FakeConfig(base_bytes=60 * MIB, leak_bytes=MIB)
    worker = start_worker(
        fake=fake, memory_budget_mb=4000, leak_window_jobs=8, leak_report_mb=8, leak_restart_mb=24
    )
    all_done(client, clip, 48)
    assert events(queue_redis, "leak")
    wait_until(lambda: worker.health().get("engine", {}).get("restarts", 0) >= 1, "a restart")
    health = worker.health()["engine"]
    assert health["failures"] == 0
    assert events(queue_redis, "restart")


def test_a_chunk_that_can_never_fit_fails(start_worker: StartWorker, client: Client, clip: Path) -> None:
    """Once it is known what a row needs, one that is over the whole budget fails with a reason, and does not wait."""
    start_worker(fake=FakeConfig(base_bytes=20 * MIB, row_bytes=200 * MIB), memory_budget_mb=100).wait_ready()

    def refused() -> bool:
        try:
            client.result(client.submit(clip), timeout=60)
        except JobFailed as exc:
            assert exc.error.code == "memory_too_small"
            assert "the budget is 100 MiB" in exc.error.message
            return True
        return False

    wait_until(refused, "a refusal")


def test_bits_that_no_model_has_are_refused(start_worker: StartWorker, client: Client, clip: Path) -> None:
    """A job may ask for as many bits as the model has, and a result tells at how many it ran."""
    start_worker(fake=FakeConfig()).wait_ready()
    result = client.result(client.submit(clip, min_bits=16), timeout=60)
    assert result.bits == 32


def test_decisions_are_events(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """Limits, loads and every change of level stand in the stream with their reasons, and the latest in health."""
    hungry = FakeConfig(step_s=0.2, base_bytes=40 * MIB, row_bytes=15 * MIB, cache_fraction=0.0)
    worker = start_worker(fake=hungry, memory_budget_mb=110, batch_audio_s=1000).wait_ready()
    all_done(client, clip, 12)
    wait_until(lambda: events(queue_redis, "level"), "levels")
    assert [event["what"] for event in events(queue_redis)[:2]] == ["limits", "loaded"]
    level = events(queue_redis, "level")[0]
    assert (level["before"], level["after"] != "open") == ("open", True)
    assert "of the budget, at or above the" in level["reason"]
    assert worker.health()["memory"]["events"]


def test_where_memory_is_short_what_has_not_begun_comes_back(
    start_worker: StartWorker, client: Client, clip: Path, tmp_path: Path
) -> None:
    """Rows that wait inside the engine leave it again, before their turn would carry memory far over the line."""
    log = tmp_path / "memory.jsonl"
    hungry = FakeConfig(
        step_s=0.2,
        decode_steps=5,
        encode_rows=1,
        base_bytes=40 * MIB,
        row_bytes=15 * MIB,
        cache_fraction=0.0,
    )
    # The prior expects far less of a row: sixteen are sent at once, and would come to 280 MiB.
    worker = start_worker(
        fake=hungry, memory_budget_mb=110, memory_min_bits=0, batch_audio_s=1000, memory_log=log
    ).wait_ready()
    assert set(all_done(client, clip, 16)) == {32}
    worker.terminate()
    told = record.read(log)
    assert max(event["rows"] for event in told.of("sample")) == 16
    assert record.greatest(told) <= 170 * MIB
    assert len(told.of("limits")) == 1


@pytest.mark.parametrize("gib", [10.7, 51.0, 164.0], ids=["16 GB", "64 GB", "192 GB"])
def test_simulated_macs_govern_themselves(
    start_worker: StartWorker, client: Client, clip: Path, gib: float
) -> None:
    """With large-v3 in half precision and rows as it has them, every size of Mac gets through without a line crossed.

    The working set of 16 and 64 GB is Metal's own; that of 192 GB lies between the known ones of 128 and 256.
    """
    device = FakeConfig(
        base_bytes=3100 * MIB,
        row_bytes=60 * MIB,
        second_bytes=8 * MIB,
        encode_row_bytes=250 * MIB,
        memory_total=int(gib * 2**30),
        delayed_error=True,
    )
    worker = start_worker(fake=device).wait_ready()
    assert worker.health()["memory"]["budget"] == int(gib * 2**30 * 0.75) or gib == 0
    assert set(all_done(client, clip, 24)) == {32}
    assert worker.health()["engine"]["restarts"] == 0


def test_metals_delayed_error_loses_nothing(start_worker: StartWorker, client: Client, clip: Path) -> None:
    """A device that gives zeros and throws a step later ends the engine; the jobs run again, smaller, and are done."""
    device = FakeConfig(
        base_bytes=60 * MIB,
        row_bytes=30 * MIB,
        step_s=0.1,
        memory_total=130 * MIB,
        delayed_error=True,
        cache_fraction=0.0,
    )
    # A budget over what the device has: the governor is told wrong, so that the device itself must fail.
    worker = start_worker(fake=device, memory_budget_mb=4000).wait_ready()
    jobs = client.submit_many([clip] * 12)
    for job in jobs:
        assert client.result(job, timeout=120).text
    assert worker.health()["engine"]["restarts"] >= 1
