"""Whisper on the host: encoder and decoder in NumPy, over the weights where MLX's CPU backend holds them.

MLX's CPU backend runs each operation on one thread, over its whole result, before the next: most of its time goes
into moving activations through memory. Here a thread takes a tile of a window, or some rows of the decoder's batch,
through a whole layer while they lie in its cache, and meets the others between layers. Each product runs on one
thread of BLAS, over tiles that do not depend on what else there is, so that a window's features are the same to the
last bit in any company.

The weights' views are taken anew in each call, on the thread that owns MLX: what a model has replaced is let go.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from engine.stepping import GivesWay, never
from engine.whisper import packed
from engine.whisper.kernels import (
    GELU_TILE,
    HEAD_WIDTH,
    POOL,
    SCALE,
    Features,
    FloatArray,
    HostCache,
    HostKernels,
    Layers,
    Silence,
    gelu_in_place,
    groups_behind,
    host_view,
    join_rows,
    pooled,
    small_matmul,
    split_rows,
)

if TYPE_CHECKING:
    from engine.whisper.model import Block, Linear, Norm, Whisper

TILE = 256
"""Frames of a window that a thread works on at a time: their widest activations still fit its second cache."""

NORM_EPSILON = np.float32(1e-5)

FEW_ROWS = 16
"""Rows up to which :func:`small_matmul` is the fastest form of a product, measured over widths of 384 and 1,536."""


# --- layers -----------------------------------------------------------------------------------


def _one_by_one(work: Callable[[int], None], count: int) -> None:
    """As :meth:`HostKernels.each`, on the calling thread, which may be one of its own."""
    for index in range(count):
        work(index)


@dataclass(frozen=True, slots=True)
class _Affine:
    """Views of an affine map's weight (outputs, width) and bias. A quantized weight stays packed."""

    weight: np.ndarray[Any, Any]
    bias: FloatArray | None
    scales: FloatArray | None = None
    zeros: FloatArray | None = None
    bits: int = 0
    each: packed.Each = _one_by_one
    """Spreads the blocks of a packed weight."""

    @classmethod
    def of(cls, linear: Linear, each: packed.Each | None = None) -> _Affine:
        """On the thread that owns MLX.

        :param each: for packed weights, where the calls are to come from that thread alone.
        """
        bias = None if linear.bias is None else host_view(linear.bias)
        if linear.scales is None or linear.zeros is None:
            return cls(host_view(linear.weight), bias)
        weight, scales, zeros = packed.host_views((linear.weight, linear.scales, linear.zeros))
        return cls(weight, bias, scales, zeros, linear.bits, each or _one_by_one)

    @property
    def outputs(self) -> int:
        return len(self.weight)

    def __call__(self, x: FloatArray) -> FloatArray:
        """Apply to rows, shape (rows, width)."""
        if self.scales is not None and self.zeros is not None:
            views = (self.weight, self.scales, self.zeros)
            out = packed.host_matmul(x, views, self.bits, self.each)
        elif len(x) <= FEW_ROWS:
            out = np.empty((len(x), len(self.weight)), np.float32)
            small_matmul(x, self.weight, out)
        else:
            out = x @ self.weight.T
        if self.bias is not None:
            out += self.bias
        return out


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: FloatArray
    bias: FloatArray

    @classmethod
    def of(cls, norm: Norm) -> _Norm:
        return cls(host_view(norm.weight), host_view(norm.bias))

    def __call__(self, x: FloatArray) -> FloatArray:
        """Layer normalization (Ba et al., 2016) of rows, shape (rows, width)."""
        out: FloatArray = x - x.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", out, out)[:, None] * np.float32(1 / x.shape[1])
        out /= np.sqrt(variance + NORM_EPSILON)
        out *= self.weight
        out += self.bias
        return out


@dataclass(frozen=True, slots=True)
class _Layer:
    """Views of one layer's weights."""

    attn_ln: _Norm
    query: _Affine
    key: _Affine
    value: _Affine
    out: _Affine
    mlp_ln: _Norm
    mlp1: _Affine
    mlp2: _Affine

    @classmethod
    def of(cls, block: Block, each: packed.Each | None = None) -> _Layer:
        return cls(
            _Norm.of(block.attn_ln),
            _Affine.of(block.query, each),
            _Affine.of(block.key, each),
            _Affine.of(block.value, each),
            _Affine.of(block.out, each),
            _Norm.of(block.mlp_ln),
            _Affine.of(block.mlp1, each),
            _Affine.of(block.mlp2, each),
        )

    def mlp(self, x: FloatArray) -> FloatArray:
        raised = self.mlp1(self.mlp_ln(x))
        _gelu(raised)
        return self.mlp2(raised)


