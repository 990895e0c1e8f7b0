"""What a server can do to a worker, one thing at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from engine.fake import FakeConfig
from ops.bench.faults.proxy import Handle, Switchboard
from queueing.client import Client
from queueing.errors import UnknownJob
from queueing.job import State
from queueing.keys import GROUP, Keys
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess
from tests.worker.conftest import StartWorker

KEYS = Keys("main")
STREAM = KEYS.stream("tiny.en", "normal")
SECONDS = FakeConfig(step_s=0.2, decode_steps=10)
"""A chunk takes two seconds."""
MINUTES = FakeConfig(step_s=0.2, decode_steps=1000)


@pytest.fixture
def line(board: Switchboard, redis_server: RedisServer) -> Handle:
    return board.line(redis_server.socket_path)


@pytest.fixture
def behind_line(line: Handle, redis_url: str, tmp_path: Path) -> Iterator[WorkerProcess]:
    """A worker whose commands time out after a second, behind a line that can fail."""
    url = f"redis://127.0.0.1:{line.port}/0?socket_timeout=1"
    worker = WorkerProcess(url, tmp_path, fake=SECONDS, name="w1", lease_s=1)
    yield worker
    worker.close()


def wait_in_engine(worker: WorkerProcess) -> None:
    wait_until(lambda: worker.health().get("running"), "a job in the engine")


def test_flushall_loses_the_jobs_and_nothing_else(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """After FLUSHALL the jobs are unknown, the worker drops them, and takes what comes next."""
    worker = start_worker(fake=MINUTES, lease_s=1)
    lost = client.submit(clip)
    wait_in_engine(worker)
    queue_redis.flushall()
    with pytest.raises(UnknownJob):
        client.result(lost, timeout=10)
    wait_until(lambda: worker.health().get("held") == 0, "the lost job is dropped")
    assert client.status(client.submit(clip)).state in (State.WAITING, State.RUNNING)
    wait_in_engine(worker)


def test_flushall_under_waiting_jobs(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """A worker whose streams and groups are gone makes new ones, and a job submitted then is done."""
    start_worker().wait_ready()
    queue_redis.flushall()
    assert client.result(client.submit(clip), timeout=30).text


def test_a_group_that_is_gone(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """Where the consumer group is destroyed beneath a running job, that job ends all the same, and so does the next."""
    worker = start_worker(fake=SECONDS, lease_s=1)
    running = client.submit(clip)
    wait_in_engine(worker)
    queue_redis.xgroup_destroy(STREAM, GROUP)
    assert client.result(running, timeout=30).text
    assert client.result(client.submit(clip), timeout=30).text


def test_a_stream_that_is_gone(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """Where the stream is deleted beneath a running and a waiting job, both end."""
    worker = start_worker(fake=SECONDS, lease_s=1, credits=1)
    running = client.submit(clip)
    wait_in_engine(worker)
    waiting = client.submit(clip)
    queue_redis.delete(STREAM)
    assert client.result(running, timeout=30).text
    assert client.result(waiting, timeout=30).text


def test_everything_but_the_jobs_is_gone(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """Where every stream and list is deleted beneath running and waiting jobs, each of them is done once."""
    worker = start_worker(lease_s=1, credits=2)
    jobs = [client.submit(clip, tenant=f"t{number % 3}") for number in range(40)]
    wait_until(lambda: worker.health().get("held"), "a job in the worker's hands")
    left = ("stream", "backlog", "ring")
    queue_redis.delete(*[key for what in left for key in queue_redis.scan_iter(f"{KEYS.root}:{what}:*")])
    assert all(client.result(job, timeout=60).text for job in jobs)
    assert queue_redis.hget(KEYS.counts, "done") == b"40"


def test_a_slow_line(behind_line: WorkerProcess, line: Handle, client: Client, clip: Path) -> None:
    """Where every answer takes a quarter of a lease, a job that runs for two leases ends in its first attempt."""
    line.slow_down(0.25)
    assert client.result(client.submit(clip), timeout=60).attempt == 1
    assert "redis is away" not in behind_line.log.read_text()


@pytest.mark.parametrize(
    "error",
    [
        "READONLY You can't write against a read only replica.",
        "LOADING Redis is loading the dataset in memory",
        "OOM command not allowed when used memory > 'maxmemory'.",
    ],
    ids=["readonly", "loading", "oom"],
)
def test_a_server_that_refuses(
    behind_line: WorkerProcess, line: Handle, client: Client, clip: Path, error: str
) -> None:
    """While scripts are refused the worker keeps what it has, and writes it in the first attempt afterwards."""
    job = client.submit(clip)
    wait_in_engine(behind_line)
    line.refuse(error)
    wait_until(lambda: finished_steps(behind_line) >= SECONDS.decode_steps, "the engine is done")
    assert client.status(job).state is State.RUNNING
    assert line.refused > 0
    line.refuse("")
    assert client.result(job, timeout=30).attempt == 1
    assert behind_line.process.poll() is None


def test_a_server_that_is_full(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """What was taken before the server ran out of memory is written while it is out of memory."""
    worker = start_worker(fake=SECONDS)
    job = client.submit(clip)
    wait_in_engine(worker)
    queue_redis.config_set("maxmemory-policy", "noeviction")
    queue_redis.config_set("maxmemory", "1mb")
    try:
        wait_until(lambda: queue_redis.hget(KEYS.job(job), "state") == b"done", "the outcome is written")
    finally:
        queue_redis.config_set("maxmemory", "0")
    assert client.result(job, timeout=10).attempt == 1


def test_a_line_that_is_dead_and_says_nothing(
    behind_line: WorkerProcess, line: Handle, client: Client, clip: Path
) -> None:
    """A connection that stays open and carries nothing is given up after the time-out, and the job ends."""
    job = client.submit(clip)
    wait_in_engine(behind_line)
    line.go_dead()
    wait_until(lambda: "redis is away" in behind_line.log.read_text(), "noticed")
    line.revive(close=True)
    assert client.result(job, timeout=30).attempt == 1


def test_an_outage_of_several_leases(
    start_worker: StartWorker, client: Client, clip: Path, redis_server: RedisServer
) -> None:
    """What was finished while the server was away is written in its first attempt, and nobody has stolen it."""
    worker = start_worker("w1", fake=SECONDS, lease_s=1)
    job = client.submit(clip)
    wait_in_engine(worker)
    start_worker("w2", lease_s=1).wait_ready()
    redis_server.kill()
    until = time.monotonic() + 3.0
    wait_until(lambda: time.monotonic() > until, "three leases have gone by")
    wait_until(lambda: finished_steps(worker) >= SECONDS.decode_steps, "the engine is done")
    redis_server.start()
    result = client.result(job, timeout=30)
    assert (result.worker, result.attempt) == ("w1", 1)


def finished_steps(worker: WorkerProcess) -> int:
    return sum(step["steps"] for step in worker.steps() if step["kind"] == "decode")
