"""The BLAS in front of MLX, each time in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine import blas

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="macOS has Accelerate")

MEASURE = """
import json, time
from engine import blas
loaded = blas.load()
import mlx.core as mx
a = mx.random.normal((768, 768)); mx.eval(a)
def run():
    began = time.process_time(); mx.eval(a @ a); return time.process_time() - began
run()
best = min(run() for _ in range(5))
print(json.dumps({"path": str(loaded.path) if loaded else None, "gflops": 2 * 768**3 / best / 1e9}))
"""


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout


@linux_only
def test_mlx_multiplies_with_the_blas_that_was_loaded() -> None:
    """With OpenBLAS in front, MLX's float32 product is several times as fast as the reference BLAS's 7 GFLOP/s."""
    found = json.loads(run(MEASURE))
    assert found["path"].endswith("libopenblas.so")
    assert found["gflops"] > 25


@linux_only
def test_loading_after_mlx_is_refused() -> None:
    """Once MLX is imported its symbols are bound: loading then is an error, not a silent no-op."""
    code = (
        "import mlx.core\nfrom engine import blas\n"
        "try:\n    blas.load()\nexcept blas.BlasTooLate:\n    print('too late')"
    )
    assert run(code).strip() == "too late"


@linux_only
def test_a_missing_blas_is_reported_not_fatal() -> None:
    """Without an OpenBLAS the answer is None, and MLX still works."""
    code = (
        "from engine import blas\nblas._candidates = lambda: iter(())\nprint(blas.load())\n"
        "import mlx.core as mx\nprint(mx.ones(3).sum().item())"
    )
    assert run(code).split() == ["None", "3.0"]


def test_a_file_that_is_no_library_is_passed_over(tmp_path: Path) -> None:
    """A broken candidate is skipped; an image that is not ELF is left as it is."""
    (tmp_path / "libopenblas.so").write_bytes(b"no library")
    assert blas._open(tmp_path / "libopenblas.so") is None
    image = bytearray(b"\xcf\xfa\xed\xfe" + bytes(100))
    assert blas._rename(image, b"libgfortran.so.5") is False
