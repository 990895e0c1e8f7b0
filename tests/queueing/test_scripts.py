"""What every script does, on every server that is here."""

from __future__ import annotations

import hashlib

import pytest

from queueing.job import ErrorInfo, State
from queueing.keys import GROUP
from queueing.protocol import Admission
from queueing.scripts import run
from tests.support.bench import ERROR, FUTURE, LANES, MODEL, PAST, STREAMS, Bench, make_job, result_json
from tests.support.redis_server import servers

pytestmark = pytest.mark.parametrize("redis_server", list(servers()), indirect=True, scope="session")

WINDOW = 16


# --- submit ---


def test_submit_writes_a_waiting_job(bench: Bench) -> None:
    """A new job is answered with ok, is waiting, and counts."""
    job_id = bench.add()
    status = bench.status(job_id)
    assert status is not None
    assert (status.state, status.attempt, status.model, status.lane) == (State.WAITING, 0, MODEL, "normal")
    assert (bench.counter("waiting"), bench.counter("submitted")) == (1, 1)


def test_submit_again_with_the_same_id(bench: Bench) -> None:
    """The same job sent twice is there once."""
    job = make_job()
    assert bench.submit(job).verdict == "ok"
    again = bench.submit(job)
    assert (again.verdict, again.job_id, again.state) == ("exists", job.id, "waiting")
    assert bench.counter("waiting") == 1
    assert len(bench.take(5).deliveries) == 1


def test_submit_the_same_id_for_other_work(bench: Bench) -> None:
    """An id that belongs to another payload is a conflict."""
    job = make_job()
    bench.submit(job)
    other = make_job(id=job.id, input={"type": "path", "path": "/b.wav"})
    assert bench.submit(other).verdict == "conflict"


def test_idempotency_key_names_the_first_job(bench: Bench) -> None:
    """The same key with the same work gives the first job's id."""
    first = bench.submit(idempotency_key="k")
    second = bench.submit(idempotency_key="k")
    assert (second.verdict, second.job_id) == ("exists", first.job_id)
    assert bench.counter("submitted") == 1


def test_idempotency_key_with_other_work(bench: Bench) -> None:
    """The same key with other work is a conflict that names the job which has it."""
    first = bench.submit(idempotency_key="k")
    second = bench.submit(idempotency_key="k", model="other")
    assert (second.verdict, second.job_id) == ("conflict", first.job_id)


def test_idempotency_key_belongs_to_a_tenant(bench: Bench) -> None:
    """Two tenants may use the same key."""
    bench.submit(idempotency_key="k", tenant="a")
    assert bench.submit(idempotency_key="k", tenant="b").verdict == "ok"


def test_idempotency_key_ignores_moments(bench: Bench) -> None:
    """A deadline reckoned from another now does not make other work of it."""
    bench.submit(idempotency_key="k", deadline_ms=FUTURE, not_before_ms=5)
    assert bench.submit(idempotency_key="k", deadline_ms=FUTURE + 1, not_before_ms=6).verdict == "exists"


def test_idempotency_key_of_a_failed_job(bench: Bench) -> None:
    """A job that failed keeps its key."""
    first = bench.submit(idempotency_key="k")
    bench.settle(bench.one(), "failed")
    again = bench.submit(idempotency_key="k")
    assert (again.verdict, again.job_id, again.state) == ("exists", first.job_id, "failed")


def test_idempotency_key_lives_as_long_as_the_job(bench: Bench) -> None:
    """The key has no end while the job has none, and then the same one."""
    bench.add(idempotency_key="k", result_ttl_s=1234)
    key = bench.keys.idempotency("default", "k")
    assert bench.redis.ttl(key) == -1
    delivery = bench.one()
    bench.settle(delivery, "done")
    assert bench.redis.ttl(key) == bench.redis.ttl(bench.keys.job(delivery.job_id))
    assert 1230 <= bench.redis.ttl(key) <= 1234


def test_idempotency_key_whose_job_is_gone(bench: Bench) -> None:
    """A key that outlived its job is free."""
    first = bench.add(idempotency_key="k")
    bench.settle(bench.one(), "done")
    bench.redis.delete(bench.keys.job(first))
    assert bench.submit(idempotency_key="k").verdict == "ok"


def test_submit_full_by_count(bench: Bench) -> None:
    """At the bound on waiting jobs, submit refuses, says when to come back, and writes nothing."""
    bench.add()
    refused = bench.submit(admission=Admission(max_waiting=1))
    assert (refused.verdict, refused.retry_after_s) == ("full", 5.0)
    assert bench.counter("waiting") == 1
    assert not bench.redis.exists(bench.keys.job(refused.job_id))


def test_submit_full_by_bytes(bench: Bench) -> None:
    """At the bound on inline bytes, a job with bytes is refused and one without is not."""
    small = Admission(max_inline_bytes=10)
    assert bench.submit(data=b"12345678", admission=small).verdict == "ok"
    assert bench.submit(data=b"123", admission=small).verdict == "full"
    assert bench.submit(data=b"12", admission=small).verdict == "ok"
    assert bench.submit(admission=small).verdict == "ok"


