"""What is measured, against whom, and what we aim at. Data, and the figures that are made of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ops.bench.speech.audio import Sound

Call = tuple[Sound, ...]
"""Files handed over together; the next call follows when all have text."""

AT_ONCE = 16
ALONE = 8


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound on the ratio of our figure to theirs."""

    sense: Literal[">=", "<="]
    bound: float

    def __str__(self) -> str:
        return f"{self.sense} {self.bound:g}"

    def reached(self, ratio: float) -> bool:
        return ratio >= self.bound if self.sense == ">=" else ratio <= self.bound


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work.

    ``figure`` makes one number of a round: of the calls, and of the seconds that each took.
    """

    name: str
    title: str
    unit: str
    against: dict[str, Aim | None]
    """Peers, by name, and the aim of each."""
    calls: Callable[[Sequence[Sound], Sound], list[Call]]
    """Of the clips and the long file."""
    figure: Callable[[Sequence[Call], Sequence[float]], float]


def files_a_second(calls: Sequence[Call], seconds: Sequence[float]) -> float:
    return sum(map(len, calls)) / sum(seconds)


def audio_a_second(calls: Sequence[Call], seconds: Sequence[float]) -> float:
    return sum(sound.seconds for call in calls for sound in call) / sum(seconds)


def median_seconds(_: Sequence[Call], seconds: Sequence[float]) -> float:
    return statistics.median(seconds)


def all_clips(clips: Sequence[Sound], _: Sound) -> list[Call]:
    return [tuple(clips[at : at + AT_ONCE]) for at in range(0, len(clips), AT_ONCE)]


def spread_out(sounds: Sequence[Sound], count: int) -> list[Sound]:
    """So many of them, from all over the list."""
    return [sounds[i * len(sounds) // count] for i in range(min(count, len(sounds)))]


WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        Work(
            "clips",
            f"clips of 2-11 s, {AT_ONCE} at a time",
            "clips/s",
            {
                "mlx-audio": Aim(">=", 10),
                "mlx-whisper": None,
                "faster-whisper": Aim(">=", 2),
                "faster-whisper-int8": Aim(">=", 1.8),
            },
            all_clips,
            files_a_second,
        ),
        Work(
            "shipped",
            f"clips of 2-11 s, {AT_ONCE} at a time",
            "clips/s",
            # A work of its own: on a Linux CPU, mlx-audio as installed takes some 25 s for each clip.
            {"mlx-audio-shipped": Aim(">=", 80)},
            all_clips,
            files_a_second,
        ),
        Work(
            "one",
            "one clip alone, idle worker",
            "s",
            {"direct": Aim("<=", 1.1), "mlx-audio": Aim("<=", 0.5)},
            lambda clips, _: [(sound,) for sound in spread_out(clips, ALONE)],
            median_seconds,
        ),
        Work(
            "long",
            "a long file",
            "times real time",
            {"mlx-audio": Aim(">=", 3), "faster-whisper-batched": Aim(">=", 0.8)},
            lambda _, long: [(long,)],
            audio_a_second,
        ),
    )
}

MIXED = "mixed"
MIXED_TITLE = "a clip every second beside a long file, p95"
MIXED_AGAINST = "the same clips without the long file"
MIXED_AIM = Aim("<=", 1.5)

NAMES = (*WORKS, MIXED)
