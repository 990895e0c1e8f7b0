"""Rows of what was measured. A ratio is ours / theirs of each figure: rates should be high, latencies low."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ops.bench.speech import works
from ops.bench.speech.audio import Sound
from ops.bench.speech.side import Heard, Peer
from ops.bench.speech.works import Aim, Work
from ops.bench.words import NORMALIZER, error_rate, words

__all__ = ["NORMALIZER", "Entry", "Turn", "mixed_row", "row"]

NEAR_S = 0.1
"""How far apart the ends of two segments may lie that count as the same."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One side in one round: its figure, and what it heard in which files."""

    figure: float
    sounds: Sequence[Sound]
    heard: Sequence[Heard]

    @property
    def wer(self) -> float:
        return error_rate([sound.text for sound in self.sounds], [one.text for one in self.heard])


@dataclass(slots=True)
class Entry:
    """One side over the rounds, or why it could not be measured."""

    turns: list[Turn] = field(default_factory=list)
    trouble: str = ""


def row(work: Work, peer: Peer, mine: Entry, theirs: Entry) -> dict[str, Any]:
    """One peer in one work."""
    head = {"work": work.title, "name": work.name, "against": peer.label, "unit": work.unit}
    told = _row(head, work.against[peer.name], mine, theirs)
    if not theirs.trouble:
        told["agreement"] = agreement(mine.turns[-1], theirs.turns[-1])
    return told


def mixed_row(beside: Entry, alone: Entry) -> dict[str, Any]:
    """Our clips beside a long file, against our clips without one."""
    head = {"work": works.MIXED_TITLE, "name": works.MIXED, "against": works.MIXED_AGAINST, "unit": "s"}
    told = _row(head, works.MIXED_AIM, beside, alone)
    told["clips"] = [len(turn.sounds) for turn in beside.turns]
    return told


def _row(head: dict[str, str], aim: Aim | None, mine: Entry, theirs: Entry) -> dict[str, Any]:
    told: dict[str, Any] = {
        **head,
        "ours": _median([turn.figure for turn in mine.turns]),
        "theirs": None,
        "ratio": None,
        "spread": None,
        "wer": _median([turn.wer for turn in mine.turns]),
        "wer_theirs": None,
        "aim": str(aim) if aim is not None else None,
        "reached": None,
        "rounds": len(mine.turns),
    }
    if theirs.trouble:
        return {**told, "unavailable": theirs.trouble}
    pairs = zip(mine.turns, theirs.turns, strict=True)
    ratios = [one.figure / other.figure for one, other in pairs]
    ratio = statistics.median(ratios)
    return {
        **told,
        "theirs": _median([turn.figure for turn in theirs.turns]),
        "ratio": round(ratio, 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "wer_theirs": _median([turn.wer for turn in theirs.turns]),
        "reached": aim.reached(ratio) if aim is not None else None,
    }


def _median(figures: Sequence[float]) -> float:
    return round(statistics.median(figures), 4)


def agreement(mine: Turn, theirs: Turn) -> dict[str, Any]:
    """How far two sides hear the same, file by file: words, and where segments begin and end.

    Segments are compared where both sides have the same words and as many segments.
    """
    files = list(zip(mine.sounds, mine.heard, theirs.heard, strict=True))
    same = [(one, other) for _, one, other in files if words(one.text) == words(other.text)]
    pairs = [
        (a, b)
        for one, other in same
        if len(one.segments) == len(other.segments)
        for a, b in zip(one.segments, other.segments, strict=True)
    ]
    near = [a for a, b in pairs if abs(a[0] - b[0]) <= NEAR_S and abs(a[1] - b[1]) <= NEAR_S]
    return {
        "files": len(files),
        "same_words": len(same),
        "segments_compared": len(pairs),
        "segments_within_0.1_s": len(near),
        "differences": [
            {"file": sound.path.stem, "ours": one.text, "theirs": other.text.strip()}
            for sound, one, other in files
            if words(one.text) != words(other.text) and sound.seconds < 60
        ],
    }
