"""mlx-audio in a process of its own: OpenBLAS has to be there before MLX is, and MLX must not be in ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engine.config import default_cache_dir
from engine.models import ModelError, Registry
from ops.exits import Trouble
from ops.settings import Settings


class MlxAudio:
    """A loaded and warm model of mlx-audio, behind a pipe.

    :param settings: name the model and where it lies.
    :raises Trouble: the model cannot be had, or the process did not come up.
    """

    facts: dict[str, Any]
    """Versions, device, dtype and BLAS, as the process tells them."""

    def __init__(self, settings: Settings) -> None:
        cache = settings.cache_dir.expanduser() if settings.cache_dir else default_cache_dir()
        try:
            folder = Registry(settings.models, cache).resolve(settings.model)
        except ModelError as exc:
            raise Trouble(f"The model {settings.model} cannot be had: {exc}") from exc
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ops.bench.mlx_audio_process", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Nothing is asked of a model hub: the weights are here.
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            text=True,
        )
        self.facts = self._answer()

    def transcribe(self, path: Path) -> tuple[str, float]:
        """Text, and the seconds that ``Model.generate`` took."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(str(path)) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return answer["text"], answer["seconds"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Trouble(f"mlx-audio's process ended with status {self._process.wait()}.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        # It ends at the end of its input.
        self._process.communicate()
