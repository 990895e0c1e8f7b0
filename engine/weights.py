"""CTranslate2 Whisper folders, read and rewritten as a Whisper folder in MLX's layout.

The file (CTranslate2, ``src/models/model.cc``): ``u32 version, str spec, u32 revision, u32 n``, then for each
variable ``str name, u8 rank, u32 dims..., u8 dtype, u32 bytes, data``, then aliases. A string is a ``u16``
length that counts the closing NUL.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CTRANSLATE2_DTYPES: dict[int, type[np.generic]] = {
    0: np.float32,
    1: np.int8,
    2: np.int16,
    3: np.int32,
    4: np.float16,
}
"""Type codes of CTranslate2's ``DataType``."""

SAFETENSORS_DTYPES = {"float16": "F16", "float32": "F32"}

TIMESTAMPS = 1501
"""Timestamp tokens: 0.00 to 30.00 s in steps of 0.02 (Whisper paper, section 2.3)."""


class BadWeights(ValueError):
    """A model file that cannot be read, or that holds another kind of model."""


def read_ctranslate2(parts: Sequence[Path]) -> dict[str, Array]:
    """Variables of a CTranslate2 ``model.bin``, which may be cut into parts.

    :param parts: the file, or its parts in order.
    :returns: name to array. Of a file in one piece the arrays are views of it; nothing is copied.
    :raises BadWeights: not a CTranslate2 file, cut short, or an unknown dtype.
    :raises OSError: a part cannot be read.
    """
    if len(parts) == 1:
        with parts[0].open("rb") as file:
            data: bytes | mmap.mmap = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    else:
        data = b"".join(part.read_bytes() for part in parts)
    try:
        return dict(_variables(data))
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as exc:
        raise BadWeights("not a whole CTranslate2 model file") from exc