@dataclass(frozen=True, slots=True)
class _Cross:
    """Views of a decoder layer's attention to the audio."""

    norm: _Norm
    query: _Affine
    out: _Affine

    @classmethod
    def of(cls, block: Block, each: packed.Each | None = None) -> _Cross:
        assert block.cross_ln and block.cross_query and block.cross_out
        query, out = (_Affine.of(linear, each) for linear in (block.cross_query, block.cross_out))
        return cls(_Norm.of(block.cross_ln), query, out)


def _gelu(x: FloatArray) -> None:
    """In place, a piece at a time that stays in the first caches. *x* is contiguous."""
    flat = x.reshape(-1)
    for start in range(0, flat.size, GELU_TILE):
        gelu_in_place(flat[start : start + GELU_TILE])


# --- encoder ------------------------------------------------------------------------------------

_Pass = Callable[[int, slice], None]
"""Works on some frames of a window, which is one of several."""


def silence(model: Whisper, kernels: HostKernels) -> Silence:
    """What the model makes of a window of 30 s that holds nothing."""
    heard: Layers = []
    mel = np.zeros((1, 2 * model.dims.n_audio_ctx, model.dims.n_mels), np.float32)
    together = _Together(model, mel, kernels, heard=heard)
    together.advance(never)
    return Silence(heard, together.features[0])


class HostEncoding:
    """See :class:`engine.whisper.kernels.Encoding`. It gives way between two tiles of a thread.

    As many windows at a time as there are threads: more would only hold more memory.

    :param mel: shape (rows, mel frames, mels), an even number of frames.
    :param behind: what is attended to from the window's end to 30 s.
    """

    def __init__(self, model: Whisper, mel: FloatArray, kernels: HostKernels, behind: Silence) -> None:
        pieces = (mel[first : first + kernels.threads] for first in range(0, len(mel), kernels.threads))
        # Each takes its buffers when its turn comes.
        self._turns = (_Together(model, piece, kernels, behind) for piece in pieces)
        self._together = next(self._turns, None)
        self.features: list[Features] = []
        """For each row and decoder layer, keys and values of shape (heads, frames, head width)."""

    def advance(self, gives_way: GivesWay = never) -> bool:
        """See :meth:`engine.whisper.kernels.Encoding.advance`."""
        while self._together is not None:
            if not self._together.advance(gives_way):
                return False
            self.features += self._together.features
            # Let go of its buffers before the next one takes its own.
            self._together = None
            self._together = next(self._turns, None)
            if self._together is not None and gives_way():
                return False
        return True


