"""The times of words in decoded rows: the decoder runs once more over what it said, and is watched where it attends.

All rows of a step run as one batch. The shorter ones are filled up behind their end, which what comes before cannot
see, and every row attends to its own window alone, so that a row's words do not depend on its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np

from engine.whisper import alignment, words
from engine.whisper.alignment import FloatArray, Heads
from engine.whisper.kernels import HEAD_WIDTH, SCALE, Cache, Features
from engine.whisper.model import Whisper
from engine.whisper.rules import NumericFailure
from engine.whisper.tokenizer import Tokenizer
from engine.whisper.transcript import Reading

MAX_ROWS = 8
"""Rows of one step: bounds how long a cancellation waits."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A decode whose words are wanted."""

    features: Features
    reading: Reading
    tokens: Sequence[int]
    logprobs: Sequence[float]
    """Of each token."""
    language: str
    task: str
    length_s: float
    """Seconds of audio that were decoded."""


def add_words(
    model: Whisper, tokenizer: Tokenizer, heads: Heads, rows: Sequence[Spoken]
) -> list[Reading | NumericFailure]:
    """The readings with words in their segments; a row whose attention is not finite gives the failure instead."""
    texts = [[row.tokens[i] for part in row.reading.positions for i in part] for row in rows]
    starts = [tokenizer.start(row.language, row.task, timestamps=False) for row in rows]
    prompts = [start + text + [tokenizer.eot] for start, text in zip(starts, texts, strict=True)]
    longest = max(len(prompt) for prompt in prompts)
    frames = [max(1, round(row.length_s / alignment.FRAME_S)) for row in rows]
    watch = _Watch(model.cache([row.features for row in rows]), [row.features for row in rows], heads, frames)
    filled = [prompt + [tokenizer.eot] * (longest - len(prompt)) for prompt in prompts]
    model.decode(filled, watch, [0])
    found: list[Reading | NumericFailure] = []
    for index, (row, start, text) in enumerate(zip(rows, starts, texts, strict=True)):
        # From the token before the text, which predicts its first, to the text's last, which predicts the end.
        weights = watch.weights(index)[:, len(start) - 1 : len(start) + len(text)]
        if not np.isfinite(weights).all():
            found.append(NumericFailure("the decoder's attention is not finite"))
            continue
        found.append(_timed(row, alignment.token_times(weights), tokenizer))
    return found


def _timed(row: Spoken, times: FloatArray, tokenizer: Tokenizer) -> Reading:
    reading = row.reading
    pieces = [
        words.split_words([row.tokens[i] for i in part], tokenizer, row.language)
        for part in reading.positions
    ]
    probabilities = [math.exp(row.logprobs[i]) for part in reading.positions for i in part]
    segments = words.with_words(reading.segments, pieces, times.tolist(), probabilities, row.length_s)
    return replace(reading, segments=segments)


class _Watch:
    """A decoder cache that keeps what the alignment heads attend to.

    :param frames: encoder frames of each row that hold its audio.
    """

    def __init__(
        self, cache: Cache, features: Sequence[Features], heads: Heads, frames: Sequence[int]
    ) -> None:
        self._cache = cache
        self._features = features
        self._heads = heads
        self._frames = frames
        self._seen: list[dict[tuple[int, int], Any]] = [{} for _ in features]
        self.lengths = cache.lengths

    def self_attend(self, layer: int, query: mx.array, key: mx.array, value: mx.array) -> mx.array:
        return self._cache.self_attend(layer, query, key, value)

    def cross_attend(self, layer: int, query: mx.array) -> mx.array:
        for watched, head in self._heads:
            if watched != layer:
                continue
            part = query[:, :, head * HEAD_WIDTH : (head + 1) * HEAD_WIDTH]
            for row, features in enumerate(self._features):
                key = mx.array(features[layer][0][head, : self._frames[row]])
                scores = (part[row] @ key.T).astype(mx.float32) * SCALE
                self._seen[row][layer, head] = mx.softmax(scores, axis=-1)
        # Evaluated before the query is: its buffer may be overwritten.
        mx.eval(self._seen)
        return self._cache.cross_attend(layer, query)

    def advance(self, new: int) -> None:
        self._cache.advance(new)
        self.lengths = self._cache.lengths

    def append(self, other: Any) -> None:
        raise NotImplementedError("the rows of an alignment are all there from its beginning")

    def keep(self, rows: Sequence[int]) -> None:
        raise NotImplementedError("the rows of an alignment all stay to its end")

    def weights(self, row: int) -> FloatArray:
        """What a row's heads attended to, shape (heads, positions, frames)."""
        return np.stack([np.array(self._seen[row][head]) for head in self._heads])
