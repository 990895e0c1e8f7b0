"""Every script as a typed call, for both sides of the queue.

:class:`Queue` knows the names and the order of arguments; it holds no connection. Replies are read
as bytes or text alike, so that a connection may decode or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from queueing.job import ErrorInfo, Job, Lane, Note, Result, State, digest, encode_job
from queueing.keys import Keys
from queueing.scripts import Call, script

StreamName = tuple[str, str]
"""(model, lane) of a stream."""


Verdict = Literal["ok", "exists", "conflict", "full"]


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, slots=True)
class Admission:
    """Bounds on what may wait, enforced by the submit script (invariant I5)."""

    max_waiting: int = 1_000_000
    max_inline_bytes: int = 256 * 1024 * 1024
    """Inline inputs of all jobs that have not ended, together."""


@dataclass(frozen=True, slots=True)
class Submitted:
    verdict: Verdict
    job_id: str
    state: str
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """A job in our hands for one attempt. ``attempt`` is the fence."""

    job_id: str
    stream: str
    entry: str
    attempt: int
    payload: bytes
    tries: int = 0
    """Attempts so far that ended in a retryable error."""
    alone: bool = False
    """Suspected of crashing the engine: to be run with nothing beside it."""
    crashes: int = 0
    """Crashes of the engine while this job ran alone."""
    created_ms: int = 0
    taken_ms: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """What take, resume or reclaim brought."""

    deliveries: tuple[Delivery, ...] = ()
    lost: tuple[str, ...] = ()
    """Jobs that the server itself has lost ('' where not even the name is left)."""
    newer: tuple[str, ...] = ()
    """Jobs handed back because they need a newer worker."""
    junk: int = 0
    """Entries that named no job."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as Redis has it. Times are Unix milliseconds of Redis' clock."""

    job_id: str
    state: State
    model: str
    lane: str
    tenant: str
    attempt: int
    tries: int
    created_ms: int
    started_ms: int | None
    finished_ms: int | None
    now_ms: int
    payload: bytes
    result: Result | None = None
    error: ErrorInfo | None = None
    notes: tuple[Note, ...] = ()
    """Failures of earlier attempts, oldest first; forgotten once the job is done."""
    crashes: int = 0
    """Of the engine, while the job ran alone."""
    hook_state: str | None = None
    """Whether somebody who asked to be told the end has been: ``pending``, ``sent`` or ``dead``."""
    hook_error: str | None = None


HookKind = Literal["http", "rq"]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a job, to be told to whoever asked for it. ``seq`` is the fence."""

    job_id: str
    seq: int
    tries: int
    """Times it has been handed out, this one included."""
    state: State
    payload: bytes
    hook_to: str
    result: bytes
    """JSON of a Result; empty where there is none."""
    error: bytes
    created_ms: int
    finished_ms: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Beat:
    held: bool
    orphans: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """What is in one lane of a queue, over all models."""

    lane: str
    waiting: int
    """Ids that were cancelled while they waited count until a worker passes over them."""
    running: int
    """Taken and not settled."""
    oldest_s: float
    """Age of the job that has waited longest, since its submission; 0 where none waits."""


OVERDUE_S = 60.0
"""A webhook that has been due for so long is nobody's, or workers do not keep up."""


@dataclass(frozen=True, slots=True)
class Depth:
    """What a queue holds at one moment."""

    lanes: tuple[LaneDepth, ...]
    waiting: int
    """Over all lanes, delayed jobs included: what admission counts."""
    delayed: int
    """Until their time, or the next attempt."""
    dead: int
    webhooks_waiting: int = 0
    """Ends of jobs that are to be posted, those between two tries included."""
    webhooks_overdue_s: float = 0.0
    """For how long the first of them has been due: workers that send webhooks take one at once."""
    webhooks_given_up: int = 0
    rq_open: int = 0
    """Unfinished jobs that came from RQ."""

    @property
    def webhooks_are_late(self) -> bool:
        """Whether nobody sends them, or not as fast as they come."""
        return self.webhooks_overdue_s > OVERDUE_S


