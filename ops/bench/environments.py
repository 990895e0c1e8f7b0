"""Environments for peers whose requirements do not go with ours: made on demand, from exact pins, kept in the cache."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

INSTALL_TIMEOUT_S = 600.0
MARKER = "complete"


class PeerUnavailable(Exception):
    """A peer cannot be installed here; the message says why."""


def interpreter(pins: Path, cache: Path, tell: Callable[[str], None]) -> Path:
    """The Python of the environment with these pins; it is made where it is not there yet.

    :param pins: a file as pip reads it, every line ``name==version``.
    :param cache: folder under which environments are kept, each under the digest of its pins.
    :raises PeerUnavailable: it cannot be made.
    """
    mark = hashlib.sha256(pins.read_bytes()).hexdigest()[:12]
    folder = cache / "bench" / f"{pins.stem}-{sys.version_info[0]}.{sys.version_info[1]}-{mark}"
    python = folder / "bin" / "python"
    if not (folder / MARKER).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Two benchmarks at once must not take each other's half-made folder away.
        with (folder.parent / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / MARKER).exists():
                tell(f"making an environment for {pins.stem}")
                shutil.rmtree(folder, ignore_errors=True)
                _make(folder, python, pins)
                (folder / MARKER).touch()
    return python


def pinned(pins: Path, package: str) -> str:
    """The version of a package in a file of pins. Raises LookupError."""
    for line in pins.read_text("utf-8").splitlines():
        name, _, number = line.partition(";")[0].partition("==")
        if name == package:
            return number.strip()
    raise LookupError(f"{pins.name} does not pin {package}")


def _make(folder: Path, python: Path, pins: Path) -> None:
    commands: tuple[list[str], ...] = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(pins)],
    )
    for command in commands:
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise PeerUnavailable(f"no environment could be made: {type(exc).__name__}") from exc
        if ran.returncode:
            said = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")]
            raise PeerUnavailable(f"pip could not install it: {' '.join(said)[:300] or 'it said no more'}")
