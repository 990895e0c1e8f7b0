"""The parts of the network whose best form depends on the device: attention, its caches, and GELU.

On Metal and CUDA these are MLX's own operations (:class:`DeviceKernels`). MLX's CPU backend takes 20 ns for an
exponential and 40 ns for an error function, on one core, where NumPy's vector loops take under 1 ns: there
:class:`HostKernels` works in NumPy on the very buffers of evaluated MLX arrays, without a copy, on as many
threads as there are cores (NumPy lets go of the interpreter lock). Both give the same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.scratch import scratch

FloatArray = npt.NDArray[np.float32]
HEAD_WIDTH = 64
"""Width of an attention head in every Whisper (paper, table 1)."""
SCALE = HEAD_WIDTH**-0.5
CACHE_STEP = 64
"""Positions by which a cache of keys and values grows."""

Features = Any
"""Cross-attention keys and values of one row, in the form that its kernels gave them."""


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
        """Drop all rows but these, in this order."""


@dataclass(frozen=True, slots=True)
class Gelu:
    """Asks for GELU of a fresh result, which may be overwritten."""

    x: mx.array


@dataclass(frozen=True, slots=True)
class Attend:
    """Asks for full attention, shapes (rows, length, width). The query is fresh and may be overwritten."""

    query: mx.array
    key: mx.array
    value: mx.array


Layers = list[tuple[mx.array, mx.array]]
"""Cross-attention keys and values for each decoder layer, shape (rows, frames, width)."""

Program = Generator[Gelu | Attend, mx.array, Layers]
"""An encoder that stops where the device's own form of an operation is wanted, and is sent its result."""


class Kernels(Protocol):
    """See the module's page."""

    def encode(self, mel: mx.array, program: Callable[[mx.array], Program]) -> list[Features]:
        """Run the encoder over windows, shape (rows, frames, mels), all at once or one by one."""

    def gelu(self, x: mx.array) -> mx.array:
        """Exact GELU (Hendrycks and Gimpel, 2016). May overwrite *x*, which must be a fresh result."""

    def cache(self, features: Sequence[Features]) -> Cache:
        """An empty cache for rows that attend to these features."""

    def logits(self, x: mx.array, embedding: mx.array) -> FloatArray:
        """Scores of every token, on the host and writable.

        :param x: shape (rows, positions, width).
        :param embedding: shape (vocabulary, width).
        :returns: shape (rows, positions, vocabulary).
        """


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

    def encode(self, mel: mx.array, program: Callable[[mx.array], Program]) -> list[Features]:
        steps = program(mel)
        request = next(steps)
        while True:
            try:
                request = steps.send(self._answer(request))
            except StopIteration as end:
                return self._by_rows(end.value)

    def _answer(self, request: Gelu | Attend) -> mx.array:
        match request:
            case Gelu(x):
                return self.gelu(x)
            case Attend(query, key, value):
                heads = (split_heads(x) for x in (query, key, value))
                return join_heads(mx.fast.scaled_dot_product_attention(*heads, scale=SCALE))

    @staticmethod
    def _by_rows(layers: Layers) -> list[Features]:
        split = [(split_heads(key), split_heads(value)) for key, value in layers]
        rows = split[0][0].shape[0]
        found = [[(key[row], value[row]) for key, value in split] for row in range(rows)]
        mx.eval(found)
        return list(found)

    def cache(self, features: Sequence[Features]) -> Cache:
        return DeviceCache(features)

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


@dataclass(slots=True, eq=False)
class _Lane:
    """One window on its way through the encoder, on a stream of its own."""

    row: int
    steps: Program
    stream: mx.Stream
    request: Gelu | Attend
    side_by_side: bool
    """Other lanes take the other cores."""
    working: Future[None] | None = None


