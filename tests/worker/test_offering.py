"""Pieces of a job become chunks: which, when, and how urgent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from engine.protocol import ChunkFailed
from queueing.job import Lane, PathInput, SpeechOptions, TranscribeJob
from queueing.protocol import Delivery
from tests.worker.test_joining import done, piece
from worker.assembler import WaitingChunk
from worker.held import ChunkError, HeldJob, Ledger
from worker.media.types import MediaDone, Piece
from worker.offering import NeverFits, Offering, is_urgent

PIECES = [piece(10 * number, 8) for number in range(4)]


class Desk:
    """In the place of the dispatcher: keeps what it is offered."""

    def __init__(self) -> None:
        self.offered: list[WaitingChunk] = []
        self.too_large: str | None = None
        self.unused = True
        self.withdrawn: list[str] = []

    def offer(self, chunks: Iterable[WaitingChunk]) -> None:
        self.offered += chunks

    def withdraw(self, chunk_ids: Iterable[str]) -> None:
        self.withdrawn += [chunk.rpartition("/")[2] for chunk in chunk_ids]

    def never_fits(self, chunks: Iterable[WaitingChunk]) -> str | None:
        return self.too_large

    @property
    def numbers(self) -> list[str]:
        return [chunk.request.id.rpartition("/")[2] for chunk in self.offered]


class Case:
    """A job of one lane, its offering, and the engine's answers. Needs a running loop."""

    def __init__(self, lane: Lane = Lane.NORMAL, *, carry_context: bool = False) -> None:
        options = SpeechOptions(carry_context=carry_context)
        job = TranscribeJob(
            id="0123456789abcdef", model="m", lane=lane, input=PathInput(path="/a.wav"), options=options
        )
        self.held = HeldJob(Delivery(job.id, "stream", "1-1", 2, b""), accepted_at=1.0)
        self.ledger, self.desk = Ledger(), Desk()
        self.finished = self.ledger.begin(self.held)
        self.offering = Offering(self.held, job, self.desk, self.ledger)  # type: ignore[arg-type]

    def rest(self, pieces: Sequence[Piece]) -> None:
        self.offering.rest(MediaDone("/spool", 40.0, tuple(pieces), 30.0, 0.1, 0.0, "wav"))

    def hear(self, number: int) -> None:
        chunk = f"{self.held.delivery.job_id}/2/{number}"
        self.ledger.chunk_done(replace(done((0, 1, f"text {number}")), chunk=chunk), now=2.0)


def test_the_job_ends_with_the_last_text_of_all() -> None:
    """That all pieces so far are heard does not end a job of which media has not found all; then the last text does."""

    async def play() -> None:
        case = Case()
        case.offering.early("/spool", PIECES[:1])
        case.offering.early("/spool", PIECES[1:3])
        assert case.held.progress == {"stage": "media", "done": 0, "total": 0}
        for number in range(3):
            case.hear(number)
        assert not case.finished.done()
        case.rest(PIECES)
        assert case.desk.numbers == ["0", "1", "2", "3"]
        assert [chunk.request.offset for chunk in case.desk.offered] == [one.offset for one in PIECES]
        assert case.held.progress == {"stage": "engine", "done": 3, "total": 4}
        assert not case.finished.done()
        case.hear(3)
        assert case.finished.done()

    asyncio.run(play())


def test_a_job_without_speech_ends_at_once() -> None:
    """Where there is no piece there is nothing to wait for."""

    async def play() -> None:
        case = Case()
        case.rest([])
        assert case.finished.done()
        assert (case.held.stage, case.held.ready_at is not None) == ("media", True)

    asyncio.run(play())


def test_media_takes_until_the_first_piece() -> None:
    """A job is ready, and waits for the engine, from its first piece on; each chunk from when it was found."""

    async def play() -> None:
        case = Case()
        case.offering.early("/spool", PIECES[:1])
        ready_at = case.held.ready_at
        assert case.held.stage == "waiting"
        case.rest(PIECES)
        assert case.held.ready_at == ready_at == case.desk.offered[0].ready_at
        assert case.desk.offered[1].ready_at > case.desk.offered[0].ready_at

    asyncio.run(play())


def test_context_waits_for_text_and_for_pieces() -> None:
    """Each chunk is offered with the text before it: when that comes, or when media finds the piece after it came."""

    async def play() -> None:
        case = Case(carry_context=True)
        case.offering.early("/spool", PIECES[:2])
        assert case.desk.numbers == ["0"]
        case.hear(0)
        assert case.desk.numbers == ["0", "1"]
        case.hear(1)
        assert case.desk.numbers == ["0", "1"]
        case.rest(PIECES)
        assert case.desk.numbers == ["0", "1", "2"]
        case.hear(2)
        prompts = [chunk.request.options.prompt for chunk in case.desk.offered]
        assert prompts == [None, "text 0", "text 1", "text 2"]
        case.hear(3)
        assert case.finished.done()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("lane", "few", "many"),
    [(Lane.INTERACTIVE, True, True), (Lane.NORMAL, True, False), (Lane.BULK, False, False)],
)
def test_an_early_piece_is_one_of_many(lane: Lane, few: bool, many: bool) -> None:
    """A piece that is told while media looks for more is as urgent as the others of its job will be."""

    async def play() -> None:
        alone, among = Case(lane), Case(lane)
        alone.rest(PIECES[:1])
        among.offering.early("/spool", PIECES[:1])
        among.rest(PIECES)
        assert [chunk.request.urgent for chunk in alone.desk.offered] == [few]
        assert [chunk.request.urgent for chunk in among.desk.offered] == [many] * 4

    asyncio.run(play())


