"""Jobs whose place in the queue is deleted beneath them wait again; those past their deadline stop counting."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queueing.job import State
from queueing.keys import GROUP
from queueing.protocol import Admission
from queueing.scripts import run
from tests.support.bench import FUTURE, MODEL, PAST, Bench
from tests.support.redis_server import servers

pytestmark = pytest.mark.parametrize("redis_server", list(servers()), indirect=True, scope="session")

WINDOW = 16
SEARCHED = 1000


def sweep_all(bench: Bench) -> list[str]:
    """One pass over everything, some keys at a time; the jobs that wait again."""
    bench.redis.hset(bench.keys.sweep, "passes", 2)
    found: list[str] = []
    while True:
        swept = run(bench.redis, bench.queue.sweep(keys=10, pause_ms=0))
        found += swept.requeued
        if not swept.more:
            return found


def lose_stream(bench: Bench) -> None:
    bench.redis.delete(bench.keys.stream(MODEL, "normal"))


def lose_entries(bench: Bench) -> None:
    stream = bench.keys.stream(MODEL, "normal")
    bench.redis.xdel(stream, *[entry for entry, _ in bench.redis.xrange(stream)])


def lose_backlog(bench: Bench) -> None:
    bench.redis.delete(bench.keys.backlog(MODEL, "normal", "default"))


def lose_ring(bench: Bench) -> None:
    bench.redis.delete(bench.keys.ring(MODEL, "normal"))


def lose_everything(bench: Bench) -> None:
    for lose in (lose_stream, lose_backlog, lose_ring):
        lose(bench)


@pytest.mark.parametrize("lose", [lose_stream, lose_entries, lose_backlog, lose_ring, lose_everything])
def test_what_waits_and_is_nowhere_waits_again(bench: Bench, lose: Callable[[Bench], None]) -> None:
    """Whichever key is deleted beneath waiting jobs, each of them is delivered, once, and the counter is right."""
    ids = {bench.add() for _ in range(2 * WINDOW)}
    lose(bench)
    sweep_all(bench)
    assert bench.counter("waiting") == len(ids)
    taken = [d.job_id for d in bench.take(100).deliveries]
    assert sorted(taken) == sorted(ids)
    assert bench.counter("waiting") == 0


def test_a_delayed_job_that_is_nowhere_waits_again(bench: Bench) -> None:
    """A job whose delayed set is deleted is delivered rather than forgotten."""
    job_id = bench.add(not_before_ms=FUTURE)
    bench.redis.delete(bench.keys.delayed)
    assert sweep_all(bench) == [job_id]
    assert bench.one().job_id == job_id


@pytest.mark.parametrize("lose", [lose_stream, lose_entries])
def test_what_ran_at_a_dead_worker_and_is_nowhere_waits_again(
    bench: Bench, lose: Callable[[Bench], None]
) -> None:
    """A job whose entry is deleted while it is pending for a worker that is dead is a new attempt of another."""
    job_id = bench.add()
    old = bench.one("w1")
    bench.age(old, "w1")
    lose(bench)
    bench.reclaim("w2")
    assert sweep_all(bench) == [job_id]
    assert (bench.state(job_id), bench.counter("waiting")) == ("waiting", 1)
    new = bench.one("w2")
    assert (new.job_id, new.attempt) == (job_id, 2)
    assert bench.settle(old, "failed") == "stale"
    assert bench.settle(new, "done") == "ok"


def test_a_reported_loss_calls_for_a_sweep(bench: Bench) -> None:
    """Where a deleted entry is found pending, the next look does not wait for its time, and goes on to the end."""
    job_id = bench.add()
    old = bench.one("w1")
    run(bench.redis, bench.queue.sweep(pause_ms=3_600_000))
    bench.age(old, "w1")
    lose_entries(bench)
    assert bench.reclaim("w2").lost == ("",)
    swept = run(bench.redis, bench.queue.sweep(pause_ms=3_600_000))
    assert (swept.more, swept.requeued) == (True, (job_id,))
    assert not run(bench.redis, bench.queue.sweep(pause_ms=3_600_000)).more


@pytest.mark.parametrize("lose", [lose_stream, lose_backlog])
def test_a_place_that_is_missing_calls_for_a_sweep(bench: Bench, lose: Callable[[Bench], None]) -> None:
    """Whoever needs a stream or a backlog that should be there and is not makes the next look come at once."""
    ids = {bench.add() for _ in range(2 * WINDOW)}
    run(bench.redis, bench.queue.sweep(pause_ms=3_600_000))
    lose(bench)
    first = {d.job_id for d in bench.take(100).deliveries}
    assert run(bench.redis, bench.queue.sweep(pause_ms=3_600_000)).more
    assert first | {d.job_id for d in bench.take(100).deliveries} == ids


def test_a_healthy_queue_is_left_alone(bench: Bench) -> None:
    """Of jobs that wait, run, are delayed or have ended, a sweep changes none, and reports nothing."""
    for number in range(3 * WINDOW):
        bench.add(tenant=f"t{number % 3}")
    bench.add(not_before_ms=FUTURE)
    done, retried, released, *_ = bench.take(5).deliveries
    bench.settle(done, "done")
    bench.settle(retried, "retry", delay_ms=3_600_000)
    bench.settle(released, "release")
    before = {key: bench.redis.hgetall(key) for key in bench.redis.scan_iter() if b":job:" in key}
    assert sweep_all(bench) == []
    assert {key: bench.redis.hgetall(key) for key in before} == before
    assert bench.incidents() == []


def test_looks_are_shared(bench: Bench) -> None:
    """Soon after anybody's look there is no other, so that more workers make no more work for the server."""
    bench.add()
    lose_stream(bench)
    bench.redis.hset(bench.keys.sweep, "at", FUTURE)
    assert run(bench.redis, bench.queue.sweep(pause_ms=1000)).requeued == ()
    bench.redis.hset(bench.keys.sweep, "at", PAST)
    assert len(run(bench.redis, bench.queue.sweep(pause_ms=1000)).requeued) == 1