def _variables(data: bytes | mmap.mmap) -> Iterator[tuple[str, Array]]:
    at = 4
    _, at = _string(data, at)
    _, count = struct.unpack_from("<II", data, at)
    at += 8
    aliased = {}
    for _ in range(count):
        name, at = _string(data, at)
        rank = data[at]
        dims = struct.unpack_from(f"<{rank}I", data, at + 1)
        code, size = struct.unpack_from("<BI", data, at + 1 + 4 * rank)
        at += 6 + 4 * rank
        if code not in CTRANSLATE2_DTYPES:
            raise BadWeights(f"{name}: unknown type {code}")
        dtype = np.dtype(CTRANSLATE2_DTYPES[code])
        if at + size > len(data):
            raise BadWeights(f"{name}: the file ends in the middle of it")
        array = np.frombuffer(data, dtype, count=size // dtype.itemsize, offset=at).reshape(dims)
        at += size
        aliased[name] = array
        yield name, array


def _string(data: bytes | mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<H", data, at)
    at += 2
    return data[at : at + length - 1].decode(), at + length


def whisper_variables(source: dict[str, Array]) -> dict[str, Array]:
    """A CTranslate2 Whisper's variables under MLX's names and in MLX's layout (float16 or float32).

    CTranslate2 fuses self-attention's query, key and value (``linear_0``, in this order on axis 0) and
    cross-attention's key and value (``linear_1``); the key has no bias. Convolutions go from (out, in,
    width) to (out, width, in).

    :raises BadWeights: an 8-bit model, or not a Whisper.
    """
    if any(name.endswith("_scale") for name in source):
        raise BadWeights("an 8-bit CTranslate2 model cannot be converted; use its float16 or float32 form")
    try:
        return dict(_renamed(source))
    except KeyError as exc:
        raise BadWeights(f"not a CTranslate2 Whisper: {exc.args[0]} is missing") from exc


def _renamed(source: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    for conv in ("conv1", "conv2"):
        yield f"encoder.{conv}.weight", source[f"encoder/{conv}/weight"].transpose(0, 2, 1)
        yield f"encoder.{conv}.bias", source[f"encoder/{conv}/bias"]
    yield "decoder.token_embedding.weight", source["decoder/embeddings/weight"]
    yield "decoder.positional_embedding", source["decoder/position_encodings/encodings"]
    for part, norm in (("encoder", "ln_post"), ("decoder", "ln")):
        yield from _norm(source, f"{part}/layer_norm", f"{part}.{norm}")
        for layer in range(_layers(source, part)):
            yield from _block(source, f"{part}/layer_{layer}", f"{part}.blocks.{layer}", part == "decoder")


def _block(source: dict[str, Array], old: str, new: str, cross: bool) -> Iterator[tuple[str, Array]]:
    yield from _norm(source, f"{old}/self_attention/layer_norm", f"{new}.attn_ln")
    yield from _split(source, f"{old}/self_attention/linear_0", f"{new}.attn", ("query", "key", "value"))
    yield from _split(source, f"{old}/self_attention/linear_1", f"{new}.attn", ("out",))
    if cross:
        yield from _norm(source, f"{old}/attention/layer_norm", f"{new}.cross_attn_ln")
        yield from _split(source, f"{old}/attention/linear_0", f"{new}.cross_attn", ("query",))
        yield from _split(source, f"{old}/attention/linear_1", f"{new}.cross_attn", ("key", "value"))
        yield from _split(source, f"{old}/attention/linear_2", f"{new}.cross_attn", ("out",))
    yield from _norm(source, f"{old}/ffn/layer_norm", f"{new}.mlp_ln")
    yield from _split(source, f"{old}/ffn/linear_0", new, ("mlp1",))
    yield from _split(source, f"{old}/ffn/linear_1", new, ("mlp2",))


def _norm(source: dict[str, Array], old: str, new: str) -> Iterator[tuple[str, Array]]:
    yield f"{new}.weight", source[f"{old}/gamma"]
    yield f"{new}.bias", source[f"{old}/beta"]


def _split(
    source: dict[str, Array], old: str, new: str, names: tuple[str, ...]
) -> Iterator[tuple[str, Array]]:
    weights = np.split(source[f"{old}/weight"], len(names))
    biases = np.split(source[f"{old}/bias"], len(names))
    for name, weight, bias in zip(names, weights, biases, strict=True):
        yield f"{new}.{name}.weight", weight
        if name != "key":
            yield f"{new}.{name}.bias", bias


def _layers(source: dict[str, Array], part: str) -> int:
    prefix = f"{part}/layer_"
    return len({name.split("/")[1] for name in source if name.startswith(prefix)} - {"layer_norm"})


def whisper_config(
    source: dict[str, Array], variables: dict[str, Array], original: dict[str, Any]
) -> dict[str, Any]:
    """``config.json`` in MLX's layout for converted variables.

    :param original: CTranslate2's own ``config.json``, whose alignment heads are kept.
    """
    n_vocab, n_text_state = variables["decoder.token_embedding.weight"].shape
    n_audio_state, _, n_mels = variables["encoder.conv1.weight"].shape
    return {
        "model_type": "whisper",
        "n_mels": int(n_mels),
        "n_audio_ctx": int(source["encoder/position_encodings/encodings"].shape[0]),
        "n_audio_state": int(n_audio_state),
        "n_audio_head": int(source["encoder/num_heads"]),
        "n_audio_layer": _layers(source, "encoder"),
        "n_vocab": int(n_vocab),
        "n_text_ctx": int(variables["decoder.positional_embedding"].shape[0]),
        "n_text_state": int(n_text_state),
        "n_text_head": int(source["decoder/num_heads"]),
        "n_text_layer": _layers(source, "decoder"),
        "alignment_heads": original.get("alignment_heads", []),
    }


def with_timestamp_tokens(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """A ``tokenizer.json`` with the timestamp tokens, which CTranslate2 folders lack.

    :raises BadWeights: no ``<|notimestamps|>`` to count from.
    """
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    if "<|notimestamps|>" not in added:
        raise BadWeights("tokenizer.json is not a Whisper tokenizer")
    first = added["<|notimestamps|>"] + 1
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    missing = [
        {"id": first + step, "content": f"<|{step * 0.02:.2f}|>", **plain}
        for step in range(TIMESTAMPS)
        if f"<|{step * 0.02:.2f}|>" not in added
    ]
    return {**tokenizer, "added_tokens": [*tokenizer["added_tokens"], *missing]}


def write_safetensors(path: Path, variables: dict[str, Array]) -> None:
    """Write arrays in the safetensors format (u64 header length, JSON header, data)."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for name, array in variables.items():
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for array in variables.values():
            file.write(np.ascontiguousarray(array).data)


def convert_ctranslate2(parts: Sequence[Path], folder: Path, target: Path) -> None:
    """Convert a CTranslate2 Whisper into *target*, an existing empty folder.

    :param parts: ``model.bin``, or its parts in order.
    :param folder: holds ``config.json`` and ``tokenizer.json``.
    :raises BadWeights: not a Whisper that can be converted.
    :raises OSError: a file cannot be read or written.
    """
    source = read_ctranslate2(parts)
    variables = whisper_variables(source)
    config = whisper_config(source, variables, json.loads((folder / "config.json").read_text()))
    tokenizer = with_timestamp_tokens(json.loads((folder / "tokenizer.json").read_text()))
    write_safetensors(target / "model.safetensors", variables)
    (target / "config.json").write_text(json.dumps(config, indent=1))
    (target / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
