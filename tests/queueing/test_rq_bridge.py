"""RQ as a way in, with the real library on a real server: one step of the bridge after the other."""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import rq
from redis.connection import UnixDomainSocketConnection
from rq.registry import StartedJobRegistry
from rq.results import Result as RqResult
from rq.serializers import JSONSerializer
from rq.utils import current_timestamp

from queueing import rq_jobs
from queueing.client import Client
from queueing.connect import connect
from queueing.errors import InvalidJob
from queueing.protocol import Admission, Delivery
from queueing.rq_bridge import ARGUMENTS, Bridge, submission_of
from queueing.rq_jobs import RqJobs
from tests.support.bench import Bench, result_json
from tests.support.redis_server import RedisServer

NAME = "decibatch.transcribe"
INPUT = {"input": "/a.wav"}


class Killed(BaseException):
    """Death of the worker."""


class Mortal(UnixDomainSocketConnection):
    """Dies at the n-th command, before or after the server has carried it out."""

    left = 0
    after = False

    def send_packed_command(self, command: Any, *args: Any, **options: Any) -> None:
        cls = type(self)
        cls.left -= 1
        if cls.left == 0 and not cls.after:
            raise Killed
        super().send_packed_command(command, *args, **options)
        if cls.left == 0:
            # Answered, so carried out; the reply is lost.
            self.can_read(timeout=5)
            raise Killed


class World:
    """A queue of RQ, one of ours, and workers that bridge them. ``now`` is the clock of all workers."""

    def __init__(self, bench: Bench, url: str) -> None:
        self.bench = bench
        self.url = url
        self.now = 1000.0
        self.rq = rq.Queue("audio", connection=bench.redis, serializer=JSONSerializer)
        self.others: list[redis.Redis] = []

    def worker(self, name: str = "a", *, mortal: bool = False, **options: Any) -> Bridge:
        pair = [connect(self.url), connect(self.url)]
        for one in pair if mortal else ():
            one.connection_pool.connection_class = Mortal
        self.others += pair
        jobs = RqJobs(pair[1], ("audio",), name=name, pickle_allowed=options.pop("pickle_allowed", False))
        jobs.begin()
        return Bridge(
            pair[0],
            self.bench.queue,
            jobs,
            owner=name,
            model="m",
            admission=Admission(),
            open_at_once=options.pop("open_at_once", 8),
            clock=lambda: self.now,
        )

    def enqueue(self, name: str = NAME, kwargs: Any = INPUT, **options: Any) -> rq.job.Job:
        return self.rq.enqueue(name, kwargs=kwargs, **options)

    def step(self, bridge: Bridge, *, may_take: bool = True) -> None:
        self.now += 1.0
        bridge.step(may_take=may_take)

    def taken(self, bridge: Bridge) -> Delivery:
        """Step, and take the job that came of it as a worker does."""
        self.step(bridge)
        return self.bench.one()

    def fetch(self, job: rq.job.Job) -> rq.job.Job:
        return rq.job.Job.fetch(job.id, connection=self.bench.redis, serializer=job.serializer)

    def status(self, job: rq.job.Job) -> str:
        return str(self.fetch(job).get_status().value)

    def later(self) -> None:
        """As if all locks and holds of a worker that died were over."""
        self.now += 3.0
        self.bench.redis.delete(self.bench.keys.bridge_lock)
        for member in self.bench.redis.zrange(self.bench.keys.hooks("rq"), 0, -1):
            self.bench.redis.zadd(self.bench.keys.hooks("rq"), {member: 1})


@pytest.fixture
def world(bench: Bench, redis_url: str) -> Iterator[World]:
    made = World(bench, redis_url)
    yield made
    for one in made.others:
        one.close()


def registries(world: World) -> dict[str, int]:
    return {
        "started": world.rq.started_job_registry.count,
        "finished": world.rq.finished_job_registry.count,
        "failed": world.rq.failed_job_registry.count,
        "canceled": world.rq.canceled_job_registry.count,
        "intermediate": world.bench.redis.llen(world.rq.intermediate_queue_key),
        "waiting": world.rq.count,
    }


