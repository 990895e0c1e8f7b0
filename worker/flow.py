"""The way of one job through the worker: parse, media, chunks, text, outcome. One coroutine a delivery."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from queueing.errors import InvalidJob
from queueing.job import ErrorInfo, InlineInput, Job, Lane, PathInput, Result, Timings, UrlInput, parse_job
from queueing.protocol import Delivery, Queue
from worker.dispatcher import Dispatcher
from worker.held import ChunkError, HeldJob, Ledger
from worker.joining import join_segments, join_text, main_language, without_overlaps
from worker.keeper import EngineKeeper
from worker.link import Link
from worker.media.supervisor import MediaSupervisor
from worker.media.types import MediaDone, MediaError, MediaRequest
from worker.offering import NeverFits, Offering
from worker.outbox import Outbox
from worker.outcome import Dead, Done, Dropped, Failed, HandBack, Outcome, Retry
from worker.settle import Settler, internal_error

log = logging.getLogger("decibatch.job")

SHORT_BYTES = 1024 * 1024
"""Of an input that a media process kept for short work may decode: 30 s of PCM; some minutes where it is compressed."""
STAT_TIMEOUT_S = 0.5
"""For a file system to tell a size. One that hangs must hang a media process, which can be killed, and not us."""
DEADLINE_MARGIN_S = 0.02
"""Redis' clock and the reply's way here differ from ours by a little: look just after, not just before."""


class EngineCrashed(Exception):
    """The engine died, or a step of it failed, while a chunk of the job was in it. ``alone``: nothing else was."""

    def __init__(self, reason: str, *, alone: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.alone = alone


@dataclass(frozen=True, slots=True)
class Parts:
    """The organs that a job passes through."""

    link: Link
    queue: Queue
    media: MediaSupervisor
    keeper: EngineKeeper
    dispatcher: Dispatcher
    outbox: Outbox
    settler: Settler
    ledger: Ledger


class JobFlow:
    """Runs deliveries. ``on_settled`` is called whenever one has left our hands, ``on_outcome`` with what was written
    and the script's word for it."""

    def __init__(
        self,
        parts: Parts,
        *,
        serve: tuple[str, ...],
        poison_after: int,
        worker: str,
        version: str,
        max_result_bytes: int,
        on_settled: Callable[[], None],
        on_deadline: Callable[[], None],
        on_outcome: Callable[[HeldJob, Outcome, str], None] = lambda held, outcome, word: None,
    ) -> None:
        self._parts = parts
        self._serve = serve
        self._poison_after = poison_after
        self._worker = worker
        self._version = version
        self._max_result_bytes = max_result_bytes
        self._on_settled = on_settled
        self._on_deadline = on_deadline
        self._on_outcome = on_outcome

    def accept(self, delivery: Delivery) -> None:
        """Begin with a delivery. One whose job we hold already (our lease had lapsed) only renews the attempt.

        Where the job is on its way out of our hands, its outcome belongs to the old attempt: the new delivery
        waits for that, and is then begun with. It must not be dropped: nobody would renew it, and nobody else could
        take it before the lease lapses.
        """
        held = self._parts.ledger.get(delivery.job_id)
        if held is not None:
            newest = held.successor or held.delivery
            # Two replies may overtake each other: a take's, and that of the resume that found its entries pending.
            if delivery.attempt <= newest.attempt:
                return
            if held.stage == "settling" or held.abandon is not None:
                held.successor = delivery
            else:
                held.delivery = delivery
            return
        held = HeldJob(delivery, time.monotonic())
        self._parts.ledger.add(held)
        held.task = asyncio.create_task(self._run(held), name=f"job-{delivery.job_id}")

    def abandon(self, held: HeldJob, why: str) -> None:
        """Stop working on a job; what "handback" means is written, everything else has been already.

        Asked again, it cancels again: below Python 3.12 ``asyncio.wait_for`` can swallow a cancellation.
        """
        if held.stage != "settling" and held.task is not None:
            held.abandon = held.abandon or why
            # A task cancelled before its first step never runs, and what it holds would be held for ever.
            if held.begun:
                held.task.cancel()

    async def _run(self, held: HeldJob) -> None:
        held.begun = True
        outcome = await self._outcome(held) if held.abandon is None else given_up(held.abandon)
        held.stage = "settling"
        self._parts.outbox.withdraw(held.delivery)
        max_attempts = held.job.max_attempts if held.job is not None else 1
        written = False
        try:
            word = await self._parts.settler.write(held.delivery, outcome, max_attempts)
            written = True
            self._on_outcome(held, outcome, word)
        finally:
            self._parts.ledger.remove(held)
            # Not where we are being torn down; and before anybody hears that nothing is held any more.
            if written and held.successor is not None:
                self.accept(held.successor)
            self._on_settled()

    async def _outcome(self, held: HeldJob) -> Outcome:
        try:
            return await self._attempt(held)
        except asyncio.CancelledError:
            if held.abandon is None:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return given_up(held.abandon)
        except Exception as exc:
            log.exception("job failed by our own fault", extra={"job": held.delivery.job_id})
            return Retry(internal_error(exc))

    async def _attempt(self, held: HeldJob) -> Outcome:
        try:
            job = held.job = parse_job(held.delivery.payload)
        except InvalidJob as exc:
            return Failed(ErrorInfo(code="invalid_job", message=str(exc)))
        refusal = self._refuse(job)
        if refusal is not None:
            return Failed(refusal)
        timer = self._watch_deadline(held, job)
        try:
            return await self._work(held, job)
        finally:
            if timer is not None:
                timer.cancel()

    def _watch_deadline(self, held: HeldJob, job: Job) -> asyncio.TimerHandle | None:
        """Look at the lease the moment the deadline passes, by Redis' clock: renewing it ends the job."""
        if job.deadline_ms is None:
            return None
        left_s = max(0.0, (job.deadline_ms - held.delivery.taken_ms) / 1000) + DEADLINE_MARGIN_S
        return asyncio.get_running_loop().call_later(left_s, self._on_deadline)

    async def _work(self, held: HeldJob, job: Job) -> Outcome:
        finished = self._parts.ledger.begin(held)
        offering = Offering(held, job, self._parts.dispatcher, self._parts.ledger)
        try:
            audio = await self._decode(held, job, offering, finished)
            offering.rest(audio)
            if audio.pieces:
                self._parts.outbox.put(held.delivery, "progress", held.progress)
            await finished
            return self._done(held, job, audio)
        except MediaError as exc:
            return media_outcome(exc, held.delivery)
        except NeverFits as exc:
            return Failed(ErrorInfo(code="memory_too_small", message=str(exc)))
        except ChunkError as exc:
            failed = exc.failed
            error = ErrorInfo(code=failed.code, message=failed.message, retryable=failed.retryable)
            return Retry(error) if failed.retryable else Failed(error)
        except EngineCrashed as exc:
            return self._crash_outcome(exc, held.delivery)
        finally:
            # In this order: nothing that may be read is removed.
            self._parts.dispatcher.withdraw(held.chunk_ids)
            self._parts.ledger.forget_chunks(held)
            if held.spool is not None:
                self._parts.media.discard(held.spool)

    def _refuse(self, job: Job) -> ErrorInfo | None:
        if job.model not in self._serve:
            return ErrorInfo(code="unknown_model", message=f"no worker serves a model named {job.model!r}")
        loaded = self._parts.keeper.loaded.get(job.model)
        if loaded is None:
            return None
        language = job.options.language
        if language is not None and language not in loaded.languages:
            message = f"model {job.model} does not know the language {language!r}"
            return ErrorInfo(code="unsupported_language", message=message)
        most_bits = loaded.rungs[0].bits if loaded.rungs else loaded.bits
        if job.options.min_bits > most_bits:
            message = f"model {job.model} has {most_bits} bits at most, not {job.options.min_bits}"
            return ErrorInfo(code="precision_unavailable", message=message)
        if job.kind == "translate" and not loaded.can_translate:
            return ErrorInfo(code="unsupported_option", message=f"model {job.model} cannot translate")
        return None

    async def _decode(
        self, held: HeldJob, job: Job, offering: Offering, finished: asyncio.Future[None]
    ) -> MediaDone:
        """The whole recording, of which pieces have been offered on the way. A chunk that fails meanwhile ends it.

        Raises MediaError, NeverFits, ChunkError, EngineCrashed.
        """
        media = asyncio.create_task(self._prepare(held, job, offering), name=f"media-{job.id}")
        finished.add_done_callback(lambda ended: has_failed(ended) and media.cancel())
        # Where we are cancelled nobody awaits its error, which then is none.
        media.add_done_callback(has_failed)
        try:
            return await media
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            if finished.done() and not task.cancelling():
                finished.result()
            raise

    async def _prepare(self, held: HeldJob, job: Job, offering: Offering) -> MediaDone:
        self._parts.outbox.put(held.delivery, "progress", held.progress)
        request = await self._request(held, job)
        audio = await self._parts.media.prepare(request, offering.early, offering.whole)
        held.spool = audio.spool
        return audio

    async def _request(self, held: HeldJob, job: Job) -> MediaRequest:
        name = f"{job.id}-{held.delivery.attempt}"
        short = job.lane is Lane.INTERACTIVE
        match job.input:
            case PathInput(path=path):
                return MediaRequest(name, path=path, short=short or await is_small(path))
            case UrlInput(url=url):
                return MediaRequest(name, url=url, short=short)
            case InlineInput(size=size):
                data = await self._fetch_inline(job.id)
                return MediaRequest(name, data=data, short=short or size <= SHORT_BYTES)

    async def _fetch_inline(self, job_id: str) -> bytes:
        link = self._parts.link
        while True:
            await link.wait_up()
            try:
                data: Any = await link.redis.get(self._parts.queue.keys.inline(job_id))
            except (RedisError, OSError) as exc:
                link.mark_down(exc)
                continue
            if data is None:
                raise MediaError("input_lost", "the bytes of the input are no longer in Redis")
            return bytes(data)

    def _done(self, held: HeldJob, job: Job, audio: MediaDone) -> Outcome:
        result = self._result(held, job, audio)
        body = result.model_dump_json()
        size = len(body.encode())
        if size > self._max_result_bytes:
            message = f"the result has {size} bytes; at most {self._max_result_bytes} are kept"
            return Failed(ErrorInfo(code="result_too_large", message=message))
        return Done(body, result.duration_s)

    def _result(self, held: HeldJob, job: Job, audio: MediaDone) -> Result:
        pieces = audio.pieces
        results = without_overlaps(pieces, [held.results[chunk_id] for chunk_id in held.chunk_ids])
        return Result(
            text=join_text(results),
            segments=join_segments(pieces, results, audio.duration_s),
            language=main_language(results, pieces) or job.options.language,
            duration_s=round(audio.duration_s, 3),
            speech_s=round(audio.speech_s, 3),
            timings=timings(held, time.monotonic()),
            model=job.model,
            bits=min((result.bits for result in results), default=0),
            attempt=held.delivery.attempt,
            worker=self._worker,
            version=self._version,
        )

    def _crash_outcome(self, crash: EngineCrashed, delivery: Delivery) -> Outcome:
        error = ErrorInfo(
            code="engine_crashed", message=f"the engine failed: {crash.reason}"[:300], retryable=True
        )
        if not crash.alone:
            return Retry(error, alone=True, counted=False)
        if delivery.crashes + 1 < self._poison_after:
            return Retry(error, alone=True, crashed=True, counted=False)
        message = f"the job crashed the engine {delivery.crashes + 1} times while it ran alone"
        return Dead(ErrorInfo(code="poison", message=message))