def test_a_very_long_backlog_is_not_searched(bench: Bench) -> None:
    """A job missing from a list that is too long to be read is looked for once the list is shorter."""
    for _ in range(WINDOW):
        bench.add()
    job_id = bench.add()
    backlog = bench.keys.backlog(MODEL, "normal", "default")
    bench.redis.lrem(backlog, 0, job_id)
    bench.redis.rpush(backlog, *[f"other-{number}" for number in range(SEARCHED + 1)])
    assert sweep_all(bench) == []
    bench.redis.ltrim(backlog, 0, SEARCHED - 1)
    assert sweep_all(bench) == [job_id]


def test_the_root_is_no_pattern(bench: Bench, queue_redis: object) -> None:
    """A queue whose name looks like a pattern leaves the jobs of other queues alone, and finds its own."""
    odd, other = Bench(queue_redis, "a*"), Bench(queue_redis, "ab")
    for one in (odd, other):
        one.add()
        lose_stream(one)
    assert len(sweep_all(odd)) == 1
    assert len(sweep_all(other)) == 1


# --- deadlines ---


def test_what_has_expired_holds_no_place(bench: Bench) -> None:
    """Jobs past their deadline that nobody reads, of a model that nobody serves, do not make the queue full."""
    ids = [bench.add(model="rare", deadline_ms=FUTURE) for _ in range(5)]
    bounds = Admission(max_waiting=5)
    assert bench.submit(admission=bounds).verdict == "full"
    expire(bench, ids)
    assert bench.submit(admission=bounds).verdict == "ok"
    assert bench.counter("waiting") == 1
    assert {bench.state(job_id) for job_id in ids} == {"expired"}


def test_any_beat_ends_what_has_expired(bench: Bench) -> None:
    """A worker's sign of life ends jobs past their deadline in lanes that it does not serve, running ones too."""
    waiting, running = [bench.add(model="rare", deadline_ms=FUTURE) for _ in range(2)]
    bench.take(1, streams=[("rare", "normal")])
    expire(bench, [waiting, running])
    run(bench.redis, bench.queue.beat("w", "v", 60_000, "{}", 60_000, [MODEL]))
    assert (bench.state(waiting), bench.state(running)) == ("expired", "expired")
    told = [fields.get(b"cancel") for _, fields in bench.redis.xrange(bench.keys.control)]
    assert len(told) == 1


@pytest.mark.parametrize("end", ["done", "cancelled", "expired"])
def test_the_end_of_a_job_forgets_its_deadline(bench: Bench, end: str) -> None:
    """However a job ends, nothing of its deadline is left."""
    job_id = bench.add(deadline_ms=FUTURE)
    assert bench.redis.zscore(bench.keys.deadlines, job_id) == FUTURE
    match end:
        case "done":
            bench.settle(bench.one(), "done")
        case "cancelled":
            bench.cancel(job_id)
        case _:
            expire(bench, [job_id])
            assert bench.take().deliveries == ()
    assert bench.state(job_id) == end
    assert not bench.redis.exists(bench.keys.deadlines)


def test_a_revived_job_has_no_deadline(bench: Bench) -> None:
    """A dead job that is tried again is not ended by the deadline that it once had."""
    job_id = bench.add(deadline_ms=FUTURE)
    bench.settle(bench.one(), "dead")
    run(bench.redis, bench.queue.revive(job_id))
    bench.take(0)
    status = bench.status(job_id)
    assert status is not None
    assert status.state is State.WAITING
    assert not bench.redis.exists(bench.keys.deadlines)


def test_a_ghost_stops_counting(bench: Bench) -> None:
    """A waiting job whose hash was deleted is reported, and holds no place any more."""
    job_id = bench.add()
    bench.redis.delete(bench.keys.job(job_id))
    assert bench.take().lost == (job_id,)
    assert bench.counter("waiting") == 0


def expire(bench: Bench, ids: list[str]) -> None:
    """Let their deadlines pass."""
    for job_id in ids:
        bench.redis.hset(bench.keys.job(job_id), "deadline", PAST)
        bench.redis.zadd(bench.keys.deadlines, {job_id: PAST})


def test_the_group_alone_is_lost(bench: Bench) -> None:
    """Where the consumer group is destroyed, what waited and what ran is delivered, once each."""
    ids = {bench.add() for _ in range(4)}
    bench.one()
    bench.redis.xgroup_destroy(bench.keys.stream(MODEL, "normal"), GROUP)
    bench.reclaim("w2")
    sweep_all(bench)
    taken = [d.job_id for d in bench.take(100, "w2").deliveries]
    assert sorted(taken) == sorted(ids)
