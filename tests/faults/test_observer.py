"""The observer against a server on which jobs end as they should, and as they should not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from ops.bench.faults.observer import Observer, Seen
from tests.support.bench import MODEL, Bench
from tests.support.waiting import wait_until


@pytest.fixture
def bench(queue_redis: redis.Redis) -> Bench:
    return Bench(queue_redis)


@pytest.fixture
def observer(redis_url: str, bench: Bench, queue_redis: redis.Redis) -> Iterator[Observer]:
    observer = Observer(redis_url, bench.keys, MODEL)
    observer.start()

    def listens() -> Any:
        return queue_redis.pubsub_numpat()

    wait_until(listens, what="the subscription to all bells")
    yield observer
    observer.stop()


def running(bench: Bench, observer: Observer) -> tuple[str, Any]:
    job = bench.add()
    observer.expect(job, 0)
    return job, bench.one()


def ended(observer: Observer, job: str) -> Seen:
    wait_until(lambda: observer.jobs[job].outcome and observer.jobs[job].rings, what="the end is seen")
    return observer.jobs[job]


def test_one_end_is_no_duplicate(bench: Bench, observer: Observer) -> None:
    """A job that ends once has one ring, one final event and one outcome, also where the outcome is written again."""
    job, delivery = running(bench, observer)
    bench.settle(delivery, "done")
    bench.settle(delivery, "done")
    ended(observer, job)
    observer.look_at_everything()
    seen = observer.jobs[job]
    assert (seen.rings, seen.ends, seen.duplicated) == (1, 1, False)
    assert observer.counted_ends() == 1


def test_a_changed_result_is_noticed(bench: Bench, observer: Observer) -> None:
    """A hash whose result is another than it was makes the job a duplicate, without bell or event."""
    job, delivery = running(bench, observer)
    bench.settle(delivery, "done")
    ended(observer, job)
    bench.redis.hset(bench.keys.job(job), "result", '{"text": "other"}')
    observer.look_at_everything()
    assert observer.jobs[job].duplicated


def test_a_second_ring_is_noticed(bench: Bench, observer: Observer) -> None:
    """A final state published twice makes the job a duplicate, whatever its hash says."""
    job, delivery = running(bench, observer)
    bench.settle(delivery, "done")
    ended(observer, job)
    bench.redis.publish(bench.keys.bell(job), "done")
    wait_until(lambda: observer.jobs[job].duplicated, what="the second ring")


def test_a_vanished_hash_is_noticed(bench: Bench, observer: Observer) -> None:
    """A job without a hash is not taken for one that ended."""
    job, delivery = running(bench, observer)
    bench.settle(delivery, "done")
    ended(observer, job)
    bench.redis.delete(bench.keys.job(job))
    observer.look_at_everything()
    assert observer.jobs[job].vanished


def test_what_is_in_flight(bench: Bench, observer: Observer) -> None:
    """A delivery belongs to the worker that holds it, under its own name or one with a number added."""
    job = bench.add()
    delivery = bench.one("w1-2")
    assert [(held.job, held.attempt) for held in observer.in_flight("w1")] == [(job, 1)]
    assert observer.in_flight("w2") == ()
    assert observer.pending_left() == 1
    bench.settle(delivery, "done")
    assert observer.in_flight() == ()
