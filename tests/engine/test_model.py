"""Loading models in each of their layouts, and refusing those that do not hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def save(mlx: Any, folder: Path, like: Path, variables: dict[str, Any], config: dict[str, Any]) -> Path:
    folder.mkdir()
    mlx.save_safetensors(str(folder / "model.safetensors"), variables)
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(like / "tokenizer.json", folder)
    return folder


def logits_of(mlx: Any, model: Any) -> Any:
    noise = np.random.Generator(np.random.Philox(4)).standard_normal((1, 200, 80)).astype(np.float32) * 0.3
    cache = model.cache(model.encode(mlx.array(noise)))
    return model.decode([[50257, 50362, 440]], cache, [2])


def test_transformers_layout_is_the_same_model(
    mlx: Any, tiny: Any, kernels: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    """A folder under transformers' names, convolutions turned back, gives the same logits."""
    from engine.whisper.model import TRANSFORMERS_NAMES, load_model

    pairs = (
        ("cross_attn_ln", "encoder_attn_layer_norm"),
        (".attn_ln", ".self_attn_layer_norm"),
        ("mlp_ln", "final_layer_norm"),
        ("encoder.ln_post", "encoder.layer_norm"),
        ("decoder.ln.", "decoder.layer_norm."),
        ("cross_attn.", "encoder_attn."),
        (".attn.", ".self_attn."),
        ("token_embedding", "embed_tokens"),
        ("positional_embedding", "embed_positions.weight"),
        ("blocks.", "layers."),
        (".query", ".q_proj"),
        (".key", ".k_proj"),
        (".value", ".v_proj"),
        (".out.", ".out_proj."),
        ("mlp1", "fc1"),
        ("mlp2", "fc2"),
    )
    renamed = {}
    for name, array in mlx.load(str(tiny_folder / "model.safetensors")).items():
        theirs = name
        for new, old in pairs:
            theirs = theirs.replace(new, old)
        turned = array.transpose(0, 2, 1) if theirs.endswith(("conv1.weight", "conv2.weight")) else array
        renamed[f"model.{theirs}"] = mlx.contiguous(turned)
    ours = json.loads((tiny_folder / "config.json").read_text())
    config = {theirs: ours[name] for name, theirs in TRANSFORMERS_NAMES.items()}
    folder = save(mlx, tmp_path / "m", tiny_folder, renamed, config)
    model = load_model(folder, mlx.float32, kernels)
    assert np.array_equal(logits_of(mlx, model), logits_of(mlx, tiny))


def test_quantized_weights_are_unpacked_on_the_cpu(
    mlx: Any,
    tiny: Any,
    kernels: Any,
    tokenizer: Any,
    tiny_folder: Path,
    tmp_path: Path,
    run: Any,
    ask: Any,
    clip: Any,
) -> None:
    """A folder in MLX's 8-bit layout loads, says so, and hears the same words."""
    from engine.whisper.model import load_model
    from engine.whisper.precision import weights_bytes
    from engine.whisper.session import WhisperSession

    variables: dict[str, Any] = {}
    for name, array in mlx.load(str(tiny_folder / "model.safetensors")).items():
        stem = name.removesuffix(".weight")
        if array.ndim == 2 and name.endswith(".weight"):
            packed, scales, zeros = mlx.quantize(array.astype(mlx.float32), group_size=64, bits=8)
            variables |= {name: packed, f"{stem}.scales": scales, f"{stem}.biases": zeros}
        else:
            variables[name] = array
    config = json.loads((tiny_folder / "config.json").read_text())
    config["quantization"] = {"group_size": 64, "bits": 8}
    folder = save(mlx, tmp_path / "m", tiny_folder, variables, config)
    model = load_model(folder, mlx.float32, kernels)
    assert (model.bits, tiny.bits) == (8, 32)
    assert weights_bytes(model) < weights_bytes(tiny) / 2
    exact, unpacked = logits_of(mlx, tiny).ravel(), logits_of(mlx, model).ravel()
    assert np.corrcoef(unpacked, exact)[0, 1] > 0.99
    assert not np.array_equal(unpacked, exact)
    done = run(WhisperSession(model, tokenizer), [ask("a", clip("beckett"))])["a"]
    letters = "".join(c for c in done.text.lower() if c.isalpha())
    assert (letters, done.bits) == ("evertriedeverfailednomattertryagainfailagainfailbetter", 8)


def test_a_model_whose_rows_disagree_is_refused(mlx: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warm-up compares a row in a batch with the row alone, and refuses a model that spoils it."""
    from engine.device import warm_up
    from engine.loop import LoadRefused

    warm_up(tiny, 50257)
    decode = tiny.decode

    def spoil(tokens: Any, cache: Any, at: Any) -> Any:
        logits = decode(tokens, cache, at)
        logits[1:] += np.linspace(0, 1, logits.shape[-1], dtype=np.float32)
        return logits

    monkeypatch.setattr(tiny, "decode", spoil)
    with pytest.raises(LoadRefused) as caught:
        warm_up(tiny, 50257)
    assert caught.value.code == "parity"


@pytest.mark.parametrize("missing", ["decoder.ln.bias", "encoder.blocks.2.mlp1.weight"])
def test_missing_weights_are_named(
    mlx: Any, kernels: Any, tiny_folder: Path, tmp_path: Path, missing: str
) -> None:
    """A model without one of its weights is refused, and the error names it."""
    from engine.whisper.model import BadModel, load_model

    variables = mlx.load(str(tiny_folder / "model.safetensors"))
    del variables[missing]
    config = json.loads((tiny_folder / "config.json").read_text())
    folder = save(mlx, tmp_path / "m", tiny_folder, variables, config)
    with pytest.raises(BadModel, match=missing):
        load_model(folder, mlx.float32, kernels)


def test_another_kind_of_model_is_refused(mlx: Any, kernels: Any, tmp_path: Path) -> None:
    """A folder whose config lacks Whisper's sizes, or which holds no weights, is no Whisper."""
    from engine.whisper.model import BadModel, load_model

    (tmp_path / "config.json").write_text('{"hidden_size": 4}')
    with pytest.raises(BadModel, match="no safetensors"):
        load_model(tmp_path, mlx.float32, kernels)
    mlx.save_safetensors(str(tmp_path / "model.safetensors"), {"a": mlx.zeros(3)})
    with pytest.raises(BadModel, match="lacks"):
        load_model(tmp_path, mlx.float32, kernels)


def test_a_tokenizer_of_another_model_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    """A vocabulary without Whisper's steering tokens, or of another size, is an error at load."""
    from engine.whisper.tokenizer import BadTokenizer, Tokenizer

    with pytest.raises(BadTokenizer, match="another model"):
        Tokenizer(tiny_folder, 1000)
    told = json.loads((tiny_folder / "tokenizer.json").read_text())
    told["added_tokens"] = [t for t in told["added_tokens"] if t["content"] != "<|translate|>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(BadTokenizer, match="translate"):
        Tokenizer(tmp_path, 51_864)
