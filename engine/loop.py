"""What the engine's thread does: load models and step sessions, between two steps obey commands.

:class:`Loop` is the part without processes and sockets; :mod:`engine.process` feeds it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine import protocol
from engine.config import EngineConfig
from engine.protocol import (
    BatchDone,
    Cancel,
    ChunkDone,
    ChunkFailed,
    ChunkRequest,
    ClearCache,
    Command,
    Dispatch,
    Event,
    Load,
    Loaded,
    LoadFailed,
    Partial,
    Requantize,
    Requantized,
    RequantizeFailed,
    Sample,
    Shutdown,
    StepDone,
    StepStarted,
    Surroundings,
)
from engine.stepping import Session, StepPlan


class EngineBroken(Exception):
    """The device failed in a way after which its results cannot be trusted: end the process."""


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """A model that is loaded and warm."""

    session: Session
    loaded: Loaded


class Backend(Protocol):
    """The device: what differs between the real engine and its stand-in."""

    def load(self, alias: str, bits: int | None) -> LoadedSession:
        """:raises LoadRefused: the model cannot be had."""

    def requantize(self, alias: str, bits: int) -> Requantized:
        """Bring a loaded model, whose session is not busy, to other bits.

        :raises Exception: it may be half changed, and must not be used any more.
        """

    def heard(self, chunk: ChunkRequest) -> None:
        """A chunk is about to be run: it may serve to tell what a change of precision costs."""

    def sample(self, after_step: bool) -> Sample: ...
    def surroundings(self) -> Surroundings:
        """Takes long: not for the thread that steps."""

    def clear(self) -> None: ...


class LoadRefused(Exception):
    """A model cannot be loaded.

    :param code: for the worker, e.g. ``unknown_model``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def deadline_factor(bits: int) -> float:
    """How much longer a step may take at so many bits: on the CPU backend weights are unpacked on the way."""
    return 1.0 if bits >= 16 else 2.0 if bits >= 8 else 3.0


@dataclass(slots=True)
class _Batch:
    number: int
    began: float
    session: Session
    open: set[str]


@dataclass(slots=True)
class _Record:
    """Steps of one kind over the same rows, recorded together."""

    plan: StepPlan
    began: float
    seconds: float = 0.0
    steps: int = 0


@dataclass(slots=True)
class _PartialState:
    sent: int = 0
    at: float = field(default=float("-inf"))


