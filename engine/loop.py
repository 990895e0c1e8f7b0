"""What the engine's thread does: load models and step sessions, between two steps obey commands.

Batches are continuous: the chunks of one join those that run already, at the next step, and leave as they are done. A
batch is only what was sent together, and is told to be over once all of its chunks have been answered. Models that
have work take turns, a step each.

:class:`Loop` is the part without processes and sockets; :mod:`engine.process` feeds it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

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
from engine.records import StepRecords
from engine.stepping import GivesWay, Session, StepPlan, never


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


@dataclass(slots=True)
class _Batch:
    """Chunks that came together, of which some have not been answered yet."""

    number: int
    began: float
    model: str
    open: set[str]


@dataclass(slots=True)
class _PartialState:
    sent: int = 0
    at: float = field(default=float("-inf"))


class Loop:
    """Obeys commands and sends events.

    :param send: hands an event to the worker.
    :param clock: monotonic seconds.
    :param commands_wait: whether there are any to obey: a step that can be interrupted then is. Asked from any thread.
    """

    def __init__(
        self,
        config: EngineConfig,
        backend: Backend,
        send: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
        commands_wait: GivesWay = never,
    ) -> None:
        self._config = config
        self._backend = backend
        self._send = send
        self._clock = clock
        self._commands_wait = commands_wait
        self._records = StepRecords(config, send, lambda: backend.sample(after_step=True), clock)
        self._models: dict[str, LoadedSession] = {}
        self._batches: dict[int, _Batch] = {}
        self._batch_of: dict[str, _Batch] = {}
        self._turns: deque[str] = deque()
        """Models that have work, the one whose turn it is first."""
        self._partials: dict[str, _PartialState] = {}
        self.stopping = False

    @property
    def busy(self) -> bool:
        """Whether :meth:`turn` has something to do."""
        return bool(self._batches)

    # --- commands ---------------------------------------------------------------------------

    def obey(self, command: Command) -> None:
        """Carry out a command; a batch's chunks join their session, and are read in its next step."""
        match command:
            case Load():
                self._load(command.model, command.bits)
            case Requantize():
                self._requantize(command.model, command.bits)
            case Dispatch():
                self._begin(command)
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
        self._records.flush()
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
        self._records.flush()
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
        for name in {self._batch_of[chunk].model for chunk in ids if chunk in self._batch_of}:
            self._models[name].session.cancel(ids)
            self._publish(name)

    # --- steps ---------------------------------------------------------------------------------

    def turn(self) -> None:
        """Run one step of the model whose turn it is.

        :raises EngineBroken: all rows are answered; the process must end.
        """
        name = self._turns[0]
        self._turns.rotate(-1)
        session = self._models[name].session
        try:
            plan = session.plan()
            if plan is not None:
                self._announce(name, plan)
                began = self._clock()
                done = session.step(self._commands_wait)
                self._records.ran(self._clock() - began, done=done)
        except Exception as exc:
            self._fail(name, exc)
            return
        self._publish(name)

    def _begin(self, dispatch: Dispatch) -> None:
        chunks = dispatch.chunks
        name = chunks[0].model if chunks else ""
        if name not in self._models or any(chunk.model != name for chunk in chunks):
            for chunk in chunks:
                message = "a batch holds chunks of one model, which is loaded beforehand"
                self._send(ChunkFailed(chunk.id, chunk.job, "model_not_loaded", message, retryable=True))
            self._refuse(dispatch)
            return
        chunks = self._at_bits(chunks, self._models[name].loaded.bits)
        if not chunks:
            self._refuse(dispatch)
            return
        self._backend.heard(chunks[0])
        batch = _Batch(dispatch.batch, self._clock(), name, {chunk.id for chunk in chunks})
        self._batches[dispatch.batch] = batch
        for chunk in chunks:
            self._batch_of[chunk.id] = batch
        if name not in self._turns:
            self._turns.append(name)
        self._models[name].session.add(chunks)
        self._publish(name)

    def _at_bits(self, chunks: tuple[ChunkRequest, ...], bits: int) -> tuple[ChunkRequest, ...]:
        """Those that accept the model's bits; the rest is refused."""
        for chunk in chunks:
            if chunk.options.min_bits > bits:
                message = f"the model runs at {bits} bits"
                self._send(ChunkFailed(chunk.id, chunk.job, "precision_unavailable", message, retryable=True))
        return tuple(chunk for chunk in chunks if chunk.options.min_bits <= bits)

    def _publish(self, name: str) -> None:
        """Send what a session has answered, the batches that are over with it, and texts that have grown."""
        session = self._models[name].session
        for outcome in session.take():
            if isinstance(outcome, ChunkDone):
                self._records.flush()
            self._answer(outcome)
        if self._config.partials:
            self._publish_partials(session)

    def _answer(self, outcome: ChunkDone | ChunkFailed) -> None:
        """Send an outcome, and say so where its batch is over."""
        batch = self._batch_of.pop(outcome.chunk, None)
        self._partials.pop(outcome.chunk, None)
        self._send(outcome)
        self._records.called_off(self._batch_of)
        if batch is None:
            return
        batch.open.discard(outcome.chunk)
        if not batch.open:
            self._end(batch)

    def _refuse(self, dispatch: Dispatch) -> None:
        """Of a batch nothing is run."""
        self._records.flush()
        self._send(BatchDone(dispatch.batch, 0.0))

    def _end(self, batch: _Batch) -> None:
        # Whoever hears that a batch is over takes the step for over too: one that has given way is announced again.
        self._records.flush()
        del self._batches[batch.number]
        if all(other.model != batch.model for other in self._batches.values()):
            self._turns.remove(batch.model)
        self._send(BatchDone(batch.number, self._clock() - batch.began))

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

    def _fail(self, name: str, exc: Exception) -> None:
        """Answer for every row that the failure may have spoiled, without a word of what was said in them."""
        # MLX reports a device that ran out of memory or crashed as one of these; on Metal its buffers may
        # then hold zeros, so no later result of this process can be trusted, be it another model's.
        broken = isinstance(exc, RuntimeError | MemoryError)
        # That a batch is over is not said by a process that is about to end: the next one would be sent into it, and
        # be taken for what ended it.
        answer: Callable[[ChunkDone | ChunkFailed], None] = self._send if broken else self._answer
        message = f"{type(exc).__name__}: {str(exc)[:200]}"
        failed = list(self._turns) if broken else [name]
        self._records.forget(failed)
        for model in failed:
            session = self._models[model].session
            outcomes = session.take()
            answered = {outcome.chunk for outcome in outcomes}
            left = [request for request in session.abandon() if request.id not in answered]
            for request in left:
                answer(ChunkFailed(request.id, request.job, "internal", message, retryable=True))
            for outcome in outcomes:
                answer(outcome)
        if broken:
            raise EngineBroken(message) from exc

    def _announce(self, name: str, plan: StepPlan) -> None:
        oldest = min(
            (self._batch_of[chunk].number for chunk in plan.chunks if chunk in self._batch_of), default=0
        )
        bits = [model.loaded.bits for model in self._models.values()]
        self._records.begin(name, plan, oldest, bits)
