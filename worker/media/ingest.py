"""Blocks of samples to a spool file, with the detector and the cutter running alongside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from worker.media.cut import Cut, Cutter
from worker.media.decode import Pcm, open_reader
from worker.media.types import SAMPLE_RATE, MediaError, MediaLimits, Piece
from worker.media.vad import FRAME, Vad

MINUTE = 60 * SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Ingested:
    """What stands in the spool file."""

    samples: int
    cut: Cut
    format: str
    seconds: float
    """Wall-clock time that it took."""


def ingest(
    fd: int,
    spool: BinaryIO,
    name: str,
    limits: MediaLimits,
    vad: Vad,
    *,
    on_whole: Callable[[Piece], None] = lambda whole: None,
    on_long: Callable[[], None] = lambda: None,
    on_pieces: Callable[[tuple[Piece, ...]], None] = lambda pieces: None,
) -> Ingested:
    """Decodes the file at `fd` into `spool` (16 kHz s16le mono). Raises MediaError, OSError.

    `on_whole` is told the whole of a recording that is no longer than a piece, before the detector hears it: most
    often that is its only piece. `on_pieces` is told the pieces of a longer one that are certain before its end is
    reached, in order. Either can be read from the file by then. `on_long` is called once it is known to be longer than
    a piece, and after each further minute of it that the detector has heard.
    """
    begun = time.monotonic()
    reader = open_reader(fd, name)
    try:
        if reader.stated_s is not None and reader.stated_s > limits.max_duration_s:
            raise _too_long(name, limits)
        samples, found = _consume(
            reader.blocks(),
            spool,
            name,
            limits,
            vad=vad,
            on_whole=on_whole,
            on_long=on_long,
            on_pieces=on_pieces,
        )
    finally:
        reader.close()
    if not samples:
        raise MediaError("empty_audio", f"The input ({name}) holds 0 s of sound.")
    return Ingested(samples, found, reader.format, time.monotonic() - begun)


def _too_long(name: str, limits: MediaLimits) -> MediaError:
    return MediaError("too_long", f"The input ({name}) is longer than {limits.max_duration_s:.0f} s.")


def _consume(
    blocks: Iterator[Pcm],
    spool: BinaryIO,
    name: str,
    limits: MediaLimits,
    *,
    vad: Vad,
    on_whole: Callable[[Piece], None],
    on_long: Callable[[], None],
    on_pieces: Callable[[tuple[Piece, ...]], None],
) -> tuple[int, Cut]:
    """Samples written, and where they are cut. What the cutter keeps, 8 bytes for 32 ms, is all that grows."""
    most = int(limits.max_duration_s * SAMPLE_RATE)
    listener = _Listener(vad, Cutter(limits.max_chunk_s))
    samples, told, longest = 0, 0, int(limits.max_chunk_s * SAMPLE_RATE)
    early: list[Piece] = []
    unheard: list[Pcm] = []
    for block in _batched(blocks):
        samples += len(block)
        if samples > most:
            raise _too_long(name, limits)
        spool.write(block.astype("<i2", copy=False).tobytes())
        unheard.append(block)
        if samples <= longest:
            continue
        if not told or samples - told >= MINUTE:
            told = samples
            on_long()
        certain = listener.hear(np.concatenate(unheard))
        unheard.clear()
        if certain:
            spool.flush()
            early += certain
            on_pieces(certain)
    spool.flush()
    if unheard:
        # What is shorter than a frame of the detector is no piece.
        if samples >= FRAME:
            on_whole(Piece(0, samples))
        early += listener.hear(np.concatenate(unheard))
    rest = listener.finish(samples)
    return samples, Cut((*early, *rest.pieces), rest.speech_s)


def _batched(blocks: Iterator[Pcm]) -> Iterator[Pcm]:
    """The same samples in blocks of at least half a second: compressed formats come in shreds of 20 ms."""
    held: list[Pcm] = []
    for block in blocks:
        held.append(block)
        if sum(map(len, held)) >= SAMPLE_RATE // 2:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


class _Listener:
    """Runs the detector over whole frames of a stream of blocks, and cuts by what it says."""

    def __init__(self, vad: Vad, cutter: Cutter) -> None:
        vad.reset()
        self._vad = vad
        self._cutter = cutter
        self._rest: Pcm = np.zeros(0, dtype=np.int16)

    def hear(self, block: Pcm) -> tuple[Piece, ...]:
        """The pieces that have become certain."""
        pcm = np.concatenate([self._rest, block])
        whole = len(pcm) - len(pcm) % FRAME
        self._rest = pcm[whole:]
        frames = pcm[:whole].reshape(-1, FRAME).astype(np.float32) / 32768.0
        power = np.mean(frames * frames, axis=1)
        energies = 10.0 * np.log10(power + 1e-10)
        probabilities = [self._vad.probability(frame) for frame in frames]
        return self._cutter.hear(np.array(probabilities, dtype=np.float32), energies)

    def finish(self, samples: int) -> Cut:
        """The pieces that are left, of so many samples in all."""
        certain: tuple[Piece, ...] = ()
        if len(self._rest):
            certain = self.hear(np.zeros(FRAME - len(self._rest), dtype=np.int16))
        rest = self._cutter.finish(samples)
        return Cut((*certain, *rest.pieces), rest.speech_s)
