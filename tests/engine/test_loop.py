"""The loop over the stand-in's sessions: batches that run together, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.fake import FakeBackend, FakeConfig, Poison, fake_text, poisoned
from engine.loop import EngineBroken, Loop
from engine.protocol import (
    BatchDone,
    Cancel,
    ChunkDone,
    ChunkFailed,
    ChunkRequest,
    Dispatch,
    Event,
    Load,
    StepDone,
    StepStarted,
)

SAMPLES = 1600


class Story:
    """A loop, and what it has sent."""

    def __init__(self, folder: Path, **fake: Any) -> None:
        self.events: list[Event] = []
        self._folder = folder
        self.now = 0.0
        # Records are never merged: the clock moves on by more than they may span.
        config = EngineConfig(aliases={"m": "", "n": ""}, partials=False, step_record_s=0.0)
        backend = FakeBackend(config, FakeConfig(**fake))
        self.loop = Loop(config, backend, self.events.append, self._tick)
        for model in ("m", "n"):
            self.loop.obey(Load(model))
        self.events.clear()

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def chunk(self, name: str, model: str = "m", data: bytes | None = None) -> ChunkRequest:
        path = self._folder / f"{name}.raw"
        path.write_bytes(data or name.encode().ljust(2 * SAMPLES, b"."))
        return ChunkRequest(name, f"job-{name}", model, str(path), 0, SAMPLES)

    def send(self, batch: int, *chunks: ChunkRequest) -> None:
        self.loop.obey(Dispatch(batch, chunks))

    def finish(self) -> None:
        while self.loop.busy:
            self.loop.turn()

    def of(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    def answers(self) -> list[tuple[str, str]]:
        return [
            (o.chunk, "done" if isinstance(o, ChunkDone) else o.code) for o in self.of(ChunkDone, ChunkFailed)
        ]

    def over(self) -> list[int]:
        return [done.batch for done in self.of(BatchDone)]

    def steps(self, kind: str) -> list[Sequence[str]]:
        return [step.rows for step in self.of(StepDone) if step.kind == kind]


@pytest.fixture
def story(tmp_path: Path) -> Callable[..., Story]:
    return lambda **fake: Story(tmp_path, **fake)


def test_a_batch_joins_what_runs(story: Callable[..., Story]) -> None:
    """A batch that comes while another runs shares its steps, and each is told to be over when its chunks are."""
    s = story(decode_steps=3)
    s.send(1, s.chunk("a"), s.chunk("b"))
    s.loop.turn()
    s.loop.turn()
    s.send(2, s.chunk("c"))
    s.finish()
    assert ("a", "b", "c") in s.steps("decode")
    assert {step.batch for step in s.of(StepDone) if step.rows == ("a", "b", "c")} == {1}
    assert s.answers() == [("a", "done"), ("b", "done"), ("c", "done")]
    assert s.over() == [1, 2] and not s.loop.busy


def test_a_later_batch_may_be_over_first(story: Callable[..., Story]) -> None:
    """A batch whose chunks are cancelled is over at once, while an earlier one goes on to its end."""
    s = story()
    s.send(1, s.chunk("a"))
    s.loop.turn()
    s.send(2, s.chunk("b"), s.chunk("c"))
    s.loop.turn()
    s.loop.obey(Cancel(("b", "c", "unknown")))
    assert s.answers() == [("b", "cancelled"), ("c", "cancelled")] and s.over() == [2]
    s.finish()
    assert s.answers()[-1] == ("a", "done") and s.over() == [2, 1]


def test_models_take_turns(story: Callable[..., Story]) -> None:
    """Two models with work are stepped one after the other; none waits for the other's end."""
    s = story(decode_steps=4)
    s.send(1, s.chunk("a", "m"))
    s.send(2, s.chunk("b", "n"))
    s.finish()
    assert [step.rows for step in s.of(StepDone)] == [("a",), ("b",)] * 5
    assert s.over() == [1, 2]


def test_each_step_is_announced_once(story: Callable[..., Story]) -> None:
    """However batches come and go, a StepStarted stands before each StepDone, and none is left open at the end."""
    s = story(decode_steps=2)
    for number, name in enumerate("abcde"):
        s.send(number, s.chunk(name, "mn"[number % 2]))
        s.loop.turn()
    s.loop.obey(Cancel(("d",)))
    s.finish()
    steps = s.of(StepStarted, StepDone)
    assert len(steps) % 2 == 0
    for started, done in zip(steps[::2], steps[1::2], strict=True):
        assert isinstance(started, StepStarted) and isinstance(done, StepDone)
        assert started.kind == done.kind
    assert isinstance(s.events[-1], BatchDone)


def test_a_broken_device_answers_for_everybody(story: Callable[..., Story]) -> None:
    """When the device fails under one model, rows of all models are to be tried again, and the process is to end."""
    s = story()
    s.send(1, s.chunk("bad", data=poisoned(Poison.ERROR, SAMPLES)), s.chunk("a"))
    s.send(2, s.chunk("b", "n"))
    with pytest.raises(EngineBroken):
        s.finish()
    failed = s.of(ChunkFailed)
    assert {(f.chunk, f.code, f.retryable) for f in failed} == {
        (n, "internal", True) for n in ("bad", "a", "b")
    }
    # Nothing more may be sent into a process that is about to end.
    assert s.over() == []


def test_a_batch_for_nobody_is_answered_at_once(story: Callable[..., Story]) -> None:
    """A batch for a model that is not loaded, or of two models, fails whole; an empty one is over at once."""
    s = story()
    s.send(1, s.chunk("a", "other"))
    s.send(2, s.chunk("b", "m"), s.chunk("c", "n"))
    s.send(3)
    assert s.answers() == [(name, "model_not_loaded") for name in "abc"]
    assert s.over() == [1, 2, 3] and not s.loop.busy


def test_texts_stay_with_their_chunks(story: Callable[..., Story]) -> None:
    """Chunks that join at any step get the text of their own samples."""
    s = story(decode_steps=5)
    for number, name in enumerate("abcdefgh"):
        s.send(number, s.chunk(name))
        for _ in range(number % 3):
            s.loop.turn()
    s.finish()
    assert {d.chunk: d.text for d in s.of(ChunkDone)} == {
        name: fake_text(name.encode().ljust(2 * SAMPLES, b".")) for name in "abcdefgh"
    }
