"""What an engine process is told when it starts: the first frame on its socket."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine process. All have a default but the models."""

    aliases: dict[str, str] = field(default_factory=dict)
    """Alias to model source: the only models there are. See :class:`engine.models.ModelSource`."""
    cache_dir: str | None = None
    """Where converted and fetched models are kept; None is :func:`default_cache_dir`."""
    budget: int | None = None
    """Bytes that the engine may use, weights included; None takes the device's less *reserve*."""
    reserve: int | None = None
    """Bytes of the device left to others where no budget is set; None is a quarter of the device."""
    memory_limit: int | None = None
    """Bytes given to ``mx.set_memory_limit``; None is the budget, 0 leaves MLX's own."""
    cache_limit: int | None = None
    """Bytes of freed buffers that MLX may keep (``mx.set_cache_limit``); None is a twentieth of the budget."""
    wired_limit: int = 0
    """Bytes given to ``mx.set_wired_limit`` (macOS 15 and later); 0 leaves it alone."""
    threads: int | None = None
    """Threads of the CPU backend; None takes every core available."""
    half_precision: bool = True
    """float16 on Metal and CUDA. The CPU backend always runs float32: its half precision is 40x slower."""
    partials: bool = True
    """Send the text of a chunk while it is being decoded."""
    partial_interval_s: float = 0.25
    """Least time between two partial texts of one chunk."""
    sample_interval_s: float = 0.05
    """Time between two memory samples while a batch runs."""
    idle_sample_interval_s: float = 1.0
    """Time between two memory samples while none does and memory stands still."""
    surroundings_interval_s: float = 10.0
    """Time between two readings of the machine's memory."""
    step_record_s: float = 0.1
    """Decode steps over the same rows are recorded together for this long."""
    slots: int = 32
    """Rows of one model that may run at once. See :class:`engine.stepping.Schedule`, also for the next three."""
    encode_s: float = 64.0
    """Window seconds of an encoder step while no row is decoded."""
    encode_beside_s: float = 24.0
    """Window seconds of an encoder step while rows are decoded: bounds how long it holds them up."""
    decode_steps: int = 4
    """Decoder steps that running rows get between two encoder steps."""
    deadline_base_s: float = 30.0
    """Time that any step may take, before what its size adds."""
    deadline_per_window_s: float = 2.0
    """Time added for each second of audio that an encoder step holds."""
    deadline_load_s: float = 300.0
    """Time that loading a model may take, conversion included."""

    def deadline_s(self, window_s: float, bits: Iterable[int]) -> float:
        """Seconds that a step may take.

        :param window_s: seconds of audio that it encodes.
        :param bits: of the models that are loaded; the fewest count.
        """
        return _patience(min(bits, default=32)) * (
            self.deadline_base_s + self.deadline_per_window_s * window_s
        )


def _patience(bits: int) -> float:
    """How much longer a step may take at so many bits: on the CPU backend weights are unpacked on the way."""
    return 1.0 if bits >= 16 else 2.0 if bits >= 8 else 3.0


def default_cache_dir() -> Path:
    """Folder for converted models: ``~/Library/Caches`` on macOS, ``$XDG_CACHE_HOME`` or ``~/.cache`` else."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "decibatch"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "decibatch"
