"""The pieces of one job on their way to the engine, from the first that media finds to the last."""

from __future__ import annotations

import itertools
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
        self._numbers = itertools.count()
        self._whole: Piece | None = None
        """All of a short recording, offered before it was searched for speech."""
        if job.options.carry_context:
            held.on_chunk = self._heard

    def whole(self, spool: str, piece: Piece) -> bool:
        """All of a short recording, which media now searches for speech. Offered at once where nothing else has work
        for the engine: most often it is the only piece, and the search then costs no time. Returns whether it was.
        """
        self._held.spool = spool
        plain = is_urgent(self._job.lane, 1) and not self._job.options.carry_context
        if not plain or self._held.chunk_ids or self._held.delivery.alone or not self._dispatcher.unused:
            return False
        try:
            self._add(spool, (piece,), total=1)
        except NeverFits:
            return False
        self._whole, self._held.tentative = piece, True
        return True

    def early(self, spool: str, pieces: Sequence[Piece]) -> None:
        """Pieces that media has found, while it still looks for more, which there are. Raises NeverFits."""
        self._held.spool = spool
        # There is at least one more, so none of these is urgent for being the only one.
        self._add(spool, pieces, total=len(self._held.chunk_ids) + len(pieces) + 1)

    def rest(self, audio: MediaDone) -> None:
        """All pieces are known: offers those that were not told early. Raises NeverFits."""
        if self._whole is not None and audio.pieces != (self._whole,):
            self._dispatcher.withdraw(self._held.chunk_ids)
            self._ledger.start_over(self._held)
        self._add(audio.spool, audio.pieces[len(self._held.chunk_ids) :], total=len(audio.pieces))
        self._ledger.complete(self._held)

    def _add(self, spool: str, pieces: Sequence[Piece], total: int) -> None:
        now = time.monotonic()
        held, job = self._held, self._job
        chunks = [
            WaitingChunk(
                request=ChunkRequest(
                    # Never one that was used: the engine may still answer for it.
                    id=f"{job.id}/{held.delivery.attempt}/{next(self._numbers)}",
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
            for piece in pieces
        ]
        too_large = self._dispatcher.never_fits(chunks)
        if too_large is not None:
            raise NeverFits(too_large)
        held.ready_at = held.ready_at or now
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
