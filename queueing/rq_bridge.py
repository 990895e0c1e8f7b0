"""RQ as a way in: jobs that a team enqueues with RQ become jobs of this queue, and end as RQ's own do.

Each step may be repeated, by any worker, after a death at any point:

1. A job is moved to RQ's intermediate list (RQ's own move) and submitted under an id made from its RQ id and the
   moment of its enqueueing, so that the same enqueueing is submitted once. Only then it is marked as started.
   What is left in the intermediate list is submitted again by whoever looks after the bridge.
2. While it runs, whoever looks after the bridge keeps RQ's heartbeat, shows progress, and cancels what was cancelled.
3. Its end is written down by the script that ends it, as for webhooks, and told to RQ by compare-and-set.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queueing.errors import InvalidJob
from queueing.events import decode_event
from queueing.flows import Core, Submission
from queueing.job import HOOK_VERSION, State
from queueing.protocol import Admission, Ended, Queue, text
from queueing.scripts import run

if TYPE_CHECKING:
    from rq.job import Job as RqJob

    from queueing.rq_jobs import RqJobs

log = logging.getLogger("decibatch.rq")

NAMES = {"decibatch.transcribe": "transcribe", "decibatch.translate": "translate"}
"""Function names that are taken, and the kind of job that each is. Nothing is ever imported."""
ARGUMENTS = frozenset(
    [
        "input",
        "model",
        "lane",
        "tenant",
        "language",
        "prompt",
        "timestamps",
        "temperature",
        "max_tokens",
        "carry_context",
        "words",
        "beam_size",
        "best_of",
        "seed",
        "hot_words",
        "fallback",
        "min_bits",
        "max_attempts",
    ]
)
"""Those of ``Client.submit`` but for what RQ decides itself: id, time, time-out, and who is told the end."""
OUTCOMES = ("bridged", "refused", "put_back", "finished", "failed", "cancelled", "overtaken")
"""What a bridge counts: jobs that were submitted, that asked for what there is not, that went back to RQ because the
queue was full; ends that were told to RQ; and ends that RQ no longer waited for."""
RESULT_TTL_S = 600
"""Our copy of a result; RQ keeps its own as long as the job says."""
LOCK_MS = 10_000
HOLD_MS = 30_000
AT_ONCE = 32
KEEP_EVERY_S = 10.0
"""Between two heartbeats of a job. RQ takes one for abandoned that had none for 60 s and longer."""
NOTE_EVERY_S = 0.5
STUCK_S = 2.0
"""A job that has stood in the intermediate list for so long was left there by a death."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the end of a job needs to know of where it came from."""

    job: str
    at: str
    pickled: bool

    def dumps(self) -> str:
        return json.dumps({"job": self.job, "at": self.at, "pickled": self.pickled})

    @classmethod
    def loads(cls, given: str) -> Reference:
        fields = json.loads(given)
        return cls(str(fields["job"]), str(fields["at"]), bool(fields["pickled"]))


