"""Where to cut: from speech probabilities to pieces of at most 30 s. Pure.

1. Frames become stretches of speech by hysteresis (`speech`).
2. Stretches longer than a piece are divided at their quietest spot (`_divide`).
3. Stretches are gathered into pieces; the cuts fall into pauses (`_gather`).
4. Pieces get some padding, without ever touching a neighbour (`_pad`).
5. Two pieces that part inside a stretch overlap, so that one of them has each word whole (`_overlap`);
   what both heard is then merged (:mod:`worker.seams`).

Why pieces are gathered up to 30 s: context helps a recogniser, and each piece costs an encoder run over
its length plus some seconds (right-sized windows). So a pause longer than that is dropped (`DEAD_PAUSE_S`), and
a piece that is long enough already ends at the next real pause (`LONG_ENOUGH_S`, `REAL_PAUSE_S`): beyond
15 s more context brings little, while silence inside a window invites invented words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.media.types import SAMPLE_RATE, Piece
from worker.media.vad import FRAME

FRAME_S = FRAME / SAMPLE_RATE

ON = 0.4
"""Probability at which speech begins. Silero's default is 0.5; a word lost costs more than a pause kept."""
OFF = 0.25
"""Probability below which speech ends (Silero: ON - 0.15)."""
BRIDGE_S = 0.2
"""Pauses up to this stay inside a stretch: they are stops within words, not pauses between them."""
SHORTEST_S = 0.09
"""Shorter stretches are clicks. Silero drops those under 0.25 s, which takes some of the "yes" and "no"."""
PAD_S = 0.3
"""Kept around speech: soft beginnings and endings of words score low."""
EDGE_S = 1.0
"""Up to so much silence at the very beginning and end of a recording stays: cutting it off saves nothing, and a
recogniser was trained on recordings as they are."""
LONG_ENOUGH_S = 15.0
REAL_PAUSE_S = 2.0
DEAD_PAUSE_S = 6.0
OVERLAP_S = 1.0
"""How far a piece reaches over a cut inside a stretch, on either side: some three words, two of which may agree."""
SEARCH_S = 8.0
"""How far before the limit unbroken speech is searched for a quiet spot."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames [start, end) in which somebody speaks."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Cut:
    """Pieces in order, and the seconds of speech that they hold."""

    pieces: tuple[Piece, ...]
    speech_s: float


def cut(probabilities: Floats, energies: Floats, samples: int, max_chunk_s: float = 30.0) -> Cut:
    """Pieces that cover all speech in a file of `samples` samples.

    Parameters
    ----------
    probabilities, energies
        One per frame of 512 samples, the last one padded: speech 0..1, and loudness in dB (any reference).
    max_chunk_s
        Longest piece, seconds, at least 2.
    """
    stretches = speech(probabilities)
    if not stretches:
        return Cut((), 0.0)
    limit = int(max_chunk_s * SAMPLE_RATE) // FRAME
    pad = min(_frames(PAD_S), limit // 8)
    room = limit - 2 * pad
    over = min(_frames(OVERLAP_S), limit // 8)
    # What fits a piece as it is stays whole, if need be without padding.
    whole = math.inf if samples <= max_chunk_s * SAMPLE_RATE else limit
    parts = [
        part
        for one in stretches
        for part in (
            [one] if one.length <= whole else _divide(one, limit - 2 * over, probabilities, energies)
        )
    ]
    spans = _gather(parts, room)
    padded = _keep_edges(_pad(spans, pad, limit, energies), len(probabilities), limit)
    drawn = _overlap(padded, spans, over, limit)
    pieces = tuple(
        Piece(span.start * FRAME, min(span.end * FRAME, samples) - span.start * FRAME) for span in drawn
    )
    return Cut(pieces, sum(s.end - s.start for s in stretches) * FRAME_S)


def speech(probabilities: Floats) -> list[Stretch]:
    """Stretches of speech, in order and apart.

    One begins at ON and ends where the probability stays below OFF for longer than BRIDGE_S.
    """
    found: list[Stretch] = []
    # The frames that could matter are found at once: hours of silence then cost no Python loop.
    alive = np.flatnonzero(probabilities >= OFF)
    if not len(alive):
        return found
    breaks = np.flatnonzero(np.diff(alive) > _frames(BRIDGE_S)) + 1
    for run in np.split(alive, breaks):
        loud = np.flatnonzero(probabilities[run] >= ON)
        if not len(loud):
            continue
        stretch = Stretch(int(run[loud[0]]), int(run[-1]) + 1)
        if stretch.end - stretch.start >= _frames(SHORTEST_S):
            found.append(stretch)
    return found


def _divide(stretch: Stretch, room: int, probabilities: Floats, energies: Floats) -> list[Stretch]:
    """Parts of at most `room` frames, cut at the quietest frame in the last SEARCH_S before the limit."""
    parts = []
    start = stretch.start
    while stretch.end - start > room:
        first = start + max(1, room - min(_frames(SEARCH_S), room // 2))
        # Leave something for the last part: a shred of a word at the end would be heard as a word of its own.
        last = min(start + room, stretch.end - _frames(BRIDGE_S))
        at = first + _quietest(probabilities[first : last + 1], energies[first : last + 1])
        parts.append(Stretch(start, at))
        start = at
    return [*parts, Stretch(start, stretch.end)]


def _quietest(probabilities: Floats, energies: Floats) -> int:
    """Index of the frame that sounds least like speech. Ties go to the latest, which makes the longer piece.

    Inside unbroken speech probabilities saturate, while loudness alone dips in the middle of words, so both
    count, on a common scale and smoothed over three frames.
    """
    span = float(energies.max() - energies.min()) or 1.0
    score = probabilities + (energies - energies.min()) / span
    smooth = np.convolve(np.pad(score, 1, mode="edge"), np.full(3, 1 / 3), mode="valid")
    return len(smooth) - 1 - int(np.argmin(smooth[::-1]))


def _gather(parts: Sequence[Stretch], room: int) -> list[Stretch]:
    """Spans of at most `room` frames, each from the start of a part to the end of a later one."""
    enough = min(_frames(LONG_ENOUGH_S), room // 2)
    spans: list[Stretch] = []
    held = [parts[0]]
    for part in parts[1:]:
        pause = part.start - held[-1].end
        length = held[-1].end - held[0].start
        if pause >= _frames(DEAD_PAUSE_S) or (length >= enough and pause >= _frames(REAL_PAUSE_S)):
            spans.append(Stretch(held[0].start, held[-1].end))
            held = []
        while held and part.end - held[0].start > room:
            split = _best_pause([*held, part], enough)
            spans.append(Stretch(held[0].start, held[split - 1].end))
            held = held[split:]
        held.append(part)
    return [*spans, Stretch(held[0].start, held[-1].end)]


def _best_pause(parts: Sequence[Stretch], enough: int) -> int:
    """Index of the part that begins the next piece: after the longest pause that leaves `enough` before it,
    or, where no pause does, after the last pause of all."""
    good = [i for i in range(1, len(parts)) if parts[i - 1].end - parts[0].start >= enough]
    if not good:
        return len(parts) - 1
    return max(good, key=lambda i: (parts[i].start - parts[i - 1].end, i))


def _pad(spans: Sequence[Stretch], pad: int, limit: int, energies: Floats) -> list[Stretch]:
    """Spans widened by up to `pad` frames, as far as `limit` has room for both sides; two that would meet share the
    pause, cut at its quietest frame."""
    walls = [0]
    for before, after in itertools.pairwise(spans):
        walls.append(before.end + _seam(energies[before.end : after.start], pad))
    walls.append(len(energies))
    pads = [max(0, min(pad, (limit - span.length) // 2)) for span in spans]
    return [
        Stretch(max(span.start - pads[i], walls[i]), min(span.end + pads[i], walls[i + 1]))
        for i, span in enumerate(spans)
    ]


def _overlap(padded: list[Stretch], spans: Sequence[Stretch], over: int, limit: int) -> list[Stretch]:
    """Spans of which two that parted inside a stretch reach over the cut by up to `over` frames, as far as `limit`
    has room. `spans` are the same before they were padded."""
    drawn = list(padded)
    for i, (before, after) in enumerate(itertools.pairwise(spans)):
        if before.end == after.start:
            left, right = drawn[i], drawn[i + 1]
            reach = min(over, limit - left.length, after.length // 2)
            drawn[i] = Stretch(left.start, left.end + max(0, reach))
            reach = min(over, limit - right.length, before.length // 2)
            drawn[i + 1] = Stretch(right.start - max(0, reach), right.end)
    return drawn


def _keep_edges(spans: list[Stretch], frames: int, limit: int) -> list[Stretch]:
    """The first and the last span drawn out to the ends of the recording, where these are near."""
    edge = _frames(EDGE_S)
    first = spans[0]
    if first.start <= edge and first.end <= limit:
        spans = [Stretch(0, first.end), *spans[1:]]
    last = spans[-1]
    if frames - last.end <= edge and frames - last.start <= limit:
        spans = [*spans[:-1], Stretch(last.start, frames)]
    return spans


def _seam(pause: Floats, pad: int) -> int:
    """Where in a pause two pieces part: the middle where both get their padding, else the quietest frame."""
    middle = len(pause) // 2
    if len(pause) >= 2 * pad or not len(pause):
        return middle
    quiet = np.flatnonzero(pause == pause.min())
    return int(quiet[np.argmin(np.abs(quiet - middle))]) if len(quiet) else middle


def _frames(seconds: float) -> int:
    return round(seconds / FRAME_S)