def test_running_jobs_do_not_count_as_waiting(bench: Bench) -> None:
    """A job that is taken makes room for another."""
    bench.add()
    bench.one()
    assert bench.submit(admission=Admission(max_waiting=1)).verdict == "ok"


# --- order ---


def test_a_late_tenant_is_served_soon(bench: Bench) -> None:
    """One job behind ten thousand of another tenant is among the first WINDOW + 2."""
    bench.add(tenant="a")
    with bench.redis.pipeline(transaction=False) as pipe:
        for _ in range(10_000):
            call = bench.queue.submit(make_job(tenant="a"), admission=Admission())
            pipe.evalsha(call.script.sha, 1, call.root, *call.args)
        pipe.execute()
    late = bench.add(tenant="b")
    first = [d.job_id for d in bench.take(WINDOW + 2).deliveries]
    assert late in first


def test_a_tenant_is_served_in_order(bench: Bench) -> None:
    """Jobs of one tenant and lane are taken in the order in which they came."""
    ids = [bench.add() for _ in range(40)]
    assert [d.job_id for d in bench.take(40).deliveries] == ids


def test_tenants_take_turns(bench: Bench) -> None:
    """Beyond the window, two tenants alternate."""
    for _ in range(WINDOW):
        bench.add(tenant="x")
    for tenant in ("a", "b"):
        for _ in range(3):
            bench.add(tenant=tenant)
    bench.take(WINDOW)
    tenants = [bench.status(d.job_id).tenant for d in bench.take(6).deliveries]  # type: ignore[union-attr]
    assert tenants == ["a", "b", "a", "b", "a", "b"]


def test_lanes_in_the_order_given(bench: Bench) -> None:
    """A stream named first is emptied first."""
    ids = {lane: bench.add(lane=lane) for lane in reversed(LANES)}
    assert [d.job_id for d in bench.take(3).deliveries] == [ids[lane] for lane in LANES]


@pytest.mark.parametrize(("waited_s", "first"), [(30, "interactive"), (61, "bulk")])
def test_bulk_is_not_starved(bench: Bench, waited_s: int, first: str) -> None:
    """Bulk work that has waited for more than two lanes' worth of aging goes before fresh interactive work; less has
    not."""
    ids = {lane: bench.add(lane=lane) for lane in ("bulk", "interactive")}
    stream = bench.keys.stream(MODEL, "bulk")
    now_s, _ = bench.redis.time()
    bench.redis.delete(stream)
    entry = bench.redis.xadd(stream, {"job": ids["bulk"]}, id=f"{1000 * (now_s - waited_s)}-0")
    bench.redis.xgroup_create(stream, GROUP, "0")
    bench.redis.hset(bench.keys.job(ids["bulk"]), "entry", entry)
    assert bench.one().job_id == ids[first]


def test_take_is_capped_over_all_streams(bench: Bench) -> None:
    """n bounds the deliveries of one take over all its streams together."""
    for lane in LANES:
        bench.add(lane=lane)
    assert len(bench.take(2).deliveries) == 2
    assert len(bench.take(2).deliveries) == 1


def test_take_more_than_the_window(bench: Bench) -> None:
    """One take can bring more than a stream holds at a time."""
    for _ in range(50):
        bench.add()
    assert len(bench.take(50).deliveries) == 50


def test_the_window_bounds_the_stream(bench: Bench) -> None:
    """However many jobs wait, the stream holds WINDOW unread entries."""
    for _ in range(50):
        bench.add()
    assert bench.redis.xlen(bench.keys.stream(MODEL, "normal")) == WINDOW


def test_take_nothing(bench: Bench) -> None:
    """Take with no credit leaves everything where it is."""
    bench.add()
    assert bench.take(0).deliveries == ()
    assert bench.pending() == {}


def test_wake_up_when_a_stream_stops_being_empty(bench: Bench) -> None:
    """A wake-up is written for the first job, not for the second, and again after the stream was read."""
    bench.add()
    bench.add()
    assert bench.redis.xlen(bench.keys.wake) == 1
    bench.take(2)
    bench.add()
    assert bench.redis.xlen(bench.keys.wake) == 2


def test_take_counts_attempts(bench: Bench) -> None:
    """A delivery carries the attempt, the payload and the times; the job is running."""
    job = make_job()
    bench.submit(job)
    d = bench.one()
    assert (d.job_id, d.attempt, d.tries, d.alone, d.crashes) == (job.id, 1, 0, False, 0)
    assert b'"path":"/a.wav"' in d.payload
    assert d.taken_ms >= d.created_ms > 0
    assert bench.state(job.id) == "running"
    assert bench.counter("waiting") == 0


def test_take_after_the_group_was_lost(bench: Bench) -> None:
    """What was written before the group existed is read all the same."""
    job_id = bench.add()
    bench.redis.xgroup_destroy(bench.keys.stream(MODEL, "normal"), GROUP)
    assert bench.one().job_id == job_id


# --- settle ---


