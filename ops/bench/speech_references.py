"""What is read in the recordings, and where they are cut. The words are data: ``speech.toml``, which says whose."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Clip:
    """A stretch of a recording and its words."""

    file: str
    start_s: float
    end_s: float | None
    """None is the end of the recording."""
    text: str


def clips() -> list[Clip]:
    """All clips, in the order of the recordings."""
    data = tomllib.loads((resources.files("ops.bench") / "speech.toml").read_text("utf-8"))
    return [Clip(c["file"], c["start"], c["end"] or None, c["text"]) for c in data["clip"]]


def recordings() -> dict[str, str]:
    """Each recording and all that is said in it."""
    texts: dict[str, list[str]] = {}
    for clip in clips():
        texts.setdefault(clip.file, []).append(clip.text)
    return {file: " ".join(parts) for file, parts in texts.items()}
