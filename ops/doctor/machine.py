"""Checks of this machine: interpreter, packages, MLX, models, limits, disk."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ops.doctor.finding import Finding, fail, ok, warn

MIN_PYTHON = (3, 11)
PROBE_TIMEOUT_S = 120.0
SLOW_GFLOPS = 15.0
"""MLX' Linux wheel brings a reference BLAS of about 7 GFLOP/s; an OpenBLAS does 140 and more on two cores."""
MIN_FILES = 1024
LITTLE_DISK = 2 * 1024**3
NO_DISK = 200 * 1024**2


def python(version: tuple[int, int, int], system: str, machine: str, *, pointer_bits: int) -> Finding:
    """:param system: as :data:`sys.platform` has it."""
    name = ".".join(map(str, version))
    if version[:2] < MIN_PYTHON:
        return fail(
            "python",
            f"Python {name} is older than 3.11.",
            "install Python 3.11 or newer, and Decibatch in it",
        )
    if system == "darwin" and machine != "arm64":
        return fail(
            "python",
            f"Python {name} is built for {machine} and runs translated: MLX needs a native one.",
            "install a native (arm64) Python, and Decibatch in it",
        )
    if pointer_bits < 64:
        return fail("python", f"Python {name} is a 32-bit build.", "install a 64-bit Python")
    return ok("python", f"Python {name} on {system} {machine}.")


def packages(missing: Sequence[str]) -> Finding:
    if missing:
        names = ", ".join(missing)
        return fail("packages", f"A worker needs {names}.", "pip install 'decibatch[worker]'")
    return ok("packages", "All that a worker needs is installed.")


def ask_mlx() -> Mapping[str, Any]:
    """What :mod:`engine.probe` says; ``{"error": ...}`` where it says nothing."""
    command = [sys.executable, "-m", "engine.probe"]
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
            cwd=Path(__file__).parents[2],
        )
        told: dict[str, Any] = json.loads(ran.stdout) if ran.returncode == 0 else {}
    except (OSError, subprocess.TimeoutExpired, ValueError) as exc:
        return {"error": type(exc).__name__}
    last = ran.stderr.strip().splitlines()[-1:] or [f"status {ran.returncode}"]
    return told or {"error": last[0][:200]}


def mlx(told: Mapping[str, Any], system: str) -> list[Finding]:
    """The device and the BLAS that MLX uses."""
    if "error" in told:
        mend = "pip install --force-reinstall 'decibatch[worker]'"
        return [fail("mlx", f"MLX does not start: {told['error']}", mend)]
    device, speed = told["device"], told["gflops"]
    name = f"MLX {told['mlx']} on {device}"
    if system == "darwin" and device == "cpu":
        where = "run the worker on the Mac itself and as a logged-in user: decibatch service install"
        return [warn("mlx", f"{name}: Metal is not available, and the CPU is many times slower.", where)]
    found = [ok("mlx", f"{name}, {speed:g} GFLOP/s.")]
    if system == "linux" and device == "cpu":
        found.append(_blas(told["blas"], speed))
    return found


def _blas(path: str | None, speed: float) -> Finding:
    if path is None:
        return warn(
            "blas",
            "MLX uses its reference BLAS, 20 times slower than OpenBLAS.",
            "pip install cmeel-openblas",
        )
    if speed < SLOW_GFLOPS:
        said = f"{path} is loaded, and a matrix product runs at {speed:g} GFLOP/s only."
        return warn("blas", said, "look for what else uses the processor: decibatch top, uptime")
    return ok("blas", f"OpenBLAS from {path}.")


def models(problems: Mapping[str, str | None]) -> list[Finding]:
    """:param problems: alias to what is wrong with it; None for nothing."""
    found = []
    for alias, problem in problems.items():
        if problem is None:
            found.append(ok("model", f"{alias} is here."))
        else:
            found.append(
                fail(
                    "model",
                    f"{alias}: {problem}",
                    "decibatch config shows `models`; mend or fetch its source",
                )
            )
    return found


def limits(soft_files: int, budget_mb: int | None, memory_bytes: int) -> list[Finding]:
    """Open files, and the memory budget against the machine's memory."""
    found = []
    if soft_files != resource.RLIM_INFINITY and soft_files < MIN_FILES:
        said = f"This shell may open {soft_files} files."
        found.append(warn("limits", said, "ulimit -n 8192, before the worker; the service has its own limit"))
    else:
        found.append(ok("limits", "Enough files may be open."))
    if budget_mb is not None and budget_mb * 1024**2 > 0.9 * memory_bytes:
        said = (
            f"memory_budget_mb is {budget_mb}, and the machine has {memory_bytes / 1024**2:.0f} MiB in all."
        )
        found.append(warn("limits", said, "lower DECIBATCH_MEMORY_BUDGET_MB, or leave it unset"))
    return found


def disk(what: str, folder: Path, free: int, *, writable: bool) -> Finding:
    """:param free: bytes."""
    room = f"{free / 1024**3:.1f} GiB are free for the {what}, {folder}."
    if not writable:
        return fail("disk", f"The {what}, {folder}, cannot be written.", f"chown \"$USER\" '{folder}'")
    if free < NO_DISK:
        return fail("disk", room, f"df -h '{folder}' and make room")
    if free < LITTLE_DISK:
        return warn("disk", room, f"df -h '{folder}' and make room")
    return ok("disk", room)


def inputs(roots: tuple[str, ...] | None) -> list[Finding]:
    """Folders below which a worker reads files.

    :param roots: None for any file, empty for none.
    """
    if roots is None:
        return [ok("inputs", "Any file of this machine is read; DECIBATCH_INPUT_ROOTS would narrow that.")]
    if not roots:
        said = "No file is read by its path, because Redis is not this machine's: jobs send bytes or URLs."
        return [ok("inputs", f"{said} DECIBATCH_INPUT_ROOTS would name folders.")]
    found = []
    for root in roots:
        if not Path(root).is_dir():
            said = f"{root} is no folder: no file below it can be read."
            found.append(warn("inputs", said, f"mkdir -p '{root}', or mend DECIBATCH_INPUT_ROOTS"))
        elif not os.access(root, os.R_OK | os.X_OK):
            said = f"This user may not read {root}."
            found.append(warn("inputs", said, f"chmod a+rx '{root}', or run the worker as its owner"))
        else:
            found.append(ok("inputs", f"Files below {root} are read."))
    return found


def this_python() -> Finding:
    bits = 64 if sys.maxsize > 2**32 else 32
    return python(sys.version_info[:3], sys.platform, platform.machine(), pointer_bits=bits)
