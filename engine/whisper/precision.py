"""Moves a loaded Whisper from one precision to another, layer by layer, with no batch running.

A quantized weight is only ever made from a dense one: MLX's ``nn.quantize`` passes over what is quantized already, so
that going from 8 to 4 bits that way changes nothing and says nothing. What is dense in memory is packed from there,
which needs room for one packed weight; everything else is read again from disk, which needs room for one dense weight
beside it. Evaluating all of a model at once would need room for both of its forms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from engine.protocol import Rung
from engine.whisper import packed
from engine.whisper.model import LEAST_ENCODER_BITS, Block, Linear, Whisper, read_variables

BITS = (8, 4)
"""Quantized precisions on offer, beside the dense one."""


class PrecisionError(Exception):
    """The precision did not change as it was to. The model may be half one and half the other: load it again."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a change of precision did, bytes of MLX's active memory."""

    before: int
    after: int
    peak: int


def rungs(model: Whisper) -> tuple[Rung, ...]:
    """Precisions at which the model can run, the highest first, and what each needs.

    Quantized on disk it has one: the dense weights are not there to be had.
    """
    here = [linear for _, linear, _ in _linears(model)]
    rest = weights_bytes(model) - sum(_bytes(linear) for linear in here)
    if model.quantized_on_disk:
        return (Rung(model.bits, weights_bytes(model), 0, 0),)
    dense = model.dtype.size * 8
    shapes = [(_count(linear), decoder) for _, linear, decoder in _linears(model)]
    made = []
    for bits in (dense, *BITS):
        sizes = [_size(count, _bits_for(bits, decoder, dense), model.dtype.size) for count, decoder in shapes]
        largest = max(count for count, _ in shapes) * model.dtype.size
        # Read from disk in half precision, turned into the type to compute in, then packed.
        from_disk = largest + largest // 2 + max(sizes)
        made.append(Rung(bits, rest + sum(sizes), max(sizes), from_disk))
    return tuple(made)


def weights_bytes(model: Whisper) -> int:
    """Bytes of all weights as they are now, and of what is kept of silence, which is as lasting."""
    norms = [
        array
        for block in (*model.encoder, *model.decoder)
        for norm in (block.attn_ln, block.mlp_ln, block.cross_ln)
        if norm is not None
        for array in (norm.weight, norm.bias)
    ]
    rest = [*model.conv1, *model.conv2, model.audio_positions, model.text_positions, *norms]
    weights = sum(array.nbytes for array in rest) + sum(_bytes(linear) for _, linear, _ in _linears(model))
    return weights + silence_bytes(model)


def silence_bytes(model: Whisper) -> int:
    """Of :class:`engine.whisper.kernels.Silence`: keys and values of every layer over a window of 30 s."""
    dims = model.dims
    layers = dims.n_audio_layer + dims.n_text_layer
    return 2 * dims.n_audio_ctx * dims.n_audio_state * layers * model.dtype.size


def change(model: Whisper, folder: Path, bits: int) -> Measured:
    """Bring the model to a rung of :func:`rungs`. No session may be busy.

    :raises PrecisionError: there is no such rung, a weight did not change, or memory did not follow.
    :raises RuntimeError: what MLX raises, out of memory say.
    """
    dense = model.dtype.size * 8
    if model.quantized_on_disk or bits not in (dense, *BITS):
        raise PrecisionError(f"there is no way to {bits} bits")
    before_bits = model.bits
    # It was computed with the old weights.
    model.silence = None
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    _Change(model, folder, bits, dense).run()
    mx.clear_cache()
    measured = Measured(before, mx.get_active_memory(), mx.get_peak_memory())
    wrong = [
        name
        for name, linear, decoder in _linears(model)
        if _now(linear, dense) != _bits_for(bits, decoder, dense)
    ]
    if wrong:
        raise PrecisionError(f"{len(wrong)} weights did not come to {bits} bits, {wrong[0]} among them")
    if (measured.after < measured.before) != (bits < before_bits) and bits != before_bits:
        raise PrecisionError(
            f"from {before_bits} to {bits} bits, memory went from {before} to {measured.after}"
        )
    model.bits = bits
    return measured


class _Change:
    """One change. Weights are replaced one by one, so that no two forms of more than one are held."""

    def __init__(self, model: Whisper, folder: Path, bits: int, dense: int) -> None:
        self._model = model
        self._bits = bits
        self._dense = dense
        self._disk = read_variables(folder, model.dtype)

    def run(self) -> None:
        model = self._model
        for i in range(len(model.encoder)):
            self._block(model.encoder, i, f"encoder.blocks.{i}", decoder=False)
        for i in range(len(model.decoder)):
            self._block(model.decoder, i, f"decoder.blocks.{i}", decoder=True)
        model.embedding = self._linear(model.embedding, "decoder.token_embedding", decoder=True)

    def _block(self, blocks: list[Block], index: int, name: str, *, decoder: bool) -> None:
        for part, path in _parts(decoder).items():
            # Through the list each time: a name for the old block would keep its weights.
            changed = self._linear(getattr(blocks[index], part), f"{name}.{path}", decoder=decoder)
            fields_changed: dict[str, Any] = {part: changed}
            blocks[index] = replace(blocks[index], **fields_changed)

    def _linear(self, old: Linear, name: str, *, decoder: bool) -> Linear:
        bits = _bits_for(self._bits, decoder, self._dense)
        if _now(old, self._dense) == bits:
            return old
        # Taken out: an array that was read stays in memory for as long as it is in the mapping.
        on_disk = self._disk.pop(f"{name}.weight")
        if bits == self._dense:
            mx.eval(on_disk)
            return Linear(on_disk, old.bias)
        source = old.weight if old.scales is None else on_disk
        weight, scales, zeros = packed.pack(source, bits)
        return Linear(weight, old.bias, scales, zeros, bits=bits)


def _parts(decoder: bool) -> dict[str, str]:
    """Fields of a :class:`Block` that hold weights, and what follows the block's name in files."""
    own = {part: f"attn.{part}" for part in ("query", "key", "value", "out")}
    other = {f"cross_{part}": f"cross_attn.{part}" for part in own} if decoder else {}
    return {**own, **other, "mlp1": "mlp1", "mlp2": "mlp2"}


def _linears(model: Whisper) -> list[tuple[str, Linear, bool]]:
    """Every weight that is quantized: name, the weight, whether it is the decoder's."""
    found = [
        (f"{side}.{i}.{field.name}", value, side == "decoder")
        for side, blocks in (("encoder", model.encoder), ("decoder", model.decoder))
        for i, block in enumerate(blocks)
        for field in fields(block)
        if isinstance(value := getattr(block, field.name), Linear)
    ]
    return [*found, ("embedding", model.embedding, True)]


def _now(linear: Linear, dense: int) -> int:
    return dense if linear.scales is None else linear.bits


def _bits_for(bits: int, decoder: bool, dense: int) -> int:
    return bits if decoder or bits == dense else max(bits, LEAST_ENCODER_BITS)


def _count(linear: Linear) -> int:
    """Weights of a map, packed or not."""
    packed_in = 32 // linear.bits if linear.scales is not None else 1
    return math.prod(linear.weight.shape) * packed_in


def _size(count: int, bits: int, itemsize: int) -> int:
    """Bytes of so many weights at so many bits, with scale and zero where they are packed."""
    return (
        count * itemsize if bits == itemsize * 8 else count * bits // 8 + 2 * itemsize * count // packed.GROUP
    )


def _bytes(linear: Linear) -> int:
    arrays = (linear.weight, linear.scales, linear.zeros)
    return sum(array.nbytes for array in arrays if array is not None)
