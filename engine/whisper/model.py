"""Whisper's encoder and decoder (Radford et al., 2022, section 2.2), written for rows that come and go."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from engine.stepping import GivesWay, never
from engine.whisper import host, host_encoder, packed
from engine.whisper.alignment import heads_of
from engine.whisper.kernels import (
    HEAD_WIDTH,
    Cache,
    DeviceKernels,
    Encoding,
    Features,
    FloatArray,
    HostCache,
    HostKernels,
    Kernels,
    Layers,
    Silence,
    groups_behind,
    host_view,
    pooled,
)

NORM_EPSILON = 1e-5

LEAST_ENCODER_BITS = 8
"""Below, encoders lose words in silence (Parakeet: 2.57 % WER at 8 bits, 5.24 % at 4)."""


class BadModel(ValueError):
    """A folder that does not hold a Whisper."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Sizes of a Whisper, under the names of its first release."""

    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int
    n_text_state: int
    n_text_layer: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Dimensions:
        """Read MLX's or transformers' ``config.json``.

        :raises BadModel: a size is missing.
        """
        names = TRANSFORMERS_NAMES if "d_model" in config else {}
        try:
            return cls(**{name: int(config[names.get(name, name)]) for name in cls.__dataclass_fields__})
        except KeyError as exc:
            raise BadModel(f"config.json lacks {exc.args[0]}: not a Whisper") from exc


TRANSFORMERS_NAMES = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_layer": "decoder_layers",
}
"""What transformers' ``WhisperConfig`` calls the sizes."""

