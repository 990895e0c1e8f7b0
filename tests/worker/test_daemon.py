"""The daemon as a process, over a real server, with real media and a stand-in engine that takes milliseconds."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from engine.fake import FakeConfig, Poison
from queueing.client import Client
from queueing.errors import JobDead, JobFailed
from queueing.job import State
from queueing.keys import GROUP, Keys
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess, command_line, gone, speech, write_wav
from tests.worker.conftest import StartWorker

KEYS = Keys("main")
SLOW = FakeConfig(step_s=0.2, decode_steps=1000)
"""An engine that would take minutes over a chunk: what runs in it runs until something stops it."""


def stream_of(lane: str = "normal") -> str:
    return KEYS.stream("tiny.en", lane)


def pending(server: redis.Redis) -> int:
    try:
        return int(server.xpending(stream_of(), GROUP)["pending"])
    except redis.ResponseError:
        return 0


def wait_for_state(client: Client, job: Any, state: State, timeout_s: float = 30.0) -> None:
    wait_until(lambda: client.status(job).state is state, f"state {state}", timeout_s)


def wait_in_engine(worker: WorkerProcess, jobs: int = 1) -> None:
    wait_until(lambda: worker.health().get("running", 0) >= jobs, f"{jobs} jobs in the engine")


def test_a_job_comes_back_with_text(start_worker: StartWorker, client: Client, clip: Path) -> None:
    """A submitted path is decoded, run and answered, with the time of every stage."""
    start_worker()
    result = client.result(client.submit(clip), timeout=60)
    assert len(result.text) == 12
    assert result.duration_s == 2.0
    parts = result.timings
    assert parts.total >= parts.media + parts.engine > 0
    assert (result.worker, result.attempt, result.model) == ("w1", 1, "tiny.en")


def test_jobs_share_a_batch(start_worker: StartWorker, client: Client, clip: Path) -> None:
    """Jobs that are ready together are rows of one encoder call and of one decoder step."""
    worker = start_worker(fake=FakeConfig(step_s=0.3))
    engine = psutil.Process(worker.engine_pid())
    engine.suspend()
    jobs = client.submit_many([clip] * 8)
    wait_in_engine(worker, 8)
    engine.resume()
    for job in jobs:
        client.result(job, timeout=60)
    for kind in ("encode", "decode"):
        assert max(len(set(step["jobs"])) for step in worker.steps() if step["kind"] == kind) >= 4


def test_no_more_is_held_than_there_are_credits(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """With three credits and ten jobs, three are pending and seven wait in Redis."""
    worker = start_worker(fake=SLOW, credits=3)
    client.submit_many([clip] * 10)
    wait_in_engine(worker)
    assert pending(queue_redis) == 3
    assert int(queue_redis.hget(KEYS.counts, "waiting") or 0) == 7


def test_sigterm_finishes_what_runs_and_hands_back_the_rest(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """After SIGTERM the running batch is answered, what has not begun waits again uncounted, and the status is 0."""
    worker = start_worker(fake=FakeConfig(step_s=0.3, decode_steps=4), batch_items=2)
    jobs = client.submit_many([clip] * 6)
    wait_in_engine(worker)
    assert worker.terminate() == 0
    states = [client.status(job).state for job in jobs]
    assert set(states) == {State.DONE, State.WAITING}
    assert all(client.status(job).tries == 0 for job in jobs)
    assert pending(queue_redis) == 0


def test_a_second_sigterm_hands_everything_back(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """The second signal does not wait for what runs: it waits in Redis again, and the status is still 0."""
    worker = start_worker(fake=SLOW)
    job = client.submit(clip)
    wait_in_engine(worker)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in worker.log.read_text(), "first signal seen")
    assert worker.terminate() == 0
    assert client.status(job).state is State.WAITING
    assert pending(queue_redis) == 0


def test_the_drain_deadline_ends_what_does_not_end(
    start_worker: StartWorker, client: Client, clip: Path
) -> None:
    """What still runs when the drain is over is handed back."""
    worker = start_worker(fake=SLOW, drain_s=0.5)
    job = client.submit(clip)
    wait_in_engine(worker)
    assert worker.terminate() == 0
    assert client.status(job).state is State.WAITING


def test_nothing_outlives_an_orderly_stop(start_worker: StartWorker, client: Client, clip: Path) -> None:
    """After the exit there is no child, no spool file, no lock and no health (invariant I10)."""
    worker = start_worker(fake=SLOW, drain_s=0.2)
    client.submit(clip)
    wait_in_engine(worker)
    with gone(worker.children(), within_s=2.0):
        worker.terminate()
    assert worker.spooled() == []
    assert worker.health() == {}


def test_nothing_outlives_a_kill(start_worker: StartWorker, client: Client, clip: Path) -> None:
    """Engine and media end within a second of losing the worker, even in the middle of a step."""
    worker = start_worker(fake=FakeConfig(step_s=30.0))
    client.submit(clip)
    wait_until(lambda: worker.health().get("running"), "a step")
    children = worker.children()
    assert len(children) >= 2
    with gone(children, within_s=2.0):
        worker.signal(signal.SIGKILL)
        worker.wait()


def test_the_next_life_takes_its_own_back_at_once(
    start_worker: StartWorker, client: Client, clip: Path
) -> None:
    """A killed worker's job is taken up by its next life long before the lease lapses."""
    first = start_worker(fake=SLOW, lease_s=600)
    job = client.submit(clip)
    wait_in_engine(first)
    first.signal(signal.SIGKILL)
    first.wait()
    second = start_worker(lease_s=600)
    assert client.result(job, timeout=30).attempt == 2
    assert second.health()["incarnation"] == 2