def test_a_piece_that_never_fits_is_told_early() -> None:
    """It is not offered, and the file is the job's to discard."""

    async def play() -> None:
        case = Case()
        case.desk.too_large = "too large"
        with pytest.raises(NeverFits, match="too large"):
            case.offering.early("/spool", PIECES[:1])
        assert (case.desk.offered, case.held.chunk_ids, case.held.spool) == ([], [], "/spool")

    asyncio.run(play())


def test_a_short_recording_is_heard_while_it_is_searched() -> None:
    """Where the engine has nothing to do, all of it is offered at once; where it is the only piece, that was it."""

    async def play() -> None:
        case = Case()
        assert case.offering.whole("/spool", PIECES[0])
        assert (case.desk.numbers, case.desk.offered[0].request.urgent) == (["0"], True)
        case.hear(0)
        assert not case.finished.done()
        case.rest(PIECES[:1])
        assert case.finished.done()
        assert (case.desk.numbers, case.desk.withdrawn) == (["0"], [])
        assert list(case.held.results) == case.held.chunk_ids

    asyncio.run(play())


@pytest.mark.parametrize("heard", [False, True])
def test_a_wrong_guess_leaves_nothing(heard: bool) -> None:
    """Where the search finds other pieces, the guess is withdrawn, and its text forgotten, had it come or not."""

    async def play() -> None:
        case = Case()
        case.offering.whole("/spool", piece(0, 29))
        if heard:
            case.hear(0)
        case.rest(PIECES[:2])
        assert case.desk.withdrawn == ["0"]
        assert case.desk.numbers == ["0", "1", "2"]
        case.hear(0)
        assert case.held.progress == {"stage": "engine", "done": 0, "total": 2}
        case.hear(1)
        assert not case.finished.done()
        case.hear(2)
        assert case.finished.done()

    asyncio.run(play())


def test_a_guess_over_silence_has_no_text() -> None:
    """Where the search finds nobody speaking, what the engine made of it is forgotten."""

    async def play() -> None:
        case = Case()
        case.offering.whole("/spool", PIECES[0])
        case.hear(0)
        case.rest([])
        assert case.finished.done()
        assert (case.held.results, case.held.chunk_ids, case.desk.withdrawn) == ({}, [], ["0"])

    asyncio.run(play())


@pytest.mark.parametrize("right", [False, True])
def test_a_failed_guess_counts_where_it_was_right(right: bool) -> None:
    """A chunk that fails before it is known to be one fails the job if it is, and nothing if it is none."""

    async def play() -> None:
        case = Case()
        case.offering.whole("/spool", PIECES[0])
        (chunk,) = case.held.chunk_ids
        case.ledger.chunk_failed(ChunkFailed(chunk, "j", "numeric_failure", "", retryable=False))
        assert not case.finished.done()
        case.rest(PIECES[:1] if right else [])
        if right:
            with pytest.raises(ChunkError, match="numeric_failure"):
                case.finished.result()
        else:
            assert case.finished.result() is None

    asyncio.run(play())


def test_nobody_guesses_while_there_is_work() -> None:
    """Where the engine has work, or the job is suspect, bulk, or carries context, the search comes first."""

    async def play() -> None:
        busy, suspect, bulk, context = Case(), Case(), Case(Lane.BULK), Case(carry_context=True)
        busy.desk.unused = False
        suspect.held.delivery = replace(suspect.held.delivery, alone=True)
        for case in (busy, suspect, bulk, context):
            assert not case.offering.whole("/spool", PIECES[0])
            assert not case.desk.offered
            assert case.held.spool == "/spool"

    asyncio.run(play())


def test_a_guess_that_never_fits_is_none() -> None:
    """Its pieces may be shorter and fit: only these can fail the job."""

    async def play() -> None:
        case = Case()
        case.desk.too_large = "too large"
        assert not case.offering.whole("/spool", PIECES[0])
        case.desk.too_large = None
        case.rest(PIECES[:1])
        assert len(case.desk.offered) == 1

    asyncio.run(play())


@pytest.mark.parametrize(
    ("lane", "pieces", "urgent"),
    [
        (Lane.INTERACTIVE, 12, True),
        (Lane.NORMAL, 1, True),
        (Lane.NORMAL, 2, False),
        (Lane.BULK, 1, False),
    ],
)
def test_somebody_waits_or_it_is_short(lane: Lane, pieces: int, urgent: bool) -> None:
    """Interactive jobs are urgent, of normal ones those of a single piece, bulk work never."""
    assert is_urgent(lane, pieces) is urgent
