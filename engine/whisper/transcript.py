"""From the tokens of one decode to segments, and to the audio that they leave uncovered."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.protocol import Segment, Word
from engine.whisper.tokenizer import TIMESTAMP_STEP_S, Tokenizer
from engine.whisper.words import clamped

TAIL_S = 1.0
"""Audio that may stay uncovered at the end of a chunk: no sentence is shorter."""


ECHO_WORDS = 4
"""Words that a second is long enough for."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a decode says."""

    segments: tuple[Segment, ...]
    """Times in seconds from the first decoded sample; texts with the blanks around them."""
    positions: tuple[tuple[int, ...], ...]
    """Where the text tokens of each segment stand in the decode."""
    covered_s: float
    """Where the next decode has to start, or the whole length."""
    silent_tail: bool
    """The decode holds that nothing is said after the last segment."""


def read_tokens(tokens: Sequence[int], tokenizer: Tokenizer, length_s: float) -> Reading:
    """Cut tokens at pairs of timestamps (Whisper's ``transcribe.py``, the loop over ``seek``).

    :param tokens: without prompt, start and end token.
    :param length_s: seconds of audio that were decoded.
    """
    begin = tokenizer.timestamp_begin
    is_time = [token >= begin for token in tokens]
    cuts = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]
    closed_once = len(tokens) > 1 and is_time[-1] and not is_time[-2]

    def piece(start: float, end: float, first: int, stop: int) -> _Piece:
        return _Piece(start, end, tuple(i for i in range(first, stop) if tokens[i] < tokenizer.eot))

    def seconds(token: int) -> float:
        return (token - begin) * TIMESTAMP_STEP_S

    if not cuts:
        times = [seconds(token) for token in tokens if token >= begin]
        end = times[-1] if len(times) > 1 and closed_once else length_s
        whole = [piece(times[0] if times else 0.0, end, 0, len(tokens))]
        covered = end if closed_once else length_s
        return _reading(whole, tokens, tokenizer, length_s, covered, closed_once)
    bounds = [0, *cuts, *([len(tokens)] if closed_once else [])]
    pieces = [
        piece(seconds(tokens[start]), seconds(tokens[stop - 1]), start, stop)
        for start, stop in itertools.pairwise(bounds)
    ]
    covered = pieces[-1].end
    rest = piece(covered, length_s, bounds[-1], len(tokens))
    if covered >= length_s - TAIL_S and tokenizer.decode(list(tokens[bounds[-1] :])).strip():
        # Too little is left to be decoded again, and what was said there has been understood.
        pieces.append(rest)
        covered = length_s
    return _reading(pieces, tokens, tokenizer, length_s, covered, closed_once)


@dataclass(frozen=True, slots=True)
class _Piece:
    start: float
    end: float
    positions: tuple[int, ...]


def _reading(  # noqa: PLR0917
    pieces: Sequence[_Piece],
    tokens: Sequence[int],
    tokenizer: Tokenizer,
    length_s: float,
    covered_s: float,
    silent_tail: bool,
) -> Reading:
    """Drop what is empty or was heard in the silence behind the audio; clamp the rest."""
    segments, positions = [], []
    for piece in pieces:
        text = tokenizer.decode([tokens[i] for i in piece.positions])
        if not text.strip() or piece.start >= length_s + TAIL_S:
            continue
        begin = min(piece.start, length_s)
        segments.append(Segment(begin, min(max(begin, piece.end), length_s), text))
        positions.append(piece.positions)
    return Reading(tuple(segments), tuple(positions), covered_s, silent_tail)


def read_untimed(tokens: Sequence[int], tokenizer: Tokenizer, length_s: float) -> Reading:
    """The same for a decode without timestamps: one segment as long as the audio, if anything was said."""
    whole = _Piece(0.0, length_s, tuple(i for i, token in enumerate(tokens) if token < tokenizer.eot))
    return _reading([whole], tokens, tokenizer, length_s, length_s, silent_tail=False)


def without_echo(before: str, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Segments without the words at their beginning with which *before* has just ended.

    Small models round their timestamps to whole seconds, so that a decode of what lies behind the last one may hear
    the end of its last word, or words, again.
    """
    if not segments:
        return ()
    said = [_bare(word) for word in before.split()]
    words = segments[0].text.split()
    again = [_bare(word) for word in words]
    longest = min(len(said), len(again), ECHO_WORDS)
    echo = next((n for n in range(longest, 0, -1) if said[-n:] == again[:n]), 0)
    if not echo:
        return tuple(segments)
    left = " ".join(words[echo:])
    first = segments[0]
    if not _bare(left):
        return tuple(segments[1:])
    heard = _without(first.words, echo)
    start = heard[0].start if heard else first.start
    return (Segment(start, first.end, f" {left}", heard), *segments[1:])


def _without(words: tuple[Word, ...], count: int) -> tuple[Word, ...]:
    """Words behind the first *count* ones of their text."""
    for index, word in enumerate(words):
        if count <= 0:
            return words[index:]
        count -= len(word.text.split())
    return ()


def _bare(word: str) -> str:
    """A word as it is compared: lower case, letters and digits alone."""
    return "".join(c for c in word.casefold() if c.isalnum())


def shifted(
    segments: Sequence[Segment], offset_s: float, not_before: float, length_s: float
) -> list[Segment]:
    """Segments moved by *offset_s*, none of them before *not_before* or after *length_s*."""
    moved = []
    for segment in segments:
        start = min(max(segment.start + offset_s, not_before), length_s)
        end = min(max(segment.end + offset_s, start), length_s)
        not_before = end
        words = (replace(w, start=w.start + offset_s, end=w.end + offset_s) for w in segment.words)
        moved.append(Segment(start, end, segment.text, clamped(words, start, end)))
    return moved


def stripped(segment: Segment) -> Segment:
    """A segment without the blanks around its text, nor before its first word."""
    words = segment.words
    if words:
        words = (replace(words[0], text=words[0].text.lstrip()), *words[1:])
    return replace(segment, text=segment.text.strip(), words=words)
