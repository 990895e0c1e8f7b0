"""How the next tokens of one row are chosen: along one line, several sampled ones, or a beam. No MLX.

A search owns the lines of one row of audio. In the running batch each line is a row of the decoder's caches; after
every step the search names the line that each of its lines goes on from, and the caches are reordered to match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.whisper import rules

MAX_BEAM = 16
MAX_BEST_OF = 16
"""Lines that one row may have: each takes a row of the decoder's batch."""


@dataclass(frozen=True, slots=True)
class Line:
    """Tokens so far, without prompt, start and end."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Of each token, and of the end where it has come."""
    total: float = 0.0
    """Their sum."""
    ended: bool = False
    looped: bool = False

    @property
    def score(self) -> float:
        """Mean log-probability, the end counted as a token: what lines are ranked by (Whisper's default)."""
        return self.total / (len(self.tokens) + 1)

    def longer(self, choice: rules.Choice, end: int) -> Line:
        """The line after another token, which may be the *end* token."""
        logprobs = (*self.logprobs, choice.logprob)
        total = self.total + choice.logprob
        if choice.token == end:
            return Line(self.tokens, logprobs, total, ended=True)
        tokens = (*self.tokens, choice.token)
        return Line(tokens, logprobs, total, looped=rules.is_loop(tokens))


class Search(Protocol):
    """The lines of one row."""

    @property
    def lines(self) -> Sequence[Line]:
        """Those that go on, in the order of their rows in the batch."""

    def advance(self, logits: rules.FloatArray) -> tuple[int, ...]:
        """Choose the next tokens.

        :param logits: shape (lines, vocabulary); overwritten. One line where the search has just begun.
        :returns: for each line that goes on, the index of the one it comes from; empty when the search is over.
        :raises NumericFailure: not a number among the logits.
        """

    def best(self) -> Line:
        """The likeliest line so far; when the search is over, its result."""


class Sampling:
    """Lines that never meet: one at temperature 0, or several drawn at a temperature above it.

    :param generators: one for each line, or None at temperature 0.
    :param cap: most tokens of a line.
    """

    def __init__(
        self,
        choose: rules.LogitRules,
        *,
        timestamps: bool,
        temperature: float,
        generators: Sequence[np.random.Generator | None],
        cap: int,
        end: int,
    ) -> None:
        self._rules = choose
        self._timestamps = timestamps
        self._temperature = temperature
        self._generators = list(generators)
        self._cap = cap
        self._end = end
        self._begun = False
        self._over: list[Line] = []
        self.lines: list[Line] = [Line()]

    def advance(self, logits: rules.FloatArray) -> tuple[int, ...]:
        """See :class:`Search`. Every line is drawn with a generator of its own."""
        count = len(self.lines) if self._begun else len(self._generators)
        going: list[Line] = []
        parents: list[int] = []
        kept = []
        for index in range(count):
            parent = index if self._begun else 0
            before = self.lines[parent]
            choice = self._rules.choose(
                # Choosing overwrites, and at the first step the lines share their logits.
                logits[parent] if index == count - 1 or self._begun else logits[parent].copy(),
                before.tokens,
                timestamps=self._timestamps,
                temperature=self._temperature,
                generator=self._generators[index],
            )
            line = before.longer(choice, self._end)
            if line.ended or line.looped or len(line.tokens) >= self._cap:
                self._over.append(line)
                continue
            going.append(line)
            parents.append(parent)
            kept.append(self._generators[index])
        self._begun = True
        self.lines, self._generators = going, kept
        return tuple(parents)

    def best(self) -> Line:
        """See :class:`Search`."""
        return _likeliest([*self._over, *self.lines])


class Beam:
    """The *width* likeliest lines at every step (Whisper's ``BeamSearchDecoder``, patience 1).

    It is over when as many lines have ended as it is wide.

    :param cap: most tokens of a line.
    """

    def __init__(self, choose: rules.LogitRules, *, width: int, timestamps: bool, cap: int, end: int) -> None:
        self._rules = choose
        self._width = width
        self._timestamps = timestamps
        self._cap = cap
        self._end = end
        self._over: list[Line] = []
        self._loops: list[Line] = []
        self.lines: list[Line] = [Line()]

    def advance(self, logits: rules.FloatArray) -> tuple[int, ...]:
        """See :class:`Search`. Of equal candidates the one of the earlier line goes first."""
        candidates = [
            (parent, line.longer(choice, self._end))
            for parent, line in enumerate(self.lines)
            for choice in self._rules.candidates(
                logits[parent], line.tokens, timestamps=self._timestamps, count=self._width + 1
            )
        ]
        candidates.sort(key=lambda candidate: -candidate[1].total)
        going: list[tuple[int, Line]] = []
        for parent, line in candidates:
            if len(going) == self._width:
                break
            if line.ended:
                self._over.append(line)
            elif line.looped:
                self._loops.append(line)
            else:
                going.append((parent, line))
        self.lines = [line for _, line in going]
        over = len(self._over) >= self._width or not going or len(going[0][1].tokens) >= self._cap
        return () if over else tuple(parent for parent, _ in going)

    def best(self) -> Line:
        """See :class:`Search`. A line that has not ended counts only where too few have."""
        ended = sorted(self._over, key=lambda line: -line.score)[: self._width]
        if len(ended) < self._width:
            ended += sorted(self.lines, key=lambda line: -line.total)[: self._width - len(ended)]
        return _likeliest(ended or self._loops)


def _likeliest(lines: Sequence[Line]) -> Line:
    """Of sound lines if there are any; a loop is likely, and never right."""
    sound = [line for line in lines if not line.looped]
    return max(sound or lines, key=lambda line: line.score)