def _depth(reply: Any) -> Depth:
    delayed, dead, waiting, hooks, overdue, given_up, bridged, *rest = reply
    lanes = tuple(
        LaneDepth(text(lane), int(waits), int(running), max(0, int(oldest)) / 1000)
        for lane, waits, running, oldest in zip(*(iter(rest),) * 4, strict=True)
    )
    return Depth(
        lanes,
        max(0, int(waiting)),
        int(delayed),
        int(dead),
        webhooks_waiting=int(hooks),
        webhooks_overdue_s=int(overdue) / 1000,
        webhooks_given_up=int(given_up),
        rq_open=int(bridged),
    )


def _taken(reply: Any) -> Taken:
    deliveries, lost, newer, junk = [], [], [], 0
    for item in reply:
        match text(item[0]):
            case "job":
                deliveries.append(_delivery(item))
            case "lost":
                lost.append(text(item[1]))
            case "newer":
                newer.append(text(item[1]))
            case _:
                junk += 1
    return Taken(tuple(deliveries), tuple(lost), tuple(newer), junk)


def _delivery(item: Sequence[Any]) -> Delivery:
    _, job_id, stream, entry, attempt, payload, tries, alone, crashes, created, taken = item
    raw = payload if isinstance(payload, bytes) else (payload or "").encode()
    return Delivery(
        job_id=text(job_id),
        stream=text(stream),
        entry=text(entry),
        attempt=int(attempt),
        payload=raw,
        tries=int(tries),
        alone=text(alone) == "1",
        crashes=int(crashes),
        created_ms=int(created or taken),
        taken_ms=int(taken),
    )


def _status(job_id: str, reply: Any) -> JobStatus | None:
    if not reply:
        return None
    pairs = zip(reply[::2], reply[1::2], strict=True)
    fields = {text(name): value for name, value in pairs}

    def number(name: str) -> int | None:
        return int(fields[name]) if name in fields else None

    state = State(text(fields["state"]))
    payload = fields.get("payload", b"")
    return JobStatus(
        job_id=job_id,
        state=state,
        model=text(fields.get("model", "")),
        lane=text(fields.get("lane", "")),
        tenant=text(fields.get("tenant", "")),
        attempt=number("attempt") or 0,
        tries=number("tries") or 0,
        created_ms=number("created") or 0,
        started_ms=number("started"),
        finished_ms=number("finished"),
        now_ms=number("now") or 0,
        payload=payload if isinstance(payload, bytes) else str(payload).encode(),
        result=Result.model_validate_json(fields["result"]) if state is State.DONE else None,
        error=ErrorInfo.model_validate_json(fields["error"])
        if "error" in fields and state is not State.DONE
        else None,
        notes=tuple(Note.model_validate_json(line) for line in text(fields.get("notes", "")).splitlines()),
        crashes=number("crashes") or 0,
        hook_state=text(fields["hook_state"]) if "hook_state" in fields else None,
        hook_error=text(fields["hook_error"]) if "hook_error" in fields else None,
    )


def _flat(streams: Iterable[StreamName]) -> tuple[str, ...]:
    return tuple(part for model, lane in streams for part in (model, lane))


