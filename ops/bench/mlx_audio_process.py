"""``python -m ops.bench.mlx_audio_process FOLDER``: paths in, one JSON string a line; texts and seconds out."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    # What libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    from engine import blas

    loaded = blas.load()
    # After OpenBLAS: it is what imports MLX.
    from engine.reference import load_mlx_audio_model

    model = load_mlx_audio_model(folder)
    _tell(answers, {**_facts(), "blas": loaded.path.name if loaded is not None else None})
    for line in sys.stdin:
        path = json.loads(line)
        began = time.perf_counter()
        result = model.generate(path, language="en", fp16=False)
        _tell(answers, {"text": result.text, "seconds": time.perf_counter() - began})


def _facts() -> dict[str, Any]:
    import mlx.core as mx

    return {
        "mlx_audio": version("mlx-audio"),
        "mlx": version("mlx"),
        "device": mx.default_device().type.name,
        "dtype": "float32",
    }


def _tell(answers: Any, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
