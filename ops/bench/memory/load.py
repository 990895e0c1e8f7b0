"""The work of a run: real recordings, cut into clips of unlike lengths, the same for every budget."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from ops import recordings

SHORT_S, LONG_S = (2.0, 5.0, 8.0), (14.0, 25.0)
"""Lengths of clips, seconds. The long ones fall into windows that the short ones never need."""
SEED = 5


@dataclass(frozen=True, slots=True)
class Work:
    """Files by the length of their speech."""

    short: tuple[Path, ...]
    long: tuple[Path, ...]

    def mixed(self, count: int) -> list[Path]:
        """So many clips, a quarter of them long, in an order that is always the same."""
        rng = random.Random(SEED)  # noqa: S311 - an order, not a secret
        files = [rng.choice(self.long if i % 4 == 3 else self.short) for i in range(count)]
        rng.shuffle(files)
        return files


def cut(folder: Path) -> Work:
    """Write the clips. Needs soundfile and the recordings of the ``[demo]`` extra.

    Silence is cut away by the worker, so a clip's window may be shorter than its length.
    """
    import soundfile

    short: list[Path] = []
    long: list[Path] = []
    for source in recordings.spoken():
        length_s = soundfile.info(source).duration
        for seconds in (*SHORT_S, *LONG_S):
            for number in range(int(min(3, length_s // seconds))):
                path = _write(source, folder, number * seconds, seconds)
                (long if seconds in LONG_S else short).append(path)
    return Work(tuple(short), tuple(long))


def _write(source: Path, folder: Path, start_s: float, seconds: float) -> Path:
    import soundfile

    rate = soundfile.info(source).samplerate
    start, stop = round(start_s * rate), round((start_s + seconds) * rate)
    samples, _ = soundfile.read(source, start=start, stop=stop, dtype="int16")
    path = folder / f"{source.stem}-{seconds:g}s-{start_s:g}.wav"
    soundfile.write(path, samples, rate, subtype="PCM_16")
    return path