def counted(bridge: Bridge) -> dict[str, int]:
    return {outcome: count for outcome, count in bridge.counts.items() if count}


NOWHERE = {"started": 0, "finished": 0, "failed": 0, "canceled": 0, "intermediate": 0, "waiting": 0}


def test_a_job_of_rq_gets_its_result(world: World) -> None:
    """Enqueued by name, started, shown in the registries, finished with the result, all by RQ's own reckoning."""
    job = world.enqueue(meta={"mine": 1}, job_id="call-17")
    bridge = world.worker()
    delivery = world.taken(bridge)
    assert (world.status(job), registries(world)) == ("started", {**NOWHERE, "started": 1})
    world.bench.say(delivery, "progress", stage="engine", done=1, total=3)
    world.step(bridge)
    meta = world.fetch(job).get_meta()
    assert meta["mine"] == 1
    assert (meta["decibatch"]["done"], meta["decibatch"]["total"]) == (1, 3)
    world.bench.settle(delivery, "done", result_json("hello there"))
    world.step(bridge)
    assert (world.status(job), registries(world)) == ("finished", {**NOWHERE, "finished": 1})
    latest = world.fetch(job).latest_result()
    assert latest is not None and latest.type is RqResult.Type.SUCCESSFUL
    assert latest.return_value["text"] == "hello there"
    assert latest.worker_name == "a"


def test_arguments_are_those_of_submit(world: World) -> None:
    """What the job of RQ asks for is what the job of this queue asks for."""
    world.enqueue("decibatch.translate", {"input": "https://h/a.mp3", "language": "de", "lane": "bulk"})
    bridge = world.worker()
    world.step(bridge)
    (delivery,) = world.bench.take().deliveries
    assert b'"kind":"translate"' in delivery.payload and b'"language":"de"' in delivery.payload
    assert delivery.stream.endswith(":bulk")


def test_every_argument_of_submit_is_taken_or_rqs_own() -> None:
    """A new argument of the client is one for RQ as well; left out is what RQ decides itself."""
    rqs_own = {
        "self",
        "kind",
        "idempotency_key",
        "deadline_s",
        "not_before",
        "delay_s",
        "result_ttl_s",
        "job_id",
    }
    assert inspect.signature(Client.submit).parameters.keys() - rqs_own - {"webhook"} == ARGUMENTS


def test_words_and_beams_can_be_asked_for(world: World) -> None:
    """The options of version 2 reach the job, and with them the version that a worker must know."""
    world.enqueue(kwargs={**INPUT, "words": True, "beam_size": 4, "hot_words": ["Anna"]})
    payload = json.loads(world.taken(world.worker()).payload)
    assert payload["v"] == 2
    assert payload["options"] == {"words": True, "beam_size": 4, "hot_words": ["Anna"]}


@pytest.mark.parametrize(
    ("name", "kwargs", "text"),
    [
        ("os.system", {"command": "touch /tmp/x"}, "no such function"),
        (NAME, {"input": "relative.wav"}, "absolute"),
        (NAME, {"input": "/a.wav", "job_id": "another1"}, "no such arguments: job_id"),
        (NAME, {"input": "/a.wav", "webhook": "http://h/"}, "no such arguments: webhook"),
        (NAME, {"input": "/a.wav", "langauge": "en"}, "langauge (did you mean language?)"),
        (NAME, {"inptu": "/a.wav"}, "inptu (did you mean input?)"),
        (NAME, {"input": "/a.wav", "model": "../x"}, "model: a name has"),
        (NAME, {}, "input"),
        (NAME, {"input": "ftp://host/a.wav"}, "http"),
    ],
)
def test_what_is_not_allowed_fails_with_a_reason(world: World, name: str, kwargs: Any, text: str) -> None:
    """Other functions, unknown arguments and wrong values fail in RQ, and nothing is imported or submitted."""
    job = world.enqueue(name, kwargs)
    world.step(world.worker())
    assert (world.status(job), registries(world)) == ("failed", {**NOWHERE, "failed": 1})
    latest = world.fetch(job).latest_result()
    assert latest is not None and text in (latest.exc_string or "")
    assert world.bench.counter("submitted") == 0


