"""What is recognised: clips of 2 to 11 s, and a long file joined from recordings of people. Needs soundfile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops import recordings
from ops.bench import speech_references
from worker.media.types import SAMPLE_RATE

JOINED = ("two_cities.wav", "beckett.wav")
"""Spoken by people, and with a reference. Read over and over: there is no longer recording with both."""
BETWEEN_S = 0.5
"""Silence between two of them."""


@dataclass(frozen=True, slots=True)
class Sound:
    """A file and what is said in it."""

    path: Path
    text: str
    seconds: float


def cut(clips: Sequence[speech_references.Clip], folder: Path) -> list[Path]:
    """Write each clip as a WAV file of the recording's own rate."""
    import soundfile

    files = []
    for number, clip in enumerate(clips):
        source = recordings.folder() / clip.file
        rate = soundfile.info(source).samplerate
        stop = None if clip.end_s is None else round(clip.end_s * rate)
        samples, _ = soundfile.read(source, start=round(clip.start_s * rate), stop=stop, dtype="int16")
        files.append(folder / f"{number:02d}-{source.stem}.wav")
        soundfile.write(files[-1], samples, rate, subtype="PCM_16")
    return files


def short(folder: Path) -> list[Sound]:
    """All clips, in the order of the recordings."""
    clips = speech_references.clips()
    return [
        Sound(path, clip.text, _seconds(path)) for path, clip in zip(cut(clips, folder), clips, strict=True)
    ]


def joined(path: Path, at_least_s: float) -> Sound:
    """The recordings of people one after another at 16 kHz, again and again, until the file is long enough."""
    import numpy as np
    import soundfile

    texts = speech_references.recordings()
    read = {name: samples(recordings.folder() / name) for name in JOINED}
    silence = np.zeros(round(BETWEEN_S * SAMPLE_RATE), np.int16)
    parts: list[Any] = []
    said = []
    for name in itertools.cycle(JOINED):
        parts += [read[name], silence]
        said.append(texts[name])
        if sum(map(len, parts)) >= at_least_s * SAMPLE_RATE:
            break
    whole = np.concatenate(parts)
    soundfile.write(path, whole, SAMPLE_RATE, subtype="PCM_16")
    return Sound(path, " ".join(said), len(whole) / SAMPLE_RATE)


def samples(path: Path) -> Any:
    """A file as our own decoders read it: 16 kHz mono, 16 bits. Raises MediaError."""
    import numpy as np

    from worker.media.decode import open_reader

    with path.open("rb") as file:
        reader = open_reader(file.fileno(), path.name)
        try:
            return np.concatenate(list(reader.blocks()))
        finally:
            reader.close()


def _seconds(path: Path) -> float:
    import soundfile

    return float(soundfile.info(path).duration)
