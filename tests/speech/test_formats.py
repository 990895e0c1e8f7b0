"""The same words from whatever container, codec, rate and width the sound comes in."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from ops import recordings
from ops.bench import speech_references
from ops.bench.words import error_rate
from queueing.client import Client

TIMEOUT_S = 240
SOURCE = "beckett.wav"


def encode(path: Path, codec: str, rate: int, layout: str) -> None:
    """The source in another container and codec, by FFmpeg; 0.1 s of silence at either end for the codec's delay."""
    samples, source_rate = soundfile.read(recordings.folder() / SOURCE, dtype="int16")
    pad = np.zeros(source_rate // 10, np.int16)
    samples = np.concatenate([pad, samples, pad])
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        resampler = av.AudioResampler(format=stream.codec_context.format, layout=layout, rate=rate)
        fifo = av.AudioFifo()
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = source_rate, 0, Fraction(1, source_rate)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            fifo.write(piece)
        size = stream.codec_context.frame_size or 4096
        while (block := fifo.read(size, partial=True)) is not None:
            container.mux(stream.encode(block))
        container.mux(stream.encode(None))


def sound(path: Path, rate: int, channels: int, subtype: str) -> None:
    """The source as a WAV file of another rate, number of channels and width."""
    encoded = path.with_suffix(".flac")
    encode(encoded, "flac", rate, "mono")
    samples, _ = soundfile.read(encoded)
    soundfile.write(path, np.stack([samples] * channels, axis=1), rate, subtype=subtype)


FORMATS: dict[str, Callable[[Path], None]] = {
    "phone.m4a": lambda path: encode(path, "aac", 44_100, "mono"),
    "browser.webm": lambda path: encode(path, "libopus", 48_000, "mono"),
    "music.mp3": lambda path: encode(path, "libmp3lame", 44_100, "stereo"),
    "archive.flac": lambda path: encode(path, "flac", 44_100, "mono"),
    "chat.ogg": lambda path: encode(path, "libopus", 48_000, "mono"),
    "telephone-8k.wav": lambda path: sound(path, 8_000, 1, "PCM_16"),
    "studio-48k-stereo.wav": lambda path: sound(path, 48_000, 2, "PCM_16"),
    "24-bit.wav": lambda path: sound(path, 44_100, 1, "PCM_24"),
}


@pytest.fixture(scope="module")
def heard(client: Client, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("formats")
    for name, write in FORMATS.items():
        write(folder / name)
    jobs = client.submit_many([folder / name for name in FORMATS])
    return {name: client.result(job, timeout=TIMEOUT_S).text for name, job in zip(FORMATS, jobs, strict=True)}


@pytest.mark.parametrize("name", FORMATS)
def test_the_words_are_the_same(heard: dict[str, str], name: str) -> None:
    """Every word that was read is heard, and no other, from this format too."""
    assert error_rate([speech_references.recordings()[SOURCE]], [heard[name]]) == 0
