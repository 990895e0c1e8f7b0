"""The daemon: builds the organs, connects them, and stops them in two stages.

The first SIGTERM or SIGINT: nothing more is taken, what the engine has not begun goes back to the
head of its backlog, what it has begun may finish until the drain deadline. The second, or the
deadline: everything goes back now. Either way the exit status is 0 and nothing is left behind
(invariant I10). A SIGKILL leaves it to the leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import signal
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from engine.handle import EngineExit
from engine.protocol import (
    BatchDone,
    ChunkDone,
    ChunkFailed,
    Event,
    Partial,
    Ready,
    StepDone,
)
from queueing.job import LANES, WIRE_VERSION
from queueing.keys import Keys
from queueing.protocol import Queue, StreamName, Taken
from worker import health
from worker.assembler import WaitingChunk
from worker.awake import keeper_of
from worker.bridge import BridgeState, run_bridge
from worker.config import WorkerConfig
from worker.control import ControlReader
from worker.dispatcher import Dispatcher
from worker.flow import EngineCrashed, JobFlow, Parts
from worker.governing import Governing
from worker.governor import Governor, Level
from worker.held import HeldJob, Ledger
from worker.identity import Identity, adopt
from worker.intake import Intake
from worker.keeper import EngineKeeper, describe_exit
from worker.leases import Leases
from worker.link import Link, LinkDown
from worker.media.supervisor import MediaSupervisor
from worker.media.types import MediaError
from worker.outbox import Outbox
from worker.outcome import Outcome
from worker.settle import Settler, decided
from worker.steplog import StepLog
from worker.sweep import Sweeper
from worker.watch import Companion, Watch, build_canary
from worker.webhooks import Webhooks

log = logging.getLogger("decibatch.worker")

MIN_BEAT_S = 0.1
MEDIA_PAUSES_S = (0.2, 1.0)
"""Pauses before the second and the third try to start the decoders."""
CANCEL_AGAIN_S = 0.25
LAST_WORDS_S = 5.0
"""Seconds that writing hand-backs may take at the very end."""


def package_version() -> str:
    try:
        return version("decibatch")
    except PackageNotFoundError:
        return "0+unknown"


class Daemon:
    """One worker: :meth:`run` returns its exit status."""

    def __init__(self, config: WorkerConfig, companion: Companion | None = None) -> None:
        self._config = config
        self._companion = companion
        self._queue = Queue(Keys(config.queue))
        self._version = package_version()
        self._link = Link(config.redis_url, pause_cap_s=config.lease.reconnect_s)
        self._ledger = Ledger()
        self._keeper = EngineKeeper(config.engine, self)
        self._governor = Governor(
            config.thresholds,
            max_items=config.batch.max_items,
            allowed=config.precision,
            leak_limits=config.leaks,
        )
        awake = keeper_of(config.watch.keep_awake)
        self._watch = Watch(config.watch, awake, witnesses=(companion,) if companion is not None else ())
        self._governing = Governing(
            self._governor,
            self._keeper,
            on_change=self._note_memory,
            hand_back=lambda: self._hand_back(only_unstarted=True),
            call_back=lambda chunks: self._dispatcher.call_back(chunks),  # noqa: PLW0108 (it is made after this)
            on_level=self._watch.level_changed,
            memory_log=config.memory_log,
        )
        self._settler = Settler(
            self._link,
            self._queue,
            base_s=config.retry_base_s,
            cap_s=config.retry_cap_s,
            version=self._version,
        )
        self._outbox = Outbox(self._link, self._queue)
        self._dispatcher = Dispatcher(
            self._keeper,
            self._governor,
            config.batch,
            more_coming=lambda: self._media.coming_soon > 0,
            on_dispatch=self._note_dispatch,
            on_refused=self._note_refused,
        )
        self._steplog = StepLog(config.step_log)
        told = config.webhooks
        self._webhooks = Webhooks(self._link, self._queue, told) if told is not None else None
        self._bridge = BridgeState() if config.bridge is not None else None
        self._watch.bridge, self._watch.companion = self._bridge, companion
        self._orphans: tuple[str, ...] = ()
        self._draining = False
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._empty = asyncio.Event()
        self._changed = asyncio.Event()
        """Something that health shows has changed."""
        self._name_lost = False
        self._media: MediaSupervisor
        self._me: Identity
        self._flow: JobFlow
        self._leases: Leases
        self._intake: Intake

    # --- life -------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Work until told to stop. 0 after an orderly stop, 1 where the consumer name was lost to somebody else."""
        self._listen_to_signals()
        keep_link = asyncio.create_task(self._link.keep(), name="link")
        attending = asyncio.create_task(self._attend(), name="companion")
        try:
            if not await self._adopt_name():
                return 0
            await self._build()
            await self._work()
        finally:
            await self._tear_down()
            await cancel_all([keep_link, attending])
            await self._link.close()
            self._steplog.close()
            self._governing.close()
        return 1 if self._name_lost else 0

    async def _attend(self) -> None:
        """Whoever watches from outside, from before Redis is there until after it was left."""
        if self._companion is not None:
            try:
                await self._companion.run(self)
            except Exception:
                log.exception("the companion failed")

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)

    def request_stop(self) -> None:
        """First call: drain. Second call: hand everything back now. Safe at any time."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()
        self._changed.set()

    async def _adopt_name(self) -> bool:
        """Wait for Redis and lock a name; False where we were told to stop meanwhile."""
        ttl_ms = int(self._config.lease.lease_s * 1000)
        adopting = asyncio.create_task(adopt(self._link, self._queue, self._config.name, ttl_ms))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((adopting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not adopting.done():
            adopting.cancel()
            return False
        self._me = await adopting
        return True

    async def _build(self) -> None:
        config, me = self._config, self._me
        self._settler.worker = me.consumer
        spool = config.spool_dir / f"{config.queue}-{me.consumer}"
        spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._media = MediaSupervisor(spool, config.media, config.media_processes)
        parts = Parts(
            self._link,
            self._queue,
            self._media,
            self._keeper,
            self._dispatcher,
            self._outbox,
            self._settler,
            self._ledger,
        )
        self._flow = JobFlow(
            parts,
            serve=config.engine.serve,
            poison_after=config.poison_after,
            worker=me.consumer,
            version=self._version,
            max_result_bytes=config.max_result_bytes,
            on_settled=self._note_settled,
            on_deadline=self._note_deadline,
            on_outcome=self._note_outcome,
        )
        self._watch.canary = build_canary(config, spool, self._dispatcher.offer)
        self._leases = Leases(
            self._link,
            self._queue,
            me,
            self._ledger,
            config.lease,
            wire=WIRE_VERSION,
            progressing=lambda: self._keeper.progressing(time.monotonic()),
            on_lost=self._flow.abandon,
            on_taken=self._accept,
            streams=self._streams,
            credits_left=self._credits_left,
        )
        self._intake = Intake(
            self._link,
            self._queue,
            me,
            wire=WIRE_VERSION,
            credits_left=self._credits_left,
            streams=self._streams,
            on_taken=self._accept,
            plenty=lambda: 2 * len(self._ledger) >= config.credits,
        )

    async def _work(self) -> None:
        control = ControlReader(
            self._config.redis_url,
            self._queue.keys,
            self._link,
            on_wake=self._intake.poke,
            on_cancel=self._note_cancel,
        )
        try:
            async with asyncio.TaskGroup() as group:
                jobs = [
                    group.create_task(self._beat(), name="beat"),
                    group.create_task(self._begin(), name="begin"),
                    group.create_task(control.run(), name="control"),
                    group.create_task(self._leases.run(), name="leases"),
                    group.create_task(self._dispatcher.run(), name="dispatcher"),
                    group.create_task(self._outbox.run(), name="outbox"),
                    group.create_task(self._governing.tick(), name="levels"),
                    group.create_task(
                        self._governing.publish(self._link, self._queue.keys, lambda: self._me.consumer),
                        name="memory",
                    ),
                    group.create_task(Sweeper(self._link, self._queue).run(), name="sweep"),
                    group.create_task(self._look_around(), name="watch"),
                ]
                if self._webhooks is not None:
                    jobs.append(group.create_task(self._webhooks.run(), name="webhooks"))
                if self._config.bridge is not None and self._bridge is not None:
                    bridging = run_bridge(
                        self._config.bridge,
                        self._bridge,
                        queue_url=self._config.redis_url,
                        queue=self._queue,
                        name=f"decibatch.{self._queue.keys.name}.{self._me.owner.replace('#', '.')}",
                        open_at_once=self._config.credits,
                        may_take=lambda: self._credits_left() > 0,
                    )
                    jobs.append(group.create_task(bridging, name="bridge"))
                engine = group.create_task(self._keeper.run(), name="engine")
                await self._stop.wait()
                await self._drain()
                await self._keeper.stop(timeout_s=2.0)
                await engine
                await cancel_all(jobs)
        finally:
            await control.close()

    async def _begin(self) -> None:
        """Warm the decoders, take up what an earlier life left, then take what is new."""
        await self._warm_media()
        self._watch.media_ready()
        while True:
            await self._link.wait_up()
            try:
                await self._leases.resume()
                break
            except LinkDown:
                continue
        self._link.on_return = self._on_return
        await self._intake.run()

    async def _warm_media(self) -> None:
        """One that is killed while it starts, by the system's memory killer say, is no reason to end. Raises MediaError
        where none starts, three times in a row."""
        for pause_s in MEDIA_PAUSES_S:
            try:
                await self._media.start()
                return
            except MediaError as exc:
                log.error("decoders do not start", extra={"error": exc.message})
                await asyncio.sleep(pause_s)
        await self._media.start()

    async def _on_return(self) -> None:
        await self._leases.renew()
        await self._leases.resume()

    async def _drain(self) -> None:
        self._draining = True
        log.info("stopping", extra={"held": len(self._ledger)})
        await self._wait_until_empty(self._config.drain_s, only_unstarted=True)
        self._stop_now.clear()
        await self._wait_until_empty(LAST_WORDS_S, only_unstarted=False)
        if len(self._ledger):
            log.warning("left to their leases", extra={"held": len(self._ledger)})

    def _hand_back(self, *, only_unstarted: bool) -> None:
        for held in self._ledger:
            if not (only_unstarted and held.started):
                self._flow.abandon(held, "handback")

    async def _wait_until_empty(self, timeout_s: float, *, only_unstarted: bool) -> None:
        """Hand back, until nothing is held, the time is over, or we are told to stop now."""
        deadline = time.monotonic() + timeout_s
        while len(self._ledger) and not self._stop_now.is_set():
            self._hand_back(only_unstarted=only_unstarted)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self._empty.clear()
            waits = [asyncio.create_task(event.wait()) for event in (self._empty, self._stop_now)]
            await asyncio.wait(
                waits, timeout=min(left_s, CANCEL_AGAIN_S), return_when=asyncio.FIRST_COMPLETED
            )
            for wait in waits:
                wait.cancel()

    async def _tear_down(self) -> None:
        """Whatever happened: no process, no file, no name is left. Each part is safe before its start."""
        await self._watch.close()
        await self._keeper.stop(timeout_s=0.5)
        await cancel_all([held.task for held in self._ledger if held.task is not None])
        if hasattr(self, "_media"):
            await self._media.stop()
        if hasattr(self, "_me") and self._link.up and not self._name_lost:
            try:
                await self._link.run(self._queue.leave(self._me.consumer, self._me.value, self._streams()))
            except LinkDown as exc:
                log.warning("name left to its lease", extra={"error": str(exc)})

    # --- signs of life ----------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await self._link.wait_up()
            call = self._queue.beat(
                self._me.consumer,
                self._me.value,
                int(self._config.lease.lease_s * 1000),
                json.dumps(self.health()),
                int(self._config.served_horizon_s * 1000),
                sorted(self._keeper.loaded),
            )
            try:
                beat = await self._link.run(call)
            except LinkDown:
                continue
            if not beat.held:
                # Somebody else took our name while we were away for longer than the lease.
                log.error("consumer name lost", extra={"consumer": self._me.consumer})
                self._name_lost = True
                self.request_stop()
                self.request_stop()
                return
            if beat.orphans != self._orphans:
                self._orphans = beat.orphans
                self._intake.poke()
            # Sooner where something changed that others look at, but never in a rush.
            await asyncio.sleep(MIN_BEAT_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._config.lease.beat_s - MIN_BEAT_S)
            self._changed.clear()

    async def _look_around(self) -> None:
        await self._watch.run(
            self._link,
            self._queue,
            engine_pid=lambda: self._keeper.pid,
            working=lambda: len(self._ledger) > 0,
        )

    def status(self) -> dict[str, object]:
        """All that is known here: the health, and what is in the queue."""
        depth = self._watch.depth
        return {
            **self.health(),
            "outages": self._link.outages,
            "queue": dataclasses.asdict(depth) if depth is not None else None,
        }

    def health(self) -> dict[str, object]:
        """The document that ``decibatch health`` shows."""
        now = time.monotonic()
        why = health.reasons(
            keeper=self._keeper,
            governor=self._governor,
            link=self._link,
            stopping=self._stop.is_set(),
            stalled=self._watch.stalled(now),
            unready_after=self._config.engine.unready_after,
            now=now,
        )
        told = health.document(
            identity=getattr(self, "_me", None),
            name=self._config.name,
            why=why,
            keeper=self._keeper,
            governor=self._governor,
            governing=self._governing,
            dispatcher=self._dispatcher,
            ledger=self._ledger,
            media=getattr(self, "_media", None),
            thresholds=self._config.thresholds,
            settled=self._settler.counts,
            webhooks=self._webhooks,
            bridge=self._bridge,
            version=self._version,
        )
        address = self._companion.address if self._companion is not None else ""
        return {**told, "serves": list(self._config.engine.serve), "http": address, **self._watch.document()}

    # --- intake -----------------------------------------------------------------------------------

    def _streams(self) -> list[StreamName]:
        """In lane order; models that nobody serves come last, so that their jobs can be refused."""
        failed = self._keeper.failed_models
        models = [alias for alias in self._config.engine.serve if alias not in failed]
        orphans = [model for model in self._orphans if model not in self._config.engine.serve]
        return [(model, lane.value) for lane in LANES for model in (*models, *orphans)]

    def _credits_left(self) -> int:
        """Deliveries that may be taken now: none while an engine does not get on, since another worker's may."""
        now = time.monotonic()
        if self._draining or not self._keeper.ready or not self._governor.may_take():
            return 0
        if self._watch.stalled(now) or not self._keeper.progressing(now):
            return 0
        if len(self._dispatcher) >= self._config.max_waiting_chunks:
            return 0
        return max(0, self._config.credits - len(self._ledger))

    def _accept(self, taken: Taken) -> None:
        for delivery in taken.deliveries:
            self._flow.accept(delivery)
        for job_id in taken.lost:
            log.error("redis lost a job", extra={"job": job_id})
        if taken.junk:
            log.error("entries that are no jobs", extra={"count": taken.junk})
        if taken.newer:
            self._watch.newer(len(taken.newer))

    def _note_settled(self) -> None:
        self._governing.settled()
        self._changed.set()
        if not len(self._ledger):
            self._empty.set()
        self._intake.credits_back()
        self._dispatcher.poke()

    def _note_outcome(self, held: HeldJob, outcome: Outcome, word: str) -> None:
        if word == "ok":
            attempts = held.job.max_attempts if held.job is not None else 1
            self._watch.settled(held, decided(held.delivery, outcome, attempts))

    def _note_cancel(self, job_id: str) -> None:
        held = self._ledger.get(job_id)
        if held is not None:
            self._flow.abandon(held, "cancelled")

    def _note_deadline(self) -> None:
        self._leases.poke()

    def _note_refused(self, failed: ChunkFailed) -> None:
        self._ledger.chunk_failed(failed)

    def _note_memory(self) -> None:
        self._changed.set()
        self._intake.poke()
        self._dispatcher.poke()

    def _note_dispatch(self, batch: tuple[WaitingChunk, ...], now: float) -> None:
        self._governing.dispatched(batch)
        self._watch.dispatched(batch, now)
        for chunk in batch:
            held = self._ledger.by_chunk(chunk.request.id)
            if held is not None and held.dispatched_at is None:
                held.dispatched_at = now
                held.stage = "engine"
        self._changed.set()

    # --- what the engine says ---------------------------------------------------------------------

    def engine_ready(self) -> None:
        self._changed.set()
        self._watch.engine_ready(tuple(self._keeper.loaded.values()))
        self._intake.poke()
        self._dispatcher.poke()

    def engine_gone(self, exit_: EngineExit) -> None:
        self._changed.set()
        self._watch.engine_gone(exit_)
        suspects = self._dispatcher.engine_gone()
        self._governing.engine_gone(exit_)
        self._suspect(suspects, describe_exit(exit_))

    def _suspect(self, jobs: Sequence[str], reason: str) -> None:
        """One of these has failed the engine, and nobody knows which."""
        for job_id in jobs:
            held = self._ledger.get(job_id)
            if held is None:
                continue
            if self._stop.is_set():
                self._flow.abandon(held, "handback")
            elif held.chunks_done is not None and not held.chunks_done.done():
                held.chunks_done.set_exception(
                    EngineCrashed(reason, alone=len(jobs) == 1 and not held.tentative)
                )

    def engine_event(self, event: Event) -> None:
        self._watch.engine_event(event, time.monotonic())
        self._handle(event)
        # Last, so that a record of a step bears the level at which it ran, and an answer is known before a plan.
        self._governing.engine_event(event)

    def _handle(self, event: Event) -> None:
        match event:
            case StepDone():
                self._steplog.write(event, self._governor.level.name.lower())
            case Partial():
                self._publish_partial(event)
            case ChunkDone():
                self._dispatcher.answered(event.chunk)
                held = self._ledger.chunk_done(event, time.monotonic())
                if held is not None:
                    self._publish_progress(held)
            case ChunkFailed(code="internal"):
                # A step that raised says the same of every row, as a death does: the first answer speaks for all.
                self._suspect(tuple(self._dispatcher.running_jobs), event.message)
                self._dispatcher.step_failed(event.chunk)
            case ChunkFailed() if self._dispatcher.came_back(event):
                self._ledger.came_back(event.chunk, in_engine=event.job in self._dispatcher.running_jobs)
                if self._governor.level is Level.PAUSE:
                    self._hand_back(only_unstarted=True)
            case ChunkFailed():
                self._dispatcher.answered(event.chunk)
                self._ledger.chunk_failed(event)
            case BatchDone():
                self._dispatcher.batch_done(event)
            case Ready():
                log.info(
                    "engine is up",
                    extra={"pid": event.pid, "device": event.device, "budget": event.limits.budget},
                )
            case _:
                pass

    def _publish_partial(self, event: Partial) -> None:
        held = self._ledger.by_chunk(event.chunk)
        # What may turn out not to be a piece is told nobody.
        if held is not None and not held.tentative:
            held.first_text_at = held.first_text_at or time.monotonic()
            data = {"chunk": held.chunk_ids.index(event.chunk), "text": event.text}
            self._outbox.put(held.delivery, "partial", data)

    def _publish_progress(self, held: HeldJob) -> None:
        self._outbox.put(held.delivery, "progress", held.progress)


async def cancel_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended: below Python 3.12 ``asyncio.wait_for`` can swallow a cancellation."""
    pending: set[asyncio.Task[None]] = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)


def run(config: WorkerConfig, companion: Companion | None = None) -> int:
    """Run a worker in the foreground until it is told to stop. Returns its exit status.

    :param companion: watches it from outside, e.g. a health server.
    """
    status = 1
    try:
        status = asyncio.run(Daemon(config, companion).run())
    except* MediaError as group:
        log.error("no decoder can be started", extra={"error": str(group.exceptions[0])})
    return status
