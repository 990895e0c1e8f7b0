"""A file of step records: what each step of the engine held. No text, no paths: ids, shapes, times, bytes.

``at`` is the Unix time, seconds, at which the worker heard that the step was over.
"""

from __future__ import annotations

import dataclasses
import json
import time
from io import TextIOWrapper
from pathlib import Path

from engine.protocol import StepDone


class StepLog:
    """Appends one JSON object a line; without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._file: TextIOWrapper | None = path.open("a", encoding="utf-8") if path is not None else None

    def write(self, step: StepDone, level: str) -> None:
        if self._file is not None:
            self._file.write(
                json.dumps({**dataclasses.asdict(step), "level": level, "at": time.time()}) + "\n"
            )
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