class Loop:
    """Obeys commands and sends events.

    :param send: hands an event to the worker.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        backend: Backend,
        send: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._backend = backend
        self._send = send
        self._clock = clock
        self._models: dict[str, LoadedSession] = {}
        self._queue: deque[Dispatch] = deque()
        self._batch: _Batch | None = None
        self._record: _Record | None = None
        self._partials: dict[str, _PartialState] = {}
        self.stopping = False

    @property
    def busy(self) -> bool:
        """Whether :meth:`turn` has something to do."""
        return self._batch is not None or bool(self._queue)

    # --- commands ---------------------------------------------------------------------------

    def obey(self, command: Command) -> None:
        """Carry out a command; a batch only joins the queue."""
        match command:
            case Load():
                self._load(command.model, command.bits)
            case Requantize():
                self._requantize(command.model, command.bits)
            case Dispatch():
                self._queue.append(command)
            case Cancel():
                self._cancel(command.chunks)
            case ClearCache():
                self._backend.clear()
                self._send(self._backend.sample(after_step=False))
            case Shutdown():
                self.stopping = True

    def _load(self, alias: str, bits: int | None) -> None:
        if alias in self._models:
            self._send(self._models[alias].loaded)
            return
        self._flush_record()
        self._send(StepStarted("load", self._config.deadline_load_s))
        began = self._clock()
        answer: Loaded | LoadFailed
        try:
            model = self._backend.load(alias, bits)
            answer = replace(model.loaded, seconds=self._clock() - began)
            self._models[alias] = LoadedSession(model.session, answer)
        except LoadRefused as exc:
            answer = LoadFailed(alias, exc.code, str(exc))
        reading = self._backend.sample(after_step=True)
        self._send(StepDone("load", 0, self._clock() - began, (), (), 0.0, reading, 1))
        self._send(answer)

    def _requantize(self, alias: str, bits: int) -> None:
        """:raises EngineBroken: the model may be half changed; the process must end."""
        model = self._models.get(alias)
        if model is None or self.busy or model.session.busy:
            message = "it is not loaded, or chunks are running"
            self._send(RequantizeFailed(alias, bits, "busy", message))
            return
        self._flush_record()
        self._send(StepStarted("requantize", self._config.deadline_load_s))
        began = self._clock()
        try:
            done = replace(self._backend.requantize(alias, bits), seconds=self._clock() - began)
        except Exception as exc:
            message = f"{type(exc).__name__}: {str(exc)[:200]}"
            self._send(RequantizeFailed(alias, bits, "failed", message))
            raise EngineBroken(message) from exc
        loaded = replace(model.loaded, bits=done.bits, weights_bytes=done.weights_bytes)
        self._models[alias] = LoadedSession(model.session, loaded)
        reading = self._backend.sample(after_step=True)
        self._send(StepDone("requantize", 0, done.seconds, (), (), 0.0, reading, 1))
        self._send(done)

    def _cancel(self, ids: tuple[str, ...]) -> None:
        if self._batch is not None:
            self._batch.session.cancel(ids)
            self._publish()
        names = set(ids)
        for i, dispatch in enumerate(self._queue):
            for chunk in dispatch.chunks:
                if chunk.id in names:
                    self._send(ChunkFailed(chunk.id, chunk.job, "cancelled", "cancelled", retryable=False))
            kept = tuple(chunk for chunk in dispatch.chunks if chunk.id not in names)
            self._queue[i] = replace(dispatch, chunks=kept)

    # --- steps ---------------------------------------------------------------------------------

    def turn(self) -> None:
        """Run one step of the batch at hand, or begin or end one.

        :raises EngineBroken: its rows are answered; the process must end.
        """
        if self._batch is None:
            self._begin(self._queue.popleft())
            return
        session = self._batch.session
        try:
            plan = session.plan()
            if plan is not None:
                self._announce(plan)
                began = self._clock()
                session.step()
                self._count(self._clock() - began)
        except Exception as exc:
            self._fail_batch(exc)
            return
        self._publish()
        if not session.busy:
            self._end()

    def _begin(self, dispatch: Dispatch) -> None:
        chunks = dispatch.chunks
        model = self._models.get(chunks[0].model) if chunks else None
        if model is None or any(chunk.model != chunks[0].model for chunk in chunks):
            for chunk in chunks:
                message = "a batch holds chunks of one model, which is loaded beforehand"
                self._send(ChunkFailed(chunk.id, chunk.job, "model_not_loaded", message, retryable=True))
            self._send(BatchDone(dispatch.batch, 0.0))
            return
        chunks = self._at_bits(chunks, model.loaded.bits)
        if chunks:
            self._backend.heard(chunks[0])
        self._batch = _Batch(dispatch.batch, self._clock(), model.session, {chunk.id for chunk in chunks})
        model.session.add(chunks)
        self._publish()
        if not model.session.busy:
            self._end()

    def _at_bits(self, chunks: tuple[ChunkRequest, ...], bits: int) -> tuple[ChunkRequest, ...]:
        """Those that accept the model's bits; the rest is refused."""
        for chunk in chunks:
            if chunk.options.min_bits > bits:
                message = f"the model runs at {bits} bits"
                self._send(ChunkFailed(chunk.id, chunk.job, "precision_unavailable", message, retryable=True))
        return tuple(chunk for chunk in chunks if chunk.options.min_bits <= bits)

    def _end(self) -> None:
        batch = self._batch
        if batch is None:
            return
        self._flush_record()
        self._batch = None
        self._partials.clear()
        self._send(BatchDone(batch.number, self._clock() - batch.began))

    def _publish(self) -> None:
        """Send what the session has answered, and texts that have grown."""
        if self._batch is None:
            return
        for outcome in self._batch.session.take():
            self._batch.open.discard(outcome.chunk)
            self._partials.pop(outcome.chunk, None)
            if isinstance(outcome, ChunkDone):
                self._flush_record()
            self._send(outcome)
        if self._config.partials:
            self._publish_partials(self._batch.session)

    def _publish_partials(self, session: Session) -> None:
        now = self._clock()
        due = now - self._config.partial_interval_s
        if self._partials and all(state.at > due for state in self._partials.values()):
            return
        for request, text in session.texts():
            state = self._partials.setdefault(request.id, _PartialState())
            if state.at <= due and len(text) > state.sent:
                self._partials[request.id] = _PartialState(len(text), now)
                self._send(Partial(request.id, request.job, text))

    def _fail_batch(self, exc: Exception) -> None:
        """Answer for every row, without a word of what was said in them."""
        batch = self._batch
        assert batch is not None
        self._record = None
        outcomes = batch.session.take()
        answered = {outcome.chunk for outcome in outcomes}
        for outcome in outcomes:
            self._send(outcome)
        message = f"{type(exc).__name__}: {str(exc)[:200]}"
        for request in batch.session.abandon():
            if request.id not in answered:
                self._send(ChunkFailed(request.id, request.job, "internal", message, retryable=True))
        # MLX reports a device that ran out of memory or crashed as one of these; on Metal its buffers may
        # then hold zeros, so no later result of this process can be trusted. That the batch is done is not said:
        # the next one would be sent into a process that is about to end, and be taken for what ended it.
        if isinstance(exc, RuntimeError | MemoryError):
            raise EngineBroken(message) from exc
        self._end()

    # --- records ----------------------------------------------------------------------------

    def _announce(self, plan: StepPlan) -> None:
        """Say that a step begins, unless it goes on with what the last one did."""
        record = self._record
        if record is not None:
            same = record.plan == plan and plan.kind == "decode"
            if same and self._clock() - record.began < self._config.step_record_s:
                return
            self._flush_record()
        self._record = _Record(plan, self._clock())
        self._send(StepStarted(plan.kind, self._deadline(plan)))

    def _deadline(self, plan: StepPlan) -> float:
        size = plan.window_s * len(plan.chunks) if plan.kind == "encode" else 0.0
        patience = deadline_factor(min((model.loaded.bits for model in self._models.values()), default=32))
        return patience * (self._config.deadline_base_s + self._config.deadline_per_window_s * size)

    def _count(self, seconds: float) -> None:
        if self._record is not None:
            self._record.seconds += seconds
            self._record.steps += 1
            if self._record.plan.kind != "decode":
                self._flush_record()

    def _flush_record(self) -> None:
        record, self._record = self._record, None
        if record is None or self._batch is None:
            return
        plan = record.plan
        reading = self._backend.sample(after_step=True)
        self._send(
            protocol.StepDone(
                kind=plan.kind,
                batch=self._batch.number,
                seconds=record.seconds,
                rows=plan.chunks,
                jobs=plan.jobs,
                window_s=plan.window_s,
                sample=reading,
                steps=record.steps,
            )
        )
