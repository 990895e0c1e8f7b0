"""What a media process says of its job, checked: a decoder that hostile bytes took over may say anything."""

from __future__ import annotations

import math
from collections.abc import Sequence

from worker.media.frames import Frame
from worker.media.types import SAMPLE_RATE, MediaDone, MediaError, Piece

SHORTEST = 512
"""Samples. A piece holds more than two frames of the detector; so there can only be so many in a file."""


class WrongAnswer(Exception):
    """A frame that no honest process sends. The text says no more than what is wrong with it."""


def pieces_of(frame: Frame, before: Sequence[Piece], samples: int, max_chunk_s: float) -> tuple[Piece, ...]:
    """The pieces that a frame adds to those `before`. Raises WrongAnswer.

    They lie in a file of `samples` samples, are no longer than `max_chunk_s`, and neither start nor end before an
    earlier one does. Two may overlap, three may not.
    """
    told = frame.get("pieces")
    if not isinstance(told, list):
        raise WrongAnswer("no list of pieces")
    known = list(before[-2:])
    for pair in told:
        match pair:
            case [int(offset), int(length)]:
                piece = Piece(offset, length)
            case _:
                raise WrongAnswer("a piece that is no pair of numbers")
        if not SHORTEST <= piece.samples <= max_chunk_s * SAMPLE_RATE:
            raise WrongAnswer("a piece that is too short or too long")
        if piece.offset < 0 or piece.end > samples:
            raise WrongAnswer("a piece outside of the file")
        if known and not (known[-1].offset < piece.offset and known[-1].end <= piece.end):
            raise WrongAnswer("pieces out of order")
        if len(known) > 1 and piece.offset < known[-2].end:
            raise WrongAnswer("three pieces at one moment")
        known.append(piece)
    return tuple(known[len(before[-2:]) :])


def done_of(frame: Frame, spool: str, early: Sequence[Piece], samples: int, max_chunk_s: float) -> MediaDone:
    """The end of a job, whose file has `samples` samples and of which the pieces in `early` are known. Raises
    MediaError where it failed, and WrongAnswer."""
    match frame:
        case {"t": "error", "code": str(code), "message": str(message), "retryable": bool(retryable)}:
            raise MediaError(code, message, retryable=retryable)
        case {"t": "done", "samples": int(stated), "format": str(name)} if stated == samples:
            return MediaDone(
                spool=spool,
                duration_s=samples / SAMPLE_RATE,
                pieces=(*early, *pieces_of(frame, early, samples, max_chunk_s)),
                speech_s=_seconds(frame, "speech_s"),
                decode_s=_seconds(frame, "decode_s"),
                fetch_s=_seconds(frame, "fetch_s"),
                format=name,
            )
        case _:
            raise WrongAnswer("an end that is none")


def _seconds(frame: Frame, name: str) -> float:
    told = frame.get(name)
    if not isinstance(told, int | float) or not math.isfinite(told) or told < 0:
        raise WrongAnswer(f"{name} is no time")
    return float(told)