class Bomb:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_is_not_loaded(world: World, tmp_path: Path) -> None:
    """Unless it is switched on, no pickle is loaded, and the job fails with what to do."""
    queue = rq.Queue("audio", connection=world.bench.redis)
    job = queue.enqueue(NAME, kwargs={"input": Bomb(tmp_path / "went-off")})
    world.step(world.worker())
    assert world.status(job) == "failed"
    assert not (tmp_path / "went-off").exists()
    raw = world.bench.redis.hget(job.key, "data")
    assert raw is not None
    latest = world.fetch(job).latest_result()
    assert latest is not None and "DECIBATCH_RQ_PICKLE" in (latest.exc_string or "")


def test_a_pickle_is_taken_where_it_is_allowed(world: World) -> None:
    """Switched on, a job of RQ's default serializer is run, and its result is read with that serializer."""
    queue = rq.Queue("audio", connection=world.bench.redis)
    job = queue.enqueue(NAME, kwargs=INPUT)
    bridge = world.worker(pickle_allowed=True)
    world.bench.settle(world.taken(bridge), "done")
    world.step(bridge)
    latest = world.fetch(job).latest_result()
    assert latest is not None and latest.return_value["text"] == "hello"
    assert pickle.loads(pickle.dumps(latest.return_value)) == latest.return_value


def test_a_failure_is_rqs_failure(world: World) -> None:
    """The code and the sentence of the error are what RQ shows as the reason."""
    job = world.enqueue()
    bridge = world.worker()
    world.bench.settle(world.taken(bridge), "failed")
    world.step(bridge)
    assert registries(world) == {**NOWHERE, "failed": 1}
    latest = world.fetch(job).latest_result()
    assert latest is not None
    assert (latest.type, latest.exc_string) == (RqResult.Type.FAILED, "boom: it broke")
    assert counted(bridge) == {"bridged": 1, "failed": 1}


def test_retries_are_rqs_retries(world: World) -> None:
    """Each retry is a new job of this queue, until RQ has none left."""
    job = world.enqueue(retry=rq.Retry(max=2))
    bridge = world.worker()
    seen = set()
    for _ in range(3):
        delivery = world.taken(bridge)
        seen.add(delivery.job_id)
        world.bench.settle(delivery, "failed")
        world.step(bridge, may_take=False)
    assert len(seen) == 3
    assert (world.status(job), registries(world)) == ("failed", {**NOWHERE, "failed": 1})


def test_a_retry_with_a_pause_is_scheduled(world: World) -> None:
    """A retry that RQ is to schedule is in RQ's registry of scheduled jobs."""
    job = world.enqueue(retry=rq.Retry(max=1, interval=60))
    bridge = world.worker()
    world.bench.settle(world.taken(bridge), "failed")
    world.step(bridge)
    assert world.status(job) == "scheduled"
    assert world.rq.scheduled_job_registry.count == 1
    assert registries(world) == NOWHERE


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_job_that_rq_withdraws_is_cancelled(world: World, how: str) -> None:
    """Cancelled or deleted in RQ while it runs, the job ends here, and nothing comes back to life there."""
    job = world.enqueue()
    bridge = world.worker()
    delivery = world.taken(bridge)
    getattr(job, how)()
    world.step(bridge)
    assert world.bench.state(delivery.job_id) == "cancelled"
    world.bench.settle(delivery, "done")
    world.step(bridge)
    assert job.exists(job.id, world.bench.redis) == (how == "cancel")
    if how == "cancel":
        assert world.status(job) == "canceled"
    assert world.bench.redis.zcard(world.bench.keys.bridged) == 0


def test_a_job_cancelled_in_rq_before_it_was_taken_never_comes_here(world: World) -> None:
    """RQ takes it out of its queue itself."""
    world.enqueue().cancel()
    world.step(world.worker())
    assert world.bench.counter("submitted") == 0


