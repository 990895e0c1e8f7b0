"""Which token may come next, and how likely it is (Whisper paper, section 4.5, and Whisper's ``decoding.py``)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.whisper.tokenizer import TIMESTAMP_STEP_S, Tokenizer

FloatArray = npt.NDArray[np.float32]

MAX_INITIAL_TIMESTAMP_S = 1.0
"""Latest first timestamp (Whisper's ``max_initial_timestamp``)."""


class NumericFailure(ArithmeticError):
    """The network gave something that is not a number."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token and its log-probability among those allowed."""

    token: int
    logprob: float


class LogitRules:
    """Whisper's rules for one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._suppressed = np.array(tokenizer.suppressed)
        self._blank = np.array(tokenizer.blank)
        self._last_initial = tokenizer.timestamp_begin + round(MAX_INITIAL_TIMESTAMP_S / TIMESTAMP_STEP_S)

    def choose(
        self,
        logits: FloatArray,
        tokens: Sequence[int],
        *,
        timestamps: bool,
        temperature: float,
        generator: np.random.Generator | None,
    ) -> Choice:
        """The next token of one row.

        :param logits: shape (vocabulary,); overwritten.
        :param tokens: what the row has given so far, without prompt and start.
        :param generator: draws where *temperature* is above 0.
        :raises NumericFailure: not a number among the logits.
        """
        allowed, first = self._allowed(logits, tokens, timestamps)
        return _pick(allowed, first, temperature, generator)

    def candidates(
        self, logits: FloatArray, tokens: Sequence[int], *, timestamps: bool, count: int
    ) -> list[Choice]:
        """The likeliest next tokens of one row, at most *count*, the likeliest first; see :meth:`choose`.

        Tokens that may not come are none of them, so that there may be fewer.
        """
        allowed, first = self._allowed(logits, tokens, timestamps)
        total = _logsumexp(allowed)
        count = min(count, len(allowed))
        best = np.argpartition(allowed, len(allowed) - count)[len(allowed) - count :]
        # Equal ones in the order of their tokens, as argmax has it.
        best = best[np.lexsort((best, -allowed[best]))]
        return [Choice(first + int(i), float(allowed[i]) - total) for i in best if allowed[i] > -np.inf]

    def _allowed(self, logits: FloatArray, tokens: Sequence[int], timestamps: bool) -> tuple[FloatArray, int]:
        """Logits among which the next token is, those that may not come at minus infinity, and the first one's token.

        :raises NumericFailure: not a number among the logits.
        """
        if not np.isfinite(logits.max()):
            raise NumericFailure("the decoder's logits are not finite")
        logits[self._suppressed] = -np.inf
        if not tokens:
            logits[self._blank] = -np.inf
        logits[self._tokenizer.no_timestamps] = -np.inf
        begin = self._tokenizer.timestamp_begin
        if not timestamps:
            logits[begin:] = -np.inf
            return logits, 0
        self._forbid_timestamps(logits, tokens)
        text, times = logits[:begin], logits[begin:]
        # A timestamp comes if all of them together are likelier than any one text token.
        if _logsumexp(times) > text.max():
            return times, begin
        return logits, 0

    def _forbid_timestamps(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        """Timestamps come in pairs, never fall, and open the transcript."""
        begin, eot = self._tokenizer.timestamp_begin, self._tokenizer.eot
        if not tokens:
            logits[:begin] = -np.inf
            logits[self._last_initial + 1 :] = -np.inf
            return
        last_is_time = tokens[-1] >= begin
        before_is_time = len(tokens) < 2 or tokens[-2] >= begin
        if last_is_time and before_is_time:
            logits[begin:] = -np.inf
        elif last_is_time:
            logits[:eot] = -np.inf
        latest = next((token for token in reversed(tokens) if token >= begin), None)
        if latest is not None:
            # A segment lasts longer than nothing; only its successor may start where it ends.
            closing = last_is_time and not before_is_time
            logits[begin : latest if closing else latest + 1] = -np.inf


def _pick(
    logits: FloatArray, first: int, temperature: float, generator: np.random.Generator | None
) -> Choice:
    """Choose among *logits*, whose first is token *first*."""
    total = _logsumexp(logits)
    if temperature == 0 or generator is None:
        index = int(logits.argmax())
    else:
        weights = np.exp((logits - logits.max()) / np.float32(temperature), dtype=np.float64)
        sums = np.cumsum(weights)
        index = min(int(np.searchsorted(sums, generator.random() * sums[-1], side="right")), len(logits) - 1)
    return Choice(first + index, float(logits[index]) - total)


def _logsumexp(logits: FloatArray) -> float:
    peak = float(logits.max())
    if peak == -np.inf:
        return peak
    return peak + float(np.log(np.exp(logits - np.float32(peak)).sum()))


def probability(logits: FloatArray, token: int) -> float:
    """Softmax probability of one token.

    :raises NumericFailure: not a number.
    """
    value = float(np.exp(logits[token] - np.float32(_logsumexp(logits))))
    if not np.isfinite(value):
        raise NumericFailure("a probability is not a number")
    return value


def compression_ratio(text: str) -> float:
    """Bytes of text for each byte of its zlib form: over 2.4 means that it repeats itself."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


MAX_REPEATS = 6
"""Times that a phrase of up to eight tokens may follow itself."""


def is_loop(tokens: Sequence[int]) -> bool:
    """Whether the tokens end in a phrase of 1 to 8 tokens said more than :data:`MAX_REPEATS` times in a row."""
    for width in range(1, 9):
        span = width * (MAX_REPEATS + 1)
        if len(tokens) >= span:
            tail = tokens[-span:]
            if all(tail[i] == tail[i % width] for i in range(width, span)):
                return True
    return False