def test_another_worker_takes_over_after_the_lease(
    start_worker: StartWorker, client: Client, clip: Path
) -> None:
    """A killed worker's job is finished by another one once its lease has lapsed."""
    first = start_worker("w1", fake=SLOW, lease_s=1, credits=1)
    jobs = client.submit_many([clip] * 2)
    wait_in_engine(first)
    start_worker("w2", lease_s=1).wait_ready()
    first.signal(signal.SIGKILL)
    results = [client.result(job, timeout=30) for job in jobs]
    assert {result.worker for result in results} == {"w2"}


def test_a_stopped_worker_cannot_overwrite(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """A worker that slept past its lease wakes up to a job that another has done, and the result stays as it was."""
    sleeper = start_worker("w1", fake=FakeConfig(step_s=0.3, decode_steps=10), lease_s=1).wait_ready()
    job = client.submit(clip)
    wait_until(lambda: sleeper.health().get("running"), "w1 runs the job")
    sleeper.signal(signal.SIGSTOP)
    start_worker("w2", lease_s=1).wait_ready()
    result = client.result(job, timeout=30)
    assert result.worker == "w2"
    sleeper.signal(signal.SIGCONT)
    wait_until(lambda: sleeper.health().get("held") == 0, "w1 gives up")
    assert client.result(job, timeout=5) == result
    assert pending(queue_redis) == 0


def test_a_cancelled_job_frees_the_engine(start_worker: StartWorker, client: Client, clip: Path) -> None:
    """Cancelling a running job ends its rows within a step, so that the next job can run."""
    worker = start_worker(fake=SLOW, credits=1, batch_items=1)
    job = client.submit(clip)
    wait_in_engine(worker)
    assert client.cancel(job) is State.CANCELLED
    wait_until(lambda: worker.health().get("held") == 0, "the slot is free")
    other = client.submit(clip)
    wait_in_engine(worker)
    assert client.status(other).state is State.RUNNING
    assert worker.health()["engine"]["restarts"] == 0


def test_poison_is_found_and_the_innocent_finish(
    start_worker: StartWorker, client: Client, clip: Path, tmp_path: Path
) -> None:
    """A job that kills the engine drags the others along once; then it dies alone, twice, and they are done."""
    bad = write_wav(tmp_path / "bad.wav", speech(2.0), Poison.CRASH)
    start_worker()
    jobs = client.submit_many([clip, clip, bad, clip])
    for job in (jobs[0], jobs[1], jobs[3]):
        assert client.result(job, timeout=60).text
    with pytest.raises(JobDead) as dead:
        client.result(jobs[2], timeout=60)
    assert dead.value.error.code == "poison"


def test_a_hanging_engine_is_killed(
    start_worker: StartWorker, client: Client, clip: Path, tmp_path: Path
) -> None:
    """A step past its deadline costs the engine its life, and the next job finds a new one."""
    bad = write_wav(tmp_path / "bad.wav", speech(2.0), Poison.HANG)
    worker = start_worker(step_deadline_s=0.5, poison_after=1)
    with pytest.raises(JobDead):
        client.result(client.submit(bad), timeout=60)
    assert client.result(client.submit(clip), timeout=60).text
    assert worker.health()["engine"]["restarts"] == 1


def test_an_engine_that_is_killed_is_started_again(
    start_worker: StartWorker, client: Client, clip: Path
) -> None:
    """SIGKILL of the engine leaves the worker alive, and the job is run again."""
    worker = start_worker(fake=FakeConfig(step_s=0.3, decode_steps=10))
    job = client.submit(clip)
    wait_in_engine(worker)
    psutil.Process(worker.engine_pid()).kill()
    assert client.result(job, timeout=60).attempt == 2
    assert worker.process.poll() is None


def test_a_decoder_that_is_killed_while_it_starts_is_started_again(
    start_worker: StartWorker, client: Client, clip: Path
) -> None:
    """SIGKILL of a decoder during the warm-up does not end the worker."""
    worker = start_worker()

    def starting() -> list[psutil.Process]:
        return [child for child in worker.children() if "worker.media" in command_line(child)]

    wait_until(starting, "a decoder starts")[0].kill()
    assert client.result(client.submit(clip), timeout=60).text
    assert worker.process.poll() is None


def test_an_engine_that_keeps_dying_makes_the_worker_unready(start_worker: StartWorker) -> None:
    """After three exits in a row the worker says so, and goes on trying."""
    worker = start_worker(fake=FakeConfig(load_s=0.0), engine_command="false")
    wait_until(lambda: "engine_keeps_dying" in worker.health().get("reasons", []), "unready")
    assert worker.process.poll() is None


def test_a_restart_of_the_server_loses_nothing(
    start_worker: StartWorker, client: Client, clip: Path, redis_server: RedisServer
) -> None:
    """Jobs that ran while the server was away are answered once it is back, in their first attempt."""
    worker = start_worker(fake=FakeConfig(step_s=0.3, decode_steps=6))
    jobs = client.submit_many([clip] * 4)
    wait_in_engine(worker)
    redis_server.restart()
    results = [client.result(job, timeout=60) for job in jobs]
    assert [result.attempt for result in results] == [1] * 4


def test_a_worker_waits_for_a_server_that_is_not_there(
    start_worker: StartWorker, client: Client, clip: Path, redis_server: RedisServer
) -> None:
    """A worker started before its server neither exits nor forgets to begin."""
    redis_server.kill()
    worker = start_worker()
    wait_until(lambda: worker.log.exists() and "redis is away" in worker.log.read_text(), "an outage")
    redis_server.start()
    assert client.result(client.submit(clip), timeout=60).text


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model": "nobody-has-this"}, "unknown_model"),
        ({"language": "de"}, "unsupported_language"),
        ({"kind": "translate"}, "unsupported_option"),
    ],
)
def test_what_no_model_can_do_is_refused(
    start_worker: StartWorker, client: Client, clip: Path, fields: dict[str, Any], code: str
) -> None:
    """An unknown model, language or task is a final error with a code of its own."""
    start_worker().wait_ready()
    with pytest.raises(JobFailed) as failed:
        client.result(client.submit(clip, **fields), timeout=60)
    assert (failed.value.error.code, failed.value.error.retryable) == (code, False)


