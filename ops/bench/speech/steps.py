"""What the worker's step log says: how large batches were, how full, and how much of them was padding.

A step's record may lack what an older engine did not tell; a figure that nothing tells is None, never 0.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def mark(path: Path) -> int:
    """Where the log ends now."""
    return path.stat().st_size if path.exists() else 0


def read(path: Path, start: int = 0) -> list[Record]:
    """The records behind a mark. A last line that is not whole yet is left out."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Of the records of one work.

    ``rows``: for encoder and decoder, how many steps had how many rows. ``jobs_in_a_step``: mean jobs of a decoder
    step. ``occupancy``: rows over slots, weighted by steps. ``padding_waste``: share of the encoded seconds
    that is no audio.
    """
    encodes = [one for one in records if one["kind"] == "encode"]
    decodes = [one for one in records if one["kind"] == "decode"]
    return {
        "rows": {"encode": _rows(encodes), "decode": _rows(decodes)},
        "mean_rows": {"encode": _mean(encodes), "decode": _mean(decodes)},
        "jobs_in_a_step": _weighted([(len(set(one["jobs"])), one["steps"]) for one in decodes]),
        "occupancy": _occupancy(decodes),
        "padding_waste": _waste(encodes),
        "seconds": {kind: round(s, 3) for kind, s in sorted(_seconds(records).items())},
    }


def _rows(records: Sequence[Record]) -> dict[str, int]:
    counted: Counter[int] = Counter()
    for one in records:
        counted[len(one["rows"])] += one["steps"]
    return {str(rows): counted[rows] for rows in sorted(counted)}


def _mean(records: Sequence[Record]) -> float | None:
    return _weighted([(len(one["rows"]), one["steps"]) for one in records])


def _weighted(pairs: Sequence[tuple[float, int]]) -> float | None:
    if not pairs:
        return None
    values, weights = zip(*pairs, strict=True)
    return round(statistics.fmean(values, weights), 2)


def _occupancy(decodes: Sequence[Record]) -> float | None:
    told = [one for one in decodes if one.get("slots")]
    return _weighted([(len(one["rows"]) / one["slots"], one["steps"]) for one in told])


def _waste(encodes: Sequence[Record]) -> float | None:
    """1 - audio / encoded. Of the records that tell both."""
    told = [one for one in encodes if one.get("padded_s") and one.get("audio_s") is not None]
    if not told:
        return None
    audio, encoded = (sum(float(one[name]) for one in told) for name in ("audio_s", "padded_s"))
    return round(1 - audio / encoded, 3)


def _seconds(records: Sequence[Record]) -> Counter[str]:
    spent: Counter[str] = Counter()
    for one in records:
        spent[one["kind"]] += one["seconds"]
    return spent
