"""Whisper on the host: layers and decoder in NumPy, over the weights where MLX's CPU backend holds them. The encoder is
:mod:`engine.whisper.host_encoder`.

MLX's CPU backend runs each operation on one thread, over its whole result, before the next: most of its time goes
into moving activations through memory. Here a thread takes a tile of a window, or some rows of the decoder's batch,
through a whole layer while they lie in its cache, and meets the others between layers. Each product runs on one
thread of BLAS, over tiles that do not depend on what else there is, so that a window's features are the same to the
last bit in any company.

The weights' views are taken anew in each call, on the thread that owns MLX: what a model has replaced is let go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from engine.whisper import packed
from engine.whisper.kernels import (
    GELU_TILE,
    HEAD_WIDTH,
    FloatArray,
    HostCache,
    HostKernels,
    gelu_in_place,
    host_view,
    join_rows,
    small_matmul,
    split_rows,
)

if TYPE_CHECKING:
    from engine.whisper.model import Block, Linear, Norm, Whisper

NORM_EPSILON = np.float32(1e-5)

FEW_ROWS = 16
"""Rows up to which :func:`small_matmul` is the fastest form of a product, measured over widths of 384 and 1,536."""


# --- layers -----------------------------------------------------------------------------------


def _one_by_one(work: Callable[[int], None], count: int) -> None:
    """As :meth:`HostKernels.each`, on the calling thread, which may be one of its own."""
    for index in range(count):
        work(index)


@dataclass(frozen=True, slots=True)
class HostAffine:
    """Views of an affine map's weight (outputs, width) and bias. A quantized weight stays packed."""

    weight: np.ndarray[Any, Any]
    bias: FloatArray | None
    scales: FloatArray | None = None
    zeros: FloatArray | None = None
    bits: int = 0
    each: packed.Each = _one_by_one
    """Spreads the blocks of a packed weight."""

    @classmethod
    def of(cls, linear: Linear, each: packed.Each | None = None) -> HostAffine:
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
class HostNorm:
    weight: FloatArray
    bias: FloatArray

    @classmethod
    def of(cls, norm: Norm) -> HostNorm:
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
class HostLayer:
    """Views of one layer's weights."""

    attn_ln: HostNorm
    query: HostAffine
    key: HostAffine
    value: HostAffine
    out: HostAffine
    mlp_ln: HostNorm
    mlp1: HostAffine
    mlp2: HostAffine

    @classmethod
    def of(cls, block: Block, each: packed.Each | None = None) -> HostLayer:
        return cls(
            HostNorm.of(block.attn_ln),
            HostAffine.of(block.query, each),
            HostAffine.of(block.key, each),
            HostAffine.of(block.value, each),
            HostAffine.of(block.out, each),
            HostNorm.of(block.mlp_ln),
            HostAffine.of(block.mlp1, each),
            HostAffine.of(block.mlp2, each),
        )

    def mlp(self, x: FloatArray) -> FloatArray:
        raised = self.mlp1(self.mlp_ln(x))
        gelu(raised)
        return self.mlp2(raised)


@dataclass(frozen=True, slots=True)
class HostCross:
    """Views of a decoder layer's attention to the audio."""

    norm: HostNorm
    query: HostAffine
    out: HostAffine

    @classmethod
    def of(cls, block: Block, each: packed.Each | None = None) -> HostCross:
        assert block.cross_ln and block.cross_query and block.cross_out
        query, out = (HostAffine.of(linear, each) for linear in (block.cross_query, block.cross_out))
        return cls(HostNorm.of(block.cross_ln), query, out)


def gelu(x: FloatArray) -> None:
    """In place, a piece at a time that stays in the first caches. *x* is contiguous."""
    flat = x.reshape(-1)
    for start in range(0, flat.size, GELU_TILE):
        gelu_in_place(flat[start : start + GELU_TILE])


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
    layers = [(HostLayer.of(block, each), HostCross.of(block, each)) for block in model.decoder]
    norm = HostNorm.of(model.decoder_ln)
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
    table = HostAffine.of(embedding, kernels.each)
    return table(x.reshape(-1, x.shape[2])).reshape(*x.shape[:2], -1)


def _decode_layer(
    number: int, weights: tuple[HostLayer, HostCross], x: FloatArray, cache: HostCache, rows: slice
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