def test_a_job_cancelled_here_is_cancelled_in_rq(world: World) -> None:
    """An operator's cancel is seen in RQ."""
    job = world.enqueue()
    bridge = world.worker()
    world.bench.cancel(world.taken(bridge).job_id)
    world.step(bridge)
    assert (world.status(job), registries(world)) == ("canceled", {**NOWHERE, "canceled": 1})
    assert counted(bridge) == {"bridged": 1, "cancelled": 1}


def test_the_timeout_of_rq_holds(world: World) -> None:
    """A job that takes longer than RQ's time-out fails there, with that reason."""
    job = world.enqueue(job_timeout=60)
    bridge = world.worker()
    delivery = world.taken(bridge)
    created, deadline = world.bench.redis.hmget(world.bench.keys.job(delivery.job_id), "created", "deadline")
    assert abs(int(deadline) - int(created) - 60_000) < 1000
    world.bench.redis.hset(world.bench.keys.job(delivery.job_id), "deadline", 1)
    world.bench.renew(delivery)
    world.step(bridge)
    latest = world.fetch(job).latest_result()
    assert latest is not None and (latest.exc_string or "").startswith("expired:")


def test_rq_does_not_take_a_running_job_for_abandoned(world: World) -> None:
    """The heartbeat moves the moment at which RQ would sweep the job away."""
    job = world.enqueue(job_timeout=-1)
    bridge = world.worker()
    world.taken(bridge)

    def expiry() -> float:
        ((_, score),) = world.bench.redis.zrange(world.rq.started_job_registry.key, 0, -1, withscores=True)
        return float(score)

    for key in world.bench.redis.zrange(world.rq.started_job_registry.key, 0, -1):
        world.bench.redis.zadd(world.rq.started_job_registry.key, {key: current_timestamp() + 5})
    world.now += 20
    world.step(bridge)
    assert expiry() > current_timestamp() + 30
    StartedJobRegistry(queue=world.rq).cleanup()
    assert world.status(job) == "started"


def test_a_late_success_does_not_overwrite_a_sweep(world: World) -> None:
    """What RQ has given up as abandoned stays failed, in one registry, although the work is done in the end."""
    job = world.enqueue()
    bridge = world.worker()
    delivery = world.taken(bridge)
    StartedJobRegistry(queue=world.rq, serializer=JSONSerializer).cleanup(current_timestamp() + 9999)
    assert world.status(job) == "failed"
    world.bench.settle(delivery, "done")
    world.step(bridge)
    assert (world.status(job), registries(world)) == ("failed", {**NOWHERE, "failed": 1})
    assert counted(bridge) == {"bridged": 1, "overtaken": 1}