@pytest.mark.parametrize(
    "payload",
    [b"not json", b"[]", b'{"kind":"sing"}', b'{"v":1,"id":"01234567"}', b"\xff\xfe", b"[" * 5000],
    ids=["text", "list", "kind", "fields", "bytes", "deep"],
)
def test_a_payload_that_is_no_job_fails_alone(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis, payload: bytes
) -> None:
    """An entry whose payload is not a valid job is failed with invalid_job, and its neighbours are not disturbed."""
    start_worker().wait_ready()
    job = "0123456789abcdef"
    good = client.submit(clip)
    queue_redis.hset(
        KEYS.job(job),
        mapping={
            "payload": payload,
            "state": "waiting",
            "model": "tiny.en",
            "lane": "normal",
            "tenant": "default",
            "wire": 1,
            "digest": "x",
            "created": 1,
            "ttl": 60,
        },
    )
    queue_redis.hincrby(KEYS.counts, "waiting", 1)
    entry = queue_redis.xadd(stream_of(), {"job": job})
    queue_redis.hset(KEYS.job(job), "entry", entry)
    wait_for_state(client, job, State.FAILED)
    assert json.loads(queue_redis.hget(KEYS.job(job), "error") or "{}")["code"] == "invalid_job"
    assert client.result(good, timeout=60).text


