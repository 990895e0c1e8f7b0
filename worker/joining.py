"""The chunks of a job, put back together: pure, ordered, nothing lost and nothing doubled at the seams."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence

from engine import protocol
from engine.protocol import SAMPLE_RATE, ChunkDone
from engine.protocol import Word as SpokenWord
from queueing.job import Segment, Word
from worker import seams
from worker.media.types import Piece
from worker.seams import ESTIMATED_SLACK_S, MEASURED_SLACK_S, Overlap


def without_overlaps(pieces: Sequence[Piece], results: Sequence[ChunkDone]) -> list[ChunkDone]:
    """Results in which what two pieces heard twice, because they overlap, stands once.

    Raises:
        ValueError: not one result for each piece.
    """
    if len(pieces) != len(results):
        raise ValueError(f"{len(results)} results for {len(pieces)} pieces")
    resolved = list(results)
    for at, (before, after) in enumerate(itertools.pairwise(pieces)):
        if before.end > after.offset:
            overlap = Overlap(after.offset / SAMPLE_RATE, before.end / SAMPLE_RATE)
            measured = _measured(resolved[at]) and _measured(resolved[at + 1])
            left, right = _heard(before, resolved[at]), _heard(after, resolved[at + 1])
            slack_s = MEASURED_SLACK_S if measured else ESTIMATED_SLACK_S
            kept, onwards = seams.meet(_flat(left), _flat(right), overlap, slack_s=slack_s)
            resolved[at] = _shortened(resolved[at], left, 0, kept)
            resolved[at + 1] = _shortened(resolved[at + 1], right, onwards, None)
    return resolved


def _measured(result: ChunkDone) -> bool:
    """Whether a model told the time of each word."""
    return all(one.words for one in result.segments if one.text.strip()) and bool(result.segments)


def _heard(piece: Piece, result: ChunkDone) -> list[list[seams.Word]]:
    """The words of each segment, in seconds of the recording."""
    begin = piece.offset / SAMPLE_RATE
    if _measured(result):
        return [
            [seams.Word(word.text, begin + word.start, begin + word.end) for word in one.words]
            for one in result.segments
        ]
    return [
        seams.spread(one.text.strip(), begin + one.start, begin + one.end)
        for one in result.segments or (protocol.Segment(0.0, piece.duration_s, result.text),)
    ]


def _flat(segments: Sequence[Sequence[seams.Word]]) -> list[seams.Word]:
    return [word for words in segments for word in words]


def _shortened(
    result: ChunkDone, segments: Sequence[Sequence[seams.Word]], first: int, stop: int | None
) -> ChunkDone:
    """The result with words *first* to *stop* of all alone. A segment that loses words lasts as long as the rest."""
    count = len(_flat(segments))
    stop = count if stop is None else stop
    if (first, stop) == (0, count):
        return result
    kept, texts, at = [], [], 0
    for number, words in enumerate(segments):
        part = slice(max(0, first - at), max(0, stop - at))
        rest = words[part]
        at += len(words)
        text = "".join(word.text for word in rest).strip()
        if not text:
            continue
        texts.append(text)
        if result.segments:
            one = result.segments[number]
            lasts = one.end - one.start
            whole = words[-1].end - words[0].start
            share = lasts / whole if whole > 0 else 0.0
            start = one.start + (rest[0].start - words[0].start) * share
            end = one.end - (words[-1].end - rest[-1].end) * share
            timed = one.words[part] if len(one.words) == len(words) else ()
            kept.append(dataclasses.replace(one, start=start, end=end, text=text, words=timed))
    return dataclasses.replace(result, text=" ".join(texts), segments=tuple(kept))


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
