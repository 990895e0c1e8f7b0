"""The recordings of speech that the package ``moonshine-voice`` carries, for the demo and the benchmark."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SPOKEN = ("beckett.wav", "clone-test.wav", "endgame_nagg_nell.wav", "two_cities.wav")
"""10, 4, 28 and 44 s. The third was spoken by a synthesizer, the others by people."""


class RecordingsMissing(Exception):
    """The package is not installed."""


def folder() -> Path:
    """Where the recordings lie. Raises RecordingsMissing."""
    spec = importlib.util.find_spec("moonshine_voice")
    if spec is None or not spec.submodule_search_locations:
        raise RecordingsMissing("The recordings are missing: pip install 'decibatch[demo]'")
    return Path(spec.submodule_search_locations[0]) / "assets"


def spoken() -> list[Path]:
    """All recordings of speech. Raises RecordingsMissing."""
    return [folder() / name for name in SPOKEN]