class HostKernels:
    """NumPy on the buffers of MLX's CPU backend.

    Windows are encoded side by side, one for each core, each on an MLX stream of its own. BLAS is to run each
    call on one thread: threads that share a call wait and spin for each other, at several times the cost as soon
    as another process wants a core, and a row's sums would depend on how many rows there are.

    :param threads: worker threads; none of them ever calls MLX, whose streams belong to a thread.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kernel")
        self._streams = [mx.new_stream(mx.cpu) for _ in range(threads)]

    def each(self, work: Callable[[int], None], count: int, *, alone: bool = False) -> None:
        """Call ``work(0)`` to ``work(count - 1)``, spread over the threads unless *alone*."""
        threads = 1 if alone else min(self._threads, count)

        def share(first: int) -> None:
            for index in range(first, count, threads):
                work(index)

        futures = [self._pool.submit(share, first) for first in range(1, threads)]
        share(0)
        for future in futures:
            future.result()

    def encode(self, mel: mx.array, program: Callable[[mx.array], Program]) -> list[Features]:
        rows = mel.shape[0]
        features: list[Features] = [None] * rows
        side_by_side = min(rows, self._threads)
        waiting = iter(range(rows))
        lanes: list[_Lane] = []
        free = self._streams[:side_by_side]
        while True:
            while free and (row := next(waiting, None)) is not None:
                lanes.append(self._enter(row, program(mel[row : row + 1]), free.pop(), side_by_side > 1))
            if not lanes:
                break
            # The last lane's work is this thread's own: one hand-over less in every turn.
            for lane in lanes[:-1]:
                self._work(lane, elsewhere=True)
            self._work(lanes[-1], elsewhere=False)
            for lane in list(lanes):
                layers = self._go_on(lane)
                if layers is not None:
                    features[lane.row] = self._features(layers)
                    lanes.remove(lane)
                    free.append(lane.stream)
        return features

    @staticmethod
    def _enter(row: int, steps: Program, stream: mx.Stream, side_by_side: bool) -> _Lane:
        with mx.stream(stream):
            request = next(steps)
            _start(*_arrays(request))
        return _Lane(row, steps, stream, request, side_by_side)

    def _work(self, lane: _Lane, *, elsewhere: bool) -> None:
        """Wait for a lane's MLX arrays, then work on them, here or on another thread."""
        mx.eval(*_arrays(lane.request))
        views = [host_view(x) for x in _arrays(lane.request)]
        work: Callable[..., None] = self._gelu if isinstance(lane.request, Gelu) else self._attend
        if elsewhere:
            lane.working = self._pool.submit(work, *views, alone=True)
        else:
            lane.working = None
            work(*views, alone=lane.side_by_side)

    @staticmethod
    def _go_on(lane: _Lane) -> Layers | None:
        """Send a lane its result, and start what it asks for next. Returns what it ends with, evaluated."""
        if lane.working is not None:
            lane.working.result()
        with mx.stream(lane.stream):
            try:
                lane.request = lane.steps.send(_arrays(lane.request)[0])
            except StopIteration as end:
                layers: Layers = end.value
                mx.eval(layers)
                return layers
            _start(*_arrays(lane.request))
        return None

    @staticmethod
    def _features(layers: Layers) -> Features:
        return [(_heads_first(host_view(key)[0]), _heads_first(host_view(value)[0])) for key, value in layers]

    def gelu(self, x: mx.array) -> mx.array:
        mx.eval(x)
        self._gelu(host_view(x))
        return x

    def _gelu(self, x: FloatArray, *, alone: bool = False) -> None:
        flat = x.reshape(-1)
        tiles = -(-flat.size // _GELU_TILE)
        self.each(lambda i: gelu_in_place(flat[i * _GELU_TILE : (i + 1) * _GELU_TILE]), tiles, alone=alone)

    def _attend(self, query: FloatArray, key: FloatArray, value: FloatArray, *, alone: bool = False) -> None:
        heads = query.shape[2] // HEAD_WIDTH

        def work(unit: int) -> None:
            row, head = divmod(unit, heads)
            part = slice(head * HEAD_WIDTH, (head + 1) * HEAD_WIDTH)
            _attend_in_place(query[row, :, part], key[row, :, part], value[row, :, part])

        self.each(work, len(query) * heads, alone=alone)

    def cache(self, features: Sequence[Features]) -> Cache:
        return HostCache(self, features)

    def logits(self, x: mx.array, embedding: mx.array) -> FloatArray:
        mx.eval(x)
        rows, positions, width = x.shape
        flat, table = host_view(x).reshape(rows * positions, width), host_view(embedding)
        out = np.empty((len(flat), len(table)), np.float32)
        share = -(-len(table) // (self._threads * _LOGIT_BLOCK)) * _LOGIT_BLOCK

        def work(part: int) -> None:
            piece = slice(part * share, (part + 1) * share)
            _small_matmul(flat, table[piece], out[:, piece])

        self.each(work, self._threads)
        return out.reshape(rows, positions, -1)


_start: Callable[..., None] = mx.async_eval
"""Evaluate on the stream that the arrays were made on, without waiting."""


def _arrays(request: Gelu | Attend) -> tuple[mx.array, ...]:
    return (request.x,) if isinstance(request, Gelu) else (request.query, request.key, request.value)


_LOGIT_BLOCK = 32
"""Tokens in one product. Small products spare OpenBLAS the copy of the whole table into its own layout."""


def _small_matmul(x: FloatArray, table: FloatArray, out: FloatArray) -> None:
    """``out = x @ table.T`` in blocks of the table. Shapes (rows, width), (tokens, width), (rows, tokens)."""
    blocks = len(table) // _LOGIT_BLOCK
    whole = blocks * _LOGIT_BLOCK
    turned = table[:whole].reshape(blocks, _LOGIT_BLOCK, -1).transpose(0, 2, 1)
    # Rows of the result are longer than this piece of it, so it is cut by strides and not by a reshape.
    cut = np.lib.stride_tricks.as_strided(
        out,
        (blocks, len(out), _LOGIT_BLOCK),
        (_LOGIT_BLOCK * out.strides[1], out.strides[0], out.strides[1]),
    )
    np.matmul(x, turned, out=cut)
    np.matmul(x, table[whole:].T, out=out[:, whole:])


_GELU_TILE = 1 << 15
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


_QUERY_TILE = 376
"""Query rows whose scores against 1,500 keys still fit the second cache."""


def _attend_in_place(query: FloatArray, key: FloatArray, value: FloatArray) -> None:
    """Attention of one head, shapes (length, head width); the result overwrites *query*."""
    turned = np.ascontiguousarray(key).T * np.float32(SCALE)
    value = np.ascontiguousarray(value)
    length = len(query)
    tile = -(-length // -(-length // _QUERY_TILE))
    buffer = scratch(tile, len(key))
    for start in range(0, length, tile):
        part = query[start : start + tile]
        scores = np.matmul(part, turned, out=buffer[: len(part)])
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        # Dividing the result by the sums is cheaper than dividing the weights.
        part[:] = (scores @ value) / scores.sum(axis=1, keepdims=True)


def _heads_first(x: FloatArray) -> FloatArray:
    """(length, width) to (heads, length, head width), contiguous."""
    return np.ascontiguousarray(x.reshape(len(x), -1, HEAD_WIDTH).transpose(1, 0, 2))


class HostCache:
    """Ragged rows: each keeps its own features, so that one may leave without a copy of the others'."""

    def __init__(self, kernels: HostKernels, features: Sequence[Features]) -> None:
        self._kernels = kernels
        self._features = list(features)
        self.lengths = [0] * len(features)
        self._own: list[tuple[FloatArray, FloatArray] | None] = [None] * len(features[0])

    def self_attend(self, layer: int, query: mx.array, key: mx.array, value: mx.array) -> mx.array:
        mx.eval(query, key, value)
        q, k, v = (_split(host_view(x)) for x in (query, key, value))
        keys, values = self._room(layer, k)
        new = q.shape[2]
        for row, length in enumerate(self.lengths):
            keys[row, :, length : length + new] = k[row]
            values[row, :, length : length + new] = v[row]
        used = max(self.lengths) + new
        scores = np.matmul(q, keys[:, :, :used].transpose(0, 1, 3, 2))
        scores *= np.float32(SCALE)
        last = np.array(self.lengths)[:, None] + np.arange(new)
        scores[np.broadcast_to((np.arange(used) > last[:, :, None])[:, None], scores.shape)] = -np.inf
        out = _softmax(scores) @ values[:, :, :used]
        return mx.array(_join(out))

    def _room(self, layer: int, key: FloatArray) -> tuple[FloatArray, FloatArray]:
        needed = max(self.lengths) + key.shape[2]
        held = self._own[layer]
        if held is not None and held[0].shape[2] >= needed:
            return held
        capacity = -(-needed // CACHE_STEP) * CACHE_STEP
        fresh = (
            np.zeros((*key.shape[:2], capacity, HEAD_WIDTH), np.float32),
            np.zeros((*key.shape[:2], capacity, HEAD_WIDTH), np.float32),
        )
        if held is not None:
            for new, old in zip(fresh, held, strict=True):
                new[:, :, : old.shape[2]] = old
        self._own[layer] = fresh
        return fresh

    def cross_attend(self, layer: int, query: mx.array) -> mx.array:
        mx.eval(query)
        q = _split(host_view(query))
        out = np.empty_like(q)

        def work(row: int) -> None:
            keys, values = self._features[row][layer]
            scores = np.matmul(q[row], keys.transpose(0, 2, 1))
            scores *= np.float32(SCALE)
            np.matmul(_softmax(scores), values, out=out[row])

        self._kernels.each(work, len(q))
        return mx.array(_join(out))

    def advance(self, new: int) -> None:
        self.lengths = [length + new for length in self.lengths]

    def append(self, other: HostCache) -> None:
        self.lengths += other.lengths
        self._features += other._features
        self._own = [_stack(a, b) for a, b in zip(self._own, other._own, strict=True) if a and b]

    def keep(self, rows: Sequence[int]) -> None:
        index = list(rows)
        self.lengths = [self.lengths[row] for row in index]
        self._features = [self._features[row] for row in index]
        self._own = [held and (held[0][index], held[1][index]) for held in self._own]


def _split(x: FloatArray) -> FloatArray:
    """(rows, length, width) to (rows, heads, length, head width)."""
    return x.reshape(*x.shape[:2], -1, HEAD_WIDTH).transpose(0, 2, 1, 3)


def _join(x: FloatArray) -> FloatArray:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def _softmax(scores: FloatArray) -> FloatArray:
    """Softmax over the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _stack(
    a: tuple[FloatArray, FloatArray], b: tuple[FloatArray, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    capacity = max(a[0].shape[2], b[0].shape[2])
    rows = len(a[0]) + len(b[0])
    shape = (rows, a[0].shape[1], capacity, HEAD_WIDTH)
    stacked = (np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    for whole, first, second in zip(stacked, a, b, strict=True):
        whole[: len(first), :, : first.shape[2]] = first
        whole[len(first) :, :, : second.shape[2]] = second
    return stacked
