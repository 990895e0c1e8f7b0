"""What the worker holds: deliveries, and the pieces of them on their way through media and engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.protocol import ChunkDone, ChunkFailed
from queueing.job import Job
from queueing.protocol import Delivery


class ChunkError(Exception):
    """A chunk of the job ended without text."""

    def __init__(self, failed: ChunkFailed) -> None:
        super().__init__(failed.code)
        self.failed = failed


@dataclass(slots=True, eq=False)
class HeldJob:
    """One delivery in our hands. Times are monotonic seconds."""

    delivery: Delivery
    accepted_at: float
    job: Job | None = None
    task: asyncio.Task[None] | None = None
    begun: bool = False
    """Whether the task has taken its first step."""
    stage: str = "media"
    """Of its first chunk: "media", "waiting" or "engine"; at last "settling"."""
    spool: str | None = None
    """The decoded sound, once it is ours to discard."""
    results: dict[str, ChunkDone] = field(default_factory=dict)
    chunk_ids: list[str] = field(default_factory=list)
    """In the order of the recording; there may be more to come until it is ``complete``."""
    complete: bool = False
    """Whether media has found all chunks."""
    tentative: bool = False
    """Whether the chunk that it has is a guess, until it is complete."""
    failure: ChunkFailed | None = None
    """Of a guess: it counts where the guess is right."""
    chunks_done: asyncio.Future[None] | None = None
    on_chunk: Callable[[ChunkDone], None] | None = None
    """Told each text as it comes."""
    ready_at: float | None = None
    """When the first chunk could have been dispatched; where there is none, when that was known."""
    dispatched_at: float | None = None
    text_at: float | None = None
    first_text_at: float | None = None
    """Of partial text, or of the first chunk."""
    abandon: str | None = None
    """Why the work is to be dropped: a final state, "lost", "handback"."""
    successor: Delivery | None = None
    """A newer delivery of the job that came while this one was on its way out of our hands."""

    @property
    def started(self) -> bool:
        """Whether the engine has begun with it: what has not is handed back when the worker stops."""
        return self.dispatched_at is not None or self.stage == "settling"

    @property
    def progress(self) -> dict[str, Any]:
        """What its progress event says. Of how many is not told before it is known."""
        stage, total = ("engine", len(self.chunk_ids)) if self.complete else ("media", 0)
        return {"stage": stage, "done": 0 if self.tentative else len(self.results), "total": total}


class Ledger:
    """All that is held, by job and by chunk."""

    def __init__(self) -> None:
        self._jobs: dict[str, HeldJob] = {}
        self._chunks: dict[str, HeldJob] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[HeldJob]:
        return iter(list(self._jobs.values()))

    def get(self, job_id: str) -> HeldJob | None:
        return self._jobs.get(job_id)

    def add(self, held: HeldJob) -> None:
        self._jobs[held.delivery.job_id] = held

    def remove(self, held: HeldJob) -> None:
        if self._jobs.get(held.delivery.job_id) is held:
            del self._jobs[held.delivery.job_id]
        self.forget_chunks(held)

    def begin(self, held: HeldJob) -> asyncio.Future[None]:
        """A job that will have chunks. The future ends when it is complete and all have text, or with the first
        failure."""
        held.chunks_done = asyncio.get_running_loop().create_future()
        return held.chunks_done

    def expect(self, held: HeldJob, chunk_ids: Sequence[str]) -> None:
        """Register chunks of a job, behind those that it has."""
        held.chunk_ids += chunk_ids
        for chunk_id in chunk_ids:
            self._chunks[chunk_id] = held
        if chunk_ids and held.stage == "media":
            held.stage = "waiting"

    def complete(self, held: HeldJob) -> None:
        """No more chunks will be registered."""
        held.complete, held.tentative = True, False
        if held.failure is not None:
            self.chunk_failed(held.failure)
        self._end_if_all_heard(held)

    def start_over(self, held: HeldJob) -> None:
        """Forget the chunks of a job, and all that came of them."""
        self.forget_chunks(held)
        held.chunk_ids, held.results = [], {}
        held.tentative, held.failure, held.stage = False, None, "media"
        held.ready_at = held.dispatched_at = held.text_at = held.first_text_at = None

    def forget_chunks(self, held: HeldJob) -> None:
        for chunk_id in held.chunk_ids:
            self._chunks.pop(chunk_id, None)

    def by_chunk(self, chunk_id: str) -> HeldJob | None:
        return self._chunks.get(chunk_id)

    def chunk_done(self, event: ChunkDone, now: float) -> HeldJob | None:
        """Note a chunk's text. Returns its job, or None where nobody waits for it any more."""
        held = self._chunks.get(event.chunk)
        if held is None:
            return None
        held.results[event.chunk] = event
        held.text_at = now
        held.first_text_at = held.first_text_at or now
        if held.on_chunk is not None:
            held.on_chunk(event)
        self._end_if_all_heard(held)
        return held

    def _end_if_all_heard(self, held: HeldJob) -> None:
        done = held.chunks_done
        all_heard = held.complete and len(held.results) == len(held.chunk_ids)
        if all_heard and done is not None and not done.done():
            done.set_result(None)

    def chunk_failed(self, event: ChunkFailed) -> HeldJob | None:
        held = self._chunks.get(event.chunk)
        if held is not None and held.tentative:
            held.failure = event
        elif held is not None and held.chunks_done is not None and not held.chunks_done.done():
            held.chunks_done.set_exception(ChunkError(event))
        return held

    def came_back(self, chunk_id: str, *, in_engine: bool) -> None:
        """A chunk waits again that the engine had not begun with.

        :param in_engine: another chunk of its job is in the engine.
        """
        held = self._chunks.get(chunk_id)
        if held is not None and not in_engine and not held.results and held.stage == "engine":
            held.stage = "waiting"
            held.dispatched_at = None

    @property
    def entries(self) -> list[str]:
        both = ((held.delivery, held.successor) for held in self._jobs.values())
        return [delivery.entry for pair in both for delivery in pair if delivery is not None]

    @property
    def deliveries(self) -> list[Delivery]:
        return [held.delivery for held in self._jobs.values()]

    def count(self, stage: str) -> int:
        return sum(1 for held in self._jobs.values() if held.stage == stage)