@pytest.mark.parametrize("outcome", ["done", "failed", "dead"])
def test_the_end_of_a_job(bench: Bench, outcome: str) -> None:
    """An end is written once, frees the entry, says so, and gives the job a time to live."""
    job_id = bench.add(result_ttl_s=500)
    assert bench.settle(bench.one(), outcome) == "ok"
    status = bench.status(job_id)
    assert status is not None
    assert status.state == outcome
    assert status.finished_ms is not None
    assert bench.pending() == {}
    assert bench.redis.xlen(bench.keys.stream(MODEL, "normal")) == 0
    assert bench.event_types(job_id) == ["started", outcome]
    # The dead stay for a week at least: somebody has to find the time to look at them.
    kept = 7 * 86400 if outcome == "dead" else 500
    assert kept - 10 <= bench.redis.ttl(bench.keys.job(job_id)) <= kept
    assert 50 <= bench.redis.ttl(bench.keys.events(job_id)) <= 60
    assert bench.counter(outcome) == 1


def test_a_result_comes_back_whole(bench: Bench) -> None:
    """Text of any script survives the way through Redis."""
    job_id = bench.add()
    bench.settle(bench.one(), "done", result_json("naïve 日本語 🎧"))
    status = bench.status(job_id)
    assert status is not None and status.result is not None
    assert status.result.text == "naïve 日本語 🎧"
    assert status.error is None


def test_a_newer_result_is_understood(bench: Bench) -> None:
    """A field that a later worker adds to a result does not disturb an older client."""
    job_id = bench.add()
    bench.settle(bench.one(), "done", '{"text":"hi","later":1}')
    status = bench.status(job_id)
    assert status is not None and status.result is not None
    assert status.result.text == "hi"


def test_an_error_comes_back(bench: Bench) -> None:
    """The error of a failed job is in its status."""
    job_id = bench.add()
    bench.settle(bench.one(), "failed")
    status = bench.status(job_id)
    assert status is not None
    assert status.error == ErrorInfo(code="boom", message="it broke", retryable=True)


def test_retry_waits_again_and_counts(bench: Bench) -> None:
    """A retry goes back to the waiting room, counts as a try, and raises the attempt."""
    job_id = bench.add()
    assert bench.settle(bench.one(), "retry") == "ok"
    assert (bench.state(job_id), bench.counter("waiting")) == ("waiting", 1)
    d = bench.one()
    assert (d.attempt, d.tries) == (2, 1)
    assert bench.event_types(job_id) == ["started", "retry", "started"]


def test_retry_with_a_delay(bench: Bench) -> None:
    """A delayed retry is not taken before its time."""
    job_id = bench.add()
    bench.settle(bench.one(), "retry", delay_ms=3_600_000)
    assert bench.take().deliveries == ()
    bench.redis.zadd(bench.keys.delayed, {job_id: 0})
    assert bench.one().job_id == job_id


def test_retry_remembers_suspicion(bench: Bench) -> None:
    """A suspect of crashing the engine is delivered as such, with its crashes."""
    bench.add()
    bench.settle(bench.one(), "retry", alone=True, crashed=True)
    d = bench.one()
    assert (d.alone, d.crashes) == (True, 1)


def test_done_forgets_the_error_of_an_earlier_try(bench: Bench) -> None:
    """A job that is done carries no error."""
    job_id = bench.add()
    bench.settle(bench.one(), "retry")
    bench.settle(bench.one(), "done")
    assert not bench.redis.hexists(bench.keys.job(job_id), "error")


def test_release_goes_to_the_head(bench: Bench) -> None:
    """Work handed back is next in its backlog and is not counted as a try."""
    ids = [bench.add() for _ in range(WINDOW * 2)]
    first = bench.one()
    assert first.job_id == ids[0]
    bench.settle(first, "release")
    order = bench.take(WINDOW * 2).deliveries
    place = [d.job_id for d in order].index(ids[0])
    assert place <= WINDOW
    assert (order[place].attempt, order[place].tries) == (2, 0)


def test_stale_attempts_change_nothing(bench: Bench) -> None:
    """Retry, failure, death and release of an attempt that was taken over are refused."""
    job_id = bench.add()
    old = bench.one()
    bench.age(old, "w1")
    (new,) = bench.reclaim().deliveries
    for outcome in ("retry", "failed", "dead", "release"):
        assert bench.settle(old, outcome) == "stale"
    assert bench.state(job_id) == "running"
    assert bench.pending() == {new.entry: "w2"}


def test_done_of_an_old_attempt_wins(bench: Bench) -> None:
    """Done of an attempt that was taken over ends the job, tells the other worker, and frees its entry."""
    job_id = bench.add()
    old = bench.one()
    bench.age(old, "w1")
    (new,) = bench.reclaim().deliveries
    assert bench.settle(old, "done", result_json("first")) == "ok"
    assert bench.renew(new, consumer="w2") == ("done",)
    assert bench.pending() == {}
    assert bench.redis.xlen(bench.keys.control) == 1
    assert bench.settle(new, "done", result_json("second")) == "done"
    status = bench.status(job_id)
    assert status is not None and status.result is not None
    assert status.result.text == "first"


def test_done_of_a_job_that_waits_again(bench: Bench) -> None:
    """Done that comes after a hand-back ends the job, which is then not delivered again."""
    bench.add()
    old = bench.one()
    bench.settle(old, "release")
    assert bench.settle(old, "done") == "ok"
    assert bench.counter("waiting") == 0
    assert bench.take().deliveries == ()


