"""What a media process may say, and what no honest one does."""

from __future__ import annotations

from typing import Any

import pytest

from worker.media.answers import SHORTEST, WrongAnswer, done_of, pieces_of
from worker.media.types import SAMPLE_RATE, MediaDone, MediaError, Piece

SECOND = SAMPLE_RATE
FILE = 100 * SECOND
BEFORE = (Piece(0, 20 * SECOND), Piece(19 * SECOND, 20 * SECOND))


def told(*pairs: tuple[float, float]) -> dict[str, Any]:
    return {"t": "pieces", "pieces": [[int(start * SECOND), int(length * SECOND)] for start, length in pairs]}


def test_pieces_follow_those_before() -> None:
    """Pieces in order, of which two may overlap, are taken, and only what is new is given."""
    found = pieces_of(told((38, 30), (67, 2), (98, 2)), BEFORE, FILE, 30.0)
    assert [(piece.start_s, piece.duration_s) for piece in found] == [(38, 30), (67, 2), (98, 2)]
    assert pieces_of(told((0, 3)), (), FILE, 30.0) == (Piece(0, 3 * SECOND),)
    assert pieces_of(told(), BEFORE, FILE, 30.0) == ()


@pytest.mark.parametrize(
    "frame",
    [
        told((19, 25)),
        told((20, 10)),
        told((50, 31)),
        told((50, (SHORTEST - 1) / SECOND)),
        told((50, -1)),
        told((98, 3)),
        told((60, 5), (50, 5)),
        told((40, 20), (45, 20), (50, 20)),
        {"t": "pieces"},
        {"t": "pieces", "pieces": {"0": 1}},
        {"t": "pieces", "pieces": [[SECOND * 50.0, SECOND]]},
        {"t": "pieces", "pieces": [[50 * SECOND, float("inf")]]},
        {"t": "pieces", "pieces": [[50 * SECOND]]},
        {"t": "pieces", "pieces": ["ab"]},
    ],
    ids=lambda frame: str(frame.get("pieces"))[:40],
)
def test_pieces_that_cannot_be_are_refused(frame: dict[str, Any]) -> None:
    """Told again, ending early, too long, too short, outside of the file, out of order, three deep, or no numbers."""
    with pytest.raises(WrongAnswer):
        pieces_of(frame, BEFORE, FILE, 30.0)


def test_no_piece_begins_before_the_file() -> None:
    """A negative offset would read from elsewhere."""
    with pytest.raises(WrongAnswer):
        pieces_of(told((-1, 3)), (), FILE, 30.0)


END = {
    "t": "done",
    "samples": FILE,
    "format": "wav/pcm_16",
    "speech_s": 30,
    "decode_s": 0.5,
    "fetch_s": 0.0,
    **{"pieces": told((60, 5))["pieces"]},
}


def test_the_end_has_all_pieces() -> None:
    """Those that were told early stand before those that come with the end."""
    done = done_of(END, "/spool", BEFORE, FILE, 30.0)
    pieces = (*BEFORE, Piece(60 * SECOND, 5 * SECOND))
    assert done == MediaDone("/spool", 100.0, pieces, 30.0, 0.5, 0.0, "wav/pcm_16")


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": FILE - 1},
        {"samples": None},
        {"format": 5},
        {"speech_s": float("nan")},
        {"decode_s": -1.0},
        {"fetch_s": "soon"},
        {"pieces": told((0, 5))["pieces"]},
        {"t": "error"},
    ],
    ids=str,
)
def test_an_end_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """Another length than the file has, times that are none, pieces that were told, an error without a name."""
    with pytest.raises(WrongAnswer):
        done_of({**END, **wrong}, "/spool", BEFORE, FILE, 30.0)


def test_an_error_is_raised_as_it_was_told() -> None:
    """Its code, its words, and whether it may pass."""
    frame = {"t": "error", "code": "corrupt_audio", "message": "no", "retryable": False}
    with pytest.raises(MediaError) as caught:
        done_of(frame, "/spool", BEFORE, 0, 30.0)
    assert (caught.value.code, caught.value.message, caught.value.retryable) == ("corrupt_audio", "no", False)
