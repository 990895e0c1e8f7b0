"""The pieces of one job on their way to the engine, from the first that media finds to the last."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from engine.protocol import ChunkDone, ChunkRequest, DecodeOptions
from engine.windows import window_s
from queueing.job import Job, Lane
from worker.assembler import WaitingChunk
from worker.context import with_context
from worker.dispatcher import Dispatcher
from worker.held import HeldJob, Ledger
from worker.media.types import MediaDone, Piece

TEMPERATURE_STEP = 0.2


class NeverFits(Exception):
    """A chunk can never run within the budget of memory. The text says why."""


class Offering:
    """Makes chunks of the pieces of one job, enters them in the ledger, and offers them to the dispatcher.

    Where the job carries context, each is offered once the one before it has text.
    """

    def __init__(self, held: HeldJob, job: Job, dispatcher: Dispatcher, ledger: Ledger) -> None:
        self._held = held
        self._job = job
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._options = decode_options(job)
        self._line: deque[WaitingChunk] = deque()
        """Chunks that wait for the text of the one before."""
        self._before: ChunkDone | None = None
        self._under_way = False
        if job.options.carry_context:
            held.on_chunk = self._heard

    def early(self, spool: str, pieces: Sequence[Piece]) -> None:
        """Pieces that media has found, while it still looks for more, which there are. Raises NeverFits."""
        self._held.spool = spool
        # There is at least one more, so none of these is urgent for being the only one.
        self._add(spool, pieces, total=len(self._held.chunk_ids) + len(pieces) + 1)

    def rest(self, audio: MediaDone) -> None:
        """All pieces are known: offers those that were not told early. Raises NeverFits."""
        self._add(audio.spool, audio.pieces[len(self._held.chunk_ids) :], total=len(audio.pieces))
        self._ledger.complete(self._held)

    def _add(self, spool: str, pieces: Sequence[Piece], total: int) -> None:
        now = time.monotonic()
        held, job = self._held, self._job
        held.ready_at = held.ready_at or now
        first = len(held.chunk_ids)
        chunks = [
            WaitingChunk(
                request=ChunkRequest(
                    id=f"{job.id}/{held.delivery.attempt}/{number}",
                    job=job.id,
                    model=job.model,
                    path=spool,
                    offset=piece.offset,
                    samples=piece.samples,
                    options=self._options,
                    urgent=is_urgent(job.lane, total),
                ),
                lane=job.lane,
                ready_at=now,
                window_s=window_s(piece.duration_s),
                alone=held.delivery.alone,
            )
            for number, piece in enumerate(pieces, first)
        ]
        too_large = self._dispatcher.never_fits(chunks)
        if too_large is not None:
            raise NeverFits(too_large)
        self._ledger.expect(held, [chunk.request.id for chunk in chunks])
        if not job.options.carry_context:
            self._dispatcher.offer(chunks)
            return
        self._line.extend(chunks)
        self._offer_next()

    def _heard(self, text: ChunkDone) -> None:
        self._before, self._under_way = text, False
        self._offer_next()

    def _offer_next(self) -> None:
        if self._under_way or not self._line:
            return
        chunk = self._line.popleft()
        if self._before is not None:
            request = with_context(chunk.request, self._before)
            chunk = replace(chunk, request=request, ready_at=time.monotonic())
        self._under_way = True
        self._dispatcher.offer([chunk])


def is_urgent(lane: Lane, pieces: int) -> bool:
    """Whether the engine should take the pieces of a job before others: somebody waits for them, or they are few."""
    return lane is Lane.INTERACTIVE or (lane is Lane.NORMAL and pieces == 1)


def decode_options(job: Job) -> DecodeOptions:
    """What the engine is asked for; temperatures climb from the job's own in steps of 0.2 (Whisper paper, 4.5)."""
    start = job.options.temperature
    steps = int((1.0 - start) / TEMPERATURE_STEP + 1e-9) if job.options.fallback else 0
    return DecodeOptions(
        task=job.kind,
        language=job.options.language,
        prompt=job.options.prompt,
        temperatures=tuple(round(start + TEMPERATURE_STEP * step, 3) for step in range(steps + 1)),
        timestamps=job.options.timestamps,
        max_tokens=job.options.max_tokens,
        words=job.options.words,
        beam_size=job.options.beam_size,
        best_of=job.options.best_of,
        seed=job.options.seed,
        hot_words=job.options.hot_words,
        min_bits=job.options.min_bits,
    )