def test_done_of_a_job_that_is_delayed(bench: Bench) -> None:
    """Done that comes after a retry with a delay leaves nothing in the delayed set."""
    bench.add()
    old = bench.one()
    bench.settle(old, "retry", delay_ms=3_600_000)
    assert bench.settle(old, "done") == "ok"
    assert bench.redis.zcard(bench.keys.delayed) == 0


def test_settle_twice(bench: Bench) -> None:
    """An outcome after the end is answered with the state that stands."""
    bench.add()
    d = bench.one()
    bench.settle(d, "failed")
    assert bench.settle(d, "done") == "failed"
    assert bench.settle(d, "retry") == "failed"


def test_settle_a_job_that_is_gone(bench: Bench) -> None:
    """An outcome for a job that is not there frees the entry."""
    bench.add()
    d = bench.one()
    bench.redis.delete(bench.keys.job(d.job_id), bench.keys.events(d.job_id))
    assert bench.settle(d, "done") == "gone"
    assert bench.pending() == {}


def test_dead_jobs_are_listed(bench: Bench) -> None:
    """The id of a dead job is on the dead list."""
    job_id = bench.add()
    bench.settle(bench.one(), "dead")
    assert bench.redis.zrange(bench.keys.dead, 0, -1) == [job_id.encode()]


def test_the_dead_list_is_bounded(bench: Bench) -> None:
    """Beyond ten thousand, the oldest of the dead leave the list."""
    bench.redis.zadd(bench.keys.dead, {f"old-{i}": i for i in range(10_000)})
    job_id = bench.add()
    bench.settle(bench.one(), "dead")
    assert bench.redis.zcard(bench.keys.dead) == 10_000
    assert bench.redis.zscore(bench.keys.dead, "old-0") is None
    assert bench.redis.zscore(bench.keys.dead, job_id) is not None


def test_inline_bytes_go_with_the_end(bench: Bench) -> None:
    """Inline bytes outlast a retry, are deleted at the end, and no longer count."""
    job_id = bench.add(data=b"RIFF")
    bench.settle(bench.one(), "retry")
    assert bench.redis.get(bench.keys.inline(job_id)) == b"RIFF"
    assert bench.counter("bytes") == 4
    bench.settle(bench.one(), "done")
    assert not bench.redis.exists(bench.keys.inline(job_id))
    assert bench.counter("bytes") == 0


# --- cancel and expire ---


def test_cancel_a_waiting_job(bench: Bench) -> None:
    """A waiting job that is cancelled is never delivered."""
    job_id = bench.add()
    assert bench.cancel(job_id) is State.CANCELLED
    assert bench.take().deliveries == ()
    assert bench.counter("waiting") == 0


def test_cancel_in_the_backlog(bench: Bench) -> None:
    """A job cancelled in its backlog leaves no id behind, nor its tenant in the ring."""
    for _ in range(WINDOW):
        bench.add()
    job_id = bench.add(tenant="z")
    assert bench.redis.llen(bench.keys.backlog(MODEL, "normal", "z")) == 1
    bench.cancel(job_id)
    assert not bench.redis.exists(bench.keys.backlog(MODEL, "normal", "z"), bench.keys.ring(MODEL, "normal"))


def test_cancel_a_delayed_job(bench: Bench) -> None:
    """A delayed job that is cancelled leaves the delayed set."""
    job_id = bench.add(not_before_ms=FUTURE)
    bench.cancel(job_id)
    assert bench.redis.zcard(bench.keys.delayed) == 0


def test_cancel_a_running_job(bench: Bench) -> None:
    """Cancelling a running job ends it, frees its entry and tells whoever runs it."""
    job_id = bench.add()
    d = bench.one()
    assert bench.cancel(job_id) is State.CANCELLED
    assert bench.renew(d) == ("cancelled",)
    assert bench.pending() == {}
    ((_, message),) = bench.redis.xrange(bench.keys.control)
    assert message == {b"cancel": job_id.encode()}


def test_cancel_after_the_end(bench: Bench) -> None:
    """Cancelling a job that is done changes nothing and says done."""
    job_id = bench.add()
    bench.settle(bench.one(), "done")
    assert bench.cancel(job_id) is State.DONE
    assert bench.state(job_id) == "done"


def test_cancel_an_unknown_job(bench: Bench) -> None:
    """Cancelling what is not there answers nothing."""
    assert bench.cancel("not-there-1") is None


def test_cancel_a_job_past_its_deadline(bench: Bench) -> None:
    """A job whose deadline has passed is expired, not cancelled."""
    assert bench.cancel(bench.add(deadline_ms=PAST)) is State.EXPIRED


def test_an_expired_job_is_not_delivered(bench: Bench) -> None:
    """A waiting job past its deadline is not delivered, and its end is written."""
    job_id = bench.add(deadline_ms=PAST)
    assert bench.take().deliveries == ()
    assert bench.state(job_id) == "expired"
    assert bench.counter("waiting") == 0


