"""The machine and the moment of a measurement."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine import blas


def facts() -> dict[str, Any]:
    return {
        "machine": f"{processor()}, {blas.available_cores()} cores, {platform.system()}",
        "python": platform.python_version(),
        "decibatch": importlib.metadata.version("decibatch"),
        "mlx": importlib.metadata.version("mlx"),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    }


def processor() -> str:
    """Its name, as the system has it."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        return ran.stdout.strip() or platform.machine()
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text("utf-8").splitlines() if listed.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
