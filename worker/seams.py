"""Two neighbours that heard the same seconds of speech: which words of each to keep. Pure.

Where speech goes on without a pause, pieces overlap (:mod:`worker.media.cut`), so that no word is cut in two
for both of them. What the two say of the overlap is compared, and the text passes from one to the other within the
longest run of words that both heard (as NVIDIA NeMo's and Hugging Face's chunked recognizers join text; here
times decide between equals). Where they agree on nothing, it passes at the middle of the overlap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MEASURED_SLACK_S = 0.3
"""How far two times of one word may lie apart where a model measured them."""
ESTIMATED_SLACK_S = 1.5
"""The same where words were spread evenly over their segment."""
ALONE_S = 0.5
"""How far apart a single word may lie that is all that both sides agree on: one word in common may be chance."""

_UNBROKEN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese write no blanks between words: each letter counts as one."""
_UNIT = re.compile(rf"\s*(?:[{_UNBROKEN}][^\s\w]*|[^\s{_UNBROKEN}]+)")


@dataclass(frozen=True, slots=True)
class Word:
    """A word with the blanks before it, and seconds of the recording."""

    text: str
    start: float
    end: float

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2

    @property
    def key(self) -> str:
        """As it is compared: letters and digits alone, without case."""
        return "".join(letter for letter in self.text.casefold() if letter.isalnum())


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds of the recording that both pieces hold."""

    begin: float
    end: float

    @property
    def middle(self) -> float:
        return (self.begin + self.end) / 2


@dataclass(frozen=True, slots=True)
class _Run:
    """Words that both sides have one after another, from *left* and *right* on."""

    left: int
    right: int
    length: int
    apart: float
    """Mean seconds between the two times of a word."""


def spread(text: str, start: float, end: float) -> list[Word]:
    """The words of a segment, spread over its time by their letters. Their texts together are *text* without the
    blanks at its end."""
    units = _UNIT.findall(text)
    letters = sum(map(len, units))
    words, at = [], 0
    for unit in units:
        begin, at = at, at + len(unit)
        words.append(
            Word(unit, start + (end - start) * begin / letters, start + (end - start) * at / letters)
        )
    return words


def meet(
    left: Sequence[Word], right: Sequence[Word], overlap: Overlap, *, slack_s: float = ESTIMATED_SLACK_S
) -> tuple[int, int]:
    """How many of the left words are kept, and from which of the right ones the text goes on.

    Where both sides heard the same words in the overlap, each of these is kept once. A word at the edge of a
    piece, which that piece alone heard otherwise, gives way to what the other one heard.

    :param left: all words of the earlier piece, in order.
    :param slack_s: how wrong a time may be.
    """
    run = _longest(_runs(left, right, overlap, slack_s), slack_s)
    if run is None:
        return _part(left, right, overlap)
    # The last word of a piece is the one that may be cut short, or be given a full stop that is none.
    taken = run.length - 1 if run.left + run.length == len(left) and run.length > 1 else run.length
    return run.left + taken, run.right + taken


def _runs(left: Sequence[Word], right: Sequence[Word], overlap: Overlap, slack_s: float) -> Iterator[_Run]:
    """Every run that no word before or behind it prolongs, among the words that may lie in the overlap."""
    first = next((i for i, word in enumerate(left) if word.end > overlap.begin - slack_s), len(left))
    last = next((j for j, word in enumerate(right) if word.start >= overlap.end + slack_s), len(right))
    keys = [word.key for word in left], [word.key for word in right]

    def same(i: int, j: int) -> bool:
        if not (first <= i < len(left) and 0 <= j < last and keys[0][i]):
            return False
        return keys[0][i] == keys[1][j] and abs(left[i].middle - right[j].middle) <= slack_s

    for i in range(first, len(left)):
        for j in range(last):
            if not same(i, j) or same(i - 1, j - 1):
                continue
            length = 1
            while same(i + length, j + length):
                length += 1
            apart = sum(abs(left[i + n].middle - right[j + n].middle) for n in range(length)) / length
            yield _Run(i, j, length, apart)


def _longest(runs: Iterator[_Run], slack_s: float) -> _Run | None:
    """The longest, less what its times lie apart: of words that repeat themselves, those said at the same time."""
    sound = [run for run in runs if run.length > 1 or run.apart <= ALONE_S]
    return max(
        sound, key=lambda run: (run.length * (1 - run.apart / (2 * slack_s)), -run.apart), default=None
    )


def _part(left: Sequence[Word], right: Sequence[Word], overlap: Overlap) -> tuple[int, int]:
    """Pass at the middle; but where one side is silent there, keep what the other one says.

    A word across it that each side heard otherwise is the right one's: neither is lost nor both kept.
    """
    at = overlap.middle
    if left and left[-1].end < at:
        at = left[-1].end
    elif right and right[0].start > at:
        at = right[0].start
    kept = sum(1 for word in left if word.middle < at)
    return kept, sum(1 for word in right if word.end <= at)
