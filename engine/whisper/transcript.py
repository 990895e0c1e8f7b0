"""From the tokens of one decode to segments, and to the audio that they leave uncovered."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from engine.protocol import Segment
from engine.whisper.tokenizer import TIMESTAMP_STEP_S, Tokenizer

TAIL_S = 1.0
"""Audio that may stay uncovered at the end of a chunk: no sentence is shorter."""


ECHO_WORDS = 4
"""Words that a second is long enough for."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a decode says."""

    segments: tuple[Segment, ...]
    """Times in seconds from the first decoded sample; texts with the blanks around them."""
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

    def seconds(token: int) -> float:
        return (token - begin) * TIMESTAMP_STEP_S

    if not cuts:
        times = [seconds(token) for token in tokens if token >= begin]
        end = times[-1] if len(times) > 1 and closed_once else length_s
        text = tokenizer.decode(list(tokens))
        whole = _segments([(times[0] if times else 0.0, end, text)], length_s)
        return Reading(whole, end if closed_once else length_s, silent_tail=closed_once)
    bounds = [0, *cuts, *([len(tokens)] if closed_once else [])]
    pieces = []
    for start, stop in itertools.pairwise(bounds):
        part = list(tokens[start:stop])
        pieces.append((seconds(part[0]), seconds(part[-1]), tokenizer.decode(part)))
    covered = pieces[-1][1]
    rest = list(tokens[bounds[-1] :])
    text = tokenizer.decode(rest)
    if text.strip() and covered >= length_s - TAIL_S:
        # Too little is left to be decoded again, and what was said there has been understood.
        pieces.append((covered, length_s, text))
        covered = length_s
    return Reading(_segments(pieces, length_s), covered, silent_tail=closed_once)


def _segments(pieces: list[tuple[float, float, str]], length_s: float) -> tuple[Segment, ...]:
    """Drop what is empty or was heard in the silence behind the audio; clamp the rest."""
    kept = []
    for start, end, text in pieces:
        if not text.strip() or start >= length_s + TAIL_S:
            continue
        clamped = min(start, length_s)
        kept.append(Segment(clamped, min(max(clamped, end), length_s), text))
    return tuple(kept)


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
    kept = (Segment(first.start, first.end, f" {left}"),) if _bare(left) else ()
    return (*kept, *segments[1:])


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
        moved.append(Segment(start, end, segment.text))
    return moved
