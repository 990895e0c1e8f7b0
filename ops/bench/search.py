"""Beam search against the greedy one, and the times of words against mlx-audio's, over the same clips and weights.

The session alone is measured, without server and worker, in processor seconds of its process.
"""

from __future__ import annotations

import difflib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.config import default_cache_dir
from engine.models import ModelError, Registry
from ops.bench import speech, speech_references
from ops.bench.words import NORMALIZER, error_rate
from ops.exits import Trouble
from ops.settings import Settings

SAME = 1e-3
"""Log-probabilities that are nearer than this are equal: rounding alone may make them differ."""

_MARKS = " \t\n\"'.,!?:;-–—“”()"


def run(
    settings: Settings, *, rounds: int, beam: int, words: bool, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Measure and return the object that ``decibatch bench search --json`` prints. Raises Trouble."""
    cache = settings.cache_dir.expanduser() if settings.cache_dir else default_cache_dir()
    try:
        folder = Registry(settings.models, cache).resolve(settings.model)
    except ModelError as exc:
        raise Trouble(f"The model {settings.model} cannot be had: {exc}") from exc
    clips = speech_references.clips()
    with tempfile.TemporaryDirectory(prefix="decibatch-bench-") as name:
        files = speech.cut(clips, Path(name))
        order = {"clips": [str(path) for path in files], "beam": beam, "rounds": rounds, "words": words}
        tell(f"{len(files)} clips, {rounds} rounds of each search")
        ended = subprocess.run(
            [sys.executable, "-m", "ops.bench.search_process", str(folder)],
            input=json.dumps(order) + "\n",
            stdout=subprocess.PIPE,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            text=True,
            check=False,
        )
    if ended.returncode != 0:
        raise Trouble(f"The measuring process ended with status {ended.returncode}.")
    return report([clip.text for clip in clips], json.loads(ended.stdout), beam=beam, model=settings.model)


def report(references: Sequence[str], told: dict[str, Any], *, beam: int, model: str) -> dict[str, Any]:
    """Rows of what was measured; see :mod:`ops.bench.search_process` for *told*."""
    rounds = [(one[str(beam)], one["1"]) for one in told["rounds"]]

    def rate(side: int) -> float:
        return float(statistics.median(len(references) / pair[side]["seconds"] for pair in rounds))

    def wer(side: int) -> float:
        return float(statistics.median(error_rate(references, pair[side]["texts"]) for pair in rounds))

    wide, greedy = rounds[0]
    gains = [ours - theirs for ours, theirs in zip(wide["totals"], greedy["totals"], strict=True)]
    row = {
        "work": f"beam {beam}, {len(references)} clips, 8 at a time, clips per processor second",
        "against": "greedy",
        "ours": round(rate(0), 3),
        "theirs": round(rate(1), 3),
        "ratio": round(statistics.median(b["seconds"] / a["seconds"] for a, b in rounds), 2),
        "wer": round(wer(0), 4),
        "wer_theirs": round(wer(1), 4),
    }
    likelier = {
        "higher": sum(gain > SAME for gain in gains),
        "equal": sum(abs(gain) <= SAME for gain in gains),
        "lower": sum(gain < -SAME for gain in gains),
    }
    found = {"rows": [row], "total_logprob": likelier, "model": model, "normalizer": NORMALIZER}
    return found | ({"word_times": word_times(told["words"])} if "words" in told else {})


def word_times(clips: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How far the starts and ends of the words that both heard lie apart, seconds."""
    apart: list[float] = []
    count = both = 0
    for clip in clips:
        ours, theirs = clip["ours"], clip["theirs"]
        count += len(theirs)
        heard, said = [_bare(word) for word in theirs], [_bare(word) for word in ours]
        match = difflib.SequenceMatcher(a=heard, b=said, autojunk=False)
        for block in match.get_matching_blocks():
            for i in range(block.size):
                both += 1
                one, other = theirs[block.a + i], ours[block.b + i]
                apart += [abs(one[1] - other[1]), abs(one[2] - other[2])]
    apart.sort()
    if not apart:
        return {"words": count, "in_both": 0}
    return {
        "words": count,
        "in_both": both,
        "median_s": round(statistics.median(apart), 3),
        "p95_s": round(apart[int(0.95 * (len(apart) - 1))], 3),
        "max_s": round(apart[-1], 3),
        "within_100_ms": round(sum(gap <= 0.1 + 1e-6 for gap in apart) / len(apart), 4),
    }


def _bare(word: Sequence[Any]) -> str:
    return str(word[0]).strip(_MARKS).casefold()
