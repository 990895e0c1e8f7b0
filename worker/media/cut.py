"""Where to cut: from speech probabilities to pieces of at most 30 s. Pure: no files, no clock.

1. Frames become stretches of speech by hysteresis (`Speech`).
2. Stretches longer than a piece are divided at their quietest spot (`Cutter._divide`).
3. Stretches are gathered into spans; the cuts fall into pauses (`Cutter._gather`).
4. A span becomes a piece with some padding that never touches a neighbour; two that part inside a stretch
   overlap, so that one of them has each word whole (`Cutter._piece`). What both heard is then merged
   (:mod:`worker.seams`).

A recording is cut while it comes in: each step decides once nothing that follows could change its decision. So the
pieces are the same in whatever portions the frames come.

Why pieces are gathered up to 30 s: context helps a recogniser, and each piece costs an encoder run over
its length plus some seconds (right-sized windows). So a pause longer than that is dropped (`DEAD_PAUSE_S`), and
a piece that is long enough already ends at the next real pause (`LONG_ENOUGH_S`, `REAL_PAUSE_S`): beyond
15 s more context brings little, while silence inside a window invites invented words.
"""

from __future__ import annotations

import array
import math
from collections import deque
from collections.abc import Iterator, Sequence
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
    """Frames [start, end)."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Cut:
    """Pieces in order, and the seconds of speech in the whole recording."""

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
    cutter = Cutter(max_chunk_s)
    early = cutter.hear(probabilities, energies)
    rest = cutter.finish(samples)
    return Cut((*early, *rest.pieces), rest.speech_s)


def speech(probabilities: Floats) -> list[Stretch]:
    """Stretches of speech, in order and apart."""
    found = Speech()
    return [*found.hear(probabilities), *found.finish()]


class Speech:
    """Stretches of speech, as frames come.

    One begins at ON and ends where the probability stays below OFF for longer than BRIDGE_S.
    """

    def __init__(self) -> None:
        self._heard = 0
        self._first: int | None = None
        """The frame at which somebody began who may not have ended yet."""
        self._last = 0
        """The latest frame of at least OFF."""

    @property
    def going_on(self) -> Stretch | None:
        """The stretch that has not ended, as far as it is known; None also where it could still be a click."""
        if self._first is None or self._last + 1 - self._first < _frames(SHORTEST_S):
            return None
        return Stretch(self._first, self._last + 1)

    def hear(self, probabilities: Floats) -> list[Stretch]:
        """The stretches that have ended, now that these frames are known."""
        ended: list[Stretch] = []
        # The frames that could matter are found at once: hours of silence then cost no Python loop.
        for at in np.flatnonzero(probabilities >= OFF).tolist():
            ended += self._silent_until(self._heard + at)
            self._last = self._heard + at
            if self._first is None and probabilities[at] >= ON:
                self._first = self._last
        self._heard += len(probabilities)
        return ended + self._silent_until(self._heard)

    def finish(self) -> list[Stretch]:
        """The stretch that the end of the recording ends."""
        ended, self._first = self.going_on, None
        return [] if ended is None else [ended]

    def _silent_until(self, frame: int) -> list[Stretch]:
        return self.finish() if frame - self._last > _frames(BRIDGE_S) else []


class Cutter:
    """Cuts a recording while it comes in, into the pieces that `cut` gives for the whole of it.

    A piece is given out once it is certain, and that it is not the only one: a recording that has one piece gives
    none early. Work is linear in the length; 8 bytes a frame are kept.
    """

    def __init__(self, max_chunk_s: float = 30.0) -> None:
        self._max_samples = max_chunk_s * SAMPLE_RATE
        self._limit = int(self._max_samples) // FRAME
        self._pad = min(_frames(PAD_S), self._limit // 8)
        self._over = min(_frames(OVERLAP_S), self._limit // 8)
        self._room = self._limit - 2 * self._pad
        self._enough = min(_frames(LONG_ENOUGH_S), self._room // 2)

        self._probabilities = array.array("f")
        self._energies = array.array("f")
        self._speech = Speech()
        self._speech_frames = 0
        self._ended: list[Stretch] = []
        """Stretches that wait to be divided."""
        self._divided = 0
        """Where the last part that was split off ended."""
        self._held: list[Stretch] = []
        """Parts of the span that is being gathered."""
        self._spans: deque[Stretch] = deque()
        """Gathered, and not yet given out."""
        self._before: Stretch | None = None
        """The span of the piece that was given out last."""

    def hear(self, probabilities: Floats, energies: Floats) -> tuple[Piece, ...]:
        """The pieces that are certain now that these frames are known, after those given out before.

        See `cut` for what a frame has. They end before the last frame heard.
        """
        self._probabilities.frombytes(np.asarray(probabilities, np.float32).tobytes())
        self._energies.frombytes(np.asarray(energies, np.float32).tobytes())
        self._note(self._speech.hear(probabilities))
        # What fits a piece is not divided, so nothing is before more has come. The last frame may be one sample.
        if (len(self._energies) - 1) * FRAME < self._max_samples:
            return ()
        self._advance(self._limit)
        return tuple(self._certain())

    def finish(self, samples: int) -> Cut:
        """The pieces that are left, of `samples` samples in all."""
        self._note(self._speech.finish())
        # What fits a piece as it is stays whole, if need be without padding.
        self._advance(math.inf if samples <= self._max_samples else self._limit)
        if self._held:
            self._spans.append(Stretch(self._held[0].start, self._held[-1].end))
            self._held = []
        pieces = [*self._certain()]
        if self._spans:
            last = self._piece(self._before, self._spans.popleft(), None)
            pieces.append(Piece(last.offset, min(last.end, samples) - last.offset))
        return Cut(tuple(pieces), self._speech_frames * FRAME_S)

    def _note(self, ended: list[Stretch]) -> None:
        self._ended += ended
        self._speech_frames += sum(stretch.length for stretch in ended)

    def _advance(self, whole: float) -> None:
        """Divides and gathers what is certain. Up to `whole` frames are not divided."""
        for stretch in self._ended:
            self._divide(stretch, whole)
            self._gather(Stretch(max(self._divided, stretch.start), stretch.end))
        self._ended.clear()
        growing = self._speech.going_on
        if growing is not None:
            # With so much to spare, where it is cut depends no longer on where it ends.
            self._divide(growing, whole, spare=_frames(BRIDGE_S))

    def _divide(self, stretch: Stretch, whole: float, spare: int = 0) -> None:
        """Gathers parts of a stretch, cut at the quietest frame in the last SEARCH_S before the limit, until at most
        that and `spare` frames are left."""
        if stretch.length <= whole:
            return
        room = self._limit - 2 * self._over
        start = max(self._divided, stretch.start)
        while stretch.end - start > room + spare:
            first = start + max(1, room - min(_frames(SEARCH_S), room // 2))
            # Leave something for the last part: a shred of a word at the end would be heard as a word of its own.
            last = min(start + room, stretch.end - _frames(BRIDGE_S))
            at = first + _quietest(
                np.array(self._probabilities[first : last + 1]), np.array(self._energies[first : last + 1])
            )
            self._gather(Stretch(start, at))
            start = self._divided = at

    def _gather(self, part: Stretch) -> None:
        """Takes a part into the span that is held; where they are too long together, or too far apart, that ends
        before the part or earlier."""
        held = self._held
        if held:
            pause = part.start - held[-1].end
            length = held[-1].end - held[0].start
            real = length >= self._enough and pause >= _frames(REAL_PAUSE_S)
            if real or pause >= _frames(DEAD_PAUSE_S):
                self._end_span(len(held))
        while held and part.end - held[0].start > self._room:
            self._end_span(_best_pause([*held, part], self._enough))
        held.append(part)

    def _end_span(self, count: int) -> None:
        """The first `count` parts that are held are a span."""
        self._spans.append(Stretch(self._held[0].start, self._held[count - 1].end))
        del self._held[:count]

    def _certain(self) -> Iterator[Piece]:
        while self._spans and (after := self._after()) is not None:
            span = self._spans.popleft()
            yield self._piece(self._before, span, after)
            self._before = span

    def _after(self) -> Stretch | None:
        """The span behind the first that waits, as far as the piece of that depends on it; None where it is not known.

        It begins with the first part that is held, whatever else comes into it. Its length counts where both share a
        stretch, up to twice the overlap.
        """
        if len(self._spans) > 1:
            return self._spans[1]
        if not self._held:
            return None
        apart = self._spans[0].end < self._held[0].start
        return self._held[0] if apart or self._held[0].length >= 2 * self._over else None

    def _piece(self, before: Stretch | None, span: Stretch, after: Stretch | None) -> Piece:
        """The piece of a span between its neighbours."""
        frames = len(self._energies)
        # Padding: as far as the limit has room for both sides; two that would meet share the pause.
        pad = max(0, min(self._pad, (self._limit - span.length) // 2))
        start = max(span.start - pad, 0 if before is None else self._wall(before, span))
        end = min(span.end + pad, frames if after is None else self._wall(span, after))
        # The ends of the recording, where they are near.
        edge = _frames(EDGE_S)
        if before is None and start <= edge and end <= self._limit:
            start = 0
        if after is None and frames - end <= edge and frames - start <= self._limit:
            end = frames
        # Over a cut inside a stretch, as far as the limit has room.
        if before is not None and before.end == span.start:
            start -= max(0, min(self._over, self._limit - (end - start), before.length // 2))
        if after is not None and span.end == after.start:
            end += max(0, min(self._over, self._limit - (end - start), after.length // 2))
        return Piece(start * FRAME, (end - start) * FRAME)

    def _wall(self, before: Stretch, after: Stretch) -> int:
        """The frame in the pause between two spans that neither's padding crosses."""
        return before.end + _seam(np.array(self._energies[before.end : after.start]), self._pad)


