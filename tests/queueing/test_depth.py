"""How much waits in a queue, and since when."""

from __future__ import annotations

import redis

from queueing.client import Client
from queueing.flows import Submission
from queueing.keys import Keys
from queueing.protocol import Depth, LaneDepth, Queue
from queueing.scripts import run

QUEUE = Queue(Keys("main"))


def depth(server: redis.Redis) -> Depth:
    told: Depth = run(server, QUEUE.depth())
    return told


def lane(server: redis.Redis, name: str = "normal") -> LaneDepth:
    return next(one for one in depth(server).lanes if one.lane == name)


def take(server: redis.Redis, n: int) -> None:
    run(server, QUEUE.take("w", "w#1", n, [("tiny.en", "interactive"), ("tiny.en", "normal")], wire=1))


def test_an_empty_queue(queue_redis: redis.Redis) -> None:
    """All lanes are there, with nothing in them; and looking makes no key."""
    assert depth(queue_redis) == Depth(
        tuple(LaneDepth(name, 0, 0, 0.0) for name in ("interactive", "normal", "bulk")), 0, 0, 0
    )
    assert queue_redis.keys("*") == []


def test_streams_and_backlogs_are_counted_together(queue_redis: redis.Redis, redis_url: str) -> None:
    """Forty jobs of two tenants wait, whether they are in the short stream or behind it."""
    with Client(redis_url) as client:
        client.submit_many([Submission(f"/{number}.wav", tenant="a") for number in range(30)])
        client.submit_many([Submission(f"/{number}.wav", tenant="b") for number in range(10)])
        client.submit("/x.wav", lane="bulk")
    assert lane(queue_redis).waiting == 40
    assert lane(queue_redis, "bulk").waiting == 1
    assert depth(queue_redis).waiting == 41


def test_what_is_taken_runs(queue_redis: redis.Redis, redis_url: str) -> None:
    """A job that was taken is running and no longer waiting."""
    with Client(redis_url) as client:
        client.submit_many([f"/{number}.wav" for number in range(20)])
    take(queue_redis, 3)
    told = lane(queue_redis)
    assert (told.waiting, told.running) == (17, 3)


def test_the_oldest_is_the_oldest_that_waits(queue_redis: redis.Redis, redis_url: str) -> None:
    """Ages count from the submission, over tenants, in stream and backlog; what runs is not waiting."""
    with Client(redis_url) as client:
        jobs = client.submit_many([f"/{number}.wav" for number in range(20)])
        other = client.submit("/other.wav", tenant="b")
    now = int(queue_redis.time()[0]) * 1000
    for number, job in enumerate([*jobs, other]):
        queue_redis.hset(QUEUE.keys.job(job), "created", now - (1000 - 10 * number) * 1000)
    assert 1000 <= lane(queue_redis).oldest_s < 1005
    take(queue_redis, 1)
    assert 990 <= lane(queue_redis).oldest_s < 995
    # From the backlog too: of a tenant whose jobs all wait behind the stream.
    queue_redis.hset(QUEUE.keys.job(other), "created", now - 5000 * 1000)
    assert 5000 <= lane(queue_redis).oldest_s < 5005


def test_delayed_and_dead_jobs_are_counted(queue_redis: redis.Redis, redis_url: str) -> None:
    """Jobs that wait for their time and jobs that were given up on have counts of their own."""
    with Client(redis_url) as client:
        client.submit("/later.wav", delay_s=3600)
        queue_redis.zadd(QUEUE.keys.dead, {"x": 1})
    told = depth(queue_redis)
    assert (told.delayed, told.dead, told.waiting) == (1, 1, 1)
    queue_redis.flushall()


def test_what_is_owed_to_others(queue_redis: redis.Redis, redis_url: str) -> None:
    """Webhooks that wait, for how long the first has been due, those given up, and unfinished jobs of RQ."""
    with Client(redis_url) as client:
        for number in range(3):
            client.cancel(client.submit(f"/{number}.wav", webhook="https://example.com/"))
    (first, *_) = run(queue_redis, QUEUE.hook_take("http", 1, 60_000))
    assert run(queue_redis, QUEUE.hook_end("http", first, "dead", note="it answered with status 410")) == "ok"
    # As if nobody had sent them for two minutes.
    queue_redis.zincrby(
        QUEUE.keys.hooks("http"), -120_000, queue_redis.zrange(QUEUE.keys.hooks("http"), 0, 0)[0]
    )
    queue_redis.zadd(QUEUE.keys.bridged, {"rq-1": 1, "rq-2": 1})
    told = depth(queue_redis)
    assert (told.webhooks_waiting, told.webhooks_given_up, told.rq_open) == (2, 1, 2)
    assert 119 < told.webhooks_overdue_s < 180
    assert told.webhooks_are_late


def test_what_is_gone_leaves_the_lists(queue_redis: redis.Redis) -> None:
    """Dead jobs and webhooks given up that have expired are not counted for ever: a look around takes them off."""
    keys = QUEUE.keys
    queue_redis.hset(keys.job("there"), mapping={"state": "dead"})
    queue_redis.expire(keys.job("there"), 60)
    for name in (keys.dead, keys.undelivered):
        queue_redis.zadd(name, {"there": 1, "gone": 1})
    run(queue_redis, QUEUE.sweep(pause_ms=0))
    told = depth(queue_redis)
    assert (told.dead, told.webhooks_given_up) == (1, 1)
