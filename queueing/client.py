"""Enqueue, and wait: :class:`Client` for threads and :class:`AsyncClient` for asyncio.

Both run the flows of :mod:`queueing.flows`; here is only how an effect is carried out. Importing this
module imports neither redis nor pydantic: making a client does.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from queueing.errors import ClientClosed, DecibatchError, InvalidJob, ServerUnavailable

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from queueing.abells import AsyncBells, AsyncWaiter
    from queueing.bells import Bells, Waiter
    from queueing.errors import IdempotencyConflict, QueueFull
    from queueing.events import Event
    from queueing.flows import Core, Effect, Flow, JobHandle, Submission
    from queueing.job import Lane, Result, State
    from queueing.protocol import Admission, JobStatus

T = TypeVar("T")

DEFAULT_URL = "redis://127.0.0.1:6379/0"
DEFAULT_QUEUE = "main"
DEFAULT_MODEL = "tiny.en"
POOL_CONNECTIONS = 16


def _from_env() -> dict[str, str]:
    return {
        "url": os.environ.get("DECIBATCH_REDIS_URL") or DEFAULT_URL,
        "queue": os.environ.get("DECIBATCH_QUEUE") or DEFAULT_QUEUE,
        "model": os.environ.get("DECIBATCH_MODEL") or DEFAULT_MODEL,
    }


def _core(
    queue: str,
    model: str,
    admission: Admission | None,
    max_inline_bytes: int | None,
    *,
    patience_s: float,
    poll_s: float,
) -> Core:
    import re

    from queueing.flows import MAX_INLINE_BYTES, Core
    from queueing.job import IN_WORDS, NAME
    from queueing.keys import Keys
    from queueing.protocol import Admission, Queue

    for what, name in (("queue", queue), ("model", model)):
        # fullmatch: "$" would let a line break pass.
        if not isinstance(name, str) or not re.fullmatch(NAME.strip("^$"), name):
            raise InvalidJob(f"{what}: {IN_WORDS[NAME]}")
    return Core(
        queue=Queue(Keys(queue)),
        model=model,
        admission=admission or Admission(),
        max_inline_bytes=MAX_INLINE_BYTES if max_inline_bytes is None else max_inline_bytes,
        patience_s=patience_s,
        poll_s=poll_s,
        clock=time.monotonic,
    )


def _where(url: str) -> str:
    """The server as messages name it: neither user nor password."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"


def _checked(url: str, make: Callable[[str], T]) -> tuple[T, str]:
    try:
        return make(url), _where(url)
    except ValueError:
        # Not "from": the parser's words may quote the password.
        raise ServerUnavailable(
            "the Redis URL cannot be read; it looks like redis://user:password@host:6379/0, rediss:// or unix://"
        ) from None


def _submissions(inputs: Iterable[Any]) -> list[Submission]:
    from queueing.flows import Submission

    return [given if isinstance(given, Submission) else Submission(given) for given in inputs]