def test_junk_in_the_stream_is_reported_and_removed(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """An entry that names no job leaves the stream, and an incident keeps what it said."""
    start_worker().wait_ready()
    queue_redis.xadd(stream_of(), {"hello": "world"})
    client.result(client.submit(clip), timeout=60)
    wait_until(lambda: queue_redis.xlen(KEYS.incidents) == 1, "an incident")
    assert queue_redis.xlen(stream_of()) == 0


def test_under_memory_pressure_work_waits_in_redis(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """When rows need more than the budget, batches are cut, work waits in Redis, pending stays, and all is done."""
    hungry = FakeConfig(step_s=0.2, base_bytes=60 * 2**20, row_bytes=10 * 2**20, cache_fraction=0.0)
    worker = start_worker(fake=hungry, memory_budget_mb=110, credits=16, batch_audio_s=1000).wait_ready()
    jobs = client.submit_many([clip] * 32)
    wait_until(lambda: any(step["level"] != "open" for step in worker.steps()), "pressure")
    assert int(queue_redis.hget(KEYS.counts, "waiting") or 0) > 0
    assert pending(queue_redis) <= 16
    for job in jobs:
        assert client.result(job, timeout=60).text
    sizes = [len(step["rows"]) for step in worker.steps() if step["kind"] == "encode"]
    # What a row needs is learned from the first batches; then none is dispatched that would cross.
    assert max(60 + 10 * size for size in sizes[3:]) <= 110


def test_two_workers_never_share_a_name(start_worker: StartWorker, redis_url: str, tmp_path: Path) -> None:
    """A second worker started under the same name works under another one."""
    start_worker().wait_ready()
    (tmp_path / "second").mkdir()
    second = WorkerProcess(redis_url, tmp_path / "second", fake=FakeConfig(), name="w1")
    try:
        wait_until(lambda: "consumer name was taken" in second.log.read_text(), "another name")
    finally:
        second.close()


def test_events_tell_the_way_of_a_job(start_worker: StartWorker, client: Client, clip: Path) -> None:
    """A listener hears start, media, engine and the end, each with its attempt, and then the iteration ends."""
    # Slow enough for events to be sent while the attempt still runs: afterwards they are refused.
    start_worker(fake=FakeConfig(step_s=0.2))
    events = list(client.events(client.submit(clip)))
    assert events[0].type == "started"
    assert events[-1].type == "done"
    stages = [event.data["stage"] for event in events if event.type == "progress"]
    assert stages[0] == "media"
    assert stages[-1] == "engine"
    assert {event.attempt for event in events} == {1}


def test_running_work_past_its_deadline_stops(start_worker: StartWorker, client: Client, clip: Path) -> None:
    """A running job ends as expired when its deadline passes, long before a renewal is due, and frees the engine."""
    worker = start_worker(fake=SLOW, lease_s=600).wait_ready()
    job = client.submit(clip, deadline_s=2.0)
    wait_in_engine(worker)
    wait_for_state(client, job, State.EXPIRED, timeout_s=20)
    wait_until(lambda: worker.health().get("held") == 0, "the slot is free")


def test_a_result_over_the_cap_fails(start_worker: StartWorker, client: Client, tmp_path: Path) -> None:
    """A transcript larger than the bound is a clear error, not a key that fills the server."""
    start_worker(max_result_bytes=256)
    long = write_wav(tmp_path / "long.wav", speech(42.0))
    with pytest.raises(JobFailed) as failed:
        client.result(client.submit(long), timeout=60)
    assert failed.value.error.code == "result_too_large"
