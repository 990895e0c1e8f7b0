"""``python -m engine.probe``: what MLX runs on here, as one JSON object. In a process of its own, as the engine is.

Keys: ``mlx`` (version), ``device``, ``blas`` (path or null), ``gflops`` (of a float32 matrix product).
"""

from __future__ import annotations

import importlib.metadata
import json
import time

from engine import blas

SIZE = 1024
RUNS = 3


def probe() -> dict[str, object]:
    """Load a BLAS, then MLX, and multiply once or twice. Raises ImportError where MLX cannot be imported."""
    loaded = blas.load()
    import mlx.core as mx

    from engine.device import device_name

    left = mx.random.uniform(shape=(SIZE, SIZE))
    right = mx.random.uniform(shape=(SIZE, SIZE))
    mx.eval(left, right, left @ right)
    took = []
    for _ in range(RUNS):
        began = time.perf_counter()
        mx.eval(left @ right)
        took.append(time.perf_counter() - began)
    return {
        "mlx": importlib.metadata.version("mlx"),
        "device": device_name(),
        "blas": str(loaded.path) if loaded is not None else None,
        "gflops": round(2 * SIZE**3 / min(took) / 1e9, 1),
    }


if __name__ == "__main__":
    print(json.dumps(probe()))
