"""Both clients, by one suite, against a real server; the worker's side is played script by script."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from queueing.client import Client
from queueing.errors import (
    ClientClosed,
    DecibatchError,
    IdempotencyConflict,
    InvalidJob,
    JobCancelled,
    JobDead,
    JobExpired,
    JobFailed,
    QueueFull,
    ResultTimeout,
    ServerUnavailable,
    UnknownJob,
)
from queueing.events import Progress
from queueing.flows import JobHandle, Submission
from queueing.job import State, parse_job
from queueing.protocol import Admission
from tests.support.bench import Bench, result_json
from tests.support.faces import FACES, Face, make_face
from tests.support.proxy import LosingProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

STREAMS = [("m", "interactive"), ("m", "normal"), ("m", "bulk")]
NEVER_POLL = 600.0

Make = Callable[..., Face]


@pytest.fixture(params=FACES)
def make(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Make]:
    """Makes clients of either kind that never look without having been rung, unless told to."""
    made: list[Face] = []

    def make_one(url: str = redis_url, **options: Any) -> Face:
        made.append(make_face(request.param, url, **{"model": "m", "poll_s": NEVER_POLL, **options}))
        return made[-1]

    yield make_one
    for face in made:
        face.finish()


@pytest.fixture
def face(make: Make) -> Face:
    return make()


def listeners(bench: Bench, job_id: str) -> int:
    ((_, count),) = bench.redis.pubsub_numsub(bench.keys.bell(job_id))
    return int(count)


def wait_for_listener(bench: Bench, job_id: str) -> None:
    wait_until(lambda: listeners(bench, job_id) == 1, what="subscription")


def job_of(bench: Bench, job_id: str) -> Any:
    status = bench.status(job_id)
    assert status is not None
    return parse_job(status.payload)


# --- submit ---


def test_submit_a_relative_path(face: Face, bench: Bench) -> None:
    """A relative path is made absolute by the client, whether there is such a file or not."""
    job = face.call("submit", "no/such/file.wav")
    assert job_of(bench, job).input.path == str(Path.cwd() / "no/such/file.wav")


def test_submit_a_path_object(face: Face, bench: Bench, tmp_path: Path) -> None:
    """A Path is taken as it is."""
    assert job_of(bench, face.call("submit", tmp_path / "a.wav")).input.path == str(tmp_path / "a.wav")


@pytest.mark.parametrize("url", ["https://example.org/a.mp3?x=1", "HTTP://example.org/a.mp3"])
def test_submit_a_url(face: Face, bench: Bench, url: str) -> None:
    """An http(s) URL is handed over as a URL."""
    assert job_of(bench, face.call("submit", url)).input.url == url


def test_submit_bytes(face: Face, bench: Bench) -> None:
    """Bytes lie beside the job, with their size and hash in it."""
    job = face.call("submit", b"RIFFdata")
    assert bench.redis.get(bench.keys.inline(job)) == b"RIFFdata"
    assert job_of(bench, job).input.size == 8


def test_submit_options(face: Face, bench: Bench) -> None:
    """Every option reaches the wire."""
    job = face.call(
        "submit",
        "/a.wav",
        kind="translate",
        model="big",
        lane="bulk",
        tenant="acme",
        language="de",
        prompt="Names: Jörg",
        timestamps=False,
        temperature=0.4,
        max_tokens=100,
        carry_context=True,
        words=True,
        beam_size=5,
        best_of=3,
        seed=11,
        hot_words=["Jörg", "Nagg"],
        fallback=False,
        min_bits=8,
        max_attempts=7,
        result_ttl_s=99,
        job_id="my-own-id-1",
    )
    assert job == "my-own-id-1"
    wire = job_of(bench, job).model_dump(exclude_none=True)
    assert wire == {
        "v": 2,
        "id": "my-own-id-1",
        "kind": "translate",
        "model": "big",
        "lane": "bulk",
        "tenant": "acme",
        "input": {"type": "path", "path": "/a.wav"},
        "max_attempts": 7,
        "result_ttl_s": 99,
        "options": {
            "language": "de",
            "prompt": "Names: Jörg",
            "timestamps": False,
            "temperature": 0.4,
            "max_tokens": 100,
            "carry_context": True,
            "words": True,
            "beam_size": 5,
            "best_of": 3,
            "seed": 11,
            "hot_words": ("Jörg", "Nagg"),
            "fallback": False,
            "min_bits": 8,
        },
    }


@pytest.mark.parametrize(
    ("given", "options", "field"),
    [
        ("ftp://example.org/a", {}, "input"),
        ("", {}, "input"),
        ("a\0b", {}, "input"),
        ("bad\udcff.wav", {}, "input"),
        (12, {}, "input"),
        ("a", {"kind": "sing"}, "kind"),
        ("a", {"lane": "fast"}, "lane"),
        ("a", {"tenant": "a:b"}, "tenant"),
        ("a", {"model": "a b"}, "model"),
        ("a", {"language": "English"}, "language"),
        ("a", {"temperature": float("nan")}, "temperature"),
        ("a", {"max_tokens": 0}, "max_tokens"),
        ("a", {"max_attempts": 0}, "max_attempts"),
        ("a", {"result_ttl_s": 0}, "result_ttl_s"),
        ("a", {"deadline_s": 0}, "deadline_s"),
        ("a", {"deadline_s": float("nan")}, "deadline_s"),
        ("a", {"delay_s": -1}, "delay_s"),
        ("a", {"delay_s": 1, "not_before": datetime.now(UTC)}, "not_before"),
        ("a", {"not_before": datetime(2030, 1, 1)}, "not_before"),
        ("a", {"idempotency_key": ""}, "idempotency_key"),
        ("a", {"idempotency_key": "k" * 256}, "idempotency_key"),
        ("a", {"job_id": "short"}, "id"),
        ("a", {"job_id": "{injected}:key"}, "id"),
    ],
)
def test_submit_refuses(face: Face, bench: Bench, given: Any, options: dict[str, Any], field: str) -> None:
    """What breaks the contract is refused by the name of the field, and nothing is written."""
    with pytest.raises(InvalidJob, match=field):
        face.call("submit", given, **options)
    assert bench.counter("submitted") == 0


def test_submit_no_bytes(make: Make) -> None:
    """An input without a byte is refused where it is handed over, and not by a worker later."""
    with pytest.raises(InvalidJob, match="holds no bytes"):
        make().call("submit", b"")


def test_submit_too_many_bytes(make: Make) -> None:
    """Bytes over the limit are refused with both numbers and what to do instead."""
    with pytest.raises(InvalidJob, match=r"11 bytes are more than the 10 .* path or a URL"):
        make(max_inline_bytes=10).call("submit", b"x" * 11)


def test_submit_to_a_full_queue(make: Make) -> None:
    """A full queue refuses, and says when to come back."""
    face = make(admission=Admission(max_waiting=1))
    face.call("submit", "/a")
    with pytest.raises(QueueFull, match="full") as caught:
        face.call("submit", "/b")
    assert caught.value.retry_after_s == 5.0


def test_idempotency(face: Face, bench: Bench) -> None:
    """The same key and work give the same job, also where deadlines are reckoned from now and it has failed."""
    first = face.call("submit", "/a", idempotency_key="k", deadline_s=100)
    bench.settle(bench.one(), "failed")
    again = face.call("submit", "/a", idempotency_key="k", deadline_s=200)
    assert (again, again.existed, again.state) == (first, True, State.FAILED)
    assert not first.existed


def test_idempotency_conflict(face: Face) -> None:
    """The same key with other work is a conflict that names the job."""
    first = face.call("submit", "/a", idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match="idempotency key") as caught:
        face.call("submit", "/b", idempotency_key="k")
    assert caught.value.job_id == first


def test_job_id_conflict(face: Face) -> None:
    """A job id that is taken by other work is a conflict."""
    face.call("submit", "/a", job_id="my-own-id-1")
    with pytest.raises(IdempotencyConflict, match="job id"):
        face.call("submit", "/b", job_id="my-own-id-1")


def test_deadline_by_redis_clock(face: Face, bench: Bench) -> None:
    """A deadline in seconds is reckoned by Redis' clock."""
    job = face.call("submit", "/a", deadline_s=60, delay_s=30)
    seconds, micros = bench.redis.time()
    now = seconds * 1000 + micros // 1000
    assert now + 50_000 < job_of(bench, job).deadline_ms <= now + 60_000
    assert now + 20_000 < job_of(bench, job).not_before_ms <= now + 30_000
    assert bench.take().deliveries == ()