class Bridge:
    """One worker's share of the bridge. ``step`` does what is due, and is called again and again.

    ``redis`` is that of this queue, without decoding; ``clock`` gives monotonic seconds; ``owner`` is this worker's
    alone; in ``counts``, by OUTCOMES, it counts what it does.
    """

    def __init__(
        self,
        redis: Any,
        queue: Queue,
        jobs: RqJobs,
        *,
        owner: str,
        model: str,
        admission: Admission,
        open_at_once: int,
        clock: Callable[[], float],
        counts: dict[str, int] | None = None,
    ) -> None:
        self.counts = dict.fromkeys(OUTCOMES, 0) if counts is None else counts
        self._redis = redis
        self._queue = queue
        self._jobs = jobs
        self._owner = owner
        self._open_at_once = open_at_once
        self._clock = clock
        self._core = Core(
            queue=queue,
            model=model,
            admission=admission,
            max_inline_bytes=admission.max_inline_bytes,
            patience_s=0.0,
            poll_s=1.0,
            clock=clock,
        )
        self._kept: dict[str, float] = {}
        self._noted: dict[str, float] = {}
        self._seen_stuck: dict[str, float] = {}
        self._beaten = float("-inf")

    def step(self, *, may_take: bool) -> bool:
        """Finish, look after, take. True where something was done, so that the next step may follow at once.

        Raises redis.RedisError, OSError: the step is repeated later.
        """
        busy = self._finish()
        if self._clock() - self._beaten >= KEEP_EVERY_S:
            self._jobs.beat()
            self._beaten = self._clock()
        if self._in_charge():
            self._look_after()
        return (may_take and self._take()) or busy

    # --- taking -----------------------------------------------------------------------------------

    def _take(self) -> bool:
        if self._redis.zcard(self._queue.keys.bridged) >= self._open_at_once:
            return False
        job = self._jobs.dequeue()
        if job is None:
            return False
        self._bridge(job)
        return True

    def _bridge(self, job: RqJob) -> None:
        """Submit a job that stands in the intermediate list, then mark it as started."""
        from queueing.rq_jobs import Moved, Unreadable, moment_of

        at = moment_of(job)
        try:
            try:
                job, pickled = self._jobs.readable(job)
                submission = submission_of(job.func_name, job.args, job.kwargs, job.timeout)
                admitted = self._submit(submission, Reference(job.id, at, pickled))
            except (Unreadable, InvalidJob) as exc:
                if isinstance(exc, Unreadable):
                    self._jobs.leave_unread(job)
                self._jobs.start(job, at)
                self._jobs.fail(job, at, f"invalid_job: {exc}")
                self.counts["refused"] += 1
                log.warning("job of rq refused", extra={"rq_job": job.id})
                return
            if not admitted:
                self._jobs.put_back(job)
                self.counts["put_back"] += 1
                return
            self._jobs.start(job, at)
            self.counts["bridged"] += 1
        except Moved:
            # Cancelled or deleted meanwhile. What was submitted is cancelled by whoever looks after the bridge.
            self._jobs.unstick(self._jobs.queue_of(job), job.id)

    def _submit(self, submission: Submission, reference: Reference) -> bool:
        prepared = self._core.prepare(
            Submission(**{**_fields(submission), "job_id": job_id_of(reference)}), self._now_ms()
        )
        job = prepared.job.model_copy(update={"v": HOOK_VERSION})
        call = self._queue.submit(
            job, data=prepared.data, admission=self._core.admission, bridged_from=reference.dumps()
        )
        # "conflict" as well: the id is made from what identifies the enqueueing, so it is the same job.
        return run(self._redis, call).verdict != "full"

    def _now_ms(self) -> int:
        seconds, micros = self._redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    # --- looking after ----------------------------------------------------------------------------

    def _in_charge(self) -> bool:
        """Whether this worker looks after the bridge now; another does where it has died."""
        key = self._queue.keys.bridge_lock
        if self._redis.set(key, self._owner, nx=True, px=LOCK_MS):
            return True
        if text(self._redis.get(key) or "") != self._owner:
            self._seen_stuck.clear()
            return False
        # Lost in between, it is somebody else's for longer: all that is done in charge may be done twice.
        self._redis.pexpire(key, LOCK_MS)
        return True

    def release(self) -> None:
        """Let another worker look after the bridge at once."""
        if text(self._redis.get(self._queue.keys.bridge_lock) or "") == self._owner:
            self._redis.delete(self._queue.keys.bridge_lock)

    def _look_after(self) -> None:
        members = [text(member) for member in self._redis.zrange(self._queue.keys.bridged, 0, -1)]
        for times in (self._kept, self._noted):
            for gone in times.keys() - set(members):
                del times[gone]
        for job_id in members:
            self._look_after_one(job_id)
        self._rescue_stuck()

    def _look_after_one(self, job_id: str) -> None:
        key = self._queue.keys.job(job_id)
        state, hook_to = self._redis.hmget(key, "state", "hook_to")
        if state is None or State(text(state)).terminal or not hook_to:
            self._redis.zrem(self._queue.keys.bridged, job_id)
            return
        reference = Reference.loads(text(hook_to))
        status, at = self._jobs.state(reference.job)
        if status not in ("queued", "started") or at != reference.at:
            log.info("job of rq was withdrawn", extra={"job": job_id, "status": status or "deleted"})
            run(self._redis, self._queue.cancel(job_id))
            return
        if status != "started" or not self._is_due(self._noted, job_id, NOTE_EVERY_S):
            return
        job = self._jobs.fetch(reference.job, pickled=reference.pickled)
        if job is None:
            return
        self._jobs.note(job, self._progress(job_id, text(state)))
        if self._is_due(self._kept, job_id, KEEP_EVERY_S):
            self._jobs.keep(job)

    def _is_due(self, times: dict[str, float], job_id: str, every_s: float) -> bool:
        due = self._clock() - times.get(job_id, float("-inf")) >= every_s
        if due:
            times[job_id] = self._clock()
        return due

    def _progress(self, job_id: str, state: str) -> dict[str, Any]:
        for entry, fields in self._redis.xrevrange(self._queue.keys.events(job_id), count=16):
            event = decode_event(entry, fields)
            if event.type == "progress":
                kept = {name: event.data.get(name) for name in ("stage", "done", "total")}
                return {"job": job_id, "state": state, **kept}
        return {"job": job_id, "state": state}

    def _rescue_stuck(self) -> None:
        """Bridge what somebody took and did not start."""
        stuck = self._jobs.stuck()
        now = self._clock()
        self._seen_stuck = {job_id: self._seen_stuck.get(job_id, now) for _, job_id in stuck}
        for queue, job_id in stuck:
            if now - self._seen_stuck[job_id] < STUCK_S:
                continue
            job = self._jobs.fetch(job_id)
            if job is None or self._jobs.state(job_id)[0] != "queued":
                self._jobs.unstick(queue, job_id)
            else:
                log.warning("job of rq taken up again", extra={"job": job_id})
                self._bridge(job)

    # --- ending -----------------------------------------------------------------------------------

    def _finish(self) -> bool:
        taken = run(self._redis, self._queue.hook_take("rq", AT_ONCE, HOLD_MS))
        for ended in taken:
            self._tell(ended)
            run(self._redis, self._queue.hook_end("rq", ended, "sent"))
        return bool(taken)

    def _tell(self, ended: Ended) -> None:
        from queueing.rq_jobs import Moved

        reference = Reference.loads(ended.hook_to)
        job = self._jobs.fetch(reference.job, pickled=reference.pickled)
        if job is None:
            self.counts["overtaken"] += 1
            return
        try:
            match ended.state:
                case State.DONE:
                    self._jobs.succeed(job, reference.at, json.loads(ended.result))
                    told = "finished"
                case State.CANCELLED:
                    self._jobs.cancel(job, reference.at)
                    told = "cancelled"
                case _:
                    self._jobs.fail(job, reference.at, failure_text(ended.error))
                    told = "failed"
        except Moved:
            # Somebody has decided otherwise since, or this very end was told before and only the answer was lost.
            log.info("job of rq had ended already", extra={"job": ended.job_id})
            told = "overtaken"
        self.counts[told] += 1


