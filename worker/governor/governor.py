"""The governor: what may be taken and dispatched, and at how many bits the models run.

It holds what its pure parts need between two calls - :mod:`~worker.governor.levels`, :mod:`~worker.governor.cost`,
:mod:`~worker.governor.precision` and :mod:`~worker.governor.leaks` - and acts on nothing: see
:mod:`worker.governing`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from engine.limits import Limits
from engine.protocol import Loaded, Requantized, Sample, StepDone, Surroundings
from worker.governor import leaks, levels, precision
from worker.governor.cost import MIB, NOISE_MIB, CostModel, Load, Row, windows_at_once
from worker.governor.levels import Decision, Level, Thresholds, Transition, mib
from worker.governor.precision import Change, ModelPrecision

REST_PERIODS = 64
"""Times without work of which the least reading is the rest: right after a burst malloc still holds what it will use
again, and a peak measured above that would pass for a small one."""
NOISE_BYTES = int(NOISE_MIB * MIB)
"""Held beyond what the running rows are expected to need: more than that are pages that malloc keeps."""
REST_SAMPLES = 5
"""Readings in a row of an idle engine that must agree before its rest is judged."""
STARVED_SHARE = 8
"""Where memory leaves room for an eighth of a batch or less, smaller batches have not helped."""
STARVED_BATCHES = 4
"""Batches in a row that must have been cut so far."""


@dataclass(frozen=True, slots=True)
class Precision:
    """What the settings allow of the ladder."""

    least_bits: int = 8
    """Models are never moved below; 4 is on request, because it costs words."""
    ladder: bool = True
    """Whether models are moved at all."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A batch's peak, as it was predicted and as it came. Bytes, what is held at rest included."""

    at: float
    model: str
    bucket_s: float
    rows: int
    predicted: int
    measured: int
    rest: int


@dataclass(frozen=True, slots=True)
class Restart:
    """The engine is to be started anew, between two batches."""

    reason: str


@dataclass(slots=True)
class _Interval:
    """From one dispatch to the next that finds all rows encoded, or to the last answer."""

    model: str
    load: Load
    rest: int
    held: int
    """When it began."""
    slack: int
    """Of these, pages that malloc keeps: they may suffice for what comes, or a part of it."""
    predicted: int
    peak: int = 0
    carried: int = 0
    """Peak of what ran before these rows joined others that had not been encoded yet, some of which may have left."""


@dataclass(slots=True)
class _Engine:
    """What is known of one life of the engine."""

    costs: dict[str, CostModel] = field(default_factory=dict)
    rows: dict[str, tuple[str, Row]] = field(default_factory=dict)
    """Chunk id to model and row: all that is admitted and not answered."""
    unencoded: dict[str, Row] = field(default_factory=dict)
    """Of these, what no encoder step has held yet."""
    interval: _Interval | None = None
    rests: deque[int] = field(default_factory=lambda: deque(maxlen=REST_PERIODS))
    """Least held while nothing ran, without the cache, of the last such times."""
    rest_samples: int = 0
    """Readings of this time without work."""
    leak: leaks.LeakState = field(default_factory=leaks.LeakState)
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    """Time and bytes without the cache, so that the front holds the most of late."""

    @property
    def rest(self) -> int | None:
        return min(self.rests, default=None)

    def rests_at(self, held: int) -> None:
        """One reading of an idle engine."""
        if self.rest_samples == 0 or not self.rests:
            self.rests.append(held)
        self.rests[-1] = min(self.rests[-1], held)
        self.rest_samples += 1


