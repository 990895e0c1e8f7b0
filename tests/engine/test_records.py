"""What is said of steps that give way, of two models, and of models that fail."""

from __future__ import annotations

from typing import Any

from engine.config import EngineConfig
from engine.protocol import Event, Sample, StepDone, StepStarted
from engine.records import StepRecords
from engine.stepping import StepPlan

WINDOW = StepPlan("encode", ("a",), ("job-a",), 30.0, padded_s=30.0)
REST = StepPlan("encode", ("a",), ("job-a",), 30.0, padded_s=30.0, waiting=1, begun=True)
TOKEN = StepPlan("decode", ("b",), ("job-b",), 5.0)


class Said:
    """Records, and what they have sent: the kind of each step that begins, and of each that is over its seconds."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.records = StepRecords(
            EngineConfig(), self.events.append, lambda: Sample(0, 0, 0, 0), lambda: 0.0
        )

    def step(self, model: str, plan: StepPlan, *, done: bool = True) -> None:
        self.records.begin(model, plan, 1, [32])
        self.records.ran(1.0, done=done)

    def told(self) -> list[Any]:
        return [
            event.kind if isinstance(event, StepStarted) else (event.kind, event.seconds, event.steps)
            for event in self.events
            if isinstance(event, StepStarted | StepDone)
        ]


def test_a_step_that_gave_way_is_recorded_once() -> None:
    """However often a step goes on, with other steps between or none, one record holds the seconds of its parts."""
    said = Said()
    said.step("m", WINDOW, done=False)
    said.step("m", REST, done=False)
    said.step("m", TOKEN)
    said.step("m", TOKEN)
    said.step("m", REST, done=False)
    said.step("n", TOKEN)
    said.step("m", REST)
    assert said.told() == [
        *("encode", "decode", ("decode", 2.0, 2), "encode", "decode", ("decode", 1.0, 1)),
        *("encode", ("encode", 4.0, 1)),
    ]


def test_a_failure_forgets_its_models_steps_alone() -> None:
    """What a model that failed was at is never told; another's step that gave way goes on with the seconds it had."""
    said = Said()
    said.step("m", WINDOW, done=False)
    said.step("n", WINDOW, done=False)
    said.records.forget(["n"])
    said.step("m", REST)
    assert said.told() == ["encode", "encode", "encode", ("encode", 2.0, 1)]
    said.step("n", WINDOW)
    assert said.told()[-2:] == ["encode", ("encode", 1.0, 1)]


def test_a_step_that_is_wanted_by_one_row_goes_on() -> None:
    """A step that gave way is over once none of its rows is wanted any more, and not before."""
    said = Said()
    both = StepPlan("encode", ("a", "b"), ("job-a", "job-b"), 30.0)
    said.step("m", both, done=False)
    said.records.called_off({"b": 1})
    said.step("m", TOKEN)
    said.records.called_off({"b": 1, "c": 1})
    assert said.told() == ["encode", "decode"]
    said.records.called_off({"c": 1})
    assert said.told()[-1] == ("encode", 1.0, 1)
