"""mlx-audio's Whisper over the same weights: what benchmarks and parity tests measure the engine against.

The engine itself never imports this module.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import Tokenizer as BytePairTokenizer

END = "<|endoftext|>"


class _TokenizerAdapter:
    """The few members of transformers' ``WhisperTokenizer`` that mlx-audio uses."""

    def __init__(self, path: Path) -> None:
        self._bpe: Any = BytePairTokenizer.from_file(str(path))
        self.eos_token_id: int = self._bpe.get_vocab()[END]
        self.unk_token_id = self.eos_token_id

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._bpe.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        text: str = self._bpe.decode(tokens, skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, token: str) -> int:
        found = self._bpe.token_to_id(token)
        return self.unk_token_id if found is None else int(found)

    def get_vocab(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self._bpe.get_vocab()
        return vocabulary


class _Processor:
    def __init__(self, tokenizer: _TokenizerAdapter) -> None:
        self.tokenizer = tokenizer


def load_mlx_audio_model(folder: Path, dtype: mx.Dtype = mx.float32) -> Any:
    """An ``mlx_audio.stt.models.whisper`` model over a folder in MLX's layout.

    :param folder: e.g. what :meth:`engine.models.Registry.resolve` returns.
    :param dtype: float32 needs ``fp16=False`` in its ``generate()``.
    :raises OSError: a file is missing.
    """
    from mlx.utils import tree_unflatten
    from mlx_audio.stt.models.whisper.whisper import Model, ModelDimensions

    config = json.loads((folder / "config.json").read_text())
    model = Model(ModelDimensions.from_dict(config), dtype)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    model.update(tree_unflatten([(name, array.astype(dtype)) for name, array in weights.items()]))
    mx.eval(model.parameters())
    model._processor = _Processor(_TokenizerAdapter(folder / "tokenizer.json"))
    if config.get("alignment_heads"):
        model.set_alignment_heads(config["alignment_heads"])
    return model
