"""The parts of the decoder whose best form depends on the device: attention, its caches, GELU and the vocabulary.

On Metal and CUDA these are MLX's own operations (:class:`DeviceKernels`). MLX's CPU backend takes 20 ns for an
exponential and 40 ns for an error function, on one core, where NumPy's vector loops take under 1 ns: there
:class:`HostKernels` works in NumPy on the very buffers of evaluated MLX arrays, without a copy, on as many
threads as there are cores (NumPy lets go of the interpreter lock). Both give the same numbers up to rounding.
The whole network in that form is :mod:`engine.whisper.host` and :mod:`engine.whisper.host_encoder`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.stepping import GivesWay, never

FloatArray = npt.NDArray[np.float32]
HEAD_WIDTH = 64
"""Width of an attention head in every Whisper (paper, table 1)."""
SCALE = HEAD_WIDTH**-0.5
CACHE_STEP = 64
"""Positions by which a cache of keys and values grows."""

Features = Any
"""Cross-attention keys and values of one row, in the form that its kernels gave them."""


Layers = list[tuple[Any, Any]]
"""Keys and values of each layer."""


@dataclass(frozen=True, slots=True)
class Silence:
    """What a model makes of a window of 30 s that holds nothing: it stands behind windows that end earlier.

    Whisper was trained on windows of 30 s and leans on their empty rest. What the rest gives to attend to hardly
    depends on the speech before it, so it is computed once for each model, and not for each chunk.
    """

    encoder: Layers
    """Of each encoder layer, pooled (:func:`pooled`): shape (groups, width) on the host, (1, groups, width) on a
    device."""
    decoder: Features
    """Features of the window."""


POOL = 4
"""Frames of silence that the encoder attends to as one. Neighbours there are nearly alike, and speech attends to few of
them; a group weighs as much as its frames, with their mean key and value."""


def pooled(x: Any) -> Any:
    """Means of each :data:`POOL` frames, shape (..., frames, width) to (..., frames // POOL, width)."""
    groups = x.shape[-2] // POOL
    return x[..., : groups * POOL, :].reshape(*x.shape[:-2], groups, POOL, x.shape[-1]).mean(axis=-2)


def groups_behind(frames: int) -> int:
    """The first group that lies wholly behind so many frames. Windows are multiples of groups."""
    return -(-frames // POOL)


class Encoding(Protocol):
    """Windows on their way through the encoder."""

    features: list[Features]
    """Of each window, in order, evaluated; all of them once it is done."""

    def advance(self, gives_way: GivesWay = never) -> bool:
        """Go on to the end, or until others wait. What the windows give does not depend on it.

        :returns: whether it is done.
        """


class Cache(Protocol):
    """Keys and values of the rows of a running decoder batch, one row for each chunk."""

    lengths: list[int]
    """Positions that each row has filled."""

    def self_attend(self, layer: int, query: mx.array, key: mx.array, value: mx.array) -> mx.array:
        """Store new positions, then attend to all up to each. Arrays of shape (rows, new, width)."""

    def cross_attend(self, layer: int, query: mx.array) -> mx.array:
        """Attend to each row's encoded audio. Query and result of shape (rows, new, width)."""

    def advance(self, new: int) -> None:
        """Count *new* positions as filled, once all layers have stored them."""

    def append(self, other: Any) -> None:
        """Take over the rows of another cache, behind the present ones."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, in this order. One that is named twice is doubled.

        Costs the copies of those rows alone whose place changes: see :func:`compacted`.
        """


def compacted(going: Sequence[int]) -> list[int]:
    """An order for rows that go on in which few change their place: the last ones fill the gaps.

    :param going: places of the rows that stay, rising.
    :returns: the same places; the one at index *i* moves to *i*.
    """
    left = list(going)
    order: list[int] = []
    while left:
        order.append(left.pop(0) if left[0] == len(order) else left.pop())
    return order


def split_heads(x: mx.array) -> mx.array:
    """(rows, length, width) to (rows, heads, length, head width)."""
    return x.reshape(*x.shape[:2], -1, HEAD_WIDTH).transpose(0, 2, 1, 3)


def join_heads(x: mx.array) -> mx.array:
    """The inverse of :func:`split_heads`."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


# --- MLX ------------------------------------------------------------------------------------


class DeviceKernels:
    """MLX's own operations, for Metal and CUDA (and, slowly, for the CPU)."""

    def gelu(self, x: mx.array) -> mx.array:
        return x * (1 + mx.erf(x * 2**-0.5)) * 0.5

    @staticmethod
    def attend(
        query: mx.array, key: mx.array, value: mx.array, behind: tuple[mx.array, mx.array] | None = None
    ) -> mx.array:
        """Full attention, shapes (rows, length, width), to pooled keys and values behind the others too.

        :param behind: of shape (1, groups, width), the same for all rows.
        """
        mask = None
        if behind is not None:
            rows, near = key.shape[0], key.shape[1]
            far_key, far_value = (mx.repeat(side, rows, axis=0) for side in behind)
            key, value = mx.concatenate([key, far_key], axis=1), mx.concatenate([value, far_value], axis=1)
            # A group counts as often as it has frames.
            weights = mx.where(mx.arange(key.shape[1]) < near, 0.0, math.log(POOL))
            mask = weights.astype(query.dtype)[None, None, None]
        heads = (split_heads(x) for x in (query, key, value))
        return join_heads(mx.fast.scaled_dot_product_attention(*heads, scale=SCALE, mask=mask))

    @staticmethod
    def features(layers: Sequence[tuple[mx.array, mx.array]]) -> list[Features]:
        """Features of each row, evaluated, of each decoder layer's keys and values (rows, frames, width)."""
        split = [(split_heads(key), split_heads(value)) for key, value in layers]
        rows = split[0][0].shape[0]
        found = [[(key[row], value[row]) for key, value in split] for row in range(rows)]
        mx.eval(found)
        return list(found)

    @staticmethod
    def extended(features: Features, behind: Silence) -> Features:
        """A row's features with those of what stands behind its window."""
        found = []
        for (key, value), (far_key, far_value) in zip(features, behind.decoder, strict=True):
            frames = key.shape[1]
            pair = (key, far_key[:, frames:]), (value, far_value[:, frames:])
            found.append(tuple(mx.concatenate(list(sides), axis=1) for sides in pair))
        return found

    def cache(self, features: Sequence[Features], behind: Silence) -> Cache:
        return DeviceCache([self.extended(row, behind) for row in features])

    def logits(self, x: mx.array, embedding: mx.array) -> FloatArray:
        scores = (x @ embedding.T).astype(mx.float32)
        mx.eval(scores)
        # Metal reports an out-of-memory here: before anything is read, let alone published.
        mx.synchronize()
        return host_view(scores)


class DeviceCache:
    """Rows padded to one length, with masks; a row that leaves costs one gather."""

    def __init__(self, features: Sequence[Features]) -> None:
        layers = len(features[0])
        self.lengths = [0] * len(features)
        self._frames = [row[0][0].shape[1] for row in features]
        longest = max(self._frames)
        self._cross = [
            tuple(mx.stack([_pad(row[layer][side], longest) for row in features]) for side in (0, 1))
            for layer in range(layers)
        ]
        self._own: list[tuple[mx.array, mx.array] | None] = [None] * layers

    def self_attend(self, layer: int, query: mx.array, key: mx.array, value: mx.array) -> mx.array:
        new = query.shape[1]
        keys, values = self._room(layer, key, value)
        rows = mx.arange(len(self.lengths))[:, None]
        positions = mx.array(self.lengths)[:, None] + mx.arange(new)[None, :]
        # Rows hold different numbers of positions, so each writes at its own.
        keys[rows, :, positions] = split_heads(key).transpose(0, 2, 1, 3)
        values[rows, :, positions] = split_heads(value).transpose(0, 2, 1, 3)
        self._own[layer] = (keys, values)
        used = max(self.lengths) + new
        seen = mx.arange(used)[None, None, :] <= positions[:, :, None]
        out = mx.fast.scaled_dot_product_attention(
            split_heads(query), keys[:, :, :used], values[:, :, :used], scale=SCALE, mask=seen[:, None]
        )
        return join_heads(out)

    def _room(self, layer: int, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Buffers of the layer with room for the new positions."""
        needed = max(self.lengths) + key.shape[1]
        capacity = -(-needed // CACHE_STEP) * CACHE_STEP
        held = self._own[layer]
        if held is None:
            shape = (key.shape[0], key.shape[2] // HEAD_WIDTH, capacity, HEAD_WIDTH)
            return mx.zeros(shape, key.dtype), mx.zeros(shape, value.dtype)
        if held[0].shape[2] >= needed:
            return held
        return _pad(held[0], capacity, axis=2), _pad(held[1], capacity, axis=2)

    def cross_attend(self, layer: int, query: mx.array) -> mx.array:
        keys, values = self._cross[layer]
        mask = None
        if len(set(self._frames)) > 1:
            mask = mx.arange(keys.shape[2])[None, :] < mx.array(self._frames)[:, None]
            mask = mask[:, None, None, :]
        out = mx.fast.scaled_dot_product_attention(split_heads(query), keys, values, scale=SCALE, mask=mask)
        return join_heads(out)

    def advance(self, new: int) -> None:
        self.lengths = [length + new for length in self.lengths]

    def append(self, other: DeviceCache) -> None:
        self.lengths += other.lengths
        self._frames += other._frames
        self._cross = [_concatenate(a, b) for a, b in zip(self._cross, other._cross, strict=True)]
        self._own = [_concatenate(a, b) for a, b in zip(self._own, other._own, strict=True) if a and b]

    def keep(self, rows: Sequence[int]) -> None:
        index = mx.array(list(rows))
        self.lengths = [self.lengths[row] for row in rows]
        self._frames = [self._frames[row] for row in rows]
        longest = max(self._frames, default=0)
        self._cross = [(key[index, :, :longest], value[index, :, :longest]) for key, value in self._cross]
        self._own = [held and (held[0][index], held[1][index]) for held in self._own]


def _pad(x: mx.array, length: int, axis: int = 1) -> mx.array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - x.shape[axis])
    return mx.pad(x, widths)


def _concatenate(a: Any, b: Any) -> tuple[mx.array, mx.array]:
    """Stack the rows of two pairs of buffers, both as long as the longer."""
    longest = max(a[0].shape[2], b[0].shape[2])
    key, value = (
        mx.concatenate([_pad(x, longest, 2), _pad(y, longest, 2)]) for x, y in zip(a, b, strict=True)
    )
    return key, value


# --- NumPy on MLX's buffers ------------------------------------------------------------------


def host_view(x: mx.array) -> FloatArray:
    """The buffer of an evaluated float32 array on the CPU, writable; nothing is copied."""
    view: FloatArray = np.array(x, copy=False)
    return view


class HostKernels:
    """NumPy on the buffers of MLX's CPU backend.

    BLAS is to run each call on one thread: threads that share a call wait and spin for each other, at several times
    the cost as soon as another process wants a core, and a row's sums would depend on how many rows there are.

    :param threads: of which the calling one is one; none of the others ever calls MLX, whose streams belong to a
        thread.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="kernel")

    def each(self, work: Callable[[int], None], count: int) -> None:
        """Call ``work(0)`` to ``work(count - 1)``, each on the thread that is free first."""
        self.some(work, count, never)

    def some(self, work: Callable[[int], None], count: int, gives_way: GivesWay) -> int:
        """As :meth:`each`, until others wait: then no thread begins another call, if it has made one.

        :returns: how many calls were made, the first ones.
        """
        numbers = itertools.count()

        def share() -> int:
            made = 0
            # The counter's step is one operation of the interpreter: no number is given twice.
            while not (made and gives_way()) and (index := next(numbers)) < count:
                work(index)
                made += 1
            return made

        futures = [self._pool.submit(share) for _ in range(min(self.threads, count) - 1)]
        try:
            made = share()
        finally:
            # Nothing may still work on the buffers once the caller goes on, were it with an exception.
            errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return made + sum(future.result() for future in futures)

    def gelu(self, x: mx.array) -> mx.array:
        mx.eval(x)
        flat = host_view(x).reshape(-1)
        tiles = -(-flat.size // GELU_TILE)
        self.each(lambda i: gelu_in_place(flat[i * GELU_TILE : (i + 1) * GELU_TILE]), tiles)
        return x

    def cache(self, features: Sequence[Features], behind: Silence) -> Cache:
        return HostCache(self, features, behind)

    def logits(self, x: mx.array, embedding: mx.array) -> FloatArray:
        mx.eval(x)
        return self.scores(host_view(x), host_view(embedding))

    def scores(self, x: FloatArray, table: FloatArray) -> FloatArray:
        """:meth:`logits` of arrays on the host."""
        flat = x.reshape(-1, x.shape[-1])
        out = np.empty((len(flat), len(table)), np.float32)
        share = -(-len(table) // (self.threads * BLOCK)) * BLOCK

        def work(part: int) -> None:
            piece = slice(part * share, (part + 1) * share)
            small_matmul(flat, table[piece], out[:, piece])

        self.each(work, self.threads)
        return out.reshape(*x.shape[:-1], len(table))


BLOCK = 32
"""Outputs in one product. Small products spare OpenBLAS the copy of the whole table into its own layout."""


def small_matmul(x: FloatArray, table: FloatArray, out: FloatArray) -> None:
    """``out = x @ table.T`` in blocks of the table, for few rows.

    Shapes (rows, width), (outputs, width), (rows, outputs); *out* may be cut out of longer rows.
    """
    blocks = len(table) // BLOCK
    whole = blocks * BLOCK
    turned = table[:whole].reshape(blocks, BLOCK, -1).transpose(0, 2, 1)
    # Rows of the result are longer than this piece of it, so it is cut by strides and not by a reshape.
    cut = np.lib.stride_tricks.as_strided(
        out,
        (blocks, len(out), BLOCK),
        (BLOCK * out.strides[1], out.strides[0], out.strides[1]),
    )
    np.matmul(x, turned, out=cut)
    np.matmul(x, table[whole:].T, out=out[:, whole:])


GELU_TILE = 1 << 15
"""Elements that stay in the first or second cache while a dozen operations pass over them."""

_GELU_POLYNOMIAL = tuple(
    np.float32(c)
    for c in (
        1.81392776e-09,
        -1.33783215e-07,
        3.97407091e-06,
        -5.52733868e-05,
        -3.30267061e-05,
        3.63341491e-02,
        7.97884268e-01,
    )
)
"""p, with x * (1 + tanh(x * p(x * x))) / 2 within 7e-8 of the exact GELU; fitted over 0..6, where tanh is 1."""


def gelu_in_place(x: FloatArray) -> None:
    """Exact GELU to float32 rounding, by way of tanh, which NumPy has vector loops for and erf not."""
    square = np.minimum(x * x, np.float32(36.0))
    inner = square * _GELU_POLYNOMIAL[0]
    for coefficient in _GELU_POLYNOMIAL[1:-1]:
        inner += coefficient
        inner *= square
    inner += _GELU_POLYNOMIAL[-1]
    inner *= x
    np.tanh(inner, out=inner)
    inner += np.float32(1.0)
    inner *= np.float32(0.5)
    x *= inner


class HostCache:
    """Ragged rows in slots. Each keeps its own features, so that one may leave without a copy of the others'.

    A row's place is its slot: those that run fill the first ones, so that a step works on one piece of each buffer
    and costs in proportion to the rows that run. Buffers grow by :data:`CACHE_STEP` positions and by
    :data:`SLOT_STEP` slots, and a slot that was left is taken again.
    """

    def __init__(self, kernels: HostKernels, features: Sequence[Features], behind: Silence) -> None:
        self._kernels = kernels
        self._behind = behind.decoder
        self.features = list(features)
        self.lengths = [0] * len(features)
        self._own: list[tuple[FloatArray, FloatArray] | None] = [None] * len(features[0])

    def self_attend(self, layer: int, query: mx.array, key: mx.array, value: mx.array) -> mx.array:
        mx.eval(query, key, value)
        q, k, v = (split_rows(host_view(x)) for x in (query, key, value))
        self.make_room(q.shape[2], q.shape[1])
        return mx.array(join_rows(self.attend_own(layer, slice(0, len(q)), q, k, v)))

    def attend_own(self, layer: int, rows: slice, q: FloatArray, k: FloatArray, v: FloatArray) -> FloatArray:
        """Store new positions of some rows, then attend to all up to each.

        Arrays of shape (rows, heads, new, head width). There must be room: see :meth:`make_room`.
        """
        held = self._own[layer]
        assert held is not None
        keys, values = held[0][rows], held[1][rows]
        lengths = self.lengths[rows]
        new = q.shape[2]
        for row, length in enumerate(lengths):
            keys[row, :, length : length + new] = k[row]
            values[row, :, length : length + new] = v[row]
        used = max(lengths) + new
        scores = np.matmul(q, keys[:, :, :used].transpose(0, 1, 3, 2))
        scores *= np.float32(SCALE)
        if new > 1 or min(lengths) + new < used:
            last = np.array(lengths)[:, None] + np.arange(new)
            scores[np.broadcast_to((np.arange(used) > last[:, :, None])[:, None], scores.shape)] = -np.inf
        out: FloatArray = np.matmul(_softmax(scores), values[:, :, :used])
        return out

    def make_room(self, new: int, heads: int) -> None:
        """Have slots for the rows, and room for *new* positions more, in every layer."""
        positions = -(-(max(self.lengths) + new) // CACHE_STEP) * CACHE_STEP
        slots = -(-len(self.lengths) // SLOT_STEP) * SLOT_STEP
        self._own = [self._grown(held, slots, heads, positions) for held in self._own]

    @staticmethod
    def _grown(
        held: tuple[FloatArray, FloatArray] | None, slots: int, heads: int, positions: int
    ) -> tuple[FloatArray, FloatArray]:
        if held is not None:
            if len(held[0]) >= slots and held[0].shape[2] >= positions:
                return held
            slots, positions = max(slots, len(held[0])), max(positions, held[0].shape[2])
        shape = (slots, heads, positions, HEAD_WIDTH)
        fresh = (np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        if held is not None:
            for new, old in zip(fresh, held, strict=True):
                new[: len(old), :, : old.shape[2]] = old
        return fresh

    def cross_attend(self, layer: int, query: mx.array) -> mx.array:
        mx.eval(query)
        q = split_rows(host_view(query))
        return mx.array(join_rows(self.attend_audio(layer, slice(0, len(q)), q)))

    def attend_audio(self, layer: int, rows: slice, q: FloatArray) -> FloatArray:
        """Some rows' attention to their audio and to what stands behind it. Shapes (rows, heads, new, head width).

        What stands behind is the same for all rows, so that one product serves them: a row masks what its own window
        covers.
        """
        count, heads, new, _ = q.shape
        q = q * np.float32(SCALE)
        own = [self._own_scores(self.features[rows.start + row][layer][0], q[row]) for row in range(count)]
        covered = np.array([scores.shape[2] for scores in own])
        first = int(covered.min())
        keys, values = (side[:, first:] for side in self._behind[layer])
        flat = q.transpose(1, 0, 2, 3).reshape(heads, count * new, HEAD_WIDTH)
        far = np.matmul(flat, keys.transpose(0, 2, 1)).reshape(heads, count, new, -1)
        peaks = np.array([scores.max(axis=2) for scores in own]).transpose(1, 0, 2)[..., None]
        if far.shape[3]:
            far[:, np.arange(far.shape[3]) < (covered - first)[:, None, None].repeat(new, 1)] = -np.inf
            peaks = np.maximum(peaks, far.max(axis=3, keepdims=True))
        far -= peaks
        np.exp(far, out=far)
        sums = far.sum(axis=3, keepdims=True)
        found = np.matmul(far.reshape(heads, count * new, -1), values).reshape(heads, count, new, HEAD_WIDTH)
        for row, scores in enumerate(own):
            weights = np.exp(scores - peaks[:, row])
            sums[:, row] += weights.sum(axis=2, keepdims=True)
            found[:, row] += np.matmul(weights, self.features[rows.start + row][layer][1])
        found /= sums
        out: FloatArray = found.transpose(1, 0, 2, 3)
        return out

    @staticmethod
    def _own_scores(keys: FloatArray, q: FloatArray) -> FloatArray:
        """Shapes (heads, frames, head width), (heads, new, head width) to (heads, new, frames)."""
        if q.shape[1] == 1:
            # A matrix times a vector reads the keys in their order.
            return (keys @ q.transpose(0, 2, 1)).transpose(0, 2, 1)
        return q @ keys.transpose(0, 2, 1)

    def advance(self, new: int) -> None:
        self.lengths = [length + new for length in self.lengths]

    def append(self, other: HostCache) -> None:
        first, taken = len(self.lengths), max(other.lengths)
        self.lengths += other.lengths
        self.features += other.features
        heads = self.features[0][0][0].shape[0]
        self.make_room(0, heads)
        for mine, theirs in zip(self._own, other._own, strict=True):
            if mine is None or theirs is None:
                continue
            for new, old in zip(mine, theirs, strict=True):
                new[first : first + len(other.lengths), :, :taken] = old[: len(other.lengths), :, :taken]

    def keep(self, rows: Sequence[int]) -> None:
        order = list(rows)
        moved = [place for place, row in enumerate(order) if place != row]
        sources = [order[place] for place in moved]
        self.lengths = [self.lengths[row] for row in order]
        self.features = [self.features[row] for row in order]
        if not moved:
            return
        used = max(self.lengths)
        heads = self.features[0][0][0].shape[0]
        self.make_room(0, heads)
        for held in self._own:
            for buffer in held or ():
                # Sources are gathered before they are written: the order may be any.
                buffer[moved, :, :used] = buffer[sources, :, :used]


SLOT_STEP = 8
"""Rows by which a cache's buffers grow."""


def split_rows(x: FloatArray) -> FloatArray:
    """(rows, length, width) to (rows, heads, length, head width)."""
    return x.reshape(*x.shape[:2], -1, HEAD_WIDTH).transpose(0, 2, 1, 3)


def join_rows(x: FloatArray) -> FloatArray:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def _softmax(scores: FloatArray) -> FloatArray:
    """Softmax over the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


Kernels = DeviceKernels | HostKernels
"""Both have:

- ``gelu(x)``: exact GELU (Hendrycks and Gimpel, 2016); may overwrite *x*, which must be a fresh result;
- ``cache(features, behind)``: an empty cache for rows that attend to these features and to what stands behind;
- ``logits(x, embedding)``: scores of every token, on the host and writable; from shapes (rows, positions, width) and
  (vocabulary, width) to (rows, positions, vocabulary).
"""