def test_not_before_a_moment(face: Face, bench: Bench) -> None:
    """A moment with a time zone is kept to the millisecond."""
    moment = datetime(2090, 1, 1, tzinfo=UTC) + timedelta(milliseconds=7)
    job = face.call("submit", "/a", not_before=moment)
    assert job_of(bench, job).not_before_ms == round(moment.timestamp() * 1000)


def test_submit_after_a_lost_reply(make: Make, redis_server: RedisServer, bench: Bench) -> None:
    """A reply that is lost after the job was written leads to one job, and to its id."""
    proxy = LosingProxy(
        redis_server.socket_path.with_name(f"p{os.urandom(4).hex()}"), redis_server.socket_path
    )
    try:
        face = make(proxy.url)
        proxy.losing = 2
        job = face.call("submit", "/a")
        assert proxy.lost == 2
        assert not job.existed
        assert bench.counter("submitted") == 1
        assert bench.one().job_id == job
        face.finish()
    finally:
        proxy.close()


def test_submit_many(make: Make, bench: Bench) -> None:
    """Many jobs are answered in order, and a refusal stands in its place."""
    face = make(admission=Admission(max_waiting=3))
    answers = face.call(
        "submit_many",
        [
            "/a",
            Submission("/b", lane="bulk", idempotency_key="k"),
            Submission("/c", idempotency_key="k"),
            b"bytes",
            "/too-many",
        ],
    )
    assert [type(answer) for answer in answers] == [
        JobHandle,
        JobHandle,
        IdempotencyConflict,
        JobHandle,
        QueueFull,
    ]
    assert job_of(bench, answers[1]).lane == "bulk"
    assert bench.counter("submitted") == 3


