"""The scripts as a test calls them, and jobs to call them with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from queueing.job import WIRE_VERSION, Result, State, TranscribeJob, new_job_id
from queueing.keys import GROUP, Keys
from queueing.protocol import Admission, Delivery, JobStatus, Queue, Submitted, Taken
from queueing.scripts import run

MODEL = "m"
LANES = ("interactive", "normal", "bulk")
STREAMS = tuple((MODEL, lane) for lane in LANES)
PAST, FUTURE = 1, 4_000_000_000_000
ERROR = '{"code":"boom","message":"it broke","retryable":true}'


def make_job(**fields: Any) -> TranscribeJob:
    return TranscribeJob.model_validate(
        {"id": new_job_id(), "model": MODEL, "input": {"type": "path", "path": "/a.wav"}, **fields}
    )


def result_json(text: str = "hello", **fields: Any) -> str:
    return Result(text=text, **fields).model_dump_json()


class Bench:
    """One queue on a real server, driven script by script."""

    def __init__(self, redis: Any, name: str = "main") -> None:
        self.redis = redis
        self.queue = Queue(Keys(name))
        self.keys = self.queue.keys

    def submit(self, job: TranscribeJob | None = None, **options: Any) -> Submitted:
        chosen = {"admission": Admission(), **{k: options.pop(k) for k in _SUBMIT & options.keys()}}
        return run(self.redis, self.queue.submit(job or make_job(**options), **chosen))

    def add(self, **options: Any) -> str:
        """Submit a job that must be admitted; returns its id."""
        reply = self.submit(**options)
        assert reply.verdict == "ok"
        return reply.job_id

    def take(
        self,
        n: int = 1,
        consumer: str = "w1",
        streams: Iterable[tuple[str, str]] = STREAMS,
        wire: int = WIRE_VERSION,
    ) -> Taken:
        return run(self.redis, self.queue.take(consumer, consumer, n, streams, wire=wire))

    def one(self, consumer: str = "w1") -> Delivery:
        """Take a job that must be there."""
        (delivery,) = self.take(1, consumer).deliveries
        return delivery

    def resume(self, consumer: str = "w1", held: Sequence[str] = ()) -> Taken:
        return run(self.redis, self.queue.resume(consumer, consumer, held, STREAMS, wire=WIRE_VERSION))

    def reclaim(
        self, consumer: str = "w2", n: int = 10, lease_ms: int = 30_000, held: Sequence[str] = ()
    ) -> Taken:
        call = self.queue.reclaim(consumer, consumer, n, lease_ms, held, STREAMS, wire=WIRE_VERSION)
        return run(self.redis, call)

    def renew(self, *deliveries: Delivery, consumer: str = "w1") -> tuple[str, ...]:
        return run(self.redis, self.queue.renew(consumer, deliveries))

    def settle(self, delivery: Delivery, outcome: Any, body: str | None = None, **options: Any) -> str:
        if body is None:
            body = {"done": result_json(), "release": ""}.get(outcome, ERROR)
        return run(self.redis, self.queue.settle(delivery, outcome, body, **options))

    def status(self, job_id: str) -> JobStatus | None:
        return run(self.redis, self.queue.status(job_id))

    def state(self, job_id: str) -> str:
        """The state as it is stored; reading it has no effect."""
        return (self.redis.hget(self.keys.job(job_id), "state") or b"").decode()

    def cancel(self, job_id: str) -> State | None:
        return run(self.redis, self.queue.cancel(job_id))

    def say(self, delivery: Delivery, kind: str, **data: Any) -> bool:
        (said,) = run(self.redis, self.queue.events([(delivery, kind, data)]))
        return said

    def event_types(self, job_id: str) -> list[str]:
        return [fields[b"type"].decode() for _, fields in self.redis.xrange(self.keys.events(job_id))]

    def incidents(self) -> list[str]:
        return [fields[b"what"].decode() for _, fields in self.redis.xrange(self.keys.incidents)]

    def counter(self, name: str) -> int:
        return int(self.redis.hget(self.keys.counts, name) or 0)

    def age(self, delivery: Delivery, consumer: str, idle_ms: int = 60_000) -> None:
        """Make a delivery look as if its lease had not been renewed for so long."""
        self.redis.xclaim(delivery.stream, GROUP, consumer, 0, [delivery.entry], idle=idle_ms, justid=True)

    def pending(self, lane: str = "normal") -> dict[str, str]:
        """Entry -> consumer of all that is pending."""
        rows = self.redis.xpending_range(self.keys.stream(MODEL, lane), GROUP, "-", "+", 1000)
        return {row["message_id"].decode(): row["consumer"].decode() for row in rows}

    def consumers(self, lane: str = "normal") -> set[str]:
        return {
            row["name"].decode() for row in self.redis.xinfo_consumers(self.keys.stream(MODEL, lane), GROUP)
        }


_SUBMIT = {"admission", "idempotency_key", "data"}
