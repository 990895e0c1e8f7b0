"""What the clients do, as generators that do no input or output themselves.

A flow yields an effect (call this script, wait this long) and is sent the answer, or has a
:class:`~queueing.errors.DecibatchError` thrown in. The two clients differ only in how they carry out
an effect, so that what a user sees cannot differ.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from queueing.errors import (
    DecibatchError,
    IdempotencyConflict,
    InvalidJob,
    JobCancelled,
    JobDead,
    JobExpired,
    JobFailed,
    JobNotDone,
    QueueFull,
    ResultTimeout,
    ServerUnavailable,
    UnknownJob,
)
from queueing.events import Event, decode_event
from queueing.job import (
    DEFAULT_TENANT,
    ErrorInfo,
    Job,
    Lane,
    Result,
    State,
    job_from_fields,
    new_job_id,
)
from queueing.protocol import Admission, JobStatus, Queue, Submitted
from queueing.scripts import Call

T = TypeVar("T")

MAX_INLINE_BYTES = 32 * 1024 * 1024
PIPELINE_JOBS = 500
PIPELINE_BYTES = 8 * 1024 * 1024
EVENTS_PER_READ = 256
CONFIRM_S = 2.0
"""Waits at most this long for a subscription; without one, the slow poll still gets there."""
JUST_S = 0.01
"""A job admitted less than this long ago is not yet done: decoding any audio takes longer."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0

_JOB_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_jitter = random.SystemRandom()


# --- effects ---


@dataclass(frozen=True, slots=True)
class Ask:
    """Run a script; answered with its parsed reply."""

    call: Call[Any]