def test_submit_many_on_a_server_that_forgot(face: Face, bench: Bench) -> None:
    """More jobs than fit a pipeline are written once each, also after the server has forgotten the scripts."""
    face.call("submit", "/a")
    bench.redis.script_flush()
    answers = face.call("submit_many", [f"/{i}" for i in range(1100)])
    assert len(set(answers)) == 1100
    assert bench.counter("submitted") == 1101


def test_submit_many_checks_first(face: Face, bench: Bench) -> None:
    """One job that breaks the contract keeps all of them from being written."""
    with pytest.raises(InvalidJob):
        face.call("submit_many", ["/a", ""])
    assert bench.counter("submitted") == 0


def test_a_handle_is_a_string(face: Face) -> None:
    """A handle can be used, pickled and compared as the id."""
    import pickle

    job = face.call("submit", "/a")
    copy = pickle.loads(pickle.dumps(job))
    assert (copy, copy.id, copy.existed, type(copy.id)) == (job, str(job), False, str)


# --- status and cancel ---


@pytest.mark.parametrize("job_id", ["unknown-1", "", "x:y{z}aaaa", "a" * 65, "good-id-1\n", None, 5])
@pytest.mark.parametrize("name", ["status", "cancel", "result"])
def test_unknown_job(face: Face, name: str, job_id: Any) -> None:
    """What is the id of no job is unknown, whatever it looks like."""
    with pytest.raises(UnknownJob):
        face.call(name, job_id)


def test_status(face: Face, bench: Bench) -> None:
    """The status follows the job."""
    job = face.call("submit", "/a")
    assert face.call("status", job).state is State.WAITING
    d = bench.one()
    assert (face.call("status", job).state, face.call("status", job).attempt) == (State.RUNNING, 1)
    bench.settle(d, "done", result_json("hi"))
    assert face.call("status", job).result.text == "hi"


def test_cancel(face: Face) -> None:
    """Cancel answers with the state, and again with the same."""
    job = face.call("submit", "/a")
    assert face.call("cancel", job) is State.CANCELLED
    assert face.call("cancel", job) is State.CANCELLED


# --- result ---


def test_result_of_a_job_that_is_done(face: Face, bench: Bench) -> None:
    """A result that is there is returned at once, without a subscription."""
    job = face.call("submit", "/a")
    bench.settle(bench.one(), "done", result_json("hi"))
    assert face.call("result", job, timeout=0).text == "hi"
    assert bench.redis.pubsub_channels() == []