class _Together:
    """Some windows of one length that go through the encoder together, tile by tile.

    :param heard: is given the keys and values of the first window's layers.
    """

    def __init__(
        self,
        model: Whisper,
        mel: FloatArray,
        kernels: HostKernels,
        behind: Silence | None = None,
        heard: Layers | None = None,
    ) -> None:
        self._model = model
        self._behind = behind.encoder if behind is not None else None
        self._kernels = kernels
        self._mel = mel
        self._frames = mel.shape[1] // 2
        shape = (len(mel), self._frames, model.dims.n_audio_state)
        self._x, self._q, self._k, self._v = (np.empty(shape, np.float32) for _ in range(4))
        tiles = -(-self._frames // TILE)
        # Tiles of nearly the same length: a short last one would keep the others waiting.
        edges = [self._frames * tile // tiles for tile in range(tiles + 1)]
        self._tiles = [(row, slice(a, b)) for row in range(len(mel)) for a, b in itertools.pairwise(edges)]
        self.features: list[Features] = []
        self._passes = self._each_pass(heard)
        self._pass = next(self._passes, None)
        self._done = 0
        """Tiles that the pass has been over."""

    def advance(self, gives_way: GivesWay) -> bool:
        """See :meth:`engine.whisper.kernels.Encoding.advance`."""
        while (work := self._pass) is not None:
            left = self._tiles[self._done :]
            self._done += self._kernels.some(functools.partial(_over, work, left), len(left), gives_way)
            if self._done < len(self._tiles):
                return False
            self._pass, self._done = next(self._passes, None), 0
            if self._pass is not None and gives_way():
                return False
        return True

    def _each_pass(self, heard: Layers | None) -> Iterator[_Pass]:
        """What is done with every tile, before it is begun with what follows: attention needs the window's keys."""
        yield self._listener()
        for number, block in enumerate(self._model.encoder):
            layer = _Layer.of(block)
            yield functools.partial(self._project, layer)
            if heard is not None:
                heard.append((pooled(self._k[0]), pooled(self._v[0])))
            behind = self._behind[number] if self._behind else None
            yield functools.partial(self._attend_and_raise, layer, behind)
        yield self._speaker()

    def _listener(self) -> _Pass:
        """The two convolutions and the positions (paper, section 2.2)."""
        first, second = (
            _convolution(host_view(w), host_view(b)) for w, b in (self._model.conv1, self._model.conv2)
        )
        positions = host_view(self._model.audio_positions)

        def work(row: int, at: slice) -> None:
            # The second convolution looks one frame back, before the first tile at a zero.
            start = max(0, 2 * at.start - 1)
            heard = np.zeros((2 * (at.stop - at.start) + 1, len(first.weight)), np.float32)
            once = first(_threes(_padded(self._mel[row], start - 1, 2 * at.stop + 1), 1))
            _gelu(once)
            heard[-len(once) :] = once
            twice = second(_threes(heard, 2))
            _gelu(twice)
            twice += positions[at]
            self._x[row, at] = twice

        return work

    def _project(self, layer: _Layer, row: int, at: slice) -> None:
        y = layer.attn_ln(self._x[row, at])
        for buffer, affine in ((self._q, layer.query), (self._k, layer.key), (self._v, layer.value)):
            buffer[row, at] = affine(y)
        self._q[row, at] *= np.float32(SCALE)

    def _attend_and_raise(
        self, layer: _Layer, behind: tuple[FloatArray, FloatArray] | None, row: int, at: slice
    ) -> None:
        x, frames = self._x[row, at], self._frames
        pairs = [(self._k[row], self._v[row])]
        if behind is not None and groups_behind(frames) < len(behind[0]):
            far = slice(groups_behind(frames), None)
            pairs.append((behind[0][far], behind[1][far]))
        edges = [0, *itertools.accumulate(len(key) for key, _ in pairs)]
        spans = [slice(a, b) for a, b in itertools.pairwise(edges)]
        heard = np.empty((len(x), x.shape[1]), np.float32)
        scores = np.empty((len(x), edges[-1]), np.float32)
        for start in range(0, x.shape[1], HEAD_WIDTH):
            head = slice(start, start + HEAD_WIDTH)
            for span, (key, _) in zip(spans, pairs, strict=True):
                np.matmul(self._q[row, at, head], key[:, head].T, out=scores[:, span])
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            # A group counts as often as it has frames.
            scores[:, frames:] *= np.float32(POOL)
            found = scores[:, spans[0]] @ pairs[0][1][:, head]
            for span, (_, value) in zip(spans[1:], pairs[1:], strict=True):
                found += scores[:, span] @ value[:, head]
            # Dividing the result by the sums is cheaper than dividing the weights.
            np.divide(found, scores.sum(axis=1, keepdims=True), out=heard[:, head])
        x += layer.out(heard)
        x += layer.mlp(x)

    def _speaker(self) -> _Pass:
        """What the decoder is told: the features."""
        norm = _Norm.of(self._model.encoder_ln)
        pairs = [
            (_Affine.of(block.cross_key), _Affine.of(block.cross_value))
            for block in self._model.decoder
            if block.cross_key and block.cross_value
        ]
        heads = pairs[0][0].outputs // HEAD_WIDTH
        shape = (heads, self._frames, HEAD_WIDTH)
        self.features = [
            [(np.empty(shape, np.float32), np.empty(shape, np.float32)) for _ in pairs] for _ in self._mel
        ]

        def work(row: int, at: slice) -> None:
            y = norm(self._x[row, at])
            for pair, sides in zip(pairs, self.features[row], strict=True):
                for affine, side in zip(pair, sides, strict=True):
                    side[:, at] = affine(y).reshape(len(y), heads, HEAD_WIDTH).transpose(1, 0, 2)

        return work


def _over(work: _Pass, tiles: Sequence[tuple[int, slice]], index: int) -> None:
    work(*tiles[index])


def _convolution(weight: FloatArray, bias: FloatArray) -> _Affine:
    """A convolution over three frames as a map of their values in a row. Weight of shape (outputs, 3, width)."""
    return _Affine(weight.reshape(len(weight), -1), bias)


def _padded(mel: FloatArray, start: int, stop: int) -> FloatArray:
    """Frames *start* to *stop* of a window, with zeros where they lie outside it."""
    piece = mel[max(0, start) : stop]
    before, after = max(0, -start), max(0, stop - len(mel))
    return np.pad(piece, ((before, after), (0, 0))) if before or after else piece


def _threes(x: FloatArray, stride: int) -> FloatArray:
    """Each three frames that follow each other, in a row: shape ((frames - 3) // stride + 1, 3 * width)."""
    view = np.lib.stride_tricks.sliding_window_view(x, (3, x.shape[1]))[::stride, 0]
    return np.ascontiguousarray(view).reshape(len(view), -1)


# --- decoder ------------------------------------------------------------------------------------


def decode(
    model: Whisper,
    tokens: Sequence[Sequence[int]],
    cache: HostCache,
    at: Sequence[int],
    kernels: HostKernels,
) -> FloatArray:
    """Run the decoder over new tokens of every row. See :meth:`engine.whisper.model.Whisper.decode`."""
    ids = np.array(tokens)
    rows, new = ids.shape
    positions = np.array(cache.lengths)[:, None] + np.arange(new)
    x = _embedded(model.embedding, ids) + host_view(model.text_positions)[positions]
    width = x.shape[2]
    cache.make_room(new, width // HEAD_WIDTH)
    parts = min(kernels.threads, rows)
    # Threads that share the rows multiply by themselves; one row alone has its packed weights shared out instead.
    each = kernels.each if parts == 1 else None
    layers = [(_Layer.of(block, each), _Cross.of(block, each)) for block in model.decoder]
    norm = _Norm.of(model.decoder_ln)
    wanted = np.empty((rows, len(at), width), np.float32)

    def work(part: int) -> None:
        some = slice(rows * part // parts, rows * (part + 1) // parts)
        y = x[some].reshape(-1, width)
        for number, weights in enumerate(layers):
            _decode_layer(number, weights, y, cache, some)
        chosen = y.reshape(-1, new, width)[:, list(at)]
        wanted[some] = norm(chosen.reshape(-1, width)).reshape(chosen.shape)

    kernels.each(work, parts)
    cache.advance(new)
    return _scores(wanted, model.embedding, kernels)


def _embedded(embedding: Linear, ids: np.ndarray[Any, Any]) -> FloatArray:
    """Rows of the vocabulary's table, which may be packed. Shape (rows, new, width)."""
    if embedding.scales is None:
        found: FloatArray = host_view(embedding.weight)[ids]
        return found
    rows = embedding.rows(mx.array(ids))
    mx.eval(rows)
    return host_view(rows)


def _scores(x: FloatArray, embedding: Linear, kernels: HostKernels) -> FloatArray:
    """Of every token, shape (rows, positions, vocabulary)."""
    if embedding.scales is None:
        return kernels.scores(x, host_view(embedding.weight))
    table = _Affine.of(embedding, kernels.each)
    return table(x.reshape(-1, x.shape[2])).reshape(*x.shape[:2], -1)


def _decode_layer(
    number: int, weights: tuple[_Layer, _Cross], x: FloatArray, cache: HostCache, rows: slice
) -> None:
    """One layer over the new positions of some rows of the cache. *x* of shape (rows * new, width) is overwritten."""
    layer, cross = weights
    count = rows.stop - rows.start

    def by_heads(flat: FloatArray) -> FloatArray:
        return split_rows(flat.reshape(count, -1, flat.shape[1]))

    y = layer.attn_ln(x)
    own = cache.attend_own(
        number, rows, by_heads(layer.query(y)), by_heads(layer.key(y)), by_heads(layer.value(y))
    )
    x += layer.out(join_rows(own).reshape(x.shape))
    query = by_heads(cross.query(cross.norm(x)))
    heard = cache.attend_audio(number, rows, query)
    x += cross.out(join_rows(heard).reshape(x.shape))
    x += layer.mlp(x)
