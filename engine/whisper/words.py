"""Words out of tokens, and the times they may have: pure decisions, no MLX.

The rules are those of Whisper's ``timing.py`` and ``tokenizer.py``.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from engine.protocol import Segment, Word

PREPENDED = "\"'“¿([{-"
"""Punctuation that belongs to the word behind it."""
APPENDED = "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the word before it."""
SENTENCE_ENDS = ".。!！?？"

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages written without spaces between words: there each character is one."""

FAR_S = 0.5
"""How far a word may reach beyond its segment's own timestamps."""

MAX_MEDIAN_S = 0.7
"""A median word longer than this says that the clip has few words, not that it is slow."""


class Decoder(Protocol):
    """The part of a tokenizer that words need."""

    def decode(self, tokens: list[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A word, with the punctuation beside it, and how many tokens it has."""

    text: str
    """With the blank before it, as the tokens say it."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Timed:
    """A word and its time, seconds."""

    piece: Piece
    start: float
    end: float
    probability: float


def split_words(tokens: Sequence[int], tokenizer: Decoder, language: str) -> list[Piece]:
    """Cut text tokens into words; their texts joined are the tokens' text.

    :param tokens: text tokens alone.
    """
    characters = _characters(tokens, tokenizer)
    if language in UNSPACED:
        return characters
    words: list[Piece] = []
    for part in characters:
        begins = part.text.startswith(" ") or part.text.strip() in string.punctuation
        if begins or not words:
            words.append(part)
        else:
            words[-1] = Piece(words[-1].text + part.text, words[-1].tokens + part.tokens)
    return words


def _characters(tokens: Sequence[int], tokenizer: Decoder) -> list[Piece]:
    """The least runs of tokens that are whole characters: a character may take up to four."""
    whole = tokenizer.decode(list(tokens))
    parts: list[Piece] = []
    current: list[int] = []
    at = 0
    for token in tokens:
        current.append(token)
        text = tokenizer.decode(current)
        broken = text.find("\ufffd")
        # The replacement character may be meant.
        if broken < 0 or whole[at + broken : at + broken + 1] == "\ufffd":
            parts.append(Piece(text, len(current)))
            current = []
            at += len(text)
    if current:
        parts.append(Piece(tokenizer.decode(current), len(current)))
    return parts


def timed(pieces: Sequence[Piece], times: Sequence[float], probabilities: Sequence[float]) -> list[Timed]:
    """Give words the times of their tokens.

    :param times: seconds, one for each token and one for the end, rising.
    :param probabilities: one for each token; a word's is their mean.
    """
    found = []
    at = 0
    for piece in pieces:
        stop = at + piece.tokens
        mean = sum(probabilities[at:stop]) / max(1, piece.tokens)
        found.append(Timed(piece, float(times[at]), float(times[stop]), min(1.0, max(0.0, mean))))
        at = stop
    return found


def median_length(words: Sequence[Timed]) -> float:
    """Seconds of the word in the middle, at most :data:`MAX_MEDIAN_S`; 0 where no word has any length."""
    lengths = [word.end - word.start for word in words if word.end > word.start]
    return min(MAX_MEDIAN_S, median(lengths)) if lengths else 0.0


def restrained(words: Sequence[Timed], typical_s: float) -> list[Timed]:
    """Words at the ends of sentences, none longer than twice the median: the pause there belongs to nobody."""
    longest = 2 * typical_s
    kept = list(words)
    for i in range(1, len(kept)):
        word = kept[i]
        if word.end - word.start <= longest:
            continue
        if _ends_sentence(word):
            kept[i] = replace(word, end=word.start + longest)
        elif _ends_sentence(kept[i - 1]):
            kept[i] = replace(word, start=word.end - longest)
    return kept


def trimmed(words: Sequence[Timed], segment: Segment, spoken_until: float, typical_s: float) -> list[Timed]:
    """Words of one segment, of which the first and the last give back the silence that they took in.

    :param spoken_until: where the segment before ended.
    """
    kept = list(words)
    if not kept:
        return kept
    longest = 2 * typical_s
    first = kept[0]
    long_start = len(kept) > 1 and kept[1].end - first.start > 2 * longest
    if first.end - spoken_until > 4 * typical_s and (first.end - first.start > longest or long_start):
        if len(kept) > 1 and kept[1].end - kept[1].start > longest:
            boundary = max(kept[1].end / 2, kept[1].end - longest)
            first, kept[1] = replace(first, end=boundary), replace(kept[1], start=boundary)
        first = replace(first, start=max(0.0, first.end - longest))
    # The model's own timestamp is nearer to the truth than a word that begins long before it, or ends long after.
    if first.start + FAR_S < segment.start < first.end:
        first = replace(first, start=max(0.0, min(first.end - typical_s, segment.start)))
    kept[0] = first
    last = kept[-1]
    if last.start < segment.end < last.end - FAR_S:
        kept[-1] = replace(last, end=max(last.start + typical_s, segment.end))
    return kept


def _ends_sentence(word: Timed) -> bool:
    text = word.piece.text.strip()
    return bool(text) and text in SENTENCE_ENDS


def merged(words: Sequence[Timed]) -> list[Timed]:
    """Punctuation marks joined to the words that they belong to. No token is lost, and no time either."""
    forward: list[Timed] = []
    for word in reversed(words):
        mark = word.piece.text
        if forward and mark.startswith(" ") and mark.strip() in PREPENDED and mark.strip():
            forward[-1] = replace(forward[-1], piece=_joined(word.piece, forward[-1].piece))
        else:
            forward.append(word)
    found: list[Timed] = []
    for word in reversed(forward):
        mark = word.piece.text
        if found and mark in APPENDED and mark and not found[-1].piece.text.endswith(" "):
            found[-1] = replace(found[-1], piece=_joined(found[-1].piece, word.piece))
        else:
            found.append(word)
    return found


def _joined(first: Piece, second: Piece) -> Piece:
    return Piece(first.text + second.text, first.tokens + second.tokens)


def clamped(words: Iterable[Word], not_before: float, not_after: float) -> tuple[Word, ...]:
    """Words whose times rise and lie between two moments."""
    kept = []
    for word in words:
        start = min(max(word.start, not_before), not_after)
        end = min(max(word.end, start), not_after)
        not_before = end
        kept.append(Word(start, end, word.text, word.probability))
    return tuple(kept)


def with_words(
    segments: Sequence[Segment],
    pieces: Sequence[Sequence[Piece]],
    times: Sequence[float],
    probabilities: Sequence[float],
    length_s: float,
) -> tuple[Segment, ...]:
    """Segments with their words, whose times become the segments' own.

    :param pieces: the words of each segment, before punctuation is joined.
    :param times: seconds, one for each text token of all segments, and one for the end; rising.
    :param probabilities: one for each of these tokens.
    """
    flat = timed([piece for part in pieces for piece in part], times, probabilities)
    typical = median_length(flat)
    flat = restrained(flat, typical)
    found = []
    at, clock = 0, 0.0
    for segment, part in zip(segments, pieces, strict=True):
        spoken = [word for word in merged(flat[at : at + len(part)]) if word.piece.text.strip()]
        at += len(part)
        plain = [
            Word(w.start, w.end, w.piece.text, w.probability)
            for w in trimmed(spoken, segment, clock, typical)
        ]
        words = clamped(plain, clock, length_s)
        if words:
            clock = words[-1].end
            found.append(replace(segment, start=words[0].start, end=clock, words=words))
        else:
            found.append(segment)
    return tuple(found)