_TRANSFORMERS_PARTS = (
    ("model.", ""),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("self_attn_layer_norm", "attn_ln"),
    ("final_layer_norm", "mlp_ln"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("encoder_attn", "cross_attn"),
    ("self_attn", "attn"),
    ("embed_tokens", "token_embedding"),
    ("embed_positions.weight", "positional_embedding"),
    ("layers.", "blocks."),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("fc1", "mlp1"),
    ("fc2", "mlp2"),
)


@dataclass(frozen=True, slots=True)
class Linear:
    """A dense or quantized affine map."""

    weight: mx.array
    bias: mx.array | None
    scales: mx.array | None = None
    zeros: mx.array | None = None
    group: int = packed.GROUP
    bits: int = 0
    """Bits of a quantized weight; 0 where it is dense."""

    def __call__(self, x: mx.array) -> mx.array:
        if self.scales is not None and not packed.on_host():
            out = mx.quantized_matmul(
                x, self.weight, self.scales, self.zeros, transpose=True, group_size=self.group, bits=self.bits
            )
        else:
            turned = self.dense().T
            return x @ turned if self.bias is None else mx.addmm(self.bias, x, turned)
        return out if self.bias is None else out + self.bias

    def dense(self) -> mx.array:
        """The weight as it is multiplied by, shape (outputs, width)."""
        if self.scales is None:
            return self.weight
        unpacked: mx.array = mx.dequantize(
            self.weight, self.scales, self.zeros, group_size=self.group, bits=self.bits
        )
        return unpacked

    def rows(self, indices: mx.array) -> mx.array:
        """Rows of the weight, which then is an embedding."""
        if self.scales is None or self.zeros is None:
            return self.weight[indices]
        chosen = (self.weight[indices], self.scales[indices], self.zeros[indices])
        unpacked: mx.array = mx.dequantize(*chosen, group_size=self.group, bits=self.bits)
        return unpacked


@dataclass(frozen=True, slots=True)
class Norm:
    weight: mx.array
    bias: mx.array

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.layer_norm(x, self.weight, self.bias, NORM_EPSILON)


@dataclass(frozen=True, slots=True)
class Block:
    """One layer, encoder's or decoder's."""

    attn_ln: Norm
    query: Linear
    key: Linear
    value: Linear
    out: Linear
    mlp_ln: Norm
    mlp1: Linear
    mlp2: Linear
    cross_ln: Norm | None = None
    cross_query: Linear | None = None
    cross_key: Linear | None = None
    cross_value: Linear | None = None
    cross_out: Linear | None = None


class Whisper:
    """A model whose weights are on the device.

    :param variables: MLX's names to arrays, already of the type to compute in; they need not be evaluated.
    :param config: its ``config.json``; holds ``quantization`` where weights are quantized.
    :param bits: quantize dense weights to so many bits while they are read; None leaves them as they are.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        variables: dict[str, mx.array],
        kernels: Kernels,
        bits: int | None = None,
    ) -> None:
        self.dims = Dimensions.from_config(config)
        self.alignment_heads = heads_of(
            self.dims.n_text_layer,
            self.dims.n_text_state // HEAD_WIDTH,
            self.dims.n_vocab,
            config.get("alignment_heads"),
        )
        self._kernels = kernels
        self.silence: Silence | None = None
        """Computed when it is first needed. To be forgotten (None) whenever weights change."""
        loader = _Loader(variables, config.get("quantization"), bits)
        self.conv1 = (loader.array("encoder.conv1.weight"), loader.array("encoder.conv1.bias"))
        self.conv2 = (loader.array("encoder.conv2.weight"), loader.array("encoder.conv2.bias"))
        self.dtype = self.conv1[0].dtype
        self.audio_positions = sinusoids(self.dims.n_audio_ctx, self.dims.n_audio_state).astype(self.dtype)
        self.encoder = [loader.block(f"encoder.blocks.{i}") for i in range(self.dims.n_audio_layer)]
        self.encoder_ln = loader.norm("encoder.ln_post")
        self.decoder = [
            loader.block(f"decoder.blocks.{i}", cross=True) for i in range(self.dims.n_text_layer)
        ]
        self.decoder_ln = loader.norm("decoder.ln")
        self.embedding = loader.linear("decoder.token_embedding", decoder=True)
        self.text_positions = loader.array("decoder.positional_embedding")
        self.quantized_on_disk = "quantization" in config
        self.bits = loader.bits or self.dtype.size * 8
        mx.eval(self.audio_positions, list(variables.values()))

    def encode(self, mel: mx.array) -> list[Features]:
        """Encode windows and prepare the decoder's attention to them.

        :param mel: shape (rows, mel frames, mels), an even number of frames, at most 3,000.
        :returns: features of each row, evaluated.
        """
        encoding = self.encoding(mel)
        encoding.advance()
        return encoding.features

    def encoding(self, mel: mx.array) -> Encoding:
        """As :meth:`encode`, to be advanced. It belongs to this thread, and to the weights as they are now.

        On the host it gives way within tens of milliseconds. On a device it is one graph, which is run as a whole:
        waiting for each layer would leave the device idle between them.
        """
        kernels = self._kernels
        if isinstance(kernels, HostKernels):
            mx.eval(mel)
            return host_encoder.HostEncoding(self, host_view(mel), kernels, self.hear_silence())
        return _DeviceEncoding(functools.partial(self._encode_on_device, mel, kernels))

    def _encode_on_device(self, mel: mx.array, kernels: DeviceKernels) -> list[Features]:
        behind = self.hear_silence().encoder
        return kernels.features(self._encode(mel.astype(self.dtype), kernels, behind, None))

    def hear_silence(self) -> Silence:
        """What stands behind windows that end before 30 s; computed where it has been forgotten."""
        if self.silence is None:
            self.silence = self._silence()
        return self.silence

    def _silence(self) -> Silence:
        kernels = self._kernels
        if isinstance(kernels, HostKernels):
            return host_encoder.silence(self, kernels)
        mel = mx.zeros((1, 2 * self.dims.n_audio_ctx, self.dims.n_mels), self.dtype)
        heard: Layers = []
        features = kernels.features(self._encode(mel, kernels, None, heard))
        mx.eval(heard)
        return Silence(heard, features[0])

    def _encode(
        self, mel: mx.array, kernels: DeviceKernels, behind: Layers | None, heard: Layers | None
    ) -> list[tuple[mx.array, mx.array]]:
        """The encoder in MLX's operations. Keys and values of its layers are put into *heard*."""
        x = kernels.gelu(mx.conv1d(mel, self.conv1[0], padding=1) + self.conv1[1])
        x = kernels.gelu(mx.conv1d(x, self.conv2[0], stride=2, padding=1) + self.conv2[1])
        frames = x.shape[1]
        # A shorter window takes the first positions; silence has the others.
        x = x + self.audio_positions[:frames]
        for number, block in enumerate(self.encoder):
            y = block.attn_ln(x)
            key, value = block.key(y), block.value(y)
            if heard is not None:
                heard.append((pooled(key), pooled(value)))
            far = None
            if behind is not None and frames < self.dims.n_audio_ctx:
                keys, values = (side[:, groups_behind(frames) :] for side in behind[number])
                far = keys, values
            x = x + block.out(kernels.attend(block.query(y), key, value, far))
            x = x + block.mlp2(kernels.gelu(block.mlp1(block.mlp_ln(x))))
            # The device works on a layer while the next is being described to it.
            _begin(x)
        x = self.encoder_ln(x)
        return [(b.cross_key(x), b.cross_value(x)) for b in self.decoder if b.cross_key and b.cross_value]

    def cache(self, features: Sequence[Features]) -> Cache:
        """An empty decoder cache for rows with these features."""
        return self._kernels.cache(features, self.hear_silence())

    def decode(self, tokens: Sequence[Sequence[int]], cache: Cache, at: Sequence[int]) -> FloatArray:
        """Run the decoder over new tokens of every row.

        :param tokens: shape (rows, new): the same number for each row.
        :param at: positions among the new ones whose logits are wanted.
        :returns: logits on the host, writable, shape (rows, len(at), vocabulary).
        """
        if isinstance(cache, HostCache) and isinstance(self._kernels, HostKernels):
            return host.decode(self, tokens, cache, at, self._kernels)
        new = len(tokens[0])
        positions = mx.array(cache.lengths)[:, None] + mx.arange(new)[None, :]
        x = self.embedding.rows(mx.array([list(row) for row in tokens])) + self.text_positions[positions]
        for layer, block in enumerate(self.decoder):
            y = block.attn_ln(x)
            x = x + block.out(cache.self_attend(layer, block.query(y), block.key(y), block.value(y)))
            if block.cross_ln and block.cross_query and block.cross_out:
                y = cache.cross_attend(layer, block.cross_query(block.cross_ln(x)))
                x = x + block.cross_out(y)
            x = x + block.mlp2(self._kernels.gelu(block.mlp1(block.mlp_ln(x))))
            _begin(x)
        cache.advance(new)
        return self._logits(self.decoder_ln(x[:, mx.array(list(at))]))

    def _logits(self, x: mx.array) -> FloatArray:
        if self.embedding.scales is None:
            return self._kernels.logits(x, self.embedding.weight)
        scores = self.embedding(x).astype(mx.float32)
        mx.eval(scores)
        mx.synchronize()
        return host_view(scores)


@dataclass(slots=True)
class _DeviceEncoding:
    """See :class:`engine.whisper.kernels.Encoding`."""

    run: Callable[[], list[Features]]
    features: list[Features] = field(default_factory=list)

    def advance(self, gives_way: GivesWay = never) -> bool:
        """To the end: it gives way to nobody."""
        self.features = self.run()
        return True


def _begin(x: mx.array) -> None:
    """Hand an array to the device, and do not wait for it."""
    evaluate: Any = mx.async_eval
    evaluate(x)


class _Loader:
    """Takes variables by name; a missing one is a :class:`BadModel`.

    :param bits: to which dense weights are quantized, one after the other; the encoder's to 8 at least.
    """

    def __init__(
        self,
        variables: dict[str, mx.array],
        quantization: Mapping[str, Any] | None,
        bits: int | None,
    ) -> None:
        self._variables = variables
        self._quantization = quantization
        self._wanted = bits
        self.bits = int(quantization["bits"]) if quantization else bits or 0

    def array(self, name: str) -> mx.array:
        try:
            return self._variables[name]
        except KeyError:
            raise BadModel(f"the weights lack {name}") from None

    def linear(self, name: str, *, decoder: bool) -> Linear:
        weight, bias = self.array(f"{name}.weight"), self._variables.get(f"{name}.bias")
        if self._quantization is not None and f"{name}.scales" in self._variables:
            scales, zeros = self.array(f"{name}.scales"), self.array(f"{name}.biases")
            return Linear(weight, bias, scales, zeros, int(self._quantization["group_size"]), self.bits)
        if self._wanted is None or self._quantization is not None:
            return Linear(weight, bias)
        # The dense weight goes before the next one comes: all at once, they would need room for both forms.
        bits = self._wanted if decoder else max(self._wanted, LEAST_ENCODER_BITS)
        del self._variables[f"{name}.weight"]
        small, scales, zeros = packed.pack(weight, bits)
        return Linear(small, bias, scales, zeros, bits=bits)

    def norm(self, name: str) -> Norm:
        return Norm(self.array(f"{name}.weight"), self.array(f"{name}.bias"))

    def block(self, name: str, cross: bool = False) -> Block:
        own: dict[str, Any] = {
            part: self.linear(f"{name}.attn.{part}", decoder=cross)
            for part in ("query", "key", "value", "out")
        }
        mlp: dict[str, Any] = {
            part: self.linear(f"{name}.{part}", decoder=cross) for part in ("mlp1", "mlp2")
        }
        norms: dict[str, Any] = {
            "attn_ln": self.norm(f"{name}.attn_ln"),
            "mlp_ln": self.norm(f"{name}.mlp_ln"),
        }
        if not cross:
            return Block(**norms, **own, **mlp)
        other: dict[str, Any] = {
            f"cross_{part}": self.linear(f"{name}.cross_attn.{part}", decoder=True) for part in own
        }
        return Block(**norms, **own, **mlp, **other, cross_ln=self.norm(f"{name}.cross_attn_ln"))


def sinusoids(length: int, width: int) -> mx.array:
    """Fixed positions of the encoder (Vaswani et al., 2017, section 3.5; sines first, then cosines).

    :returns: shape (length, width), float32.
    """
    rates = np.exp(-np.log(10_000) / (width // 2 - 1) * np.arange(width // 2))
    angles = np.arange(length)[:, None] * rates[None, :]
    return mx.array(np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32))


def default_kernels(threads: int) -> Kernels:
    """Kernels for MLX's default device; *threads* are those of the CPU backend."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return HostKernels(threads)
    return DeviceKernels()


def load_model(folder: Path, dtype: mx.Dtype, kernels: Kernels, bits: int | None = None) -> Whisper:
    """Load a Whisper folder in MLX's or transformers' layout.

    :param bits: see :class:`Whisper`.
    :raises BadModel: not a Whisper, or files missing.
    """
    config = json.loads((folder / "config.json").read_text())
    return Whisper(config, read_variables(folder, dtype), kernels, bits)


def read_variables(folder: Path, dtype: mx.Dtype) -> dict[str, mx.array]:
    """A folder's arrays under MLX's names. They are read from the file when they are evaluated.

    :raises BadModel: files missing.
    """
    variables: dict[str, mx.array] = {}
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.npz"))
    for file in files:
        loaded: Any = mx.load(str(file))
        variables.update(loaded)
    if not variables:
        raise BadModel(f"{folder} holds no safetensors or npz file")
    if any(name.startswith("model.") for name in variables):
        variables = dict(_from_transformers(name, array) for name, array in variables.items())
    return {name: _cast(array, dtype) for name, array in variables.items()}


def _from_transformers(name: str, array: mx.array) -> tuple[str, mx.array]:
    for old, new in _TRANSFORMERS_PARTS:
        name = name.replace(old, new)
    if name.endswith(("conv1.weight", "conv2.weight")):
        array = array.transpose(0, 2, 1)
    return name, array


def _cast(array: mx.array, dtype: mx.Dtype) -> mx.array:
    """Packed weights are integers and stay so; all else takes the type to compute in."""
    return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array
