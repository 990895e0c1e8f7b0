"""An encoder call over chunks that are not urgent gives way, and what chunks give does not change by it.

The model is a small Whisper of random weights; the real one, without interruptions, is in ``test_kernels.py``.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.loop import LoadedSession, Loop
from engine.protocol import (
    BatchDone,
    Cancel,
    ChunkDone,
    ChunkFailed,
    Dispatch,
    Event,
    Load,
    Loaded,
    Sample,
    Shape,
    StepDone,
    StepStarted,
)
from engine.stepping import Schedule, always

GREEDY = {"max_tokens": 4, "temperatures": (0.0,)}
THREADS = 2
"""Of the kernels in these tests."""
PASSES = 1 + 2 * 2 + 1
"""Of the encoder of two layers over its tiles: the convolutions, two for each layer, the features."""


@pytest.fixture
def session(small: Any, tokenizer: Any) -> Any:
    """Of the small model. Urgent chunks have all of the time while there are any."""
    from engine.whisper.session import WhisperSession

    return WhisperSession(small, tokenizer, Schedule(patient_share=0.0))


@pytest.fixture
def patient(ask: Any, clip: Any) -> Callable[..., Any]:
    """A chunk that is not urgent, of eleven seconds: a window of 14 s, in three tiles."""
    return lambda name="patient", start=0: ask(name, clip("two_cities", start, start + 11.0), **GREEDY)


@pytest.fixture
def urgent(ask: Any, clip: Any) -> Any:
    return replace(ask("urgent", clip("two_cities", 3, 5.0), **GREEDY), urgent=True)


def told(done: Any) -> tuple[Any, ...]:
    assert isinstance(done, ChunkDone), done
    return done.text, done.tokens, done.segments, done.window_s


def parts(session: Any) -> Iterator[int]:
    """Steps of a session that give way as soon as they can, until one is done."""
    number = 0
    while session.plan() is not None and not session.step(always):
        yield (number := number + 1)


@pytest.mark.parametrize(("rows", "frames"), [(1, 3000), (3, 1280)])
def test_features_do_not_depend_on_interruptions(mlx: Any, small: Any, rows: int, frames: int) -> None:
    """An encoding that gives way whenever it can gives the features of one that never does, to the last bit."""
    noise = np.random.Generator(np.random.Philox(5)).standard_normal((rows, frames, 80)).astype(np.float32)
    whole = small.encode(mlx.array(noise))
    encoding = small.encoding(mlx.array(noise))
    interrupted = 0
    while not encoding.advance(always):
        interrupted += 1
    tiles = -(-frames // 2 // 256)
    groups = [min(THREADS, rows - first) for first in range(0, rows, THREADS)]
    assert interrupted + 1 >= sum(PASSES * -(-tiles * windows // THREADS) for windows in groups)
    assert len(encoding.features) == rows
    for one, other in zip(whole, encoding.features, strict=True):
        for pair, others in zip(one, other, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(pair, others, strict=True))


def test_a_window_that_is_dropped_leaves_nothing(mlx: Any, small: Any) -> None:
    """The buffers of an encoding that is let go of in the middle go with it, and do not wait for a garbage collector;
    those of windows that are done, before the next ones take theirs."""
    encoding = small.encoding(mlx.array(np.zeros((3, 1280, 80), np.float32)))
    first = weakref.ref(encoding._together)
    gc.collect()
    gc.disable()
    try:
        while encoding._together is first():
            assert not encoding.advance(always)
        assert first() is None
        second = weakref.ref(encoding._together)
        assert not encoding.advance(always) and second() is not None
        del encoding
        assert second() is None
    finally:
        gc.enable()


def test_a_device_encodes_at_once(mlx: Any, weights: Any) -> None:
    """MLX's own operations are one graph, which is run as a whole whoever waits."""
    from engine.whisper.kernels import DeviceKernels
    from engine.whisper.model import Whisper

    model = Whisper(weights[0], dict(weights[1]), DeviceKernels())
    noise = mlx.array(np.random.Generator(np.random.Philox(5)).standard_normal((2, 256, 80)))
    encoding = model.encoding(noise)
    assert encoding.advance(always)
    for one, other in zip(model.encode(noise), encoding.features, strict=True):
        assert all(
            mlx.array_equal(a, b) for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True)
        )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_stop_after_a_call_each(mlx: Any, threads: int) -> None:
    """When others wait, each thread makes one call at most; what was made are the first ones, each once."""
    from engine.whisper.kernels import HostKernels

    kernels = HostKernels(threads)
    made: list[int] = []
    count = kernels.some(made.append, 10, always)
    assert 1 <= count <= threads
    assert sorted(made) == list(range(count))
    made.clear()
    kernels.each(made.append, 10)
    assert sorted(made) == list(range(10))