@dataclass(frozen=True, slots=True)
class AskAll:
    """Run scripts in one pipeline; answered with a list of parsed replies."""

    calls: tuple[Call[Any], ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Entries of a stream after an id; answered as XRANGE does."""

    key: str
    after: str


@dataclass(frozen=True, slots=True)
class Clock:
    """Answered with Redis' time, Unix milliseconds."""


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Listen:
    """Subscribe to a doorbell, and wait until the server has confirmed it (or for CONFIRM_S)."""

    channel: str
    final: bool
    """Ring for the end of the job only."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Until the doorbell rings, at most this long. A ring since the last Wait counts.

    Answered with what the bell said of the job's end; empty bytes where it said nothing of the kind.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand an event to the user."""

    event: Event


@dataclass(frozen=True, slots=True)
class Finished:
    value: Any


Effect = Ask | AskAll | Read | Clock | Pause | Listen | Wait | Emit
Flow = Generator[Effect, Any, T]


def advance(flow: Flow[Any], answer: Any = None, error: DecibatchError | None = None) -> Effect | Finished:
    """Send the answer (or throw the error) and return the next effect."""
    try:
        return flow.send(answer) if error is None else flow.throw(error)
    except StopIteration as stop:
        return Finished(stop.value)


# --- what a user hands over ---


class JobHandle(str):
    """The id of a job, usable wherever a string is."""

    __slots__ = ("admitted", "existed", "state")

    admitted: float
    """Monotonic seconds of the client that heard of it; minus infinity where it existed, or came from elsewhere."""
    existed: bool
    """Whether the job was there before: same job id, or same idempotency key."""
    state: State
    """State at the time of the call."""

    def __new__(
        cls, job_id: str, *, existed: bool = False, state: State = State.WAITING, admitted: float = -math.inf
    ) -> JobHandle:
        handle = super().__new__(cls, job_id)
        handle.existed = existed
        handle.state = state
        handle.admitted = admitted
        return handle

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        return (str(self),), {"existed": self.existed, "state": self.state}

    @property
    def id(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Submission:
    """One job to submit. The fields mean what the arguments of ``Client.submit`` mean."""

    input: str | os.PathLike[str] | bytes | bytearray | memoryview
    kind: str = "transcribe"
    model: str | None = None
    lane: Lane | str = Lane.NORMAL
    tenant: str = DEFAULT_TENANT
    language: str | None = None
    prompt: str | None = None
    timestamps: bool = True
    temperature: float = 0.0
    max_tokens: int | None = None
    carry_context: bool = False
    words: bool = False
    beam_size: int = 1
    best_of: int = 1
    seed: int = 0
    hot_words: Sequence[str] = ()
    fallback: bool = True
    min_bits: int = 4
    idempotency_key: str | None = None
    deadline_s: float | None = None
    not_before: datetime | None = None
    delay_s: float | None = None
    max_attempts: int = 3
    result_ttl_s: int = 86_400
    job_id: str | None = None
    webhook: str | None = None

    @property
    def relative(self) -> bool:
        """Whether any moment is reckoned from now, so that Redis' clock is needed."""
        return self.deadline_s is not None or self.delay_s is not None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A submission that has been checked: the job, and the bytes that go beside it."""

    job: Job
    data: bytes | None
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Core:
    """The flows of one client. Holds no connection."""

    queue: Queue
    model: str
    admission: Admission
    max_inline_bytes: int
    patience_s: float
    """For how long a call goes on trying to reach the server."""
    poll_s: float
    """How often a waiter looks without having been rung."""
    clock: Callable[[], float]
    """Monotonic seconds."""

    # --- submit ---

    def submit(self, submission: Submission) -> Flow[JobHandle]:
        prepared = self.prepare(submission, (yield from self._now([submission])))
        asked = 0

        def ask() -> Effect:
            nonlocal asked
            asked += 1
            return Ask(self._submit_call(prepared))

        reply: Submitted = yield from self._patiently(ask)
        handle = self._verdict(prepared, reply, asked_again=asked > 1)
        if isinstance(handle, DecibatchError):
            raise handle
        return handle

    def submit_many(
        self, submissions: Sequence[Submission]
    ) -> Flow[list[JobHandle | QueueFull | IdempotencyConflict]]:
        now_ms = yield from self._now(submissions)
        everything = [self.prepare(submission, now_ms) for submission in submissions]
        handles: list[JobHandle | QueueFull | IdempotencyConflict] = []
        for part in _parts(everything):
            calls = AskAll(tuple(self._submit_call(prepared) for prepared in part))
            asked = 0

            def ask(calls: AskAll = calls) -> Effect:
                nonlocal asked
                asked += 1
                return calls

            replies: list[Submitted] = yield from self._patiently(ask)
            for prepared, reply in zip(part, replies, strict=True):
                handles.append(self._verdict(prepared, reply, asked_again=asked > 1))
        return handles

    def prepare(self, submission: Submission, now_ms: int) -> Prepared:
        """Check everything that can be checked without the server. Raises InvalidJob."""
        s = submission
        source, data = self._input(s.input)
        deadline_ms = not_before_ms = None
        if s.deadline_s is not None:
            if not 0 < s.deadline_s < 1e10:
                raise InvalidJob("deadline_s: must be a number of seconds greater than 0")
            deadline_ms = now_ms + round(s.deadline_s * 1000)
        if s.delay_s is not None:
            if s.not_before is not None:
                raise InvalidJob("not_before and delay_s: give one of them")
            if not 0 <= s.delay_s < 1e10:
                raise InvalidJob("delay_s: must be a number of seconds, 0 or more")
            not_before_ms = now_ms + round(s.delay_s * 1000)
        if s.not_before is not None:
            if s.not_before.tzinfo is None:
                raise InvalidJob("not_before: must have a time zone")
            not_before_ms = max(0, round(s.not_before.timestamp() * 1000))
        if s.idempotency_key is not None and not 1 <= len(s.idempotency_key) <= 255:
            raise InvalidJob("idempotency_key: must have 1 to 255 characters")
        job = job_from_fields(
            {
                "kind": s.kind,
                "webhook": s.webhook,
                "id": new_job_id() if s.job_id is None else str(s.job_id),
                "model": self.model if s.model is None else s.model,
                "lane": s.lane,
                "tenant": s.tenant,
                "input": source,
                "max_attempts": s.max_attempts,
                "deadline_ms": deadline_ms,
                "not_before_ms": not_before_ms,
                "result_ttl_s": s.result_ttl_s,
                "options": {
                    "language": s.language,
                    "prompt": s.prompt,
                    "timestamps": s.timestamps,
                    "temperature": s.temperature,
                    "max_tokens": s.max_tokens,
                    "carry_context": s.carry_context,
                    "words": s.words,
                    "beam_size": s.beam_size,
                    "best_of": s.best_of,
                    "seed": s.seed,
                    # A string would pass for a list of letters.
                    "hot_words": s.hot_words if isinstance(s.hot_words, str) else list(s.hot_words),
                    "fallback": s.fallback,
                    "min_bits": s.min_bits,
                },
            }
        )
        return Prepared(job, data, _encodable("idempotency_key", s.idempotency_key or ""))

    def _input(self, given: object) -> tuple[dict[str, Any], bytes | None]:
        if isinstance(given, bytes | bytearray | memoryview):
            data = bytes(given)
            if not data:
                raise InvalidJob("input: holds no bytes")
            limit = min(self.max_inline_bytes, self.admission.max_inline_bytes)
            if len(data) > limit:
                raise InvalidJob(
                    f"input: {len(data):,} bytes are more than the {limit:,} that may travel inside a job; "
                    "hand over a path or a URL instead"
                )
            return {"type": "inline", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}, data
        if isinstance(given, str) and _SCHEME.match(given):
            if not given.lower().startswith(("http://", "https://")):
                raise InvalidJob("input: only http:// and https:// URLs can be fetched")
            return {"type": "url", "url": _encodable("input", given)}, None
        if isinstance(given, str | os.PathLike):
            path = os.fspath(given)
            if not isinstance(path, str) or not path or "\0" in path:
                raise InvalidJob("input: not the path of a file")
            return {"type": "path", "path": _encodable("input", str(Path(path).absolute()))}, None
        hint = "; of an open file, hand over what its read() returns" if hasattr(given, "read") else ""
        raise InvalidJob(f"input: must be a path, an http(s) URL or bytes{hint}")

    def _submit_call(self, prepared: Prepared) -> Call[Submitted]:
        return self.queue.submit(
            prepared.job,
            idempotency_key=prepared.idempotency_key,
            data=prepared.data,
            admission=self.admission,
        )

    def _verdict(
        self, prepared: Prepared, reply: Submitted, *, asked_again: bool
    ) -> JobHandle | QueueFull | IdempotencyConflict:
        match reply.verdict:
            case "full":
                return QueueFull(
                    f"queue {self.queue.keys.name!r} is full: too many jobs, or too many bytes, wait already",
                    retry_after_s=reply.retry_after_s,
                )
            case "conflict":
                what = "job id" if reply.job_id == prepared.job.id else "idempotency key"
                return IdempotencyConflict(
                    f"the {what} belongs to job {reply.job_id}, which asks for something else",
                    job_id=reply.job_id,
                )
            case _:
                # Asked twice because the first reply was lost: what exists is what the first one wrote.
                ours = asked_again and reply.job_id == prepared.job.id
                existed = reply.verdict == "exists" and not ours
                admitted = self.clock() if reply.verdict == "ok" else -math.inf
                return JobHandle(reply.job_id, existed=existed, state=State(reply.state), admitted=admitted)

    def _now(self, submissions: Sequence[Submission]) -> Flow[int]:
        """Redis' time where it is needed: this machine's clock may be wrong, and deadlines are Redis'."""
        if not any(submission.relative for submission in submissions):
            return 0
        now: int = yield from self._patiently(Clock)
        return now

    # --- ask ---

    def status(self, job_id: str) -> Flow[JobStatus]:
        check_id(job_id)
        status: JobStatus | None = yield from self._patiently(lambda: Ask(self.queue.status(str(job_id))))
        if status is None:
            raise UnknownJob("no such job, or its result has expired")
        return status

    def cancel(self, job_id: str) -> Flow[State]:
        check_id(job_id)
        state: State | None = yield from self._patiently(lambda: Ask(self.queue.cancel(str(job_id))))
        if state is None:
            raise UnknownJob("no such job, or its result has expired")
        return state

    def result(self, job_id: str, timeout: float | None) -> Flow[Result]:
        end = yield from self._end(job_id, timeout)
        return outcome_of(end) if isinstance(end, JobStatus) else outcome(str(job_id), *end)

    def wait(self, job_id: str, timeout: float | None) -> Flow[JobStatus]:
        end = yield from self._end(job_id, timeout)
        return end if isinstance(end, JobStatus) else (yield from self.status(job_id))

    def _end(self, job_id: str, timeout: float | None) -> Flow[JobStatus | tuple[State, bytes]]:
        """The end of a job: as the bell told it, where the outcome is small, else as it is read."""
        check_id(job_id)
        until = None if timeout is None else self.clock() + timeout
        status = None
        if timeout == 0 or not self._just_submitted(job_id):
            status = yield from self.status(job_id)
        if status is None or (not status.state.terminal and (until is None or self.clock() < until)):
            # Subscribed first and read afterwards, so that an end in between is not missed.
            yield Listen(self.queue.keys.bell(str(job_id)), final=True)
            status = yield from self.status(job_id)
        while not status.state.terminal:
            if until is not None and self.clock() >= until:
                raise ResultTimeout(f"job {job_id} is still {status.state} after {timeout:g} s")
            said: bytes = yield Wait(self._nap(status, until))
            state, _, body = said.partition(b" ")
            if body:
                return State(state.decode()), body
            status = yield from self.status(job_id)
        return status

    def _just_submitted(self, job_id: str) -> bool:
        """So lately that nobody can have done it: to ask for its state before listening would be a wasted question."""
        return isinstance(job_id, JobHandle) and 0 <= self.clock() - job_id.admitted < JUST_S

    def events(self, job_id: str, after: str | None) -> Flow[None]:
        key = self.queue.keys.events(str(job_id))
        cursor = check_cursor(after)
        status = yield from self.status(job_id)
        listening = False
        while True:
            while entries := (yield from self._patiently(partial(Read, key, cursor))):
                for entry, fields in entries:
                    event = decode_event(entry, fields)
                    cursor = event.id
                    yield Emit(event)
                    if event.final:
                        return
            # The end and its event are written together: known to have ended, and still no such event
            # after one more read, means that there is none any more.
            if status.state.terminal:
                yield Emit(Event(type=status.state.value, attempt=status.attempt))
                return
            if listening:
                yield Wait(self._nap(status, None))
            else:
                listening = True
                yield Listen(self.queue.keys.bell(str(job_id)), final=False)
            status = yield from self.status(job_id)

    def _nap(self, status: JobStatus, until: float | None) -> float:
        """How long to wait for the bell before looking all the same, seconds."""
        nap = self.poll_s
        deadline_ms = _deadline(status.payload)
        if deadline_ms is not None:
            # Nobody rings when the deadline of a waiting job passes: the look itself ends it.
            nap = min(nap, max(0.0, (deadline_ms - status.now_ms) / 1000) + 0.005)
        if until is not None:
            nap = min(nap, max(0.0, until - self.clock()))
        return nap

    def _patiently(self, effect: Callable[[], Effect]) -> Flow[Any]:
        """Repeat what may be repeated until the server answers or patience ends."""
        until = self.clock() + self.patience_s
        pause = FIRST_PAUSE_S
        for tries in count(1):
            try:
                return (yield effect())
            except ServerUnavailable as exc:
                # Twice at least: one time-out may use up all patience, and a lost reply needs a second question.
                enough = tries > 1 or self.patience_s <= 0
                if not exc.transient or (enough and self.clock() + pause > until):
                    raise
            yield Pause(pause * _jitter.uniform(0.5, 1.0))
            pause = min(LONGEST_PAUSE_S, pause * 2)


def outcome(job_id: str, state: State, body: bytes) -> Result:
    """The result in an outcome as the server has it. Raises the JobNotDone that fits where it is none."""
    if state is State.DONE:
        return Result.model_validate_json(body)
    raise not_done(job_id, state, ErrorInfo.model_validate_json(body))


def outcome_of(status: JobStatus) -> Result:
    """The result of a job that has ended. Raises the JobNotDone that fits where it has none."""
    if status.state is State.DONE and status.result is not None:
        return status.result
    state = status.state
    raise not_done(
        status.job_id, state, status.error or ErrorInfo(code=state.value, message=f"the job is {state.value}")
    )


def not_done(job_id: str, state: State, error: ErrorInfo) -> JobNotDone:
    """What a job that ended in this state raises."""
    kinds: dict[State, type[JobNotDone]] = {
        State.FAILED: JobFailed,
        State.DEAD: JobDead,
        State.CANCELLED: JobCancelled,
        State.EXPIRED: JobExpired,
    }
    return kinds.get(state, JobNotDone)(job_id, error)


def check_id(job_id: object) -> None:
    """Raises UnknownJob for what can be the id of no job; it never reaches the name of a key."""
    if not isinstance(job_id, str) or not _JOB_ID.fullmatch(job_id):
        raise UnknownJob("that is not the id of a job")


def check_cursor(after: str | None) -> str:
    if after is None or after == "":
        return "0-0"
    if not re.fullmatch(r"\d{1,19}-\d{1,19}", after):
        raise InvalidJob("after: not the id of an event")
    return after


def _encodable(field: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidJob(f"{field}: holds characters that UTF-8 cannot carry") from exc
    return value


def _deadline(payload: bytes) -> int | None:
    # Not parse_job: a job of a later kind has its deadline in the same place.
    try:
        found = json.loads(payload)["deadline_ms"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def _parts(everything: Sequence[Prepared]) -> Generator[list[Prepared]]:
    """Cut into pipelines that are bounded in jobs and in bytes."""
    part: list[Prepared] = []
    size = 0
    for prepared in everything:
        weight = len(prepared.data or b"")
        if part and (len(part) >= PIPELINE_JOBS or size + weight > PIPELINE_BYTES):
            yield part
            part, size = [], 0
        part.append(prepared)
        size += weight
    if part:
        yield part