def test_status_expires_without_a_worker(bench: Bench) -> None:
    """Asking for the status is enough to end a job past its deadline."""
    job_id = bench.add(deadline_ms=PAST)
    status = bench.status(job_id)
    assert status is not None
    assert (status.state, status.error and status.error.code) == (State.EXPIRED, "expired")


def test_a_running_job_expires(bench: Bench) -> None:
    """The renewal of a job whose deadline has passed says expired, and the job has ended."""
    job_id = bench.add(deadline_ms=FUTURE)
    d = bench.one()
    bench.redis.hset(bench.keys.job(job_id), "deadline", PAST)
    assert bench.renew(d) == ("expired",)
    assert bench.state(job_id) == "expired"
    assert bench.pending() == {}


def test_status_of_an_unknown_job(bench: Bench) -> None:
    """There is no status of a job that is not there."""
    assert bench.status("not-there-1") is None


def test_not_before(bench: Bench) -> None:
    """A job is not delivered before its time, and is after it."""
    job_id = bench.add(not_before_ms=FUTURE)
    assert bench.take().deliveries == ()
    assert bench.counter("waiting") == 1
    bench.redis.zadd(bench.keys.delayed, {job_id: 0})
    assert bench.one().job_id == job_id


def test_not_before_in_the_past(bench: Bench) -> None:
    """A moment that has passed delays nothing."""
    job_id = bench.add(not_before_ms=PAST)
    assert bench.one().job_id == job_id


# --- leases ---


def test_renew_keeps_the_lease(bench: Bench) -> None:
    """A renewed delivery is not taken over."""
    bench.add()
    d = bench.one()
    bench.age(d, "w1")
    assert bench.renew(d) == ("ok",)
    assert bench.reclaim().deliveries == ()


def test_renew_does_not_raise_the_delivery_count(bench: Bench) -> None:
    """Renewing leaves Redis' own count of deliveries alone."""
    bench.add()
    d = bench.one()
    for _ in range(3):
        bench.renew(d)
    (row,) = bench.redis.xpending_range(d.stream, GROUP, "-", "+", 10)
    assert row["times_delivered"] == 1


def test_renew_never_steals_back(bench: Bench) -> None:
    """Renewing what another worker has taken over says lost and leaves it there."""
    bench.add()
    d = bench.one()
    bench.age(d, "w1")
    (new,) = bench.reclaim().deliveries
    assert bench.renew(d) == ("lost",)
    assert bench.pending() == {new.entry: "w2"}


def test_renew_many(bench: Bench) -> None:
    """Each delivery gets its own word, in order."""
    ids = [bench.add() for _ in range(3)]
    a, b, c = bench.take(3).deliveries
    bench.cancel(ids[1])
    bench.settle(c, "release")
    assert bench.renew(a, b, c) == ("ok", "cancelled", "lost")


def test_renew_a_job_that_is_gone(bench: Bench) -> None:
    """A job that is not there any more is gone, which is another thing than taken over."""
    bench.add()
    d = bench.one()
    bench.redis.delete(bench.keys.job(d.job_id), bench.keys.events(d.job_id))
    assert bench.renew(d) == ("gone",)


@pytest.mark.parametrize("loss", ["stream", "group", "entry"])
def test_a_running_job_whose_entry_is_gone_waits_again(bench: Bench, loss: str) -> None:
    """A renewal that finds the entry gone puts the job back where it can be taken, and reports it."""
    job_id = bench.add()
    d = bench.one()
    match loss:
        case "stream":
            bench.redis.delete(d.stream)
        case "group":
            bench.redis.xgroup_destroy(d.stream, GROUP)
        case _:
            bench.redis.xdel(d.stream, d.entry)
    assert bench.renew(d) == ("lost",)
    assert (bench.state(job_id), bench.counter("waiting"), bench.incidents()) == ("waiting", 1, ["lost"])
    again = bench.take(5).deliveries
    assert [(x.job_id, x.attempt) for x in again] == [(job_id, 2)]


def test_reclaim_after_the_lease(bench: Bench) -> None:
    """A delivery idle for longer than the lease goes to another worker as a new attempt."""
    job_id = bench.add()
    d = bench.one()
    assert bench.reclaim().deliveries == ()
    bench.age(d, "w1")
    (new,) = bench.reclaim().deliveries
    assert (new.job_id, new.attempt, new.tries) == (job_id, 2, 0)
    assert bench.redis.hget(bench.keys.job(job_id), "owner") == b"w2"


def test_reclaim_leaves_our_own(bench: Bench) -> None:
    """A worker does not take over what it holds itself: that would be a second attempt of what it runs."""
    bench.add()
    d = bench.one("w2")
    bench.age(d, "w2")
    assert bench.reclaim("w2", held=[d.entry]).deliveries == ()
    assert [x.attempt for x in bench.reclaim("w3").deliveries] == [2]


def test_reclaim_takes_our_own_that_we_do_not_hold(bench: Bench) -> None:
    """What is pending for a worker that knows nothing of it comes to it after the lease, with nobody else there."""
    job_id = bench.add()
    d = bench.one("w2")
    assert bench.reclaim("w2").deliveries == ()
    bench.age(d, "w2")
    assert [(x.job_id, x.attempt) for x in bench.reclaim("w2").deliveries] == [(job_id, 2)]


