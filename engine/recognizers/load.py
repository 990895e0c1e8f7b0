"""Loading a recognizer with mlx-audio's own loader: from a local folder, without a hub and without code of its own."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from engine.protocol import SAMPLE_RATE, DecodeOptions
from engine.recognizers.families import Family
from engine.recognizers.recognizer import Aligned, Item, Recognizer, Tokens, Whole


class BadRecognizer(ValueError):
    """A folder that does not hold a model of its family."""


@dataclass(frozen=True, slots=True)
class LoadedRecognizer:
    """A recognizer that is warm."""

    recognizer: Recognizer
    weights_bytes: int
    bits: int
    width: int
    """Of its encoder, or what comes nearest: what activations scale with."""


def load_recognizer(folder: Path, family: Family, dtype: mx.Dtype) -> LoadedRecognizer:
    """Load a folder and run a second of noise through it.

    :param dtype: that all floating weights take.
    :raises BadRecognizer: files or weights are missing, or it asks for code of its own.
    """
    _refuse_code(folder)
    with _offline():
        from mlx_audio.stt.utils import load_model

    told: dict[str, Any] = {"model_type": family.name, "model_name_parts": []}
    try:
        model = _load(load_model, folder, told)
        network = getattr(model, "_model", model)
        if mx.default_device().type == mx.DeviceType.cpu:
            _unpack(network)
        _cast(network, dtype)
        recognizer = _recognizer(model, family, dtype)
        _warm_up(recognizer)
    except Exception as exc:
        # The loaders and models there raise whatever their parts do; here it means one thing.
        message = f"not a {family.name} that mlx-audio can run: {type(exc).__name__}: {exc}"
        raise BadRecognizer(message[:300]) from exc
    config = json.loads((folder / "config.json").read_text())
    parameters = [array for _, array in _arrays(network)]
    bits = (config.get("quantization") or {}).get("bits") or dtype.size * 8
    return LoadedRecognizer(recognizer, sum(a.nbytes for a in parameters), int(bits), width(config))


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Models lie in folders here: nothing is looked up on a hub. The libraries read this once, when they are imported;
    processes that are started later, to fetch a model, must not inherit it."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _load(load_model: Any, folder: Path, told: dict[str, Any]) -> Any:
    """Every parameter must be there; what the files hold beyond them is passed over, as mlx-audio does."""
    try:
        return load_model(folder, strict=True, **told)
    except ValueError as exc:
        if "not in model" not in str(exc):
            raise
        return load_model(folder, strict=False, **told)


def _refuse_code(folder: Path) -> None:
    for path in sorted(folder.glob("*.json")):
        if '"auto_map"' in path.read_text(encoding="utf-8", errors="replace"):
            raise BadRecognizer(f"{path.name} asks for code from the model's folder")


def _recognizer(model: Any, family: Family, dtype: mx.Dtype) -> Recognizer:
    match family.form:
        case "aligned":
            return Aligned(model, dtype)
        case "tokens":
            return Tokens(model)
        case "whole":
            return Whole(model, dtype)


def _arrays(network: nn.Module) -> list[tuple[str, mx.array]]:
    flat: list[tuple[str, mx.array]] = tree_flatten(network.parameters())
    return flat


def _cast(network: nn.Module, dtype: mx.Dtype) -> None:
    def cast(array: mx.array) -> mx.array:
        return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array

    network.update(tree_map(cast, network.parameters()))
    mx.eval(network.parameters())


def _unpack(network: nn.Module) -> None:
    """Quantized layers as dense ones: the CPU backend multiplies by packed weights a hundred times slower."""
    dense = []
    for name, layer in network.named_modules():
        if isinstance(layer, nn.QuantizedLinear | nn.QuantizedEmbedding):
            weight = mx.dequantize(
                layer.weight, layer.scales, layer.biases, group_size=layer.group_size, bits=layer.bits
            )
            plain: nn.Module
            if isinstance(layer, nn.QuantizedLinear):
                plain = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in layer)
                if "bias" in layer:
                    plain.bias = layer.bias
            else:
                plain = nn.Embedding(*weight.shape)
            plain.weight = weight
            dense.append((name, plain))
    if dense:
        network.update_modules(tree_unflatten(dense))


def _warm_up(recognizer: Recognizer) -> None:
    noise = np.random.Generator(np.random.Philox(1)).standard_normal(SAMPLE_RATE).astype(np.float32)
    for _ in recognizer.run([Item.of(0.1 * noise, DecodeOptions(), cap=4)]):
        pass


_WIDTHS = ("d_model", "hidden_size", "encoder_hidden_size")


def width(config: Any) -> int:
    """The greatest of the widths that a configuration names, at any depth; 0 where it names none."""
    if not isinstance(config, dict):
        return 0
    here = [value for key, value in config.items() if key in _WIDTHS and isinstance(value, int)]
    return max([*here, *(width(value) for value in config.values())], default=0)