class Governor:
    """See the module's page. ``now`` is monotonic seconds everywhere."""

    def __init__(
        self,
        thresholds: Thresholds,
        *,
        max_items: int,
        budget_bytes: int = 0,
        allowed: Precision | None = None,
        leak_limits: leaks.LeakLimits | None = None,
    ) -> None:
        self._thresholds = thresholds
        self._max_items = max_items
        self._allowed = allowed or Precision()
        self._leak_limits = leak_limits or leaks.LeakLimits()
        self._state = levels.State(batch_items=max_items)
        self._engine = _Engine()
        self._starved_since: float | None = None
        self._starved_batches = 0
        self._starving = False
        self.cramped = False
        """The last batch was cut by prediction: what is given back before the next one lets more rows in."""
        self.limits = Limits(0, budget_bytes, 0, 0, 0)
        """As the engine resolved them; a budget of 0 is not known yet, and holds every level open."""
        self.surroundings: Surroundings | None = None
        self.models: dict[str, ModelPrecision] = {}
        self._before: dict[str, ModelPrecision] = {}
        """Models of earlier lives of the engine."""
        self.loading = False
        """Models are still being loaded: what is held meanwhile is not what is held at rest."""
        self.pending: Change | Restart | None = None
        """What waits for the running rows to finish; nothing joins them meanwhile."""
        self.bits_wanted = False
        """A chunk waits for more bits than its model has."""
        self.budget_too_small = False
        self.transitions: deque[Transition] = deque(maxlen=64)
        self.forecasts: deque[Forecast] = deque(maxlen=64)
        self.last: Sample | None = None

    # --- what is shown --------------------------------------------------------------------------

    @property
    def level(self) -> Level:
        return self._state.level

    @property
    def share(self) -> float:
        return self._state.share

    @property
    def falling(self) -> bool:
        """The last reading calls for a lower level, and more of its kind are all that is missing."""
        return self.level > Level.OPEN and self.share < self._thresholds.leave(self.level)

    @property
    def budget_bytes(self) -> int:
        return self.limits.budget

    @property
    def budget_now(self) -> int:
        """The budget, lowered while the whole machine is short of memory."""
        pressure = self.surroundings.system.pressure if self.surroundings else 0
        return levels.budget_under_pressure(self.limits.budget, pressure)

    @property
    def batch_items(self) -> int:
        """Rows that a batch may have at this level."""
        return self._state.batch_items

    @property
    def rest_bytes(self) -> int:
        return self._engine.rest or 0

    def __len__(self) -> int:
        """Rows that are admitted and not answered."""
        return len(self._engine.rows)

    @property
    def leak_growth(self) -> int:
        return self._engine.leak.growth

    @property
    def idle(self) -> bool:
        """Nothing is admitted that has not been answered."""
        return not self._engine.rows

    # --- what the engine says ---------------------------------------------------------------------

    def engine_up(self, limits: Limits) -> None:
        self.limits = limits

    def engine_gone(self, *, device_failed: bool = False) -> None:
        """A new engine process starts with nothing held: its first samples decide again. What was learned of the
        models' cost stays.

        :param device_failed: out of memory, as likely as not, whatever was predicted: what was running is tried
            again in smaller batches.
        """
        costs = self._engine.costs
        self._engine = _Engine(costs=costs)
        items = max(1, self._state.batch_items // 4) if device_failed else self._state.batch_items
        self._state = levels.State(batch_items=items)
        self._starved_since, self._starved_batches = None, 0
        self.pending = None
        self.budget_too_small = False
        self._before = {**self._before, **self.models}
        self.models = {}

    def model_loaded(self, event: Loaded, now: float) -> None:
        least = self._allowed.least_bits
        before = self._before.get(event.model)
        fresh = precision.loaded(event.rungs, event.bits, least, now)
        self.models[event.model] = replace(fresh, patience=before.patience) if before else fresh
        known = self._engine.costs.get(event.model)
        if known is None or known.shape != event.shape:
            self._engine.costs[event.model] = CostModel(event.shape, self.limits.cache)
        self._forget_rest()

    def requantized(self, event: Requantized, now: float) -> None:
        model = self.models[event.model]
        change = event.active_after - event.active_before
        self.models[event.model] = precision.moved(model, event.bits, now, self._thresholds.restore_after_s)
        self._engine.leak = leaks.explained(self._engine.leak, change)
        self._engine.recent.clear()
        self._forget_rest()
        self.pending = None
        self._starved_since, self._starved_batches = None, 0
        # What memory the larger weights took is free again: the batch need not creep back.
        if change < 0:
            self._state = replace(self._state, batch_items=self._max_items, pressed_since=None)

    def step_done(self, event: StepDone) -> None:
        """High waters are told with steps."""
        if event.kind == "encode":
            for chunk in event.rows:
                self._engine.unencoded.pop(chunk, None)
        interval = self._engine.interval
        if interval is not None and event.batch:
            interval.peak = max(interval.peak, event.sample.peak, event.sample.peak_footprint)

    def observe(self, sample: Sample, now: float) -> Decision:
        """One reading of memory in; what to do at once out."""
        self.last = sample
        danger = levels.danger_bytes(sample)
        decision = levels.observe(
            self._state,
            danger,
            self.budget_now,
            now,
            max_items=self._max_items,
            thresholds=self._thresholds,
            reading=levels.binding(sample),
        )
        self._state = decision.state
        if decision.transition is not None:
            self.transitions.append(decision.transition)
        if danger is not None:
            self._note(danger, danger - sample.cache, now)
        return decision

    def _note(self, danger: int, held: int, now: float) -> None:
        engine = self._engine
        if engine.interval is not None:
            engine.interval.peak = max(engine.interval.peak, danger)
        while engine.recent and engine.recent[-1][1] <= held:
            engine.recent.pop()
        engine.recent.append((now, held))
        while engine.recent[0][0] < now - self._thresholds.restore_after_s:
            engine.recent.popleft()
        if self.idle and self.models and not self.loading:
            engine.rests_at(held)
        if self.models and not self.loading:
            engine.leak = leaks.note(engine.leak, max(0, held - self._resident()))
        if engine.rest_samples >= REST_SAMPLES and self.limits.budget:
            self._judge_rest(held)

    def at_rest(self) -> None:
        """All models stand as they will, and nothing runs: the last reading is a rest. An engine that finds work at
        once may not have another for hours."""
        danger = levels.danger_bytes(self.last) if self.last is not None else None
        if self.idle and self.models and self.last is not None and danger is not None:
            self._engine.rests_at(danger - self.last.cache)

    def _judge_rest(self, held: int) -> None:
        """Where the engine rests at or above the exit of *queue*, that level could never be left again."""
        full = self.idle and held >= self._thresholds.leave(Level.QUEUE) * self.budget_now
        if not full:
            self.budget_too_small = self.budget_too_small and not self.idle
            return
        reason = f"at rest the engine holds {mib(held)} of {mib(self.budget_now)}"
        change = self._move_down(held, reason)
        if change is not None:
            self.pending = self.pending or change
        elif self.pending is None:
            self.budget_too_small = True

    def _forget_rest(self) -> None:
        self._engine.rests.clear()
        self._engine.rest_samples = 0
        self.budget_too_small = False

    # --- what may be taken and dispatched -----------------------------------------------------------

    def may_take(self) -> bool:
        return (
            self.level is Level.OPEN and not self.budget_too_small and not isinstance(self.pending, Restart)
        )

    def max_items(self, *, idle: bool) -> int:
        """Rows that the engine may hold at this level; 0 where nothing may join now.

        :param idle: nothing runs in the engine.
        """
        if self.pending is not None or self.budget_too_small:
            return 0
        if self.level is Level.PAUSE:
            return 1 if idle else 0
        return self._state.batch_items

    def room(self, model: str, row: Row) -> int:
        """Rows of this kind that may join those that run, by prediction, under the line of *shrink*.

        One may always pass when nothing runs: what could never fit is refused by :meth:`never_fits`.
        """
        most = self.max_items(idle=self.idle)
        cost = self._engine.costs.get(model)
        if cost is None or not self.limits.budget or most == 0:
            return most
        running, unencoded = self._running(), tuple(self._engine.unencoded.values())
        # The level bounds all that the engine holds.
        most = max(0, most - len(running))
        ceiling = self._thresholds.shrink * self.budget_now
        fits = 0
        while fits < most and self._peak(cost, Load.alike(fits + 1, row, running, unencoded)) <= ceiling:
            fits += 1
        self.cramped = fits < most
        self._starving = self.cramped and (len(running) + fits) * STARVED_SHARE <= self._max_items
        return max(fits, 1 if self.idle else 0)

    def _note_starved(self, now: float) -> None:
        """A batch goes to the engine. One long chunk is no famine: several in a row must have been cut."""
        if not self._starving:
            self._starved_since, self._starved_batches = None, 0
            return
        if self._starved_since is None:
            self._starved_since = now
        self._starved_batches += 1

    def _running(self) -> tuple[Row, ...]:
        return tuple(row for _, row in self._engine.rows.values())

    def _peak(self, cost: CostModel, load: Load) -> int:
        return self._rest_now() + cost.predict(load).bytes

    def _rest_now(self) -> int:
        """What is held beside cache and running rows: as last seen at rest, or what rows do not explain now."""
        rest = self._engine.rest
        if rest is not None:
            return rest
        held = self._engine.recent[-1][1] if self._engine.recent else 0
        return max(0, held - self._resident())

    def _resident(self) -> int:
        by_model: dict[str, list[Row]] = {}
        for model, row in self._engine.rows.values():
            by_model.setdefault(model, []).append(row)
        costs = self._engine.costs
        return sum(
            costs[model].resident(Load(tuple(rows), ())) for model, rows in by_model.items() if model in costs
        )

    def never_fits(self, model: str, row: Row) -> str | None:
        """Why a single chunk can never run within the budget, at the fewest bits and alone; None where it may.

        It is told by what was measured, not by what is predicted: the first of its kind is tried.
        """
        cost, ladder = self._engine.costs.get(model), self.models.get(model)
        if cost is None or ladder is None or not self.limits.budget or self._engine.rest is None:
            return None
        saved = ladder.rung(ladder.bits).weights_bytes - ladder.rungs[-1].weights_bytes
        rest = self._engine.rest - (saved if self._allowed.ladder else 0)
        needed = rest + cost.least(row)
        if needed <= self.limits.budget:
            return None
        return (
            f"a chunk of {row.duration_s:.1f} s needs {mib(needed)} with model {model}, "
            f"of which {mib(rest)} are held at rest; the budget is {mib(self.limits.budget)}"
        )

    def bits(self, model: str) -> int | None:
        """At which a model runs now."""
        known = self.models.get(model)
        return known.bits if known else None

    def admitted(self, model: str, rows: Iterable[tuple[str, Row]], now: float) -> None:
        """These chunks go to the engine."""
        self._note_starved(now)
        engine = self._engine
        # Rows that nobody has encoded yet have not shown what they need: they are measured with those that join now.
        before = engine.interval if engine.unencoded else None
        if before is None:
            self._close_interval(now)
        cost = engine.costs.get(model)
        held = before.held if before else engine.recent[-1][1] if engine.recent else 0
        rest = before.rest if before else self._rest_now()
        slack = before.slack if before else self._slack(cost, held - rest)
        for chunk, row in rows:
            engine.rows[chunk] = (model, row)
            engine.unencoded[chunk] = row
        if cost is not None:
            load = Load(self._running(), tuple(engine.unencoded.values()))
            predicted = max(held, rest + cost.predict(load).bytes, before.predicted if before else 0)
            carried = max(before.peak, before.carried) if before else 0
            engine.interval = _Interval(model, load, rest, held, slack, predicted, carried=carried)

    def _slack(self, cost: CostModel | None, above_rest: int) -> int:
        """Of what is held above the rest, bytes that the running rows do not explain."""
        in_use = cost.predict(Load(self._running(), ())).expected if cost is not None else 0
        slack = above_rest - in_use
        return slack if slack > NOISE_BYTES else 0

    def left(self, chunk: str, now: float, *, ran: bool = True) -> None:
        """A chunk has been answered.

        :param ran: it was worked at to its end. What was called off before it was encoded needed nothing: of those
            that were sent with it the peak says too little.
        """
        engine = self._engine
        if engine.unencoded.pop(chunk, None) is not None and not ran:
            engine.interval = None
        if engine.rows.pop(chunk, None) is not None and self.idle:
            self._close_interval(now)
            engine.rest_samples = 0

    def surplus(self) -> tuple[str, ...]:
        """Chunks in the engine that it should give back, because its encoder has not come to them: at *shrink* those
        that no longer fit the batch, at *pause* all. Their memory is not there yet, and must not come.

        Those that come next are left to it: a step may hold them already, and one chunk must always pass.
        """
        if self.level < Level.SHRINK:
            return ()
        engine = self._engine
        most = max((row.window_s for row in engine.unencoded.values()), default=0.0)
        shapes = (engine.costs[model].shape for model, _ in engine.rows.values() if model in engine.costs)
        next_step = max((windows_at_once(shape, most) for shape in shapes), default=1)
        begun = len(engine.rows) - len(engine.unencoded)
        fits = 0 if self.level is Level.PAUSE else self.batch_items - begun
        return tuple(engine.unencoded)[max(1, next_step, fits) :]

    def _close_interval(self, now: float) -> None:
        interval, self._engine.interval = self._engine.interval, None
        measured = max(interval.peak, interval.carried) if interval is not None else 0
        if interval is None or measured <= 0 or interval.rest <= 0:
            return
        cost = self._engine.costs[interval.model]
        slack = max(interval.slack, interval.carried - interval.peak)
        cost.learn(interval.load, max(0, measured - interval.rest), slack=slack)
        self.forecasts.append(
            Forecast(
                now,
                interval.model,
                interval.load.bucket,
                len(interval.load.rows),
                interval.predicted,
                measured,
                interval.rest,
            )
        )

    # --- what takes time ------------------------------------------------------------------------------

    def job_settled(self) -> leaks.LeakDecision:
        """A job has ended: the baseline of idle memory counts in jobs."""
        decision = leaks.settled(self._engine.leak, self._leak_limits)
        self._engine.leak = decision.state
        if decision.restart and self.pending is None:
            self.pending = Restart(f"{mib(decision.state.growth)} more at rest than at first, unexplained")
        return decision

    def plan(self, now: float) -> Change | Restart | None:
        """What is to be done with the engine as soon as nothing runs; nothing joins until then.

        The caller carries it out when :attr:`idle`; a change ends with :meth:`requantized` or a new engine.
        """
        if self.pending is None and self.limits.budget and self._allowed.ladder:
            self.pending = self._move(now)
        return self.pending

    def _move(self, now: float) -> Change | None:
        after = self._thresholds.requantize_after_s
        held = self._engine.recent[0][1] if self._engine.recent else 0
        pressed = levels.pressed_for(self._state, now)
        if pressed >= after:
            return self._move_down(self._rest_now(), f"{pressed:.1f} s at or above the line of shrink")
        famine = self._starved_since is not None and now - self._starved_since >= after
        if famine and self._starved_batches >= STARVED_BATCHES:
            return self._move_down(self._rest_now(), "memory leaves room for small batches alone")
        if self.level is not Level.OPEN:
            return None
        return precision.up(
            self.models,
            held,
            int(self._thresholds.leave(Level.QUEUE) * self.budget_now),
            calm_s=now - self._state.since,
            restore_after_s=self._thresholds.restore_after_s,
            now=now,
            wanted=self.bits_wanted,
        )

    def _move_down(self, held: int, reason: str) -> Change | None:
        if not self._allowed.ladder:
            return None
        return precision.down(self.models, held, int(self._thresholds.pause * self.budget_now), reason)