def test_reclaim_is_capped(bench: Bench) -> None:
    """No more is taken over than was asked for, over all streams together."""
    for lane in LANES:
        bench.add(lane=lane)
        bench.add(lane=lane)
    for d in bench.take(6).deliveries:
        bench.age(d, "w1")
    assert len(bench.reclaim(n=4).deliveries) == 4
    assert len(bench.reclaim(n=4).deliveries) == 2


def test_reclaim_removes_the_dead_only(bench: Bench) -> None:
    """A consumer goes when it has nothing pending and no lock; what another has pending is kept."""
    for _ in range(2):
        bench.add()
    bench.settle(bench.one("idle-dead"), "done")
    kept = bench.one("busy-dead")
    run(bench.redis, bench.queue.adopt("idle-alive", "v", 60_000))
    bench.take(1, "idle-alive")
    bench.redis.xgroup_createconsumer(bench.keys.stream(MODEL, "normal"), GROUP, "idle-alive")
    bench.reclaim("w2")
    assert bench.consumers() - {"w2"} == {"busy-dead", "idle-alive"}
    assert bench.pending() == {kept.entry: "busy-dead"}


def test_reclaim_reports_deleted_entries(bench: Bench) -> None:
    """An entry deleted while it was pending is reported as lost."""
    bench.add()
    d = bench.one()
    bench.age(d, "w1")
    bench.redis.xdel(d.stream, d.entry)
    assert bench.reclaim().lost == ("",)
    assert bench.incidents() == ["lost"]
    assert bench.pending() == {}


def test_resume_brings_what_is_ours(bench: Bench) -> None:
    """After a lost reply a worker gets its own deliveries as new attempts, less those that it holds."""
    ids = [bench.add() for _ in range(3)]
    held = bench.take(3).deliveries[0]
    bench.add()
    bench.one("w2")
    resumed = bench.resume(held=[held.entry]).deliveries
    assert [(d.job_id, d.attempt) for d in resumed] == [(job_id, 2) for job_id in ids[1:]]


def test_resume_renews(bench: Bench) -> None:
    """What was resumed has a fresh lease."""
    bench.add()
    bench.age(bench.one(), "w1")
    assert len(bench.resume().deliveries) == 1
    assert bench.reclaim().deliveries == ()


def test_resume_leaves_the_leases_of_what_is_held(bench: Bench) -> None:
    """Asking for the rest does not renew what a worker holds, nor raise Redis' count of deliveries."""
    bench.add()
    d = bench.one()
    bench.age(d, "w1")
    assert bench.resume(held=[d.entry]).deliveries == ()
    (row,) = bench.redis.xpending_range(d.stream, GROUP, "-", "+", 10)
    assert row["times_delivered"] == 1
    assert len(bench.reclaim().deliveries) == 1


def test_resume_reports_deleted_entries(bench: Bench) -> None:
    """An entry of ours that was deleted while it was pending is reported as lost."""
    bench.add()
    d = bench.one()
    bench.redis.xdel(d.stream, d.entry)
    assert bench.resume().lost == ("",)
    assert bench.pending() == {}


def test_resume_drops_what_has_ended(bench: Bench) -> None:
    """An entry of a job that is over is not resumed and leaves the pending list."""
    bench.add()
    d = bench.one()
    bench.redis.hset(bench.keys.job(d.job_id), "state", "done")
    bench.redis.expire(bench.keys.job(d.job_id), 100)
    bench.redis.expire(bench.keys.events(d.job_id), 100)
    assert bench.resume().deliveries == ()
    assert bench.pending() == {}


# --- what makes no sense ---


def test_a_newer_job_is_handed_back(bench: Bench) -> None:
    """A job that needs a newer worker is put back untouched, after a pause."""
    job_id = bench.add(v=2)
    taken = bench.take(wire=1)
    assert (taken.newer, taken.deliveries) == ((job_id,), ())
    assert (bench.state(job_id), bench.counter("waiting"), bench.pending()) == ("waiting", 1, {})
    assert bench.redis.zscore(bench.keys.delayed, job_id) is not None
    bench.redis.zadd(bench.keys.delayed, {job_id: 0})
    (d,) = bench.take(wire=2).deliveries
    assert d.attempt == 1


def test_a_ghost_is_reported(bench: Bench) -> None:
    """An entry whose job is not there is dropped, returned as lost and reported."""
    job_id = bench.add()
    bench.redis.delete(bench.keys.job(job_id))
    taken = bench.take()
    assert (taken.lost, taken.deliveries) == ((job_id,), ())
    assert bench.incidents() == ["lost"]
    assert bench.pending() == {}


def test_junk_is_reported(bench: Bench) -> None:
    """An entry that names no job is dropped and reported, and what follows it is delivered."""
    bench.redis.xadd(bench.keys.stream(MODEL, "normal"), {"what": "ever"})
    job_id = bench.add()
    taken = bench.take(5)
    assert (taken.junk, [d.job_id for d in taken.deliveries]) == (1, [job_id])
    assert bench.incidents() == ["junk"]