def has_failed(ended: asyncio.Future[Any]) -> bool:
    """Whether a future has an error, which counts as seen now."""
    return not ended.cancelled() and ended.exception() is not None


def given_up(why: str) -> Outcome:
    """What becomes of a job that was abandoned: see :attr:`HeldJob.abandon`."""
    return HandBack() if why == "handback" else Dropped(why)


async def is_small(path: str) -> bool:
    """Whether a file is quickly decoded, as far as its size tells: it need not wait behind a long one."""
    try:
        told = await asyncio.wait_for(asyncio.to_thread(os.stat, path), STAT_TIMEOUT_S)
    except (OSError, ValueError, TimeoutError):
        return False
    return stat.S_ISREG(told.st_mode) and told.st_size <= SHORT_BYTES


def media_outcome(exc: MediaError, delivery: Delivery) -> Outcome:
    """A media process has one input at a time: that it died over it twice is the input's fault, and final."""
    crashed = exc.code == "media_crashed"
    final = not exc.retryable or (crashed and delivery.crashes >= 1)
    error = ErrorInfo(code=exc.code, message=exc.message, retryable=not final)
    if exc.code == "media_stopped":
        return HandBack()
    return Failed(error) if final else Retry(error, crashed=crashed, counted=not crashed)


def timings(held: HeldJob, now: float) -> Timings:
    """Where the time of a job went, seconds; the parts add up to the total but for the joining."""
    queued = max(0.0, (held.delivery.taken_ms - held.delivery.created_ms) / 1000)
    ready = held.ready_at or now
    dispatched = held.dispatched_at or ready
    text_at = held.text_at or dispatched
    return Timings(
        queued=round(queued, 4),
        media=round(ready - held.accepted_at, 4),
        waiting=round(dispatched - ready, 4),
        engine=round(text_at - dispatched, 4),
        total=round(queued + now - held.accepted_at, 4),
    )
