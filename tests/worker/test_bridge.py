"""The bridge from RQ in a real worker, watched with RQ's own tools."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import redis
import rq
from rq.serializers import JSONSerializer

from engine.fake import FakeConfig
from queueing.keys import Keys
from tests.support.waiting import wait_until
from tests.worker.conftest import StartWorker

KEYS = Keys("main")


def rq_info(url: str) -> str:
    """What ``rq info`` prints."""
    command = [str(Path(sys.executable).with_name("rq")), "info", "-u", url, "--raw"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "NO_COLOR": "1"}
    ).stdout


def test_a_killed_worker_loses_no_job_of_rq(
    start_worker: StartWorker, redis_url: str, queue_redis: redis.Redis, clip: Path
) -> None:
    """A worker dies in the middle of six jobs; each job is finished in RQ with one result, and `rq info` says so."""
    queue = rq.Queue("audio", connection=queue_redis, serializer=JSONSerializer)
    jobs = [queue.enqueue("decibatch.transcribe", kwargs={"input": str(clip)}) for _ in range(6)]
    endless = FakeConfig(step_s=0.1, decode_steps=10_000)
    settings = {"rq_queues": "audio", "lease_s": 1, "credits": 4, "batch_items": 2}
    worker = start_worker(fake=endless, **settings)
    wait_until(lambda: worker.health().get("running"), "a step")
    assert "decibatch.main.w1" in rq_info(redis_url)
    worker.signal(signal.SIGKILL)
    worker.wait()
    last = start_worker(fake=FakeConfig(), **settings).wait_ready()
    wait_until(lambda: all(job.get_status().value == "finished" for job in jobs), "all finished", 60)
    for job in jobs:
        (result,) = job.results()
        assert len(result.return_value["text"]) == 12
    shown = rq_info(redis_url)
    assert "queue audio 0" in shown
    assert queue.started_job_registry.count == queue.failed_job_registry.count == 0
    assert queue.finished_job_registry.count == 6
    assert queue_redis.llen(queue.intermediate_queue_key) == queue_redis.zcard(KEYS.bridged) == 0
    assert int(queue_redis.hget(KEYS.counts, "submitted") or 0) == 6
    assert last.terminate() == 0
    assert queue_redis.scard(rq.Worker.redis_workers_keys) == 1  # of the one that was killed


def test_no_argument_of_a_job_reaches_the_log(
    start_worker: StartWorker, queue_redis: redis.Redis, clip: Path
) -> None:
    """Neither RQ's code nor ours logs what a job was given or what came of it."""
    worker = start_worker(rq_queues="audio", log_level="debug")
    queue = rq.Queue("audio", connection=queue_redis, serializer=JSONSerializer)
    job = queue.enqueue("decibatch.transcribe", kwargs={"input": str(clip), "prompt": "hunter2"})
    bad = queue.enqueue("decibatch.transcribe", kwargs={"input": "/nowhere/hunter2.wav"})
    wait_until(
        lambda: bad.get_status().value == "failed" and job.get_status().value == "finished", "both ended"
    )
    log = worker.log.read_text()
    result = job.latest_result()
    assert result is not None
    assert "hunter2" not in log and result.return_value["text"] not in log


def test_a_bridge_that_cannot_work_says_so(start_worker: StartWorker, redis_url: str) -> None:
    """Where RQ's own Redis is away the worker stays ready, and its health names what is wrong."""
    worker = start_worker(rq_queues="audio", rq_redis_url="redis://127.0.0.1:1/0").wait_ready()
    wait_until(lambda: worker.health()["warnings"], "a warning")
    told = worker.health()
    assert told["ready"] is True
    assert told["warnings"] == ["rq_away (its Redis does not answer: ConnectionError)"]
    assert told["rq"]["problem"] == "its Redis does not answer: ConnectionError"
