"""What the engine's thread says of its steps: that one begins, and what it was once it is done.

Decoder steps over the same rows are recorded together, for a while. A step that gives way
(:meth:`engine.stepping.Session.step`) is announced again when it goes on, and recorded once, when it is done: with the
seconds of all of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.protocol import Event, Sample, StepDone, StepStarted
from engine.stepping import StepPlan


@dataclass(slots=True)
class _Record:
    """Steps of one kind over the same rows, or the parts of one that gave way."""

    model: str
    plan: StepPlan
    batch: int
    began: float
    seconds: float = 0.0
    steps: int = 0
    paused: bool = False
    """The step gave way."""


class StepRecords:
    """Lives on the engine's thread.

    :param send: hands an event to the worker.
    :param sample: reads memory after a step.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        send: Callable[[Event], None],
        sample: Callable[[], Sample],
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._send = send
        self._sample = sample
        self._clock = clock
        self._latest: _Record | None = None
        """Of the latest step, where it is not sent yet."""
        self._paused: dict[str, _Record] = {}
        """Of steps that gave way and were followed by another, by model: a session has one at most."""

    def begin(self, model: str, plan: StepPlan, batch: int, bits: Iterable[int]) -> None:
        """Say that a step begins, unless it goes on with what the last one did.

        :param batch: the oldest among its rows'.
        :param bits: of the models that are loaded.
        """
        record = self._latest
        if record is not None:
            same = record.model == model and record.plan == plan and plan.kind == "decode"
            if same and self._clock() - record.began < self._config.step_record_s:
                return
            if record.paused and record.model == model and plan.begun:
                return
            self.flush()
        begun = self._paused.pop(model, None) if plan.begun else None
        self._latest = begun or _Record(model, plan, batch, self._clock())
        plan = self._latest.plan
        size = plan.window_s * len(plan.chunks) if plan.kind == "encode" else 0.0
        self._send(StepStarted(plan.kind, self._config.deadline_s(size, bits), size))

    def ran(self, seconds: float, *, done: bool) -> None:
        """The step that was begun last has run for so long, and is done or gave way."""
        record = self._latest
        if record is None:
            return
        record.seconds += seconds
        record.paused = not done
        if done:
            record.steps += 1
            if record.plan.kind != "decode":
                self.flush()

    def flush(self) -> None:
        """Send the latest record. That of a step that gave way waits until it is done."""
        record, self._latest = self._latest, None
        if record is None:
            return
        if record.paused:
            self._paused[record.model] = record
        else:
            self._tell(record)

    def called_off(self, open_: Collection[str]) -> None:
        """A step that gave way is never done once all of its rows have been called off: what it was so far is sent.

        :param open_: chunks that have not been answered.
        """
        latest = [self._latest] if self._latest is not None and self._latest.paused else []
        for record in [*latest, *self._paused.values()]:
            if not any(chunk in open_ for chunk in record.plan.chunks):
                self._forget_paused(record)
                record.steps = 1
                self._tell(record)

    def forget(self, models: Iterable[str]) -> None:
        """What these were at has failed: there is nothing to be said of it."""
        for model in models:
            if self._latest is not None and self._latest.model == model:
                self._latest = None
            self._paused.pop(model, None)

    def _forget_paused(self, record: _Record) -> None:
        if record is self._latest:
            self._latest = None
        else:
            del self._paused[record.model]

    def _tell(self, record: _Record) -> None:
        plan = record.plan
        self._send(
            StepDone(
                kind=plan.kind,
                batch=record.batch,
                seconds=record.seconds,
                rows=plan.chunks,
                jobs=plan.jobs,
                window_s=plan.window_s,
                sample=self._sample(),
                steps=record.steps,
                audio_s=plan.audio_s,
                padded_s=plan.padded_s,
                slots=plan.slots,
                waiting=plan.waiting,
            )
        )
