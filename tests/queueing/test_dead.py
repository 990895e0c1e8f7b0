"""The dead list: what was given up on can be looked at, tried again and dropped."""

from __future__ import annotations

import json

import pytest
import redis

from queueing.dead import DeadList, InputGone, NotDead
from queueing.errors import UnknownJob
from queueing.job import Note, State
from tests.support.bench import Bench, make_job

NOTE = Note(at_ms=1, attempt=1, worker="w1", version="0.1", code="boom", message="it broke")


@pytest.fixture
def bench(queue_redis: redis.Redis) -> Bench:
    return Bench(queue_redis)


@pytest.fixture
def dead(bench: Bench) -> DeadList:
    return DeadList(bench.redis, bench.queue, server="here")


def kill(bench: Bench, job_id: str) -> None:
    delivery = bench.one()
    assert delivery.job_id == job_id
    assert bench.settle(delivery, "dead", note=NOTE.model_dump_json()) == "ok"


def test_the_latest_dead_come_first(bench: Bench, dead: DeadList) -> None:
    """The list begins with who died last."""
    first, second = bench.add(), bench.add()
    kill(bench, first)
    bench.redis.zadd(bench.keys.dead, {first: 1})
    kill(bench, second)
    assert [status.job_id for status in dead.latest()] == [second, first]


def test_a_dead_job_shows_how_every_attempt_failed(bench: Bench, dead: DeadList) -> None:
    """Notes of retries and of the end are kept in order, with worker and version."""
    job_id = bench.add()
    assert bench.settle(bench.one(), "retry", note=NOTE.model_dump_json()) == "ok"
    last = NOTE.model_copy(update={"attempt": 2, "worker": "w2"})
    assert bench.settle(bench.one(), "dead", note=last.model_dump_json()) == "ok"
    status = dead.show(job_id)
    assert status.notes == (NOTE, last)
    assert json.loads(status.payload)["input"] == {"type": "path", "path": "/a.wav"}


def test_a_retried_job_waits_and_can_be_done(bench: Bench, dead: DeadList) -> None:
    """Another life begins with no tries used, goes on counting attempts, and can end well."""
    job_id = bench.add()
    kill(bench, job_id)
    dead.retry(job_id)
    assert (bench.state(job_id), bench.counter("waiting"), dead.latest()) == ("waiting", 1, [])
    assert bench.redis.ttl(bench.keys.job(job_id)) == -1
    again = bench.one()
    assert (again.attempt, again.tries, again.alone, again.crashes) == (2, 0, False, 0)
    assert bench.settle(again, "done") == "ok"
    assert bench.status(job_id).notes == ()  # type: ignore[union-attr]


def test_the_dead_keep_their_upload(bench: Bench, dead: DeadList) -> None:
    """An upload survives the death of its job, outside the bound on uploads, and counts again on a retry."""
    job = make_job(input={"type": "inline", "size": 4, "sha256": "0" * 64})
    bench.submit(job, data=b"RIFF")
    kill(bench, job.id)
    assert bench.counter("bytes") == 0
    dead.retry(job.id)
    assert bench.redis.get(bench.keys.inline(job.id)) == b"RIFF"
    assert bench.counter("bytes") == 4
    assert bench.settle(bench.one(), "done") == "ok"
    assert bench.redis.exists(bench.keys.inline(job.id)) == 0


def test_a_job_whose_upload_has_expired_is_not_retried(bench: Bench, dead: DeadList) -> None:
    """What cannot be run again says so, and stays dead."""
    job = make_job(input={"type": "inline", "size": 4, "sha256": "0" * 64})
    bench.submit(job, data=b"RIFF")
    kill(bench, job.id)
    bench.redis.delete(bench.keys.inline(job.id))
    with pytest.raises(InputGone):
        dead.retry(job.id)
    assert bench.state(job.id) == "dead"


def test_a_dropped_job_leaves_nothing(bench: Bench, dead: DeadList) -> None:
    """Dropping forgets the job, its upload, its events and its idempotency key."""
    job = make_job(input={"type": "inline", "size": 4, "sha256": "0" * 64})
    bench.submit(job, data=b"RIFF", idempotency_key="k")
    kill(bench, job.id)
    dead.drop(job.id)
    assert [key for key in bench.redis.scan_iter() if job.id.encode() in key or b":idem:" in key] == []
    assert dead.latest() == []


@pytest.mark.parametrize("act", ["show", "retry", "drop"])
def test_only_the_dead_are_touched(bench: Bench, dead: DeadList, act: str) -> None:
    """A job that lives is refused by its state, one that is not there by its name, and nothing changes."""
    job_id = bench.add()
    with pytest.raises(NotDead, match="waiting"):
        getattr(dead, act)(job_id)
    with pytest.raises(UnknownJob):
        getattr(dead, act)("0" * 32)
    assert bench.state(job_id) == State.WAITING


def test_an_idempotency_key_lives_as_long_as_the_job(bench: Bench, dead: DeadList) -> None:
    """After a retry from the dead list the key neither expires nor points elsewhere."""
    job = make_job()
    bench.submit(job, idempotency_key="k")
    kill(bench, job.id)
    dead.retry(job.id)
    assert bench.redis.ttl(bench.keys.idempotency("default", "k")) == -1
    assert bench.submit(make_job(), idempotency_key="k").job_id == job.id


def test_a_refusal_says_when_to_come_back(bench: Bench) -> None:
    """The pause follows the pace at which jobs were started, and is five seconds where there is none."""
    from queueing.protocol import Admission

    bench.add()
    full = bench.submit(admission=Admission(max_waiting=1))
    assert (full.verdict, full.retry_after_s) == ("full", 5.0)
    bench.redis.hset(bench.keys.counts, mapping={"rate": "10.0"})
    assert bench.submit(admission=Admission(max_waiting=1)).retry_after_s == 0.1
    bench.redis.hset(bench.keys.counts, mapping={"rate": "0.5"})
    assert bench.submit(admission=Admission(max_waiting=1)).retry_after_s == 2.0
