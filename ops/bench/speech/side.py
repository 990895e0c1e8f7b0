"""A peer in a process of its own, behind a pipe, and who there is."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from engine import blas
from engine.config import default_cache_dir
from engine.models import ModelError, ModelSource, Registry
from ops.bench import environments
from ops.bench.environments import PeerUnavailable
from ops.exits import Trouble
from ops.settings import Settings

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 10.0


class SideFailed(Exception):
    """A peer's process ended or did not answer in time; the message says which."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a side heard in one file. Segments are (start, end, text), seconds."""

    text: str
    segments: tuple[tuple[float, float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a side made of some files, and the seconds that it took inside its own process."""

    seconds: float
    heard: tuple[Heard, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """Somebody whom we are measured against."""

    name: str
    group: str
    """What ``--against`` calls it; "" for what is always measured."""
    label: str
    module: str
    """Of :mod:`ops.bench.speech.sides`."""
    arguments: tuple[str, ...] = ()
    """Behind the folder of the weights."""
    pins: str | None = None
    """Name of its list of pins; None where it runs in our own environment, which holds it anyway."""
    weights: str = "mlx"
    """ "mlx", "ct2" or "alias": what it is given first."""


CORES = blas.available_cores()

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "direct",
            "",
            "our model called directly, in a process",
            "direct_side",
            weights="alias",
        ),
        Peer(
            "mlx-audio",
            "mlx-audio",
            "mlx-audio, same BLAS, float32",
            "mlx_audio_side",
            ("same",),
        ),
        Peer(
            "mlx-audio-shipped",
            "mlx-audio",
            "mlx-audio as shipped",
            "mlx_audio_side",
            ("shipped",),
        ),
        Peer(
            "mlx-whisper",
            "mlx-whisper",
            "mlx-whisper, same BLAS, float32",
            "mlx_whisper_side",
            pins="mlx-whisper",
        ),
        Peer(
            "faster-whisper",
            "faster-whisper",
            "faster-whisper float32, greedy",
            "faster_whisper_side",
            ("float32", "spread", str(CORES)),
            pins="faster-whisper",
            weights="ct2",
        ),
        Peer(
            "faster-whisper-int8",
            "faster-whisper",
            "faster-whisper int8, greedy",
            "faster_whisper_side",
            ("int8", "spread", str(CORES)),
            pins="faster-whisper",
            weights="ct2",
        ),
        Peer(
            "faster-whisper-batched",
            "faster-whisper",
            "faster-whisper float32, greedy, batched",
            "faster_whisper_side",
            ("float32", "batched", str(CORES)),
            pins="faster-whisper",
            weights="ct2",
        ),
    )
}


@dataclass(slots=True)
class Side:
    """A running peer whose model is loaded."""

    process: subprocess.Popen[str]
    chatter: IO[bytes]
    facts: dict[str, Any] = field(default_factory=dict)
    """Versions and types, as the process tells them."""
    _lines: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    @classmethod
    def start(cls, peer: Peer, settings: Settings, tell: Callable[[str], None]) -> Self:
        """:raises PeerUnavailable: it cannot be installed, or did not come up."""
        python, env = _interpreter(peer, settings, tell)
        # Libraries chat there about progress; the last line tells why one has ended.
        chatter = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        process = subprocess.Popen(
            [*python, *_given(peer, settings), *peer.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=chatter,
            env=env,
            text=True,
        )
        side = cls(process, chatter)
        threading.Thread(target=side._read, name=f"side-{peer.name}", daemon=True).start()
        try:
            side.facts = side._answer(START_TIMEOUT_S)
        except SideFailed as exc:
            side.close()
            raise PeerUnavailable(str(exc)) from exc
        return side

    def hear(self, files: Sequence[Path], timeout_s: float) -> Answer:
        """:raises SideFailed: the process ended, or was ended because it did not answer in time."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([str(path) for path in files]) + "\n")
            self.process.stdin.flush()
        except OSError as exc:
            raise SideFailed(self._ended()) from exc
        told = self._answer(timeout_s)
        heard = tuple(
            Heard(one["text"], tuple((start, end, text) for start, end, text in one["segments"]))
            for one in told["heard"]
        )
        return Answer(told["seconds"], heard)

    def close(self) -> None:
        """It ends at the end of its input; what does not is killed."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.chatter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _ended(self) -> str:
        status = self.process.wait()
        self.chatter.seek(0)
        said = self.chatter.read().decode("utf-8", "replace").strip().splitlines()
        return f"its process ended with status {status}" + (f": {said[-1][:200]}" if said else "")

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            self.process.kill()
            raise SideFailed(f"it did not answer within {timeout_s:.0f} s") from None
        if not line:
            raise SideFailed(self._ended())
        answer: dict[str, Any] = json.loads(line)
        return answer


def cache_of(settings: Settings) -> Path:
    return settings.cache_dir.expanduser() if settings.cache_dir else default_cache_dir()


def _interpreter(
    peer: Peer, settings: Settings, tell: Callable[[str], None]
) -> tuple[list[str], dict[str, str]]:
    # Nothing is asked of a model hub: the weights are here.
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    if peer.pins is None:
        return [sys.executable, "-m", f"ops.bench.speech.sides.{peer.module}"], env
    python = environments.interpreter(HERE / "pins" / f"{peer.pins}.txt", cache_of(settings), tell)
    return [str(python), str(HERE / "sides" / f"{peer.module}.py")], env


def _given(peer: Peer, settings: Settings) -> list[str]:
    cache = cache_of(settings)
    registry = Registry(settings.models, cache)
    try:
        match peer.weights:
            case "mlx":
                return [str(registry.resolve(settings.model))]
            case "ct2":
                return [str(_ct2_folder(registry.source(settings.model)))]
            case _:
                told = {"models": settings.models, "model": settings.model, "cache": str(cache)}
                return [json.dumps(told)]
    except ModelError as exc:
        raise Trouble(f"The model {settings.model} cannot be had: {exc}") from exc


def _ct2_folder(source: ModelSource) -> Path:
    """The folder of CTranslate2's own ``model.bin``. Raises PeerUnavailable where there is none in one piece."""
    folder = Path(source.location)
    if source.kind == "package":
        # A model in several packages is no such folder; its name is no module's either.
        spec = None if "+" in source.location else importlib.util.find_spec(source.location)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            folder = next((path.parent for path in Path(place).glob("**/model.bin")), folder)
    if not (folder / "model.bin").is_file():
        raise PeerUnavailable(f"{source} is no folder of CTranslate2")
    return folder