def _quietest(probabilities: Floats, energies: Floats) -> int:
    """Index of the frame that sounds least like speech. Ties go to the latest, which makes the longer piece.

    Inside unbroken speech probabilities saturate, while loudness alone dips in the middle of words, so both
    count, on a common scale and smoothed over three frames.
    """
    span = float(energies.max() - energies.min()) or 1.0
    score = probabilities + (energies - energies.min()) / span
    smooth = np.convolve(np.pad(score, 1, mode="edge"), np.full(3, 1 / 3), mode="valid")
    return len(smooth) - 1 - int(np.argmin(smooth[::-1]))


def _best_pause(parts: Sequence[Stretch], enough: int) -> int:
    """Index of the part that begins the next piece: after the longest pause that leaves `enough` before it,
    or, where no pause does, after the last pause of all."""
    good = [i for i in range(1, len(parts)) if parts[i - 1].end - parts[0].start >= enough]
    if not good:
        return len(parts) - 1
    return max(good, key=lambda i: (parts[i].start - parts[i - 1].end, i))


def _seam(pause: Floats, pad: int) -> int:
    """Where in a pause two pieces part: the middle where both get their padding, else the quietest frame."""
    middle = len(pause) // 2
    if len(pause) >= 2 * pad or not len(pause):
        return middle
    quiet = np.flatnonzero(pause == pause.min())
    return int(quiet[np.argmin(np.abs(quiet - middle))]) if len(quiet) else middle


def _frames(seconds: float) -> int:
    return round(seconds / FRAME_S)
