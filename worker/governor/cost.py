"""What a batch will need: bytes from rows, frames and tokens, learned from measured peaks.

The peak of a batch is taken for a sum: what MLX may keep in its cache, the activations of the windows that are in the
encoder together, the keys and values that each row's decoder attends to (frames), those of the tokens that it has
written, and its scores over the vocabulary. The model's dimensions tell the size of each; how many times each counts is
a factor that starts with a safe prior and is learned online by a Kalman filter over a slow random walk (Kalman, 1960),
within bounds: no stream of odd peaks may carry it away. So a length bucket that was never seen is predicted from what
its neighbours taught. On top stands the bucket's own mean error, as a share of the prediction, and a quantile of the
errors of late as a margin: as shares or as bytes, whichever is less here, so that what a full batch was off by is not
laid on a single row, nor a hundred times what a row was off by on a full batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.protocol import Shape
from engine.windows import FRAMES_PER_SECOND

MIB = 1 << 20

TOKENS_PER_SECOND = 6.0
"""Of fast speech with timestamps; with a prior of this the cache of a row's own tokens is seldom underrated."""
CACHE_STEP = 64
"""Positions by which the decoder's cache grows."""
PROMPT_TOKENS = 4

TERMS = ("cache", "encoder", "features", "tokens", "scores")
PRIOR = (1.0, 18.0, 1.3, 1.3, 4.0)
"""How many times each term counts before anything was measured. The encoder's 18 covers a layer's input and output,
four projections, the wide layer (4 times), scores over 30 s, and what the evaluation holds beside them; measured on the
host, with windows of 5 s: 15 to 18. The others cover copies while something grows."""
HOST_CACHE = 4 * MIB
"""What MLX keeps at most where NumPy computes: the spectrograms of a few windows."""
PRIOR_STD = (0.5, 6.0, 0.5, 0.5, 2.0)
NOISE_MIB = 6.0
"""Spread of a measured peak around the sum: malloc, and the moment at which a buffer goes."""
WALK = 0.03
"""Share of :data:`PRIOR_STD` by which a factor may wander from one batch to the next."""
BOUNDS = (0.25, 4.0)
"""Of :data:`PRIOR`, between which a factor stays. What they cannot explain is left to the buckets."""
UNKNOWN_SHARE = 0.10
"""Margin, as a share of the prediction, until there are enough errors to take a quantile of."""
ENOUGH = 12
QUANTILE = 0.95
REMEMBERED = 96


@dataclass(frozen=True, slots=True)
class Row:
    """One chunk in the engine, or about to be."""

    window_s: float
    duration_s: float
    lines: int = 1
    """Of a search: each has tokens and scores of its own, all of them one audio."""

    @property
    def frames(self) -> float:
        return self.window_s * FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True)
class Load:
    """What is in the engine together: all rows, and those of them that are still to be encoded."""

    rows: tuple[Row, ...]
    joining: tuple[Row, ...]

    @classmethod
    def alike(cls, count: int, row: Row, running: Sequence[Row] = (), unencoded: Sequence[Row] = ()) -> Load:
        """*count* rows of one kind that join others, of which some have not been encoded yet."""
        joining = (row,) * count
        return cls((*running, *joining), (*unencoded, *joining))

    @property
    def bucket(self) -> float:
        """Longest window, seconds."""
        return max((row.window_s for row in self.rows), default=0.0)


def terms(load: Load, shape: Shape, cache_limit: int) -> tuple[float, ...]:
    """MiB of each of :data:`TERMS`, counted once."""
    item = shape.item_bytes
    frames = sorted((row.frames for row in load.joining), reverse=True)
    longest = max((row.window_s for row in load.joining), default=0.0)
    at_once = windows_at_once(shape, longest, beside=len(load.rows) > len(load.joining))
    both = 2 * shape.n_text_layer * shape.n_text_state * item
    tokens = sum(_cache_positions(row) for row in load.rows)
    sizes = (
        float(min(cache_limit, HOST_CACHE) if shape.windows_at_once else cache_limit),
        sum(frames[:at_once]) * shape.n_text_state * item,
        sum(row.frames for row in load.rows) * both,
        float(tokens * both),
        float(sum(row.lines for row in load.rows) * shape.n_vocab * 4),
    )
    return tuple(size / MIB for size in sizes)


def windows_at_once(shape: Shape, window_s: float, *, beside: bool = False) -> int:
    """Windows of this many seconds that are in the encoder together; fewer beside rows that are decoded."""
    if window_s <= 0:
        return 0
    at_once = max(1, int((shape.encode_beside_s if beside else shape.encode_s) / window_s))
    return min(at_once, shape.windows_at_once) if shape.windows_at_once else at_once