def failure_text(error: bytes) -> str:
    """What RQ keeps as the reason; no traceback, since there is none."""
    fields = json.loads(error) if error else {}
    return f"{fields.get('code', 'failed')}: {fields.get('message', 'the job failed')}"


def job_id_of(reference: Reference) -> str:
    """The same for the same enqueueing of the same job, and for no other."""
    return "rq-" + hashlib.sha256(f"{reference.job}\0{reference.at}".encode()).hexdigest()[:40]


def submission_of(name: object, args: object, kwargs: object, timeout: float | None) -> Submission:
    """What a job of RQ asks for. Raises InvalidJob."""
    kind = NAMES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidJob(f"no such function; a worker takes {', '.join(NAMES)}")
    if args or not isinstance(kwargs, dict):
        raise InvalidJob("give keyword arguments alone: input=..., model=...")
    unknown = sorted(str(key)[:64] for key in kwargs.keys() - ARGUMENTS)
    if unknown:
        raise InvalidJob(f"no such arguments: {', '.join(map(_with_the_like, unknown))}")
    source = kwargs.get("input")
    is_url = isinstance(source, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source)
    if isinstance(source, str) and not is_url and not Path(source).is_absolute():
        raise InvalidJob("input: the path must be absolute")
    return Submission(
        **{**kwargs, "input": source},
        kind=kind,
        # RQ's time-out runs from the start; here from the moment at which a worker has room for the job.
        deadline_s=timeout if timeout is not None and timeout > 0 else None,
        result_ttl_s=RESULT_TTL_S,
    )


def _with_the_like(unknown: str) -> str:
    near = difflib.get_close_matches(unknown, ARGUMENTS, 1)
    return f"{unknown} (did you mean {near[0]}?)" if near else unknown


def _fields(submission: Submission) -> dict[str, Any]:
    return {name: getattr(submission, name) for name in Submission.__slots__}