@dataclass(frozen=True, slots=True)
class Swept:
    """What one look for jobs that are nowhere has found."""

    more: bool
    """A pass over everything is called for and goes on."""
    requeued: tuple[str, ...] = ()
    """Jobs that wait again."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Builds the calls of one queue."""

    keys: Keys = field(default_factory=Keys)

    def _call(self, name: str, args: tuple[Any, ...], parse: Any) -> Call[Any]:
        return Call(script(name), self.keys.root, args, parse)

    # --- for those who enqueue ---

    def submit(
        self,
        job: Job,
        *,
        idempotency_key: str = "",
        data: bytes | None = None,
        admission: Admission,
        bridged_from: str | None = None,
    ) -> Call[Submitted]:
        """Admit a job once; ``data``: the bytes of an inline input; ``bridged_from``: the job of RQ that it is for."""
        hook = "http" if job.webhook is not None else "" if bridged_from is None else "rq"
        args: tuple[Any, ...] = (
            job.id,
            encode_job(job),
            job.model,
            Lane(job.lane).value,
            job.tenant,
            job.v,
            digest(job),
            "" if job.deadline_ms is None else job.deadline_ms,
            "" if job.not_before_ms is None else job.not_before_ms,
            job.result_ttl_s,
            idempotency_key,
            admission.max_waiting,
            admission.max_inline_bytes,
            hook,
            bridged_from or "",
        )
        if data is not None:
            args = (*args, data)
        return self._call("submit", args, _submitted)

    def status(self, job_id: str) -> Call[JobStatus | None]:
        return self._call("status", (job_id,), lambda reply: _status(job_id, reply))

    def cancel(self, job_id: str) -> Call[State | None]:
        """The state that the job has now, or None for no such job."""
        return self._call("cancel", (job_id,), lambda reply: State(text(reply)) if reply else None)

    def depth(self) -> Call[Depth]:
        """What waits in each lane, and since when. Changes nothing."""
        return self._call("depth", (), _depth)

    # --- for workers ---

    def take(
        self, consumer: str, owner: str, n: int, streams: Iterable[StreamName], *, wire: int
    ) -> Call[Taken]:
        """Read up to n jobs over the streams, in their order."""
        return self._call("take", (consumer, owner, wire, n, *_flat(streams)), _taken)

    def resume(
        self, consumer: str, owner: str, held: Sequence[str], streams: Iterable[StreamName], *, wire: int
    ) -> Call[Taken]:
        """What is pending for us beyond the entries in ``held``."""
        return self._call("resume", (consumer, owner, wire, len(held), *held, *_flat(streams)), _taken)

    def reclaim(  # noqa: PLR0917
        self,
        consumer: str,
        owner: str,
        n: int,
        lease_ms: int,
        held: Sequence[str],
        streams: Iterable[StreamName],
        *,
        wire: int,
    ) -> Call[Taken]:
        """Take over up to n deliveries idle for the lease: of others, and our own beyond the entries in ``held``."""
        args = (consumer, owner, wire, n, lease_ms, len(held), *held, *_flat(streams))
        return self._call("reclaim", args, _taken)

    def renew(self, consumer: str, deliveries: Sequence[Delivery]) -> Call[tuple[str, ...]]:
        """For each delivery: "ok", "lost", "gone", or the final state that its job has come to."""
        flat = tuple(part for d in deliveries for part in (d.stream, d.entry, d.job_id, d.attempt))
        return self._call("renew", (consumer, *flat), lambda reply: tuple(text(word) for word in reply))

    def settle(
        self,
        delivery: Delivery,
        outcome: Literal["done", "failed", "dead", "retry", "release"],
        body: str,
        *,
        delay_ms: int = 0,
        alone: bool = False,
        crashed: bool = False,
        counted: bool = True,
        note: str = "",
    ) -> Call[str]:
        """Write the outcome of an attempt: "ok", "stale", "gone", or the final state it already has."""
        d = delivery
        flags = (int(alone), int(crashed), int(counted))
        args = (d.job_id, d.stream, d.entry, d.attempt, outcome, body, delay_ms, *flags, note)
        return self._call("settle", args, text)

    # --- telling the end ---

    def hook_take(self, kind: HookKind, n: int, hold_ms: int) -> Call[tuple[Ended, ...]]:
        """Up to n ends to tell; each is ours for so long."""
        return self._call(
            "hook_take", (kind, n, hold_ms), lambda reply: tuple(_ended(item) for item in reply)
        )

    def hook_end(
        self,
        kind: HookKind,
        ended: Ended,
        outcome: Literal["sent", "retry", "dead"],
        *,
        delay_ms: int = 0,
        note: str = "",
    ) -> Call[str]:
        """Say what became of telling an end: "ok", "gone" or "stale"."""
        args = (kind, ended.job_id, ended.seq, outcome, delay_ms, note)
        return self._call("hook_end", args, text)

    def hook_again(self, job_id: str) -> Call[str]:
        """Tell an end again that nobody took: "again", "" for no such job, or the state of its hook."""
        return self._call("hook_again", (job_id,), text)

    # --- the dead list ---

    def revive(self, job_id: str) -> Call[str]:
        """Let a dead job wait again: "revived", "" for no such job, "input_gone", or the state it is in instead."""
        return self._call("revive", (job_id,), text)

    def drop(self, job_id: str) -> Call[str]:
        """Forget a dead job: "dead", "" for no such job, or the state it is in instead."""
        return self._call("drop", (job_id,), text)

    def events(self, batch: Sequence[tuple[Delivery, str, dict[str, Any]]]) -> Call[tuple[bool, ...]]:
        """Publish (delivery, type, data); False for each whose attempt is no longer the current one."""
        flat = tuple(
            part for d, kind, data in batch for part in (d.job_id, d.attempt, kind, json.dumps(data))
        )
        return self._call("event", flat, lambda reply: tuple(bool(int(word)) for word in reply))

    def adopt(self, consumer: str, value: str, ttl_ms: int, *, over: str = "") -> Call[tuple[int, str]]:
        """Lock a consumer name: (incarnation, ""), or (0, value of the holder)."""
        return self._call(
            "adopt", (consumer, value, ttl_ms, over), lambda reply: (int(reply[0]), text(reply[1]))
        )

    def beat(  # noqa: PLR0917
        self, consumer: str, value: str, ttl_ms: int, health: str, horizon_ms: int, models: Iterable[str]
    ) -> Call[Beat]:
        """Keep the lock and the health alive; learn which models nobody serves."""
        return self._call("beat", (consumer, value, ttl_ms, health, horizon_ms, *models), _beat)

    def sweep(self, keys: int = 100, pause_ms: int = 1000) -> Call[Swept]:
        """Look for jobs whose place in the queue was deleted, and let them wait again.

        :param keys: of the server's, to look at; about a millisecond's worth.
        :param pause_ms: since anybody's last look, where no loss is suspected.
        """
        return self._call("sweep", (keys, pause_ms), _swept)

    def leave(self, consumer: str, value: str, streams: Iterable[StreamName]) -> Call[bool]:
        """Give the consumer name back; False where it was no longer ours."""
        return self._call("leave", (consumer, value, *_flat(streams)), lambda reply: bool(int(reply)))


def _submitted(reply: Any) -> Submitted:
    verdict = text(reply[0])
    if verdict not in ("ok", "exists", "conflict", "full"):
        raise ValueError(f"submit answered {verdict!r}")
    return Submitted(cast(Verdict, verdict), text(reply[1]), text(reply[2]), int(reply[3]) / 1000)


def _swept(reply: Any) -> Swept:
    return Swept(more=int(reply[0]) == 1, requeued=tuple(text(job_id) for job_id in reply[1:]))


def _ended(item: Sequence[Any]) -> Ended:
    job_id, seq, tries, state, payload, hook_to, result, error, created, finished, attempt = item
    return Ended(
        job_id=text(job_id),
        seq=int(seq),
        tries=int(tries),
        state=State(text(state)),
        payload=_raw(payload),
        hook_to=text(hook_to),
        result=_raw(result),
        error=_raw(error),
        created_ms=int(created),
        finished_ms=int(finished),
        attempt=int(attempt),
    )


def _raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _beat(reply: Any) -> Beat:
    return Beat(held=int(reply[0]) == 1, orphans=tuple(text(model) for model in reply[1:]))