def test_an_urgent_chunk_goes_before_the_rest_of_a_window(session: Any, patient: Any, urgent: Any) -> None:
    """An urgent chunk that comes in the middle of another's window has the next step, and is answered before that
    window is encoded. Then the window goes on where it stood."""
    session.add([patient()])
    assert not session.plan().begun
    before = 0
    for before in parts(session):
        if before == 5:
            break
    assert (session.plan().kind, session.plan().chunks, session.plan().begun) == (
        "encode",
        ("patient",),
        True,
    )
    session.add([urgent])
    answered = []
    while not answered:
        plan = session.plan()
        assert (plan.chunks, plan.begun) == (("urgent",), False)
        assert session.step()
        answered = [outcome.chunk for outcome in session.take()]
    assert answered == ["urgent"]
    assert (session.plan().chunks, session.plan().begun) == (("patient",), True)
    after = sum(1 for _ in parts(session)) + 1
    alone = sum(1 for _ in _parts_alone(session, patient("again"))) + 1
    assert before + after == alone >= PASSES


def _parts_alone(session: Any, request: Any) -> Iterator[int]:
    session.abandon()
    session.add([request])
    yield from parts(session)


def test_urgent_windows_are_encoded_at_once(session: Any, urgent: Any) -> None:
    """Urgent chunks give way to nobody: their call of the encoder is one step."""
    session.add([urgent])
    assert session.plan().kind == "encode"
    assert session.step(always)
    assert session.plan().kind == "decode"


def test_others_get_the_least_while_urgent_ones_have_work(
    small: Any, tokenizer: Any, patient: Any, urgent: Any
) -> None:
    """Where it is others' turn though urgent ones have work, a step encodes a tile for each thread and no more."""
    from engine.whisper.session import WhisperSession

    session = WhisperSession(small, tokenizer, Schedule(patient_share=1.0))
    session.add([patient(), urgent])
    turns = []
    while not (turns and turns[-1] == ("encode", "patient", True)):
        plan = session.plan()
        turns.append((plan.kind, plan.chunks[0], session.step()))
    # Of the spectrogram and then of each pass: three tiles for two threads.
    assert turns.count(("encode", "patient", False)) == 2 * PASSES
    assert not session.take()


@pytest.mark.parametrize("cancelled", ["a", "b", "c"])
def test_a_cancelled_row_leaves_in_the_middle_of_a_window(
    session: Any, run: Any, patient: Any, ask: Any, clip: Any, cancelled: str
) -> None:
    """Whenever a row is called off, its slot is free at once, it is answered once, and the others of its call give
    what they give alone."""
    # Two of one window and one of another; the call holds them together.
    short = ask("c", clip("two_cities", 20, 22.0), **GREEDY)
    requests = [patient("a"), patient("b", 5), short]
    together = Schedule(patient_s=64.0)
    alone = {request.id: told(run(session, [request])[request.id]) for request in requests}
    at, left = "abc".index(cancelled), True
    while left:
        one = type(session)(session.model, session.tokenizer, together)
        one.add(requests)
        left = any(number == at for number in parts(one)) if at else True
        one.cancel([cancelled])
        assert [outcome.code for outcome in one.take()] == ["cancelled"]
        rest = sorted(set("abc") - {cancelled})
        assert sorted(one.plan().chunks) == rest
        assert sum(len(lane.held) for lane in one._lanes) == (len(rest) if at else 0)
        assert {name: told(done) for name, done in run(one, []).items()} == {n: alone[n] for n in rest}
        # The three tests together meet three of four parts; there are some thirty.
        at += 4
    assert at > 4 * 4


def test_a_call_that_nobody_wants_any_more_is_over(session: Any, run: Any, patient: Any) -> None:
    """When all rows of an interrupted call are called off, or given back, nothing is held and the next goes first."""
    expected = told(run(session, [patient("next", 5)])["next"])
    for leave in (lambda: session.cancel(["a", "b"]), session.abandon):
        session.add([patient("a"), patient("b", 5)])
        for number in parts(session):
            if number == 3:
                break
        leave()
        assert not session.busy and session.plan() is None
        session.take()
        assert told(run(session, [patient("next", 5)])["next"]) == expected


def test_a_slot_is_held_while_its_window_waits(
    small: Any, tokenizer: Any, run: Any, patient: Any, urgent: Any
) -> None:
    """With one slot, an urgent chunk cannot overtake the window that holds it, and nothing stands still."""
    from engine.whisper.session import WhisperSession

    session = WhisperSession(small, tokenizer, Schedule(slots=1))
    session.add([patient()])
    assert not session.step(always)
    session.add([urgent])
    plan = session.plan()
    assert (plan.chunks, plan.begun, plan.waiting) == (("patient",), True, 1)
    answered = []
    while session.busy:
        session.step(always)
        answered += [outcome.chunk for outcome in session.take()]
    assert answered == ["patient", "urgent"]