def _cache_positions(row: Row) -> int:
    expected = PROMPT_TOKENS + TOKENS_PER_SECOND * row.duration_s
    return row.lines * math.ceil(expected / CACHE_STEP) * CACHE_STEP


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes above what the engine holds at rest."""

    expected: int
    margin: int

    @property
    def bytes(self) -> int:
        """What admission counts with."""
        return self.expected + self.margin


@dataclass(slots=True)
class _Bucket:
    count: int = 0
    error: float = 0.0
    """Mean of measured less the sum of the terms, as a share of that (:func:`_scale`)."""


@dataclass(slots=True)
class CostModel:
    """Predicts and learns for one model at one precision's shape.

    :param shape: the model's sizes.
    :param cache_limit: bytes that MLX may keep.
    """

    shape: Shape
    cache_limit: int
    batches: int = 0
    _factors: list[float] = field(default_factory=lambda: list(PRIOR))
    _covariance: list[list[float]] = field(
        default_factory=lambda: [
            [std**2 if i == j else 0.0 for j in range(len(PRIOR))] for i, std in enumerate(PRIOR_STD)
        ]
    )
    _alone: dict[float, int] = field(default_factory=dict)
    """Least measured peak of a single row, by its window."""
    _buckets: dict[float, _Bucket] = field(default_factory=dict)
    _errors: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Measured less expected of the latest batches, MiB and as a share."""

    def predict(self, load: Load) -> Prediction:
        """What the engine will need beside what it holds at rest."""
        if not load.rows:
            return Prediction(0, 0)
        expected = self._expected(load)
        return Prediction(int(expected * MIB), int(self._margin(expected) * MIB))

    def least(self, row: Row) -> int:
        """What this row needs beside the rest even alone, bytes: the least that one no longer than it was seen to
        need, or what it must hold in any case. No prediction: on this a job may be refused for good.
        """
        seen = [measured for window_s, measured in self._alone.items() if window_s <= row.window_s]
        return max(self.resident(Load.alike(1, row)), *seen, 0)

    def resident(self, load: Load) -> int:
        """Of which stay for as long as the rows run, bytes: a lower bound on what running rows explain."""
        sizes = terms(load, self.shape, self.cache_limit)
        return int(sizes[2] * MIB)

    def learn(self, load: Load, measured: int, *, slack: int = 0) -> None:
        """A batch has peaked so many bytes above what the engine held at rest.

        :param slack: of these, what was held already and may not have been needed. Between the two nothing is learned.
        """
        if not load.rows or measured < 0:
            return
        x = terms(load, self.shape, self.cache_limit)
        expected, plain = self._expected(load), _dot(self._factors, x)
        least, most = max(0, measured - slack) / MIB, measured / MIB
        if len(load.rows) == 1:
            bound = int(least * MIB)
            self._alone[load.bucket] = min(bound, self._alone.get(load.bucket, bound))
        if least < expected < most:
            return
        actual = least if expected <= least else most
        self._errors.append((actual - expected, (actual - expected) / _scale(expected)))
        self._update(x, actual - plain)
        bucket = self._buckets.setdefault(load.bucket, _Bucket())
        bucket.count += 1
        bucket.error += ((actual - plain) / _scale(plain) - bucket.error) / min(bucket.count, 16)
        self.batches += 1

    def _expected(self, load: Load) -> float:
        bucket = self._buckets.get(load.bucket)
        own = bucket.error * bucket.count / (bucket.count + 4) if bucket else 0.0
        plain = _dot(self._factors, terms(load, self.shape, self.cache_limit))
        return max(0.0, plain + own * _scale(plain))

    def _margin(self, expected: float) -> float:
        if len(self._errors) < ENOUGH:
            return UNKNOWN_SHARE * expected
        at = min(len(self._errors) - 1, int(QUANTILE * len(self._errors)))
        in_mib, in_share = (sorted(error[kind] for error in self._errors)[at] for kind in (0, 1))
        return max(0.0, min(in_mib, in_share * _scale(expected)))

    def _update(self, x: Sequence[float], error: float) -> None:
        """One step of the filter."""
        spread = [_dot(row, x) for row in self._covariance]
        gain = [value / (NOISE_MIB**2 + _dot(x, spread)) for value in spread]
        low, high = BOUNDS
        self._factors = [
            min(high * prior, max(low * prior, factor + step * error))
            for factor, step, prior in zip(self._factors, gain, PRIOR, strict=True)
        ]
        for i, step in enumerate(gain):
            for j, value in enumerate(spread):
                self._covariance[i][j] -= step * value
        self._walk()

    def _walk(self) -> None:
        """Each factor may have changed a little; none is ever less certain than it was at first."""
        for i, std in enumerate(PRIOR_STD):
            self._covariance[i][i] += (WALK * std) ** 2
        shrink = [min(1.0, std / math.sqrt(self._covariance[i][i])) for i, std in enumerate(PRIOR_STD)]
        for i, by_row in enumerate(shrink):
            for j, by_column in enumerate(shrink):
                self._covariance[i][j] *= by_row * by_column


def _scale(mib: float) -> float:
    """What an error is a share of: small sums are off by the noise, however small they are."""
    return mib + NOISE_MIB


def _dot(a: Iterable[float], b: Iterable[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
