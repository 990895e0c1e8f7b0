"""Between what is decoded and the engine: holds waiting chunks, and sends them as the engine has room.

Several batches are under way at once. What leaves the engine makes room for what waits, chunk by chunk, so that a
long file neither keeps short ones waiting nor waits for its own slowest chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from engine.protocol import BatchDone, Cancel, ChunkFailed, Dispatch
from worker.assembler import BatchLimits, WaitingChunk, default_window_s, plan, row_of
from worker.governor import Governor
from worker.keeper import EngineKeeper

log = logging.getLogger("decibatch.dispatch")

PRECISION_LOOK_S = 1.0
PRECISION_WAIT_S = 60.0
"""Seconds that a chunk waits for its model to come back to the bits that it asks for; then its job is tried again."""


class Dispatcher:
    """Owns the waiting chunks and those in the engine. All methods belong to the event loop's thread."""

    def __init__(
        self,
        keeper: EngineKeeper,
        governor: Governor,
        limits: BatchLimits,
        *,
        more_coming: Callable[[], bool],
        on_dispatch: Callable[[tuple[WaitingChunk, ...], float], None],
        on_refused: Callable[[ChunkFailed], None],
    ) -> None:
        self._keeper = keeper
        self._governor = governor
        self._limits = limits
        self._more_coming = more_coming
        self._on_dispatch = on_dispatch
        self._on_refused = on_refused
        self._waiting: dict[str, WaitingChunk] = {}
        self._running: dict[str, WaitingChunk] = {}
        self._called_back: set[str] = set()
        """Of those in the engine, what is to come back without having run."""
        self._withdrawn: set[str] = set()
        """Of those in the engine, what nobody waits for any more."""
        self._batches: set[int] = set()
        """Sent, and not yet told to be over."""
        self._in_doubt = False
        """A step has failed, and the engine has not shown yet that it lives on."""
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self.batch_sizes: deque[int] = deque(maxlen=1024)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether the engine has nothing of ours."""
        return not self._batches

    @property
    def unused(self) -> bool:
        """Whether the engine would have nothing to do, as far as anybody knows."""
        return self.idle and not self._waiting and not self._more_coming()

    @property
    def running_jobs(self) -> set[str]:
        """Jobs with a chunk in the engine."""
        return {chunk.request.job for chunk in self._running.values()}

    def offer(self, chunks: Iterable[WaitingChunk]) -> None:
        for chunk in chunks:
            self._waiting[chunk.request.id] = chunk
        self.poke()

    def never_fits(self, chunks: Iterable[WaitingChunk]) -> str | None:
        """Why one of these chunks can never run within the budget; None where all can."""
        for chunk in chunks:
            why = self._governor.never_fits(chunk.request.model, row_of(chunk))
            if why is not None:
                return why
        return None

    def withdraw(self, chunk_ids: Iterable[str]) -> None:
        """Forget chunks, wherever they are; those in the engine are cancelled before its next step."""
        ids = tuple(chunk_ids)
        self._called_back.difference_update(ids)
        for chunk_id in ids:
            self._waiting.pop(chunk_id, None)
        in_engine = tuple(chunk_id for chunk_id in ids if chunk_id in self._running)
        if in_engine:
            self._withdrawn.update(in_engine)
            self._keeper.send(Cancel(in_engine))

    def call_back(self, chunk_ids: Iterable[str]) -> None:
        """Have the engine return chunks, which then wait here again; see :meth:`came_back`."""
        gone = self._called_back | self._withdrawn
        ids = tuple(name for name in chunk_ids if name in self._running and name not in gone)
        if ids:
            self._called_back.update(ids)
            self._keeper.send(Cancel(ids))

    def came_back(self, event: ChunkFailed) -> bool:
        """Whether this answer is that of a chunk that was called back: it waits again, as if it had never been sent."""
        if event.chunk not in self._called_back or event.code != "cancelled":
            return False
        self._called_back.discard(event.chunk)
        chunk = self._running.pop(event.chunk)
        self._waiting[event.chunk] = chunk
        self.poke()
        return True

    def poke(self) -> None:
        """Something changed: decide again."""
        self._changed.set()

    def answered(self, chunk_id: str) -> None:
        if self._leaves(chunk_id) and self._waiting:
            self.poke()

    def step_failed(self, chunk_id: str) -> None:
        """A chunk has failed with the step that it was in.

        An engine whose device has broken ends next, and says of no batch that it is over: until one is, nothing is
        sent, or it would be taken for what broke it.
        """
        self._leaves(chunk_id)
        self._in_doubt = True

    def _leaves(self, chunk_id: str) -> bool:
        """A chunk has an answer. Returns whether it was in the engine."""
        self._called_back.discard(chunk_id)
        self._withdrawn.discard(chunk_id)
        return self._running.pop(chunk_id, None) is not None

    def batch_done(self, event: BatchDone) -> None:
        self._in_doubt = False
        self._batches.discard(event.batch)
        self.poke()

    def engine_gone(self) -> tuple[str, ...]:
        """The engine has died. Returns the jobs that were in it."""
        suspects = tuple(self.running_jobs)
        self._running.clear()
        self._called_back.clear()
        self._withdrawn.clear()
        self._batches.clear()
        self._in_doubt = False
        return suspects

    async def run(self) -> None:
        """Send batches until cancelled."""
        again_at: float | None = None
        while True:
            timeout = None if again_at is None else max(0.0, again_at - time.monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout)
            self._changed.clear()
            again_at = self._decide(time.monotonic())

    def _decide(self, now: float) -> float | None:
        """Send what fits. Returns when to look again, where that is not only when something changes."""
        look_again: float | None = None
        while self._keeper.ready and self._waiting and not self._in_doubt:
            waiting = self._runnable(now)
            # What waits for bits has no event of its own that ends its patience.
            look_again = now + PRECISION_LOOK_S if self._governor.bits_wanted else None
            max_items = min(self._limits.max_items, self._governor.max_items(idle=not self._running))
            if max_items < 1 or not waiting:
                return look_again
            decision = plan(
                waiting,
                now,
                self._limits,
                max_items=max_items,
                max_window_s=self.max_window_s(),
                more_coming=self._more_coming(),
                running=tuple(self._running.values()),
                room=self._room,
            )
            if not decision.batch:
                return min((at for at in (look_again, decision.again_at) if at is not None), default=None)
            self._dispatch(decision.batch, now)
        return look_again

    def _room(self, chunk: WaitingChunk) -> int:
        return self._governor.room(chunk.request.model, row_of(chunk))

    def _runnable(self, now: float) -> tuple[WaitingChunk, ...]:
        """Those whose model runs at bits that they accept. What has waited too long for more is given up here."""
        able: list[WaitingChunk] = []
        unable: list[WaitingChunk] = []
        for chunk in self._waiting.values():
            bits = self._governor.bits(chunk.request.model)
            (unable if bits is not None and bits < chunk.request.options.min_bits else able).append(chunk)
        self._governor.bits_wanted = bool(unable)
        for chunk in unable:
            if now - chunk.ready_at >= PRECISION_WAIT_S:
                del self._waiting[chunk.request.id]
                message = (
                    f"the model runs at fewer than {chunk.request.options.min_bits} bits for want of memory"
                )
                self._on_refused(
                    ChunkFailed(
                        chunk.request.id, chunk.request.job, "precision_unavailable", message, retryable=True
                    )
                )
        return tuple(able)

    def max_window_s(self) -> float:
        """Padded seconds that the engine may hold now."""
        if self._limits.max_window_s is not None:
            return self._limits.max_window_s
        device = self._keeper.device
        memory = self._governor.budget_bytes or (device.limits.total if device else 0)
        return default_window_s(memory, self._keeper.loaded.values())

    def _dispatch(self, batch: tuple[WaitingChunk, ...], now: float) -> None:
        number = next(self._numbers)
        for chunk in batch:
            del self._waiting[chunk.request.id]
            self._running[chunk.request.id] = chunk
        self._batches.add(number)
        self.batch_sizes.append(len(batch))
        self._on_dispatch(batch, now)
        self._keeper.send(Dispatch(number, tuple(chunk.request for chunk in batch)))