def test_result_is_rung_for(face: Face, bench: Bench) -> None:
    """A waiter that never polls gets the result when the job ends."""
    job = face.call("submit", "/a")
    waiting = face.start("result", job, timeout=60)
    wait_for_listener(bench, job)
    d = bench.one()
    bench.say(d, "progress", done=0.5)
    bench.settle(d, "done", result_json("hi"))
    assert waiting.result(30).text == "hi"
    wait_until(lambda: listeners(bench, job) == 0, what="unsubscription")


@pytest.mark.parametrize(("outcome", "error"), [("failed", JobFailed), ("dead", JobDead)])
def test_result_of_a_job_without_one(face: Face, bench: Bench, outcome: str, error: type[Any]) -> None:
    """A job that ended without a result raises its error, with the code and the message."""
    job = face.call("submit", "/a")
    waiting = face.start("result", job, timeout=60)
    wait_for_listener(bench, job)
    bench.settle(bench.one(), outcome)
    with pytest.raises(error, match="boom: it broke") as caught:
        waiting.result(30)
    assert (caught.value.job_id, caught.value.error.code) == (job, "boom")


@pytest.mark.parametrize("outcome", ["done", "failed", "dead"])
def test_wait_raises_nothing_for_an_end(face: Face, bench: Bench, outcome: str) -> None:
    """Whatever end comes, a waiter is given the job as it then stands."""
    job = face.call("submit", "/a")
    waiting = face.start("wait", job, timeout=60)
    wait_for_listener(bench, job)
    bench.settle(bench.one(), outcome)
    assert waiting.result(30).state is State(outcome)
    with pytest.raises(ResultTimeout):
        face.call("wait", face.call("submit", "/b"), timeout=0)


def test_a_webhook_needs_a_worker_that_knows_them(face: Face, bench: Bench) -> None:
    """Only a job with a webhook asks for the newer wire version; another URL is other work."""
    plain = face.call("submit", "/a")
    hooked = face.call("submit", "/a", webhook="https://h/x", idempotency_key="k")
    assert [job_of(bench, job).v for job in (plain, hooked)] == [1, 2]
    with pytest.raises(IdempotencyConflict):
        face.call("submit", "/a", webhook="https://h/y", idempotency_key="k")
    with pytest.raises(InvalidJob, match="webhook"):
        face.call("submit", "/a", webhook="ftp://h/x")


def test_events_read_as_what_they_are(face: Face, bench: Bench) -> None:
    """Progress has its numbers, partial text its text, and other events neither."""
    job = face.call("submit", "/a")
    delivery = bench.one()
    bench.say(delivery, "progress", stage="engine", done=1, total=2)
    bench.say(delivery, "partial", chunk=0, text="so far")
    bench.settle(delivery, "done")
    seen = [(event.type, event.progress, event.text) for event in face.events(job)]
    assert seen == [
        ("started", None, None),
        ("progress", Progress("engine", 1, 2), None),
        ("partial", None, "so far"),
        ("done", None, None),
    ]


def test_result_of_a_cancelled_job(face: Face, bench: Bench) -> None:
    """Whoever waits for a job that is cancelled learns it."""
    job = face.call("submit", "/a")
    waiting = face.start("result", job)
    wait_for_listener(bench, job)
    face.call("cancel", job)
    with pytest.raises(JobCancelled):
        waiting.result(30)


def test_result_at_the_deadline(face: Face) -> None:
    """A waiting job expires at its deadline with no worker, and without a poll."""
    job = face.call("submit", "/a", deadline_s=0.2)
    with pytest.raises(JobExpired):
        face.call("result", job, timeout=60)


def test_result_timeout(face: Face, bench: Bench) -> None:
    """A waiter that runs out of time leaves no subscription, and the job goes on."""
    job = face.call("submit", "/a")
    with pytest.raises(ResultTimeout, match="waiting"):
        face.call("result", job, timeout=0.05)
    wait_until(lambda: listeners(bench, job) == 0, what="unsubscription")
    assert bench.one().job_id == job


def test_result_when_nobody_rings(make: Make, bench: Bench) -> None:
    """An end that was not announced is found by the slow poll."""
    face = make(poll_s=0.05)
    job = face.call("submit", "/a")
    waiting = face.start("result", job, timeout=60)
    wait_for_listener(bench, job)
    d = bench.one()
    bench.redis.hset(bench.keys.job(job), mapping={"state": "done", "result": result_json("quiet")})
    assert waiting.result(30).text == "quiet"
    bench.redis.delete(bench.keys.job(job), bench.keys.events(job), d.stream)