def test_a_second_entry_of_a_job_is_dropped(bench: Bench) -> None:
    """Only the entry that the job names is delivered."""
    job_id = bench.add()
    bench.redis.xadd(bench.keys.stream(MODEL, "normal"), {"job": job_id})
    assert len(bench.take(5).deliveries) == 1
    assert len(bench.pending()) == 1


# --- events ---


def test_no_events_before_the_start(bench: Bench) -> None:
    """A job that ends without having started leaves no event stream."""
    job_id = bench.add()
    bench.cancel(job_id)
    assert not bench.redis.exists(bench.keys.events(job_id))


def test_events_of_the_current_attempt_only(bench: Bench) -> None:
    """An old attempt, or one that has ended, cannot say anything."""
    bench.add()
    old = bench.one()
    assert bench.say(old, "progress", done=0.5)
    bench.age(old, "w1")
    (new,) = bench.reclaim().deliveries
    assert not bench.say(old, "progress", done=0.6)
    assert bench.say(new, "progress", done=0.1)
    bench.settle(new, "done")
    assert not bench.say(new, "progress", done=1.0)
    assert bench.event_types(new.job_id) == ["started", "progress", "started", "progress", "done"]


def test_events_are_capped(bench: Bench) -> None:
    """Of many events the last 256 are kept."""
    bench.add()
    d = bench.one()
    run(bench.redis, bench.queue.events([(d, "progress", {"i": i}) for i in range(400)]))
    assert bench.redis.xlen(bench.keys.events(d.job_id)) == 256
    assert bench.redis.xrevrange(bench.keys.events(d.job_id), count=1)[0][1][b"data"] == b'{"i": 399}'


def test_the_bell_rings(bench: Bench) -> None:
    """The start and the end are announced on the job's channel, the end by its state and the outcome."""
    job_id = bench.add()
    with bench.redis.pubsub() as listener:
        listener.subscribe(bench.keys.bell(job_id))
        assert listener.get_message(timeout=10)["type"] == "subscribe"
        bench.settle(bench.one(), "done", '{"text": "hi"}')
        heard = [listener.get_message(timeout=10)["data"] for _ in range(2)]
    assert heard == [b"event", b'done {"text": "hi"}']


def test_the_bell_carries_no_large_outcome(bench: Bench) -> None:
    """An outcome over 16 KiB is announced by the state alone: who waits reads it."""
    job_id = bench.add()
    delivery = bench.one()
    with bench.redis.pubsub() as listener:
        listener.subscribe(bench.keys.bell(job_id))
        assert listener.get_message(timeout=10)["type"] == "subscribe"
        bench.settle(delivery, "failed", "x" * 16385)
        assert listener.get_message(timeout=10)["data"] == b"failed"


def test_a_job_that_never_started_has_no_events(bench: Bench) -> None:
    """The end of a job that waited makes no stream of events, which would outlive the 60 s of the others."""
    job_id = bench.add()
    run(bench.redis, bench.queue.cancel(job_id))
    assert not bench.redis.exists(bench.keys.events(job_id))


def test_incarnations_expire(bench: Bench) -> None:
    """The count of a name's lives goes 30 days after its last beat; a beat renews that, and nothing is lost by it."""
    month_ms = 30 * 86_400_000
    life = bench.keys.life("w")
    run(bench.redis, bench.queue.adopt("w", "v", 60_000))
    assert month_ms - 60_000 < bench.redis.pttl(life) <= month_ms
    bench.redis.pexpire(life, 1000)
    assert run(bench.redis, bench.queue.beat("w", "v", 60_000, "{}", 1000, [MODEL])).held
    assert month_ms - 60_000 < bench.redis.pttl(life) <= month_ms
    bench.redis.delete(life)
    assert run(bench.redis, bench.queue.adopt("w", "v2", 60_000, over="v")) == (1, "")


# --- workers ---


def test_adopt_a_name(bench: Bench) -> None:
    """A consumer name has one holder; incarnations rise; what may be taken over is named by its value."""
    adopt = bench.queue.adopt
    assert run(bench.redis, adopt("w", "v1", 60_000)) == (1, "")
    assert run(bench.redis, adopt("w", "v2", 60_000)) == (0, "v1")
    assert run(bench.redis, adopt("w", "v2", 60_000, over="v0")) == (0, "v1")
    assert run(bench.redis, adopt("w", "v2", 60_000, over="v1")) == (2, "")
    assert 0 < bench.redis.pttl(bench.keys.lock("w")) <= 60_000


def test_beat_keeps_the_lock(bench: Bench) -> None:
    """A beat renews lock and health, takes a lapsed lock again, and is refused by another's."""
    beat = lambda value: run(bench.redis, bench.queue.beat("w", value, 60_000, "{}", 1000, [MODEL]))  # noqa: E731
    run(bench.redis, bench.queue.adopt("w", "v1", 1000))
    assert beat("v1").held
    assert bench.redis.pttl(bench.keys.lock("w")) > 1000
    assert not beat("v2").held
    bench.redis.delete(bench.keys.lock("w"))
    assert beat("v1").held
    assert bench.redis.get(bench.keys.worker("w")) == b"{}"
    assert bench.redis.ttl(bench.keys.worker("w")) > 0
    assert bench.redis.smembers(bench.keys.workers) == {b"w"}