class OneModel:
    """A backend that holds one session."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def load(self, alias: str, bits: int | None) -> LoadedSession:
        loaded = Loaded(alias, 0.0, 0, 32, 128, ("en",), False, Shape(2, 2, 128, 0, 4, 2), ())
        return LoadedSession(self._session, loaded)

    def heard(self, chunk: Any) -> None: ...

    def sample(self, after_step: bool) -> Sample:
        return Sample(0, 0, 0, 0)


class Engine:
    """The loop over a session, commands that arrive while a step runs, and a clock that ticks at each look."""

    def __init__(self, session: Any) -> None:
        self.events: list[Event] = []
        self.inbox: list[Any] = []
        self.now = 0.0
        self._asked = itertools.count(1)
        self._arriving: dict[int, Any] = {}
        config = EngineConfig(aliases={"tiny.en": ""}, partials=False)
        backend: Any = OneModel(session)
        self.loop = Loop(config, backend, self.events.append, self._tick, self._commands_wait)
        self.loop.obey(Load("tiny.en", None))
        self.events.clear()

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def arrives(self, question: int, command: Any) -> None:
        """A command that is there when the loop is asked for the so manieth time whether there are any."""
        self._arriving[question] = command

    def _commands_wait(self) -> bool:
        command = self._arriving.pop(next(self._asked), None)
        if command is not None:
            self.inbox.append(command)
        return bool(self.inbox)

    def turn(self) -> None:
        """Obey what has arrived, and run a step."""
        while self.inbox:
            self.loop.obey(self.inbox.pop(0))
        if self.loop.busy:
            self.loop.turn()

    def run(self) -> None:
        while self.loop.busy or self.inbox:
            self.turn()

    def of(self, kind: type[Event], step: str | None = None) -> list[Any]:
        """Events of a kind; of steps those of a kind of step."""
        return [
            e for e in self.events if isinstance(e, kind) and (not step or getattr(e, "kind", "") == step)
        ]


def test_what_arrives_interrupts_the_encoder(session: Any, patient: Any, urgent: Any) -> None:
    """A batch that arrives in the middle of a window is obeyed before its end, and its urgent chunk is answered first.
    The window is announced twice, and recorded once: at its end, with the seconds of both of its parts."""
    engine = Engine(session)
    engine.arrives(4, Dispatch(2, (urgent,)))
    engine.inbox.append(Dispatch(1, (patient(),)))
    engine.run()
    assert [event.batch for event in engine.of(BatchDone)] == [2, 1]
    # The clock ticks at each look, once in a step.
    assert [(e.rows, e.batch, e.steps, e.padded_s, e.seconds) for e in engine.of(StepDone, "encode")] == [
        (("urgent",), 2, 1, 4.48, 1.0),
        (("patient",), 1, 1, 14.08, 2.0),
    ]
    assert [event.padded_s for event in engine.of(StepStarted, "encode")] == [14.08, 4.48, 14.08]
    assert isinstance(engine.events[-1], BatchDone)


def test_a_window_that_goes_on_at_once_is_announced_once(session: Any, patient: Any) -> None:
    """A command that gives the engine nothing to do before it interrupts a window, which goes on as the same step."""
    engine = Engine(session)
    engine.arrives(4, Dispatch(2, (patient("other", 5),)))
    engine.inbox.append(Dispatch(1, (patient(),)))
    engine.run()
    encoded = engine.of(StepDone, "encode")
    assert [(event.rows, event.seconds) for event in encoded] == [(("patient",), 2.0), (("other",), 1.0)]
    assert len(engine.of(StepStarted, "encode")) == len(encoded)


def test_a_window_is_announced_again_behind_the_end_of_another_batch(session: Any, patient: Any) -> None:
    """Whoever hears that a batch is over takes no step to be under way: a window that goes on then is told again."""
    engine = Engine(session)
    engine.inbox.append(Dispatch(1, (patient(),)))
    engine.arrives(3, Dispatch(2, (patient("other", 5),)))
    engine.arrives(5, Cancel(("other",)))
    engine.run()
    kinds = [(type(event).__name__, getattr(event, "batch", None)) for event in engine.events]
    over = kinds.index(("BatchDone", 2))
    recorded = next(
        i for i, event in enumerate(engine.events) if isinstance(event, StepDone) and event.kind == "encode"
    )
    assert over < recorded
    assert "StepStarted" in [name for name, _ in kinds[over:recorded]]
    assert len(engine.of(StepDone, "encode")) == 1


@pytest.mark.parametrize("beside", [True, False])
def test_a_window_that_is_called_off_is_told_to_be_over(
    session: Any, patient: Any, urgent: Any, beside: bool
) -> None:
    """A window that was interrupted and is called off is recorded behind the answer, whether another step ran since or
    not: none is under way when its batch is over."""
    engine = Engine(session)
    engine.inbox.append(Dispatch(1, (patient(),)))
    engine.arrives(3, Dispatch(2, (urgent,)) if beside else Cancel(("patient",)))
    engine.turn()
    engine.turn()
    if beside:
        engine.inbox.append(Cancel(("patient",)))
    engine.run()
    at = engine.events.index(engine.of(ChunkFailed)[0])
    recorded, over = engine.events[at + 1 : at + 3]
    assert isinstance(recorded, StepDone) and (recorded.kind, recorded.rows) == ("encode", ("patient",))
    assert isinstance(over, BatchDone) and over.batch == 1
    assert len(engine.of(StepDone, "encode")) == 1 + beside
    assert [event.chunk for event in engine.of(ChunkDone)] == ["urgent"] * beside
