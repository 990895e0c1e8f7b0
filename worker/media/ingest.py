"""Blocks of samples to a spool file, with the detector running alongside, then cut."""

from __future__ import annotations

import array
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from worker.media.cut import Cut, cut
from worker.media.decode import Pcm, open_reader
from worker.media.types import SAMPLE_RATE, MediaError, MediaLimits
from worker.media.vad import FRAME, Vad


@dataclass(frozen=True, slots=True)
class Ingested:
    """What stands in the spool file."""

    samples: int
    cut: Cut
    format: str
    seconds: float
    """Wall-clock time that it took."""


def ingest(fd: int, spool: BinaryIO, name: str, limits: MediaLimits, vad: Vad) -> Ingested:
    """Decodes the file at `fd` into `spool` (16 kHz s16le mono). Raises MediaError, OSError."""
    begun = time.monotonic()
    reader = open_reader(fd, name)
    try:
        if reader.stated_s is not None and reader.stated_s > limits.max_duration_s:
            raise _too_long(name, limits)
        samples, probabilities, energies = _consume(reader.blocks(), spool, name, limits, vad)
    finally:
        reader.close()
    if not samples:
        raise MediaError("empty_audio", f"The input ({name}) holds 0 s of sound.")
    found = cut(probabilities, energies, samples, limits.max_chunk_s)
    return Ingested(samples, found, reader.format, time.monotonic() - begun)


def _too_long(name: str, limits: MediaLimits) -> MediaError:
    return MediaError("too_long", f"The input ({name}) is longer than {limits.max_duration_s:.0f} s.")


def _consume(
    blocks: Iterator[Pcm], spool: BinaryIO, name: str, limits: MediaLimits, vad: Vad
) -> tuple[int, NDArray[np.float32], NDArray[np.float32]]:
    """Samples written, and each frame's probability and loudness: 8 bytes for 32 ms is all that grows."""
    most = int(limits.max_duration_s * SAMPLE_RATE)
    listener = _Listener(vad)
    samples = 0
    for block in _batched(blocks):
        samples += len(block)
        if samples > most:
            raise _too_long(name, limits)
        spool.write(block.astype("<i2", copy=False).tobytes())
        listener.hear(block)
    spool.flush()
    return samples, *listener.finish()


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
    """Runs the detector over whole frames of a stream of blocks."""

    def __init__(self, vad: Vad) -> None:
        vad.reset()
        self._vad = vad
        self._rest: Pcm = np.zeros(0, dtype=np.int16)
        self._probabilities = array.array("f")
        self._energies = array.array("f")

    def hear(self, block: Pcm) -> None:
        pcm = np.concatenate([self._rest, block])
        whole = len(pcm) - len(pcm) % FRAME
        self._rest = pcm[whole:]
        frames = pcm[:whole].reshape(-1, FRAME).astype(np.float32) / 32768.0
        power = np.mean(frames * frames, axis=1)
        self._energies.extend((10.0 * np.log10(power + 1e-10)).tolist())
        self._probabilities.extend(self._vad.probability(frame) for frame in frames)

    def finish(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if len(self._rest):
            self.hear(np.zeros(FRAME - len(self._rest), dtype=np.int16))
        return (
            np.array(self._probabilities, dtype=np.float32),
            np.array(self._energies, dtype=np.float32),
        )