def test_two_waiters_for_one_job(face: Face, bench: Bench) -> None:
    """One that gives up does not take the bell from the other."""
    job = face.call("submit", "/a")
    patient = face.start("result", job, timeout=60)
    wait_for_listener(bench, job)
    with pytest.raises(ResultTimeout):
        face.call("result", job, timeout=0.05)
    assert listeners(bench, job) == 1
    bench.settle(bench.one(), "done", result_json("hi"))
    assert patient.result(30).text == "hi"


def test_waiting_again_after_the_last_waiter_left(face: Face, bench: Bench) -> None:
    """A channel that was given up can be listened to again."""
    job = face.call("submit", "/a")
    for _ in range(5):
        with pytest.raises(ResultTimeout):
            face.call("result", job, timeout=0.02)
    waiting = face.start("result", job, timeout=60)
    wait_for_listener(bench, job)
    bench.settle(bench.one(), "done", result_json("hi"))
    assert waiting.result(30).text == "hi"


def test_result_over_a_restart_of_the_server(make: Make, bench: Bench, redis_server: RedisServer) -> None:
    """After the server comes back, a waiter that never polls is subscribed again and gets its result."""
    face = make(patience_s=30)
    job = face.call("submit", "/a")
    waiting = face.start("result", job, timeout=60)
    wait_for_listener(bench, job)
    # A server that is only killed may lose the last second.
    bench.redis.bgrewriteaof()
    wait_until(lambda: not bench.redis.info("persistence")["aof_rewrite_in_progress"], what="rewrite")
    redis_server.restart()
    with redis_server.connect() as fresh:
        bench.redis = fresh
        wait_for_listener(bench, job)
        bench.settle(bench.one(), "done", result_json("hi"))
        assert waiting.result(30).text == "hi"


def test_an_end_during_a_broken_connection(face: Face, bench: Bench) -> None:
    """An end that was announced while the subscription was broken is seen on the way back."""
    job = face.call("submit", "/a")
    waiting = face.start("result", job, timeout=60)
    wait_for_listener(bench, job)
    d = bench.one()
    with bench.redis.pipeline(transaction=True) as pipe:
        pipe.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        call = bench.queue.settle(d, "done", result_json("hi"))
        pipe.eval(call.script.source, 1, call.root, *call.args)
        pipe.execute()
    assert waiting.result(30).text == "hi"


# --- events ---


def test_events(face: Face, bench: Bench) -> None:
    """Events arrive in order, while the job runs, and stop after the final one."""
    job = face.call("submit", "/a")
    events = face.events(job)
    with ThreadPoolExecutor(1) as aside:
        first = aside.submit(next, events)
        wait_for_listener(bench, job)
        d = bench.one()
        assert (first.result(30).type, first.result(30).attempt) == ("started", 1)
        second = aside.submit(next, events)
        bench.say(d, "partial", text="Grüße")
        assert second.result(30).data == {"text": "Grüße"}
        rest = aside.submit(list, events)
        bench.settle(d, "retry")
        bench.settle(bench.one(), "done")
        assert [(e.type, e.attempt) for e in rest.result(30)] == [("retry", 1), ("started", 2), ("done", 2)]
    wait_until(lambda: listeners(bench, job) == 0, what="unsubscription")


def test_events_that_are_over(face: Face, bench: Bench) -> None:
    """Of a job that has just ended all events are there, more than one read brings; and those after an id."""
    job = face.call("submit", "/a")
    d = bench.one()
    for i in range(300):
        bench.say(d, "progress", i=i)
    bench.settle(d, "done")
    events = list(face.events(job))
    assert (len(events), events[-1].type, events[-1].final) == (256, "done", True)
    assert [e.id for e in face.events(job, after=events[-3].id)] == [events[-2].id, events[-1].id]


def test_events_of_a_job_that_never_started(face: Face) -> None:
    """A job that ended before it started yields its end."""
    job = face.call("submit", "/a")
    face.call("cancel", job)
    (event,) = face.events(job)
    assert (event.type, event.attempt, event.id) == ("cancelled", 0, "")


