"""Quantized weights: how they are packed, and how the CPU backend multiplies by them.

MLX packs groups of 64 weights along the input axis, each with a scale and a zero in the type of the dense weight
(``mx.quantize``, affine mode). Metal and CUDA multiply by packed weights as they are. MLX's CPU backend does so a
hundred times slower than by dense ones, so there NumPy unpacks them on the way, in blocks that stay in the cache of a
core, and no layer is ever whole in memory: a block meets some hundred frames in the encoder, some rows in the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from engine.scratch import scratch
from engine.whisper.kernels import FloatArray, host_view

GROUP = 64
"""Weights that share a scale and a zero. All widths of Whisper are multiples of it."""

BLOCK = 64
"""Rows of a weight that are unpacked at once: 98 KB at width 384, half a megabyte at 2,048."""

Packed = tuple[mx.array, mx.array, mx.array]
"""Weight, scales and zeros."""

Each = Callable[..., None]
"""``each(work, count)`` of :class:`engine.whisper.kernels.HostKernels`."""


def pack(weight: mx.array, bits: int) -> Packed:
    """Quantize one dense weight, evaluated, so that the dense one can go before the next one comes."""
    quantize: Any = mx.quantize
    packed: Packed = quantize(weight, group_size=GROUP, bits=bits)
    mx.eval(*packed)
    return packed


def on_host() -> bool:
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def host_matmul(
    x: FloatArray, packed: tuple[np.ndarray[Any, Any], FloatArray, FloatArray], bits: int, each: Each
) -> FloatArray:
    """``x @ unpacked.T``.

    :param x: shape (rows, width), float32.
    :param packed: views of the packed weight, shape (outputs, width x bits / 32), uint32, and of its scales and
        zeros, shape (outputs, groups).
    :param bits: 8 or 4.
    :param each: spreads blocks over threads.
    :returns: shape (rows, outputs).
    """
    weight, scales, zeros = packed
    outputs, width = len(weight), x.shape[1]
    out = np.empty((len(x), outputs), np.float32)
    blocks = -(-outputs // BLOCK)
    parts = min(blocks, _PARTS)

    # A group's zero adds the same to each of its weights: it meets the sum of the group's inputs, once.
    sums = x.reshape(len(x), -1, GROUP).sum(axis=2)

    def work(part: int) -> None:
        room = scratch(BLOCK, width)
        for block in range(part, blocks, parts):
            rows = slice(block * BLOCK, min(outputs, (block + 1) * BLOCK))
            dense = room[: rows.stop - rows.start]
            _unpack(weight[rows], bits, dense)
            dense *= np.repeat(scales[rows], GROUP, axis=1)
            np.matmul(x, dense.T, out=out[:, rows])
            out[:, rows] += sums @ zeros[rows].T

    each(work, parts)
    return out


_PARTS = 8
"""Shares of the work: some more than threads, so that a thread that was interrupted holds up little."""


def _unpack(weight: np.ndarray[Any, Any], bits: int, out: FloatArray) -> None:
    """Integers of packed words to floats. The first weight stands in the lowest bits (little-endian)."""
    octets = weight.view(np.uint8)
    if bits == 8:
        out[...] = octets
        return
    out[:, 0::2] = octets & 15
    out[:, 1::2] = octets >> 4


def host_views(packed: Packed) -> tuple[np.ndarray[Any, Any], FloatArray, FloatArray]:
    """Buffers of evaluated arrays on the CPU; nothing is copied."""
    weight, scales, zeros = packed
    return np.array(weight, copy=False), host_view(scales), host_view(zeros)