class Client:
    """Enqueues jobs and waits for them. May be shared by threads, and used after a fork.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        queue: Name of the queue; workers of the same queue do the work.
        model: What ``submit`` uses where it is given no model.
        admission: Bounds on what may wait in the queue.
        max_inline_bytes: Greatest input handed over as bytes (default 32 MiB).
        max_connections: Connections for commands; all waiters together use one more.
        patience_s: For how long, seconds, a call goes on trying to reach a server that is away, and at least
            twice; 0 for once.
        poll_s: How often, seconds, a waiter looks without having been notified.

    Raises:
        InvalidJob: ``queue`` or ``model`` is no name.
        ServerUnavailable: ``url`` is no URL. The server is not contacted before the first call.

    Every call may raise ServerUnavailable, and ClientClosed after ``close``.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        queue: str = DEFAULT_QUEUE,
        model: str = DEFAULT_MODEL,
        admission: Admission | None = None,
        max_inline_bytes: int | None = None,
        max_connections: int = POOL_CONNECTIONS,
        patience_s: float = 5.0,
        poll_s: float = 5.0,
    ) -> None:
        from queueing.connect import connect, connect_bell

        self._core = _core(queue, model, admission, max_inline_bytes, patience_s=patience_s, poll_s=poll_s)
        self._redis, self._server = _checked(url, lambda url: connect(url, max_connections=max_connections))
        self._make_bell = connect_bell(url)
        self._closed = threading.Event()
        # By process: a thread does not survive a fork, and a lock may be held in the middle of one.
        self._bells: dict[int, Bells] = {}
        self._finalizer = weakref.finalize(self, _stop_bells, self._bells)

    @classmethod
    def from_env(cls, **options: Any) -> Client:
        """A client for DECIBATCH_REDIS_URL, DECIBATCH_QUEUE and DECIBATCH_MODEL, read now.

        ``options`` are those of the constructor, and win.
        """
        return cls(**{**_from_env(), **options})

    def submit(
        self,
        input: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        kind: str = "transcribe",
        model: str | None = None,
        lane: Lane | str = "normal",
        tenant: str = "default",
        language: str | None = None,
        prompt: str | None = None,
        timestamps: bool = True,
        temperature: float = 0.0,
        max_tokens: int | None = None,
        carry_context: bool = False,
        words: bool = False,
        beam_size: int = 1,
        best_of: int = 1,
        seed: int = 0,
        hot_words: Sequence[str] = (),
        fallback: bool = True,
        min_bits: int = 4,
        idempotency_key: str | None = None,
        deadline_s: float | None = None,
        not_before: datetime | None = None,
        delay_s: float | None = None,
        max_attempts: int = 3,
        result_ttl_s: int = 86_400,
        job_id: str | None = None,
        webhook: str | None = None,
    ) -> JobHandle:
        """Enqueue one job; returns its id, as a string that also says whether it ``existed``.

        If the reply is lost, the call is repeated with the same id, and the job is still enqueued once.

        Args:
            input: A path (made absolute here and read by the worker, which fails the job with
                ``input_not_found`` where there is no such file), an http(s) URL, or the bytes themselves.
            kind: ``transcribe`` or ``translate`` (to English).
            model: Name of the model; None for the client's.
            lane: ``interactive``, ``normal`` or ``bulk``.
            tenant: Tenants take turns within a lane.
            language: ISO 639 code; None lets the model find out.
            prompt: Earlier context, or the spelling of names.
            timestamps: Whether to return segments with times.
            temperature: Where decoding starts, 0 to 1.
            max_tokens: Upper bound for each chunk of at most 30 s.
            carry_context: Give each chunk the text before it: names are then spelled alike, but the chunks of
                the job run one after another.
            words: Whether segments have their words, with times.
            beam_size: Lines that the search at temperature 0 follows; Whisper only.
            best_of: Samples at temperatures above 0, of which the likeliest is taken; Whisper only.
            seed: Of those samples.
            hot_words: Names and terms that are likely to be said.
            fallback: Whether what looks wrong is tried again at higher temperatures.
            min_bits: Fewest bits of each weight (4, 8 or 16) at which the job may run: workers short of memory
                quantize their models. Every result says at how many it ran.
            idempotency_key: The same key (of a tenant) with the same work gives the same job for as long
                as that job is kept, whatever became of it.
            deadline_s: Seconds from now, by Redis' clock, after which the job expires.
            not_before: A moment, with a time zone, before which the job does not start.
            delay_s: The same, in seconds from now; give one of the two.
            max_attempts: Attempts that may end in a retryable error.
            result_ttl_s: Seconds for which the outcome is kept.
            job_id: An id of your own: 8 to 64 letters, digits, ``_`` or ``-``.
            webhook: An http(s) URL that a worker posts the end to, signed; see docs/web-apps.md.

        Raises:
            InvalidJob: an argument breaks the contract; nothing was written.
            QueueFull: too much waits already; nothing was written.
            IdempotencyConflict: the key, or the job id, belongs to a job that asks for something else.
        """
        from queueing.flows import Submission

        submission = Submission(
            input=input,
            kind=kind,
            model=model,
            lane=lane,
            tenant=tenant,
            language=language,
            prompt=prompt,
            timestamps=timestamps,
            temperature=temperature,
            max_tokens=max_tokens,
            carry_context=carry_context,
            words=words,
            beam_size=beam_size,
            best_of=best_of,
            seed=seed,
            hot_words=hot_words,
            fallback=fallback,
            min_bits=min_bits,
            idempotency_key=idempotency_key,
            deadline_s=deadline_s,
            not_before=not_before,
            delay_s=delay_s,
            max_attempts=max_attempts,
            result_ttl_s=result_ttl_s,
            job_id=job_id,
            webhook=webhook,
        )
        return self._run(self._core.submit(submission))

    def submit_many(
        self, inputs: Iterable[Submission | str | os.PathLike[str] | bytes]
    ) -> list[JobHandle | QueueFull | IdempotencyConflict]:
        """Enqueue many jobs with few round trips; each input is a Submission, or what ``submit`` takes.

        Answers in order. A refusal stands in the place of its job; it is returned, not raised.

        Raises:
            InvalidJob: one of them breaks the contract; none was written.
            ServerUnavailable: some may have been written; give job ids or idempotency keys to try again.
        """
        return self._run(self._core.submit_many(_submissions(inputs)))

    def status(self, job_id: str) -> JobStatus:
        """The job as it stands. Raises UnknownJob."""
        return self._run(self._core.status(job_id))

    def cancel(self, job_id: str) -> State:
        """Cancel a job that has not ended; returns the state it has now. Raises UnknownJob."""
        return self._run(self._core.cancel(job_id))

    def wait(self, job_id: str, timeout: float | None = None) -> JobStatus:
        """Wait for the end of a job, whatever it is, and return the job as it then stands.

        Raises ResultTimeout and UnknownJob as ``result`` does.
        """
        return self._run(self._core.wait(job_id, timeout))

    def result(self, job_id: str, timeout: float | None = None) -> Result:
        """Wait for the end of a job and return its result.

        Args:
            job_id: What ``submit`` returned.
            timeout: Seconds; None waits for ever. A server that hangs may add its command time-out (10 s).

        Raises:
            JobFailed, JobDead, JobCancelled, JobExpired: it ended without a result.
            ResultTimeout: it has not ended yet; it goes on.
            UnknownJob: no such job, or its result has expired.
        """
        return self._run(self._core.result(job_id, timeout))

    def events(self, job_id: str, *, after: str | None = None) -> Iterator[Event]:
        """What the job says, from its start (or after the event of that id) to its final event.

        The last 256 are kept, and for a minute after the end. A job that never started, or whose events
        are gone, yields one final event. Partial text carries the attempt that said it: drop what an older
        attempt said. Raises UnknownJob.
        """
        from queueing.flows import Emit, Finished, advance

        ears = _Ears(self)
        flow = self._core.events(job_id, after)
        try:
            effect = advance(flow)
            while not isinstance(effect, Finished):
                if isinstance(effect, Emit):
                    yield effect.event
                    effect = advance(flow)
                else:
                    effect = self._step(flow, effect, ears)
        finally:
            ears.close()

    def close(self) -> None:
        """Close all connections; whoever waits gets ClientClosed. Safe to call again."""
        self._closed.set()
        self._finalizer.detach()
        bells = self._bells.pop(os.getpid(), None)
        if bells is not None:
            bells.close()
        self._redis.close()
        self._redis.connection_pool.disconnect()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        from queueing.flows import Finished, advance

        ears = _Ears(self)
        try:
            effect = advance(flow)
            while not isinstance(effect, Finished):
                effect = self._step(flow, effect, ears)
        finally:
            ears.close()
        value: T = effect.value
        return value

    def _step(self, flow: Flow[Any], effect: Effect, ears: _Ears) -> Any:
        from queueing.flows import advance

        try:
            answer = self._perform(effect, ears)
        except DecibatchError as exc:
            return advance(flow, error=exc)
        return advance(flow, answer)

    def _perform(self, effect: Effect, ears: _Ears) -> Any:
        from queueing import flows
        from queueing.faults import translated
        from queueing.scripts import run

        self._check_open()
        answer: Any = None
        match effect:
            case flows.Pause(seconds):
                self._closed.wait(seconds)
            case flows.Listen(channel, final):
                ears.listen(channel, final=final)
            case flows.Wait(seconds):
                answer = ears.wait(seconds)
            case _:
                try:
                    with translated(self._server):
                        match effect:
                            case flows.Ask(call):
                                answer = run(self._redis, call)
                            case flows.AskAll(calls):
                                answer = self._pipeline(calls)
                            case flows.Read(key, after):
                                answer = self._redis.xrange(key, f"({after}", "+", flows.EVENTS_PER_READ)
                            case flows.Clock():
                                seconds, micros = self._redis.time()
                                answer = seconds * 1000 + micros // 1000
                finally:
                    # A command that was under way may have made a connection after the pool was closed.
                    if self._closed.is_set():
                        self._redis.connection_pool.disconnect()
        self._check_open()
        return answer

    def _pipeline(self, calls: tuple[Any, ...]) -> list[Any]:
        from redis.exceptions import NoScriptError

        for script in {call.script.sha: call.script for call in calls}.values():
            if not self._redis.script_exists(script.sha)[0]:
                self._redis.script_load(script.source)
        with self._redis.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.evalsha(call.script.sha, 1, call.root, *call.args)
            replies = pipe.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, NoScriptError):
                # Flushed in between: as if the connection had failed, so that all is asked again.
                raise ConnectionError("the server forgot a script") from reply
            if isinstance(reply, Exception):
                raise reply
        return [call.parse(reply) for call, reply in zip(calls, replies, strict=True)]

    def _own_bells(self) -> Bells:
        from queueing.bells import Bells

        pid = os.getpid()
        bells = self._bells.get(pid)
        if bells is None:
            bells = self._bells.setdefault(pid, Bells(self._make_bell))
        return bells

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClientClosed("the client is closed")


def _stop_bells(bells: dict[int, Bells]) -> None:
    own = bells.pop(os.getpid(), None)
    if own is not None:
        own.stop()


class _Ears:
    """The place of one call at the doorbells."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._bells: Bells | None = None
        self._waiter: Waiter | None = None

    def listen(self, channel: str, *, final: bool) -> None:
        from queueing.flows import CONFIRM_S

        self._bells = self._client._own_bells()
        self._waiter = self._bells.listen(channel, final=final, confirm_s=CONFIRM_S)

    def wait(self, seconds: float) -> bytes:
        if self._waiter is None:
            return b""
        self._waiter.wait(seconds)
        return self._waiter.said

    def close(self) -> None:
        if self._bells is not None and self._waiter is not None:
            self._bells.drop(self._waiter)