def test_events_that_are_gone(face: Face, bench: Bench) -> None:
    """A job whose events have expired yields its end."""
    job = face.call("submit", "/a")
    bench.settle(bench.one(), "done")
    bench.redis.delete(bench.keys.events(job))
    (event,) = face.events(job)
    assert (event.type, event.attempt) == ("done", 1)


def test_events_of_a_job_that_expires(face: Face) -> None:
    """The events of a job that nobody takes end at its deadline."""
    job = face.call("submit", "/a", deadline_s=0.1)
    assert [event.type for event in face.events(job)] == ["expired"]


def test_events_of_an_unknown_job(face: Face) -> None:
    """There are no events of a job that is not there."""
    with pytest.raises(UnknownJob):
        next(face.events("unknown-1"))


def test_events_after_nonsense(face: Face) -> None:
    """An id that no event can have is refused."""
    job = face.call("submit", "/a")
    with pytest.raises(InvalidJob, match="after"):
        next(face.events(job, after="yesterday"))


def test_events_given_up(face: Face, bench: Bench) -> None:
    """Whoever stops reading events leaves no subscription."""
    job = face.call("submit", "/a")
    bench.one()
    events = face.events(job)
    next(events)
    events.close()  # type: ignore[attr-defined]
    wait_until(lambda: listeners(bench, job) == 0, what="unsubscription")


# --- connections ---


def connections(server: RedisServer) -> int:
    """Connections of others."""
    with server.connect() as client:
        own = client.client_id()
        return sum(int(row["id"]) != own for row in client.client_list())


def test_two_hundred_waiters(make: Make, bench: Bench, redis_server: RedisServer) -> None:
    """Two hundred waiters use the pool and one connection, and none is left after close."""
    bench.redis.connection_pool.disconnect()
    face = make(max_connections=4, poll_s=60.0)
    jobs = face.call("submit_many", [f"/{i}" for i in range(200)])
    waiting = [face.start("result", job, timeout=120) for job in jobs]
    with redis_server.connect() as client:
        wait_until(lambda: len(client.pubsub_channels()) == 200, what="subscriptions")
        client.close()
    assert connections(redis_server) <= 4 + 1
    deliveries = {d.job_id: d for d in bench.take(200).deliveries}
    for job in jobs:
        bench.settle(deliveries[job], "done", result_json(job))
    assert [future.result(60).text for future in waiting] == jobs
    bench.redis.connection_pool.disconnect()
    assert connections(redis_server) <= 4 + 1
    face.close()
    wait_until(lambda: connections(redis_server) == 0, what="closing")
    assert not [thread for thread in threading.enumerate() if thread.name == "decibatch-bells"]


def test_close_wakes_waiters(face: Face, bench: Bench) -> None:
    """Whoever waits when the client is closed is told so."""
    job = face.call("submit", "/a")
    waiting = face.start("result", job)
    wait_for_listener(bench, job)
    face.close()
    with pytest.raises(ClientClosed):
        waiting.result(30)


def test_closed(face: Face) -> None:
    """Closing twice is fine, and nothing can be called afterwards."""
    face.close()
    face.close()
    with pytest.raises(ClientClosed):
        face.call("submit", "/a")


def test_after_a_fork(redis_url: str, bench: Bench) -> None:
    """A client whose waiters run in the parent also waits in a forked child."""
    with Client(redis_url, model="m", poll_s=NEVER_POLL) as client, ThreadPoolExecutor(1) as aside:
        jobs = [client.submit("/a"), client.submit("/b")]
        in_parent = aside.submit(client.result, jobs[0], 60)
        wait_for_listener(bench, jobs[0])
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if client.result(jobs[1], 30).text == "child" else 1)
            except BaseException:
                os._exit(2)
        wait_for_listener(bench, jobs[1])
        for d in bench.take(2).deliveries:
            bench.settle(d, "done", result_json("child" if d.job_id == jobs[1] else "parent"))
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert in_parent.result(30).text == "parent"


def test_a_client_that_is_forgotten(redis_url: str, bench: Bench, redis_server: RedisServer) -> None:
    """A client that nobody closed does not keep its thread."""
    client = Client(redis_url, model="m")
    job = client.submit("/a")
    with pytest.raises(ResultTimeout):
        client.result(job, timeout=0.05)
    del client
    wait_until(
        lambda: not [thread for thread in threading.enumerate() if thread.name == "decibatch-bells"],
        what="end of the thread",
    )


