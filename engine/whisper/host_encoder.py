"""Whisper's encoder on the host: windows that pass through it tile by tile, and may be interrupted between two.

How threads share the work is told in :mod:`engine.whisper.host`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.stepping import GivesWay, never
from engine.whisper.host import HostAffine, HostLayer, HostNorm, gelu
from engine.whisper.kernels import (
    HEAD_WIDTH,
    POOL,
    SCALE,
    Features,
    FloatArray,
    HostKernels,
    Layers,
    Silence,
    groups_behind,
    host_view,
    pooled,
)

if TYPE_CHECKING:
    from engine.whisper.model import Whisper

TILE = 256
"""Frames of a window that a thread works on at a time: their widest activations still fit its second cache."""

_Pass = Callable[[int, slice], None]
"""Works on some frames of a window, which is one of several."""


def silence(model: Whisper, kernels: HostKernels) -> Silence:
    """What the model makes of a window of 30 s that holds nothing."""
    heard: Layers = []
    mel = np.zeros((1, 2 * model.dims.n_audio_ctx, model.dims.n_mels), np.float32)
    together = _Together(model, mel, None)
    for work in together.passes(heard):
        kernels.each(functools.partial(_over, work, together.tiles), len(together.tiles))
    return Silence(heard, together.features[0])


class HostEncoding:
    """See :class:`engine.whisper.kernels.Encoding`. It gives way between two tiles of a thread.

    As many windows at a time as there are threads: more would only hold more memory.

    :param mel: shape (rows, mel frames, mels), an even number of frames.
    :param behind: what is attended to from the window's end to 30 s.
    """

    def __init__(self, model: Whisper, mel: FloatArray, kernels: HostKernels, behind: Silence) -> None:
        self._kernels = kernels
        pieces = (mel[first : first + kernels.threads] for first in range(0, len(mel), kernels.threads))
        self._turns = (_Together(model, piece, behind) for piece in pieces)
        self._together: _Together | None = None
        self._tiles: list[tuple[int, slice]] = []
        self._passes: Iterator[_Pass] = iter(())
        self.features: list[Features] = []
        """For each row and decoder layer, keys and values of shape (heads, frames, head width)."""
        self._begin_next()

    def advance(self, gives_way: GivesWay = never) -> bool:
        """See :meth:`engine.whisper.kernels.Encoding.advance`."""
        while (work := self._pass) is not None:
            left = self._tiles[self._done :]
            self._done += self._kernels.some(functools.partial(_over, work, left), len(left), gives_way)
            if self._done == len(self._tiles):
                del work
                self._begin_next()
            if self._pass is not None and gives_way():
                return False
        return True

    def _begin_next(self) -> None:
        """The next pass, or the first one over the next windows."""
        self._pass, self._done = next(self._passes, None), 0
        if self._pass is not None:
            return
        if self._together is not None:
            self.features += self._together.features
        # Buffers go before the next windows take theirs.
        self._together = None
        self._together = next(self._turns, None)
        if self._together is not None:
            self._tiles, self._passes = self._together.tiles, self._together.passes()
            self._pass = next(self._passes)


class _Together:
    """Some windows of one length that go through the encoder together, tile by tile."""

    def __init__(self, model: Whisper, mel: FloatArray, behind: Silence | None) -> None:
        self._model = model
        self._behind = behind.encoder if behind is not None else None
        self._mel = mel
        self._frames = mel.shape[1] // 2
        shape = (len(mel), self._frames, model.dims.n_audio_state)
        self._x, self._q, self._k, self._v = (np.empty(shape, np.float32) for _ in range(4))
        tiles = -(-self._frames // TILE)
        # Tiles of nearly the same length: a short last one would keep the others waiting.
        edges = [self._frames * tile // tiles for tile in range(tiles + 1)]
        self.tiles = [(row, slice(a, b)) for row in range(len(mel)) for a, b in itertools.pairwise(edges)]
        self.features: list[Features] = []
        """Of each window, after the last pass."""

    def passes(self, heard: Layers | None = None) -> Iterator[_Pass]:
        """What is done with every tile, before it is begun with what follows: attention needs the window's keys.

        :param heard: is given the keys and values of the first window's layers.
        """
        yield self._listener()
        for number, block in enumerate(self._model.encoder):
            layer = HostLayer.of(block)
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
            gelu(once)
            heard[-len(once) :] = once
            twice = second(_threes(heard, 2))
            gelu(twice)
            twice += positions[at]
            self._x[row, at] = twice

        return work

    def _project(self, layer: HostLayer, row: int, at: slice) -> None:
        y = layer.attn_ln(self._x[row, at])
        for buffer, affine in ((self._q, layer.query), (self._k, layer.key), (self._v, layer.value)):
            buffer[row, at] = affine(y)
        self._q[row, at] *= np.float32(SCALE)

    def _attend_and_raise(
        self, layer: HostLayer, behind: tuple[FloatArray, FloatArray] | None, row: int, at: slice
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
        norm = HostNorm.of(self._model.encoder_ln)
        pairs = [
            (HostAffine.of(block.cross_key), HostAffine.of(block.cross_value))
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


def _convolution(weight: FloatArray, bias: FloatArray) -> HostAffine:
    """A convolution over three frames as a map of their values in a row. Weight of shape (outputs, 3, width)."""
    return HostAffine(weight.reshape(len(weight), -1), bias)


def _padded(mel: FloatArray, start: int, stop: int) -> FloatArray:
    """Frames *start* to *stop* of a window, with zeros where they lie outside it."""
    piece = mel[max(0, start) : stop]
    before, after = max(0, -start), max(0, stop - len(mel))
    return np.pad(piece, ((before, after), (0, 0))) if before or after else piece


def _threes(x: FloatArray, stride: int) -> FloatArray:
    """Each three frames that follow each other, in a row: shape ((frames - 3) // stride + 1, 3 * width)."""
    view = np.lib.stride_tricks.sliding_window_view(x, (3, x.shape[1]))[::stride, 0]
    return np.ascontiguousarray(view).reshape(len(view), -1)