class AsyncClient:
    """:class:`Client` for asyncio: the same arguments, calls and errors. Belongs to one event loop."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        queue: str = DEFAULT_QUEUE,
        model: str = DEFAULT_MODEL,
        admission: Admission | None = None,
        max_inline_bytes: int | None = None,
        max_connections: int = POOL_CONNECTIONS,
        patience_s: float = 5.0,
        poll_s: float = 5.0,
    ) -> None:
        from queueing.connect import connect_async, connect_bell_async

        self._core = _core(queue, model, admission, max_inline_bytes, patience_s=patience_s, poll_s=poll_s)
        self._redis, self._server = _checked(
            url, lambda url: connect_async(url, max_connections=max_connections)
        )
        self._make_bell = connect_bell_async(url)
        self._closed = False
        self._bells: AsyncBells | None = None

    @classmethod
    def from_env(cls, **options: Any) -> AsyncClient:
        """A client for DECIBATCH_REDIS_URL, DECIBATCH_QUEUE and DECIBATCH_MODEL, read now.

        ``options`` are those of the constructor, and win.
        """
        return cls(**{**_from_env(), **options})

    async def submit(
        self,
        input: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        kind: str = "transcribe",
        model: str | None = None,
        lane: Lane | str = "normal",
        tenant: str = "default",
        language: str | None = None,
        prompt: str | None = None,
        timestamps: bool = True,
        temperature: float = 0.0,
        max_tokens: int | None = None,
        carry_context: bool = False,
        words: bool = False,
        beam_size: int = 1,
        best_of: int = 1,
        seed: int = 0,
        hot_words: Sequence[str] = (),
        fallback: bool = True,
        min_bits: int = 4,
        idempotency_key: str | None = None,
        deadline_s: float | None = None,
        not_before: datetime | None = None,
        delay_s: float | None = None,
        max_attempts: int = 3,
        result_ttl_s: int = 86_400,
        job_id: str | None = None,
        webhook: str | None = None,
    ) -> JobHandle:
        """Enqueue one job; see :meth:`Client.submit`."""
        from queueing.flows import Submission

        submission = Submission(
            input=input,
            kind=kind,
            model=model,
            lane=lane,
            tenant=tenant,
            language=language,
            prompt=prompt,
            timestamps=timestamps,
            temperature=temperature,
            max_tokens=max_tokens,
            carry_context=carry_context,
            words=words,
            beam_size=beam_size,
            best_of=best_of,
            seed=seed,
            hot_words=hot_words,
            fallback=fallback,
            min_bits=min_bits,
            idempotency_key=idempotency_key,
            deadline_s=deadline_s,
            not_before=not_before,
            delay_s=delay_s,
            max_attempts=max_attempts,
            result_ttl_s=result_ttl_s,
            job_id=job_id,
            webhook=webhook,
        )
        return await self._run(self._core.submit(submission))

    async def submit_many(
        self, inputs: Iterable[Submission | str | os.PathLike[str] | bytes]
    ) -> list[JobHandle | QueueFull | IdempotencyConflict]:
        """Enqueue many jobs with few round trips; see :meth:`Client.submit_many`."""
        return await self._run(self._core.submit_many(_submissions(inputs)))

    async def status(self, job_id: str) -> JobStatus:
        """The job as it stands. Raises UnknownJob."""
        return await self._run(self._core.status(job_id))

    async def cancel(self, job_id: str) -> State:
        """Cancel a job that has not ended; returns the state it has now. Raises UnknownJob."""
        return await self._run(self._core.cancel(job_id))

    async def wait(self, job_id: str, timeout: float | None = None) -> JobStatus:  # noqa: ASYNC109
        """Wait for the end of a job, whatever it is; see :meth:`Client.wait`."""
        return await self._run(self._core.wait(job_id, timeout))

    async def result(self, job_id: str, timeout: float | None = None) -> Result:  # noqa: ASYNC109
        """Wait for the end of a job and return its result; see :meth:`Client.result`."""
        return await self._run(self._core.result(job_id, timeout))

    async def events(self, job_id: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """What the job says, to its final event; see :meth:`Client.events`."""
        from queueing.flows import Emit, Finished, advance

        ears = _AsyncEars(self)
        flow = self._core.events(job_id, after)
        try:
            effect = advance(flow)
            while not isinstance(effect, Finished):
                if isinstance(effect, Emit):
                    yield effect.event
                    effect = advance(flow)
                else:
                    effect = await self._step(flow, effect, ears)
        finally:
            ears.close()

    async def close(self) -> None:
        """Close all connections; whoever waits gets ClientClosed. Safe to call again."""
        self._closed = True
        if self._bells is not None:
            await self._bells.close()
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, flow: Flow[T]) -> T:
        from queueing.flows import Finished, advance

        ears = _AsyncEars(self)
        try:
            effect = advance(flow)
            while not isinstance(effect, Finished):
                effect = await self._step(flow, effect, ears)
        finally:
            ears.close()
        value: T = effect.value
        return value

    async def _step(self, flow: Flow[Any], effect: Effect, ears: _AsyncEars) -> Any:
        from queueing.flows import advance

        answer: Any = None
        error: DecibatchError | None = None
        asked = _cancellations()
        try:
            answer = await self._perform(effect, ears)
        except DecibatchError as exc:
            error = exc
        if _cancellations() > asked:
            # Below Python 3.12 asyncio.wait_for, by which redis-py sends, can swallow a cancellation that comes
            # in the same moment as what it waits for. Whoever asked for it must not wait for our next one.
            import asyncio

            raise asyncio.CancelledError
        return advance(flow, answer, error)

    async def _perform(self, effect: Effect, ears: _AsyncEars) -> Any:
        from queueing import flows
        from queueing.faults import translated
        from queueing.scripts import arun

        self._check_open()
        answer: Any = None
        match effect:
            case flows.Pause(seconds):
                # Imported by whoever runs a loop; a thread's client does without its 50 modules.
                from asyncio import sleep

                await sleep(seconds)
            case flows.Listen(channel, final):
                await ears.listen(channel, final=final)
            case flows.Wait(seconds):
                answer = await ears.wait(seconds)
            case _:
                try:
                    with translated(self._server):
                        match effect:
                            case flows.Ask(call):
                                answer = await arun(self._redis, call)
                            case flows.AskAll(calls):
                                answer = await self._pipeline(calls)
                            case flows.Read(key, after):
                                answer = await self._redis.xrange(
                                    key, f"({after}", "+", flows.EVENTS_PER_READ
                                )
                            case flows.Clock():
                                seconds, micros = await self._redis.time()
                                answer = seconds * 1000 + micros // 1000
                finally:
                    # A command that was under way may have made a connection after the pool was closed.
                    if self._closed:
                        await self._redis.connection_pool.disconnect()
        self._check_open()
        return answer

    async def _pipeline(self, calls: tuple[Any, ...]) -> list[Any]:
        from redis.exceptions import NoScriptError

        for script in {call.script.sha: call.script for call in calls}.values():
            if not (await self._redis.script_exists(script.sha))[0]:
                await self._redis.script_load(script.source)
        async with self._redis.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.evalsha(call.script.sha, 1, call.root, *call.args)
            replies = await pipe.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, NoScriptError):
                # Flushed in between: as if the connection had failed, so that all is asked again.
                raise ConnectionError("the server forgot a script") from reply
            if isinstance(reply, Exception):
                raise reply
        return [call.parse(reply) for call, reply in zip(calls, replies, strict=True)]

    def _own_bells(self) -> AsyncBells:
        from queueing.abells import AsyncBells

        if self._bells is None:
            self._bells = AsyncBells(self._make_bell)
        return self._bells

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed")


def _cancellations() -> int:
    """How often the running task was asked to end, those that time-outs have taken back aside."""
    import asyncio

    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class _AsyncEars:
    """The place of one call at the doorbells."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._bells: AsyncBells | None = None
        self._waiter: AsyncWaiter | None = None

    async def listen(self, channel: str, *, final: bool) -> None:
        from queueing.flows import CONFIRM_S

        self._bells = self._client._own_bells()
        self._waiter = await self._bells.listen(channel, final=final, confirm_s=CONFIRM_S)

    async def wait(self, seconds: float) -> bytes:
        if self._waiter is None:
            return b""
        await self._waiter.wait(seconds)
        return self._waiter.said

    def close(self) -> None:
        if self._bells is not None and self._waiter is not None:
            self._bells.drop(self._waiter)
