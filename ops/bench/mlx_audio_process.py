"""``python -m ops.bench.mlx_audio_process FOLDER``: paths in, one JSON string a line; texts and seconds out."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main(folder: Path) -> None:
    # What libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    from engine import blas

    loaded = blas.load()
    model, facts = _load(folder)
    facts["blas"] = loaded.path.name if loaded is not None else None
    _tell(answers, facts)
    for line in sys.stdin:
        path = json.loads(line)
        began = time.perf_counter()
        result = model.generate(path, language="en", fp16=False)
        _tell(answers, {"text": result.text, "seconds": time.perf_counter() - began})


def _load(folder: Path) -> tuple[Any, dict[str, Any]]:
    """mlx-audio's model with our converted weights, which have its own names, in float32."""
    import mlx.core as mx
    from mlx.utils import tree_unflatten
    from mlx_audio.stt.models.whisper.whisper import Model, ModelDimensions

    transformers: Any = import_module("transformers")

    config = json.loads((folder / "config.json").read_text("utf-8"))
    model = Model(ModelDimensions.from_dict(config), mx.float32)
    stored: Any = mx.load(str(folder / "model.safetensors"))
    weights = {name: array.astype(mx.float32) for name, array in stored.items()}
    model.update(tree_unflatten(list(weights.items())))
    mx.eval(model.parameters())
    end = "<|endoftext|>"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token=end, unk_token=end, bos_token=end
    )
    # It asks the processor of transformers for nothing but this.
    model._processor = SimpleNamespace(tokenizer=tokenizer)
    facts = {
        "mlx_audio": version("mlx-audio"),
        "mlx": version("mlx"),
        "device": mx.default_device().type.name,
        "dtype": "float32",
    }
    return model, facts


def _tell(answers: Any, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