def test_beat_names_orphans(bench: Bench) -> None:
    """A model that jobs wait for and that nobody serves is an orphan until somebody does, or nothing waits."""
    orphan = bench.add(model="rare")
    beat = lambda *models: run(bench.redis, bench.queue.beat("w", "v", 60_000, "{}", 60_000, models))  # noqa: E731
    assert beat(MODEL).orphans == ("rare",)
    assert beat(MODEL, "rare").orphans == ()
    bench.redis.hdel(bench.keys.served, "rare")
    assert beat(MODEL).orphans == ("rare",)
    bench.cancel(orphan)
    assert beat(MODEL).orphans == ()
    assert not bench.redis.exists(bench.keys.stream("rare", "normal"))


def test_beat_promotes_what_is_due(bench: Bench) -> None:
    """A delayed job whose time has come is put where a worker will read it, by any beat."""
    job_id = bench.add(not_before_ms=FUTURE)
    bench.redis.zadd(bench.keys.delayed, {job_id: 0})
    run(bench.redis, bench.queue.beat("w", "v", 60_000, "{}", 60_000, [MODEL]))
    assert bench.redis.xlen(bench.keys.wake) == 1


def test_leave(bench: Bench) -> None:
    """A worker that leaves gives up its name and its idle consumers, and nothing that is pending."""
    run(bench.redis, bench.queue.adopt("w1", "v1", 60_000))
    run(bench.redis, bench.queue.beat("w1", "v1", 60_000, "{}", 1000, [MODEL]))
    bench.add()
    bench.add(lane="bulk")
    bench.settle(bench.one(), "done")
    d = bench.one()
    assert not run(bench.redis, bench.queue.leave("w1", "other", STREAMS))
    assert run(bench.redis, bench.queue.leave("w1", "v1", STREAMS))
    assert not bench.redis.exists(bench.keys.lock("w1"), bench.keys.worker("w1"), bench.keys.workers)
    assert bench.consumers("normal") == set()
    assert bench.pending("bulk") == {d.entry: "w1"}


# --- a server that is full ---


def test_ends_are_written_when_memory_is_full(bench: Bench) -> None:
    """With no memory left, submit is refused while outcomes, cancellations and beats go through."""
    ids = [bench.add(data=b"x") for _ in range(WINDOW + 4)]
    run(bench.redis, bench.queue.adopt("w1", "v1", 1000))
    a, b, c = bench.take(3).deliveries
    bench.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(Exception, match="maxmemory"):
            bench.submit()
        assert bench.settle(a, "done") == "ok"
        assert bench.settle(b, "failed") == "ok"
        assert bench.settle(c, "retry") == "ok"
        assert bench.cancel(ids[-1]) is State.CANCELLED
        assert run(bench.redis, bench.queue.beat("w1", "v1", 60_000, "{}", 1000, [MODEL])).held
        assert len(bench.take(1).deliveries) == 1
    finally:
        bench.redis.config_set("maxmemory", 0)


# --- names ---


def test_names_on_the_server(bench: Bench) -> None:
    """The keys that a job's life leaves on a server are those that keys.py names."""
    for _ in range(WINDOW + 1):
        bench.add(tenant="t", idempotency_key=f"k{_}", data=b"x")
    bench.add(not_before_ms=FUTURE)
    bench.settle(bench.one(), "dead")
    run(bench.redis, bench.queue.adopt("c", "v", 1000))
    d = bench.one()
    bench.cancel(d.job_id)
    keys = bench.keys
    known = {
        *(keys.job(d.job_id), keys.events(d.job_id), keys.idempotency("t", "k1")),
        *(
            keys.stream(MODEL, "normal"),
            keys.lock("c"),
            keys.life("c"),
            keys.delayed,
            keys.models,
            keys.counts,
        ),
        *(keys.wake, keys.control, keys.dead),
    }
    assert known <= {key.decode() for key in bench.redis.scan_iter(count=1000)}


def test_a_script_is_known_by_its_source(bench: Bench) -> None:
    """The hash that a call names is the server's own for that source, so that EVALSHA finds it."""
    call = bench.queue.status("whatever-1")
    assert bench.redis.script_load(call.script.source) in (call.script.sha, call.script.sha.encode())
    assert call.script.sha == hashlib.sha1(call.script.source.encode()).hexdigest()


def test_counters_return_to_zero(bench: Bench) -> None:
    """After every job has ended one way or another, nothing waits and no bytes are held."""
    ids = [bench.add(data=b"12", tenant=f"t{i % 3}", lane=LANES[i % 3]) for i in range(60)]
    for i, d in enumerate(bench.take(30).deliveries):
        bench.settle(d, ("done", "failed", "dead", "retry", "release")[i % 5], ERROR if i % 5 else None)
    for job_id in ids:
        bench.cancel(job_id)
    assert (bench.counter("waiting"), bench.counter("bytes")) == (0, 0)
    assert bench.take(60).deliveries == ()
    assert sum(bench.counter(s) for s in ("done", "failed", "dead", "cancelled")) == 60
