"""``mlx_whisper_side.py FOLDER``: mlx-whisper's ``transcribe`` in float32, one file after another.

Runs in mlx-whisper's environment, with ``engine.blas`` (standard library alone) on its path for the same OpenBLAS.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lines import Heard, answers, one_by_one, serve

from engine import blas

RATE = 16_000


def load(folder: Path) -> Any:
    """Its model over a folder in MLX's layout, which differs by a file's name and a key of the config."""
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_whisper.load_models import load_model

    config = json.loads((folder / "config.json").read_text())
    # Of use for the times of words alone, which nobody asks for here.
    config.pop("alignment_heads", None)
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "config.json").write_text(json.dumps(config))
        (here / "weights.safetensors").symlink_to(folder / "model.safetensors")
        model = load_model(str(here), mx.float32)
        model.update(tree_map(lambda array: array.astype(mx.float32), model.parameters()))
        mx.eval(model.parameters())
    return model


def samples(path: str) -> Any:
    """16 kHz mono; its own loader needs a program that is not always there."""
    import numpy as np
    import soundfile
    from scipy.signal import resample_poly

    data, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono = data.mean(axis=1)
    return mono if rate == RATE else resample_poly(mono, RATE, rate).astype(np.float32)


def main(folder: Path) -> None:
    output = answers()
    loaded = blas.load()
    import mlx_whisper
    from mlx_whisper.transcribe import ModelHolder

    ModelHolder.model, ModelHolder.model_path = load(folder), str(folder)

    def hear(path: str) -> Heard:
        told = mlx_whisper.transcribe(
            samples(path), path_or_hf_repo=str(folder), language="en", fp16=False, verbose=None
        )
        return Heard(told["text"], [(s["start"], s["end"], s["text"]) for s in told["segments"]])

    facts = {
        "version": version("mlx-whisper"),
        "mlx": version("mlx"),
        "dtype": "float32",
        "blas": loaded.path.name if loaded is not None else None,
    }
    serve(output, facts, one_by_one(hear))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
