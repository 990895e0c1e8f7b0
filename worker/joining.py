"""The chunks of a job, put back together: pure, ordered, nothing lost and nothing doubled at the seams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.protocol import SAMPLE_RATE, ChunkDone
from engine.protocol import Word as SpokenWord
from queueing.job import Segment, Word
from worker.media.types import Piece


def join_segments(
    pieces: Sequence[Piece], results: Sequence[ChunkDone], duration_s: float
) -> tuple[Segment, ...]:
    """Segments of the whole recording, from those of its pieces.

    Times rise and lie within the piece, and so within the recording: a segment starts no earlier than the one before
    it has ended, and ends no earlier than it starts.

    Raises:
        ValueError: not one result for each piece.
    """
    if len(pieces) != len(results):
        raise ValueError(f"{len(results)} results for {len(pieces)} pieces")
    joined: list[Segment] = []
    clock = 0.0
    for piece, result in zip(pieces, results, strict=True):
        begin = piece.offset / SAMPLE_RATE
        end_of_piece = min(duration_s, begin + piece.samples / SAMPLE_RATE)
        for segment in result.segments:
            text = segment.text.strip()
            if not text:
                continue
            start = min(max(begin + segment.start, clock), end_of_piece)
            end = min(max(begin + segment.end, start), end_of_piece)
            words = _words(segment.words, begin, round(start, 3), round(end, 3))
            joined.append(Segment(start=round(start, 3), end=round(end, 3), text=text, words=words))
            clock = end
    return tuple(joined)


def _words(words: Sequence[SpokenWord], shift_s: float, start: float, end: float) -> tuple[Word, ...] | None:
    """Words moved to the recording's time, within their segment and rising; None where there are none."""
    moved = []
    for word in words:
        begin = min(max(round(shift_s + word.start, 3), start), end)
        start = min(max(round(shift_s + word.end, 3), begin), end)
        told = None if word.probability is None else round(word.probability, 4)
        moved.append(Word(start=begin, end=start, text=word.text, probability=told))
    return tuple(moved) or None


def join_text(results: Sequence[ChunkDone]) -> str:
    """The texts of the pieces, in order, one space between."""
    return " ".join(text for result in results if (text := result.text.strip()))


def main_language(results: Sequence[ChunkDone], pieces: Sequence[Piece]) -> str | None:
    """The language of most of the speech, by samples; None where there is none."""
    weight: Counter[str] = Counter()
    for piece, result in zip(pieces, results, strict=True):
        if result.text.strip():
            weight[result.language] += piece.samples
    return weight.most_common(1)[0][0] if weight else None
