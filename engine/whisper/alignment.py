"""From the decoder's attention to the audio to the moment of each token: pure arithmetic, no MLX.

The method is that of Whisper's ``timing.py``: some heads of the cross-attention follow the speech. Their weights,
normalized over the tokens and smoothed over time, make a matrix of tokens and frames, through which dynamic time
warping (Sakoe and Chiba, 1978) finds the path that rises in both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

FRAME_S = 0.02
"""Seconds of one encoder frame."""

MEDIAN_WIDTH = 7
"""Frames of the median filter (Whisper's ``medfilt_width``)."""

_LEFT, _DIAGONAL, _UP = 0, 1, 2


def token_times(weights: FloatArray) -> FloatArray:
    """When each token begins, and when the last one ends.

    :param weights: attention after softmax over the audio's own frames, shape (heads, tokens + 1, frames): the row
        before each token, which predicts it, and the row of the last one, which predicts the end.
    :returns: rising seconds, shape (tokens + 1,).
    """
    rows, columns = warp(-alignment_matrix(weights))
    # The first cell of each row is where the path reaches its token.
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    return np.round(columns[first] * FRAME_S, 2)


def alignment_matrix(weights: FloatArray) -> FloatArray:
    """How well each token fits each frame, shape (tokens, frames); see :func:`token_times` for *weights*.

    Normalizing over the tokens takes out frames that every token attends to.
    """
    centred = weights - weights.mean(axis=1, keepdims=True)
    spread = np.maximum(weights.std(axis=1, keepdims=True), np.float32(1e-9))
    matrix: FloatArray = median_filter(centred / spread).mean(axis=0)
    return matrix


def median_filter(x: FloatArray, width: int = MEDIAN_WIDTH) -> FloatArray:
    """Running median over the last axis, mirrored at its ends. Shorter arrays than half the width stay as they are.

    :param width: odd.
    """
    half = width // 2
    if x.shape[-1] <= half:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode="reflect")
    views = np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1)
    filtered: FloatArray = np.partition(views, half, axis=-1)[..., half]
    return filtered


def warp(cost: FloatArray) -> tuple[IntArray, IntArray]:
    """The cheapest path from the first cell to the last that never goes back in either axis.

    Cells of one anti-diagonal depend on the two before only, so each is one operation over arrays.

    :param cost: shape (rows, columns), at least one of each, finite.
    :returns: rows and columns of the path's cells, in order.
    """
    rows, columns = cost.shape
    skewed = np.full((rows, rows + columns), np.inf)
    for row in range(rows):
        skewed[row, row : row + columns] = cost[row]
    steps = np.full((rows + columns - 1, rows), _LEFT, np.int8)
    before = np.full(rows + 1, np.inf)
    last = np.full(rows + 1, np.inf)
    last[1] = skewed[0, 0]
    for diagonal in range(1, rows + columns - 1):
        # Of equal ways the one along the row, as Whisper's own takes it; then the diagonal.
        ways = np.stack([last[1:], before[:-1], last[:-1]])
        step = ways.argmin(axis=0)
        total = np.full(rows + 1, np.inf)
        total[1:] = np.take_along_axis(ways, step[None], axis=0)[0] + skewed[:, diagonal]
        steps[diagonal] = step
        before, last = last, total
    return _trace(steps, rows, columns)


def _trace(steps: npt.NDArray[np.int8], rows: int, columns: int) -> tuple[IntArray, IntArray]:
    row, column = rows - 1, columns - 1
    path = [(row, column)]
    while row or column:
        step = _LEFT if row == 0 else _UP if column == 0 else steps[row + column, row]
        row -= int(step != _LEFT)
        column -= int(step != _UP)
        path.append((row, column))
    found = np.array(path[::-1], np.int64)
    return found[:, 0], found[:, 1]


ALIGNMENT_HEADS = {
    "tiny.en": "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4",
    "tiny": "2.2 3.0 3.2 3.3 3.4 3.5",
    "base.en": "3.3 4.7 5.1 5.5 5.7",
    "base": "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6",
    "small.en": "6.6 7.0 7.3 7.8 8.2 8.5 8.7 9.0 9.4 9.8 9.10 10.0 10.1 10.2 10.3 10.6 10.11 11.2 11.4",
    "small": "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5",
    "medium.en": "11.4 14.1 14.12 14.14 15.4 16.0 16.4 16.9 17.12 17.14 18.7 18.10 18.15 20.0 20.3 20.9 20.14 21.12",
    "medium": "13.15 15.4 15.15 16.1 20.0 23.4",
    "large-v1": "9.19 11.2 11.4 11.17 22.7 22.11 22.17 23.2 23.15",
    "large-v2": "10.12 13.17 16.11 16.12 16.13 17.15 17.16 18.4 18.11 18.19 19.11 21.2 21.3 22.3 22.9 22.12 23.5 "
    "23.7 23.13 25.5 26.1 26.12 27.15",
    "large-v3": "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6",
    "large-v3-turbo": "2.4 2.11 3.3 3.6 3.11 3.14",
}
"""Layer and head of those that follow the speech: OpenAI's table (``_ALIGNMENT_HEADS`` of its Whisper), unpacked."""

_SIZES = {(4, 6): "tiny", (6, 8): "base", (12, 12): "small", (24, 16): "medium", (4, 20): "large-v3-turbo"}
"""Decoder layers and heads of each size but the large ones, which differ in their vocabulary and history."""

Heads = tuple[tuple[int, int], ...]


def heads_of(layers: int, heads: int, vocabulary: int, given: Sequence[Sequence[int]] | None = None) -> Heads:
    """Layer and head of those that follow the speech, ordered.

    :param layers: of the decoder.
    :param heads: in each of its layers.
    :param vocabulary: tells models of one size apart.
    :param given: what the model's own files say, which goes first.
    :raises ValueError: *given* names a head that is not there.
    """
    if given:
        found = tuple(sorted((int(layer), int(head)) for layer, head in given))
        if any(not (0 <= layer < layers and 0 <= head < heads) for layer, head in found):
            raise ValueError("alignment_heads names a head that the decoder has not")
        return found
    listed = ALIGNMENT_HEADS.get(_size(layers, heads, vocabulary))
    if listed is not None:
        return tuple((int(a), int(b)) for a, b in (item.split(".") for item in listed.split()))
    # Whisper's own default for models that nobody has looked into.
    return tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))


def _size(layers: int, heads: int, vocabulary: int) -> str:
    if (layers, heads) == (32, 20):
        # The first two large ones cannot be told apart; the second has long replaced the first.
        return "large-v3" if vocabulary == 51_866 else "large-v2"
    name = _SIZES.get((layers, heads), "")
    return f"{name}.en" if vocabulary == 51_864 else name