def test_a_late_success_does_not_end_a_retry(world: World) -> None:
    """A job that was swept and enqueued again belongs to its new enqueueing alone."""
    job = world.enqueue(retry=rq.Retry(max=1))
    bridge = world.worker()
    old = world.taken(bridge)
    StartedJobRegistry(queue=world.rq, serializer=JSONSerializer).cleanup(current_timestamp() + 9999)
    assert world.status(job) == "queued"
    new = world.taken(bridge)
    assert new.job_id != old.job_id
    world.bench.settle(old, "done", result_json("old"))
    world.step(bridge)
    assert world.status(job) == "started"
    world.bench.settle(new, "done", result_json("new"))
    world.step(bridge)
    latest = world.fetch(job).latest_result()
    assert latest is not None and latest.return_value["text"] == "new"


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_a_cancel_in_the_middle_of_the_final_write_wins(
    world: World, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """Between the look and the write somebody cancels: the whole write is refused."""
    job = world.enqueue()
    bridge = world.worker()
    world.bench.settle(world.taken(bridge), outcome)
    clean = rq_jobs._Worker.cleanup_execution

    def cancel_first(*args: Any, **options: Any) -> None:
        if world.status(job) != "canceled":
            world.fetch(job).cancel()
        clean(*args, **options)

    monkeypatch.setattr(rq_jobs._Worker, "cleanup_execution", cancel_first)
    world.step(bridge)
    assert (world.status(job), registries(world)) == ("canceled", {**NOWHERE, "canceled": 1})
    assert world.fetch(job).latest_result() is None


def test_only_so_many_jobs_are_taken(world: World) -> None:
    """What is over the bound waits in RQ, where other workers and `rq info` see it."""
    for _ in range(3):
        world.enqueue()
    bridge = world.worker(open_at_once=2)
    for _ in range(5):
        world.step(bridge)
    assert (world.rq.count, world.bench.counter("submitted")) == (1, 2)
    world.step(bridge, may_take=False)
    assert world.rq.count == 1


def test_a_full_queue_gives_the_job_back(world: World) -> None:
    """A job that is not admitted stands at the head of RQ's queue again."""
    job = world.enqueue()
    bridge = world.worker()
    bridge._core = bridge._core.__class__(
        **{name: getattr(bridge._core, name) for name in bridge._core.__slots__} | {"admission": Admission(0)}
    )
    world.step(bridge)
    assert (world.status(job), world.rq.job_ids) == ("queued", [job.id])
    assert registries(world) == {**NOWHERE, "waiting": 1}
    assert counted(bridge) == {"put_back": 1}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_command_loses_and_doubles_nothing(world: World, after: bool) -> None:
    """A worker is killed before, or after, each command that it sends. The next one brings the job to its one end."""
    Mortal.after = after
    kills = 0
    for number in range(1, 400):
        world.bench.redis.flushall()
        Mortal.left = 0
        job = world.enqueue()
        doomed = world.worker("doomed", mortal=True)
        Mortal.left = number
        killed = False
        try:
            for _ in range(3):
                world.step(doomed)
                for delivery in world.bench.take().deliveries:
                    world.bench.settle(delivery, "done")
        except Killed:
            killed = True
        Mortal.left = 0
        kills += killed
        heir = world.worker("heir")
        for _ in range(4):
            world.later()
            world.step(heir)
            for delivery in world.bench.take().deliveries:
                world.bench.settle(delivery, "done")
        assert registries(world) == {**NOWHERE, "finished": 1}, f"killed at command {number}"
        assert world.status(job) == "finished"
        assert len(world.fetch(job).results()) == 1
        assert world.bench.counter("submitted") == 1
        assert world.bench.redis.zcard(world.bench.keys.bridged) == 0
        if not killed:
            break
        for one in world.others:
            one.close()
        world.others.clear()
    assert not killed
    assert kills > 25


def test_the_name_decides_alone() -> None:
    """No dots, no case, no look-alike: a name is on the list or it is refused."""
    for name in (None, "", "transcribe", "decibatch.Transcribe", "decibatch.transcribe ", "decibatch", b"x"):
        with pytest.raises(InvalidJob):
            submission_of(name, (), INPUT, None)
    assert submission_of(NAME, (), INPUT, -1).deadline_s is None
    with pytest.raises(InvalidJob):
        submission_of(NAME, ("/a.wav",), {}, None)


def test_both_servers_may_be_different(world: World, redis_server: RedisServer) -> None:
    """RQ's jobs may lie in another database than this queue."""
    other = redis.Redis.from_url(redis_server.url.replace("db=0", "db=3"))
    other.flushdb()
    queue = rq.Queue("audio", connection=other, serializer=JSONSerializer)
    job = queue.enqueue(NAME, kwargs=INPUT, result_ttl=60)
    bridge = Bridge(
        world.bench.redis,
        world.bench.queue,
        RqJobs(other, ("audio",), name="b", pickle_allowed=False),
        owner="b",
        model="m",
        admission=Admission(),
        open_at_once=1,
        clock=lambda: world.now,
    )
    world.bench.settle(world.taken(bridge), "done")
    world.step(bridge)
    assert job.get_status().value == "finished"
    assert world.bench.counter("done") == 1
    other.flushdb()
    other.close()
