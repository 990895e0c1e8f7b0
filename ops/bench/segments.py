"""Why a segment of ours begins or ends elsewhere than mlx-audio's. Pure.

A clip is heard three times over the same weights and samples: by us as we do it, by us in windows of 30 s, and by
mlx-audio, whose windows are always that long. What differs in the first and not in the second comes from the length of
the window; what differs in both and not once their ends are moved to the end of the audio comes from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ops.bench.words import words

NEAR_S = 0.1
"""How far apart the ends of two segments may lie that count as the same."""
ROUNDING_S = 1e-6
"""Times are multiples of 20 ms, or the length of the audio: a tenth of a second apart is not more than one."""

Timed = Sequence[Any]
"""Start and end in seconds, then anything."""

CAUSES = ("within_0.1_s", "ends_behind_the_audio", "window", "unexplained")


@dataclass(frozen=True, slots=True)
class Heard:
    """One clip, heard three times: start, end and text of each segment."""

    seconds: float
    ours: Sequence[Timed]
    whole: Sequence[Timed]
    """Ours in a window of 30 s."""
    theirs: Sequence[Timed]


def near(one: Timed, other: Timed) -> bool:
    """Whether both ends lie within :data:`NEAR_S`."""
    return all(abs(one[side] - other[side]) <= NEAR_S + ROUNDING_S for side in (0, 1))


def inside(segment: Timed, seconds: float) -> tuple[float, float]:
    """Its times, none of them behind the end of the audio."""
    return min(segment[0], seconds), min(segment[1], seconds)


def causes(clip: Heard) -> list[str]:
    """One of :data:`CAUSES` for each of mlx-audio's segments."""
    return [
        _cause(theirs, _counterpart(clip.ours, clip, i), _counterpart(clip.whole, clip, i), clip.seconds)
        for i, theirs in enumerate(clip.theirs)
    ]


def _counterpart(mine: Sequence[Timed], clip: Heard, index: int) -> Timed | None:
    """Of the same number, if there are as many."""
    return mine[index] if len(mine) == len(clip.theirs) else None


def _cause(theirs: Timed, ours: Timed | None, whole: Timed | None, seconds: float) -> str:
    clamped = inside(theirs, seconds)
    if ours is not None and near(ours, theirs):
        return "within_0.1_s"
    if ours is not None and near(ours, clamped):
        return "ends_behind_the_audio"
    return "window" if whole is not None and near(whole, clamped) else "unexplained"


def summary(clips: Sequence[Heard]) -> dict[str, Any]:
    """Counts of the causes, and in how many clips the words are mlx-audio's."""
    found = Counter(cause for clip in clips for cause in causes(clip))
    return {
        "clips": len(clips),
        "same_words": sum(_words(clip.ours) == _words(clip.theirs) for clip in clips),
        "same_words_in_30_s": sum(_words(clip.whole) == _words(clip.theirs) for clip in clips),
        "segments": sum(found.values()),
        **{cause: found[cause] for cause in CAUSES},
    }


def _words(segments: Sequence[Timed]) -> list[str]:
    return words(" ".join(segment[2] for segment in segments))