# --- a server in trouble ---


@pytest.fixture
def conf(queue_redis: redis.Redis) -> Iterator[Callable[[str, Any], None]]:
    """Changes settings of the server, and changes them back."""
    changed: dict[str, Any] = {}

    def change(name: str, value: Any) -> None:
        changed[name] = queue_redis.config_get(name)[name]
        queue_redis.config_set(name, value)

    yield change
    for name, value in changed.items():
        queue_redis.config_set(name, value)


def test_server_out_of_memory(face: Face, conf: Callable[[str, Any], None]) -> None:
    """A full server is said to be full, and nothing is retried."""
    conf("maxmemory", 1)
    with pytest.raises(ServerUnavailable, match="out of memory") as caught:
        face.call("submit", "/a")
    assert isinstance(caught.value.__cause__, redis.RedisError)
    assert not caught.value.transient


def test_server_read_only(face: Face, bench: Bench) -> None:
    """A replica is said to be one."""
    bench.redis.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(ServerUnavailable, match="read-only replica"):
            face.call("submit", "/a")
    finally:
        bench.redis.replicaof("NO", "ONE")


def test_server_asks_for_a_password(make: Make, bench: Bench, conf: Callable[[str, Any], None]) -> None:
    """A missing or a wrong password is named as the reason and never repeated."""
    path = bench.redis.connection_pool.connection_kwargs["path"]
    conf("requirepass", "open-sesame")
    with pytest.raises(ServerUnavailable, match="password") as missing:
        make().call("submit", "/a")
    with pytest.raises(ServerUnavailable, match="password") as wrong:
        make(f"unix://:hunter2@{path}?db=0").call("submit", "/a")
    for caught in (missing, wrong):
        assert "hunter2" not in str(caught.value)
        assert not caught.value.transient


def test_server_away(make: Make, redis_server: RedisServer) -> None:
    """A server that is not there is tried for as long as patience lasts, then named without its password."""
    face = make("redis://me:hunter2@127.0.0.1:1/0", patience_s=0.2)
    with pytest.raises(
        ServerUnavailable, match=r"127\.0\.0\.1:1 cannot be reached: connection refused"
    ) as caught:
        face.call("submit", "/a")
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    assert "hunter2" not in str(caught.value) + str(caught.value.__cause__)


def test_server_comes_back(make: Make, bench: Bench, redis_server: RedisServer) -> None:
    """A call that finds the server away succeeds when it comes back in time."""
    face = make(patience_s=30)
    redis_server.kill()
    calling = face.start("submit", "/a")
    redis_server.start()
    job = calling.result(60)
    with redis_server.connect() as fresh:
        assert fresh.exists(bench.keys.job(job))


@pytest.mark.parametrize("url", ["nonsense", "redis://h:hunter2@x:port/0"])
def test_bad_url(make: Make, url: str) -> None:
    """A URL that cannot be read is refused without being repeated."""
    with pytest.raises(ServerUnavailable, match="URL") as caught:
        make(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_bad_names(make: Make) -> None:
    """A queue or a model that is no name is refused."""
    for options in ({"queue": "a}b"}, {"model": "a b"}):
        with pytest.raises(InvalidJob):
            make(**options)


def test_from_env(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    """The environment is read when from_env is called, and arguments win."""
    monkeypatch.setenv("DECIBATCH_REDIS_URL", redis_url)
    monkeypatch.setenv("DECIBATCH_QUEUE", "other")
    monkeypatch.setenv("DECIBATCH_MODEL", "base")
    with Client.from_env(model="m") as client:
        job = client.submit("/a")
        assert client.status(job).model == "m"
    with redis.Redis.from_url(redis_url) as raw:
        assert Bench(raw, "other").state(job) == "waiting"


def test_every_error_is_ours() -> None:
    """Whoever catches DecibatchError catches all of them."""
    for kind in (
        ClientClosed,
        InvalidJob,
        QueueFull,
        ServerUnavailable,
        ResultTimeout,
        UnknownJob,
        JobFailed,
    ):
        assert issubclass(kind, DecibatchError)
