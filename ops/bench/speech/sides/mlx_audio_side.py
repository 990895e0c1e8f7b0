"""``mlx_audio_side FOLDER same|shipped``: mlx-audio's own ``Model.generate``, one file after another.

``same``: the OpenBLAS that our engine has, and float32. ``shipped``: what installing mlx-audio gives, with
its defaults (float16, on Linux the BLAS of MLX's wheel).
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ops.bench.speech.sides.lines import Heard, answers, one_by_one, serve


def main(folder: Path, manner: str) -> None:
    output = answers()
    loaded = None
    if manner == "same":
        from engine import blas

        # Before MLX is imported.
        loaded = blas.load()
    import mlx.core as mx

    from engine.reference import load_mlx_audio_model

    half = manner == "shipped"
    model = load_mlx_audio_model(folder, mx.float16 if half else mx.float32)

    def hear(path: str) -> Heard:
        result = model.generate(path, language="en", fp16=half)
        return Heard(result.text, [(s["start"], s["end"], s["text"]) for s in result.segments or []])

    facts: dict[str, Any] = {
        "version": version("mlx-audio"),
        "mlx": version("mlx"),
        "device": mx.default_device().type.name,
        "dtype": "float16" if half else "float32",
        "blas": loaded.path.name if loaded is not None else None,
    }
    serve(output, facts, one_by_one(hear))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
