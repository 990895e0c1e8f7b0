"""Watches the worker from one place: turns what the organs see into facts, and keeps what is slow to find out.

The daemon tells it what passes by (a line at each place); everybody who wants to know (statistics, metrics, the
self-benchmark) hangs on here.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.handle import EngineExit
from engine.protocol import BatchDone, ChunkDone, ChunkFailed, Event, Loaded, StepDone, StepStarted
from queueing.protocol import Depth, Queue
from worker.assembler import WaitingChunk
from worker.awake import Awake
from worker.bridge import BridgeState
from worker.canary import BESTS, Bests, Canary, Offer
from worker.config import WatchConfig, WorkerConfig
from worker.facts import (
    BatchEnded,
    BatchSent,
    ChunkHeard,
    EngineEnded,
    Fact,
    JobEnded,
    LevelChanged,
    StepRan,
    Witness,
)
from worker.governor import Transition
from worker.held import HeldJob
from worker.identity import host_id
from worker.keeper import describe_exit
from worker.link import Link, LinkDown
from worker.outcome import Dead, Done, Failed, Outcome, Retry
from worker.pace import Pace
from worker.stats import Stats
from worker.usage import CpuReader, GpuReader, gpu_reader

log = logging.getLogger("decibatch.watch")

TICK_S = 1.0
NEWER_S = 60.0
"""For so long after its last coming a job that needs a newer worker is warned of."""


class View(Protocol):
    """What a companion may look at."""

    def health(self) -> dict[str, Any]: ...
    def status(self) -> dict[str, Any]: ...


class Companion(Witness, Protocol):
    """Lives beside a worker and lets others look at it."""

    @property
    def address(self) -> str:
        """Where it can be asked, "host:port"; "" for nowhere."""
        ...

    @property
    def problem(self) -> str:
        """Why it cannot be asked; "" where it can, or is not meant to."""
        ...

    async def run(self, view: View) -> None:
        """Until cancelled."""
        ...


def build_canary(config: WorkerConfig, spool: Path, offer: Offer) -> Canary | None:
    """The self-benchmark, where it is wanted."""
    if not config.watch.canary:
        return None
    bests = Bests(config.watch.state_dir / BESTS if config.watch.state_dir is not None else None)
    engine = " ".join(config.engine.command) if config.engine.command else "mlx"
    return Canary(offer, spool, bests, host=host_id().split("/", maxsplit=1)[0], engine=engine)


@dataclass(frozen=True, slots=True)
class Usage:
    """Of processors, of late."""

    cores: dict[str, float]
    """Cores kept busy, by role."""
    gpu: float | None = None
    """Share of time; None for unknown."""


class Watch:
    """All methods belong to the event loop's thread."""

    def __init__(self, config: WatchConfig, awake: Awake, *, witnesses: tuple[Witness, ...] = ()) -> None:
        self._config = config
        self._awake = awake
        self.stats = Stats()
        self._witnesses: tuple[Witness, ...] = (self.stats, *witnesses)
        self._chunks: dict[str, float] = {}
        """Seconds of audio of each chunk in the engine."""
        self._slots = 0
        self._pace = Pace()
        self._shapes: set[tuple[str, int, float]] = set()
        self.canary: Canary | None = None
        self.bridge: BridgeState | None = None
        self.companion: Companion | None = None
        self._newer = 0
        self._newer_at = -math.inf
        self._media_ready = False
        self._loaded: tuple[Loaded, ...] = ()
        self.usage = Usage({})
        self.depth: Depth | None = None
        """Of the queue, all workers together; None until it was read."""

    # --- what the daemon tells --------------------------------------------------------------------

    def media_ready(self) -> None:
        """The decoders run, and the spool has been swept."""
        self._media_ready = True
        self._begin_canary()

    def engine_ready(self, loaded: tuple[Loaded, ...]) -> None:
        self._loaded = loaded
        self._begin_canary()

    def _begin_canary(self) -> None:
        if self.canary is not None and self._media_ready and self._loaded:
            self.canary.begin(self._loaded)

    def dispatched(self, batch: tuple[WaitingChunk, ...], now: float) -> None:
        self._slots = len(batch)
        for chunk in batch:
            self._chunks[chunk.request.id] = chunk.request.duration_s
        if self.canary is not None:
            self.canary.dispatched(batch, now)
        self._tell(BatchSent(len(batch)))

    def engine_event(self, event: Event, now: float) -> None:
        match event:
            case StepStarted():
                self._pace = self._pace.started(event, now, event.padded_s)
            case StepDone():
                self._pace = self._pace.done(event)
                if event.rows:
                    self._tell(self._step(event))
            case BatchDone():
                self._tell(BatchEnded(event.seconds))
            case ChunkDone() | ChunkFailed():
                self._chunks.pop(event.chunk, None)
                if isinstance(event, ChunkDone):
                    self._tell(ChunkHeard(event.widened))
                if self.canary is not None:
                    self.canary.engine_event(event, now)
            case _:
                pass

    def _step(self, event: StepDone) -> StepRan:
        encoded = event.kind == "encode"
        rows = len(event.rows)
        shape = (event.kind, rows, event.window_s)
        again = shape in self._shapes
        self._shapes.add(shape)
        return StepRan(
            kind=event.kind,
            seconds=event.seconds,
            steps=event.steps,
            rows=rows,
            # Not every kind of session says what it could hold.
            slots=max(rows, event.slots or self._slots),
            real_s=sum(self._chunks.get(row, 0.0) for row in event.rows) if encoded else 0.0,
            padded_s=(event.padded_s or rows * event.window_s) if encoded else 0.0,
            again=again,
        )

    def engine_gone(self, exit_: EngineExit) -> None:
        self._pace, self._loaded, self._slots = Pace(), (), 0
        self._shapes.clear()
        self._chunks.clear()
        if self.canary is not None:
            self.canary.engine_gone()
        self._tell(EngineEnded(describe_exit(exit_)))

    def newer(self, count: int) -> None:
        """So many jobs were handed back, because they need a worker that knows more. They come again and again."""
        now = time.monotonic()
        if now - self._newer_at >= NEWER_S:
            log.warning("jobs need a newer worker", extra={"count": count})
        self._newer, self._newer_at = count, now

    def level_changed(self, change: Transition) -> None:
        self._tell(LevelChanged(change.before, change.after))

    def settled(self, held: HeldJob, outcome: Outcome) -> None:
        self._tell(job_ended(held, outcome, time.monotonic()))

    def _tell(self, fact: Fact) -> None:
        for witness in self._witnesses:
            try:
                witness.note(fact)
            except Exception:
                # Whoever watches must not stop the work.
                log.exception("a witness failed", extra={"fact": type(fact).__name__})

    # --- what is asked ----------------------------------------------------------------------------

    def stalled(self, now: float) -> bool:
        """Whether the engine's step takes far longer than its like."""
        return self._pace.stalled(now)

    def warnings(self) -> list[str]:
        """What an operator should look at, though the worker works."""
        said = []
        if self.canary is not None:
            said += [
                f"slow_engine ({model} at {one.share:.0%} of its own best)"
                for model, one in self.canary.results.items()
                if one.slow
            ]
            said += [f"canary {self.canary.problem}"] if self.canary.problem else []
        if self.companion is not None and self.companion.problem:
            said.append(f"no_health_server ({self.companion.problem})")
        if time.monotonic() - self._newer_at < NEWER_S:
            said.append(f"newer_jobs ({self._newer} need a worker of a newer version)")
        if self.bridge is not None and self.bridge.problem:
            said.append(f"rq_away ({self.bridge.problem})")
        if self.depth is not None and self.depth.webhooks_are_late:
            waits = f"{self.depth.webhooks_waiting} wait, the first for {self.depth.webhooks_overdue_s:.0f} s"
            said.append(f"webhooks_overdue ({waits}; is DECIBATCH_WEBHOOK_SECRET set on a worker?)")
        return said

    def document(self) -> dict[str, Any]:
        """Part of the worker's health."""
        told = self.stats.document()
        return {
            **told,
            "step_s": round(self._pace.running_s(time.monotonic()), 2),
            "warnings": self.warnings(),
            "canary": self.canary.document() if self.canary is not None else None,
            "cores": self.usage.cores,
            "gpu": self.usage.gpu,
            "kept_awake": self._awake.held,
        }

    # --- by the clock -----------------------------------------------------------------------------

    async def run(
        self, link: Link, queue: Queue, *, engine_pid: Callable[[], int | None], working: Callable[[], bool]
    ) -> None:
        """Read processors and queue now and then, hold off sleep while there is work. Until cancelled.

        :param engine_pid: gives the engine's process id, or None.
        :param working: tells whether there is work in our hands.
        """
        cpu, gpu = CpuReader(), gpu_reader()
        ticks = 0
        while True:
            try:
                self._awake.update(working(), time.monotonic())
                if ticks % self._config.read_every == 0:
                    await self._read(cpu, gpu, link, queue, engine_pid())
            except Exception:
                # Whoever watches must not stop the work.
                log.exception("looking around failed")
            ticks += 1
            await asyncio.sleep(TICK_S)

    async def _read(
        self, cpu: CpuReader, gpu: GpuReader, link: Link, queue: Queue, engine_pid: int | None
    ) -> None:
        self.usage = Usage(cpu.read(engine_pid), await gpu.read())
        if not link.up:
            return
        try:
            self.depth = await link.run(queue.depth())
        except LinkDown:
            self.depth = None

    async def close(self) -> None:
        """Safe at any time, and twice."""
        self._awake.release()
        if self.canary is not None:
            await self.canary.close()


def job_ended(held: HeldJob, outcome: Outcome, now: float) -> JobEnded:
    """The fact of a job that has just been settled, at monotonic time ``now``."""
    queued = max(0.0, (held.delivery.taken_ms - held.delivery.created_ms) / 1000)
    error = outcome.error if isinstance(outcome, Failed | Dead | Retry) else None
    audio = outcome.audio_s if isinstance(outcome, Done) else 0.0

    def between(begin: float | None, end: float | None) -> float | None:
        return None if begin is None or end is None else max(0.0, end - begin)

    first = held.first_text_at
    return JobEnded(
        job=held.delivery.job_id,
        lane=held.job.lane.value if held.job is not None else "",
        outcome=type(outcome).__name__.lower(),
        code=error.code if error is not None else "",
        queued_s=queued,
        media_s=between(held.accepted_at, held.ready_at),
        waiting_s=between(held.ready_at, held.dispatched_at),
        engine_s=between(held.dispatched_at, held.text_at),
        first_text_s=None if first is None else queued + max(0.0, first - held.accepted_at),
        total_s=queued + max(0.0, now - held.accepted_at),
        audio_s=audio,
        at_ms=int(time.time() * 1000),
    )
