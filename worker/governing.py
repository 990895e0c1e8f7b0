"""Carries out what the governor decides: commands to the engine, hand-backs, and the record of both.

Every decision worth knowing is an event of the queue's memory stream, and a line of the memory log where one is kept.
Neither ever holds text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from engine.handle import EngineExit
from engine.protocol import (
    ChunkDone,
    ChunkFailed,
    ClearCache,
    Event,
    Loaded,
    Ready,
    Requantize,
    Requantized,
    RequantizeFailed,
    Sample,
    StepDone,
    Surroundings,
)
from queueing.keys import Keys
from worker.assembler import WaitingChunk, row_of
from worker.governor import Change, Governor, Restart, Transition
from worker.keeper import EngineKeeper
from worker.link import Link

log = logging.getLogger("decibatch.memory")

STREAM_LENGTH = 1000
"""Events that the stream keeps, about."""
MAX_UNSENT = 256
"""Events that wait for a server that is away; older ones give way."""
DEVICE_FAILURES = ("broken", "crashed")
"""Ends of an engine by which a device, or the system's killer, says that memory was too short."""
TIDY_AFTER_S = 5.0
"""Seconds without work after which the cache is given back."""
TICK_S = 0.1
SHOWN = 16
"""Events in health."""


class Governing:
    """All methods belong to the event loop's thread.

    :param on_change: something changed that intake, dispatcher or health look at.
    :param hand_back: give back to Redis what has not started.
    :param call_back: have the engine return these chunks.
    :param on_level: whoever watches is told of each change of level.
    """

    def __init__(
        self,
        governor: Governor,
        keeper: EngineKeeper,
        *,
        on_change: Callable[[], None],
        hand_back: Callable[[], None],
        call_back: Callable[[Iterable[str]], None],
        on_level: Callable[[Transition], None] = lambda change: None,
        memory_log: Path | None = None,
    ) -> None:
        self._governor = governor
        self._keeper = keeper
        self._on_change = on_change
        self._hand_back = hand_back
        self._call_back = call_back
        self._on_level = on_level
        self._log = memory_log.open("a", encoding="utf-8") if memory_log is not None else None
        self._sent: Change | Restart | None = None
        self._too_small = False
        self._sampled_at = 0.0
        self._falling = asyncio.Event()
        self._busy_at = 0.0
        self._tidied = True
        self._unsent: deque[dict[str, Any]] = deque(maxlen=MAX_UNSENT)
        self._said = asyncio.Event()
        self._told_forecast: object = None
        self.recent: deque[dict[str, Any]] = deque(maxlen=SHOWN)
        """Latest events, as they stand in the stream."""
        self.requantizations = 0

    # --- what the engine says ---------------------------------------------------------------------

    def engine_event(self, event: Event) -> None:
        match event:
            case Sample():
                self._sample(event)
            case StepDone():
                self._governor.step_done(event)
                self._sample(event.sample)
            case ChunkDone() | ChunkFailed():
                self._answered(event.chunk, ran=isinstance(event, ChunkDone))
            case Surroundings():
                self._governor.surroundings = event
                self._write("surroundings", pss=event.pss, **asdict(event.system))
            case Ready():
                self._governor.engine_up(event.limits)
                self._tell("limits", **asdict(event.limits), device=event.device)
            case Loaded():
                self._governor.model_loaded(event, time.monotonic())
                if self._keeper.ready:
                    self._governor.at_rest()
                self._tell("loaded", model=event.model, bits=event.bits, weights=event.weights_bytes)
            case Requantized():
                self._requantized(event)
            case RequantizeFailed():
                self._requantize_failed(event)
            case _:
                pass

    def _sample(self, event: Sample) -> None:
        now = self._sampled_at = time.monotonic()
        self._observe(event, now)
        if self._log is not None:
            self._write(
                "sample", **asdict(event), level=self._governor.level.name.lower(), rows=len(self._governor)
            )
        self._note_too_small()
        self._tidy(event, now)
        self._carry_on(now)

    def _observe(self, event: Sample, now: float) -> None:
        self._governor.loading = not self._keeper.ready
        decision = self._governor.observe(event, now)
        if self._governor.falling:
            self._falling.set()
        if decision.clear_cache:
            self._keeper.send(ClearCache())
        surplus = self._governor.surplus()
        if surplus:
            self._call_back(surplus)
        change = decision.transition
        if change is not None:
            self._on_level(change)
            self._tell(
                "level",
                before=change.before.name.lower(),
                after=change.after.name.lower(),
                share=round(change.share, 4),
                reason=change.reason,
                batch_items=self._governor.batch_items,
            )
            if decision.hand_back:
                self._hand_back()
            self._on_change()

    def _tidy(self, event: Sample, now: float) -> None:
        """After a burst nobody needs what MLX keeps for the next batch: give it back, once."""
        if not self._governor.idle:
            self._busy_at, self._tidied = now, False
        elif not self._tidied and event.cache and now - self._busy_at >= TIDY_AFTER_S:
            self._tidied = True
            self._keeper.send(ClearCache())

    def _requantized(self, event: Requantized) -> None:
        self._sent = None
        self._governor.requantized(event, time.monotonic())
        self._governor.at_rest()
        self._keeper.bits[event.model] = event.bits
        self.requantizations += 1
        facts = asdict(event)
        freed = event.active_before - event.active_after
        self._tell("requantized", **facts, freed=freed)
        self._on_change()

    def _requantize_failed(self, event: RequantizeFailed) -> None:
        """Busy: it is tried again. Else the engine ends, and its next life loads the model at those bits."""
        self._sent = None
        self._tell(
            "requantize_failed", model=event.model, bits=event.bits, code=event.code, message=event.message
        )
        if event.code != "busy":
            self._keeper.bits[event.model] = event.bits

    def engine_gone(self, exit_: EngineExit) -> None:
        self._sent = None
        self._governor.engine_gone(device_failed=exit_.reason in DEVICE_FAILURES)

    # --- what the worker does -----------------------------------------------------------------------

    def dispatched(self, batch: Iterable[WaitingChunk]) -> None:
        chunks = tuple(batch)
        rows = [(chunk.request.id, row_of(chunk)) for chunk in chunks]
        self._governor.admitted(chunks[0].request.model, rows, time.monotonic())

    def _answered(self, chunk_id: str, *, ran: bool) -> None:
        now = time.monotonic()
        self._governor.left(chunk_id, now, ran=ran)
        self._write_forecasts()
        if self._governor.idle and self._governor.cramped:
            self._keeper.send(ClearCache())
        self._carry_on(now)

    def settled(self) -> None:
        """A job has ended."""
        decision = self._governor.job_settled()
        if decision.suspect:
            self._keeper.send(ClearCache())
        if decision.report:
            self._tell("leak", growth=decision.state.growth, baseline=decision.state.baseline)
        self._carry_on(time.monotonic())

    def _carry_on(self, now: float) -> None:
        """Do what was planned, once nothing runs."""
        if not self._keeper.ready or self._sent is not None:
            return
        plan = self._governor.plan(now)
        if plan is None or not self._governor.idle:
            return
        self._sent = plan
        if isinstance(plan, Change) and plan.in_place:
            self._tell("requantize", model=plan.model, bits=plan.bits, reason=plan.reason)
            self._keeper.send(Requantize(plan.model, plan.bits))
            return
        if isinstance(plan, Change):
            self._keeper.bits[plan.model] = plan.bits
        self._tell("restart", reason=plan.reason)
        self._keeper.restart()

    async def tick(self) -> None:
        """Judge the last reading again while it calls for a lower level, until cancelled.

        An idle engine tells at once when memory moves, and else once a second: that nothing has come means that the
        reading still holds. Levels rise by fresh readings alone.
        """
        while True:
            await self._falling.wait()
            await asyncio.sleep(TICK_S)
            self.tick_once(time.monotonic())

    def tick_once(self, now: float) -> None:
        last = self._governor.last
        if last is None or not self._governor.falling:
            self._falling.clear()
        elif now - self._sampled_at >= TICK_S:
            self._observe(last, now)

    def _note_too_small(self) -> None:
        small = self._governor.budget_too_small
        if small != self._too_small:
            self._too_small = small
            self._tell("budget_too_small" if small else "budget_suffices", rest=self._governor.rest_bytes)
            if small:
                self._hand_back()
            self._on_change()

    # --- the record -----------------------------------------------------------------------------------

    def _tell(self, what: str, **facts: Any) -> None:
        event = {"what": what, "at_ms": int(time.time() * 1000), **facts}
        self.recent.append(event)
        self._unsent.append(event)
        self._said.set()
        self._write(what, **facts)
        log.info(
            "memory: %s", what, extra={name: value for name, value in facts.items() if name != "message"}
        )

    def _write(self, what: str, **facts: Any) -> None:
        if self._log is not None:
            self._log.write(json.dumps({"what": what, "t": time.monotonic(), **facts}) + "\n")
            self._log.flush()

    def _write_forecasts(self) -> None:
        forecasts = self._governor.forecasts
        if self._log is not None and forecasts and forecasts[-1] is not self._told_forecast:
            self._told_forecast = forecasts[-1]
            self._write("forecast", **asdict(forecasts[-1]))

    async def publish(self, link: Link, keys: Keys, worker: Callable[[], str]) -> None:
        """Append events to the stream until cancelled. While the server is away the latest wait, within a bound."""
        while True:
            await self._said.wait()
            await link.wait_up()
            self._said.clear()
            while self._unsent:
                event = self._unsent[0]
                fields: dict[Any, Any] = {"worker": worker(), "event": json.dumps(event)}
                try:
                    await link.redis.xadd(keys.memory, fields, maxlen=STREAM_LENGTH, approximate=True)
                except (RedisError, OSError) as exc:
                    link.mark_down(exc)
                    self._said.set()
                    break
                if self._unsent and self._unsent[0] is event:
                    self._unsent.popleft()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
