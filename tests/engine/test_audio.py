"""Spectrograms and spool files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import spool
from engine.whisper import audio


@pytest.mark.parametrize("n_mels", [80, 128])
def test_the_spectrogram_is_that_of_mlx_audio(mlx: Any, speech: Any, n_mels: int) -> None:
    """Speech gives the values of mlx-audio's log_mel_spectrogram, as far as the recording goes."""
    from mlx_audio.stt.models.whisper.audio import log_mel_spectrogram

    samples = speech("beckett")[:100_003]
    theirs = np.array(log_mel_spectrogram(samples, n_mels=n_mels, padding=480_000))
    ours = audio.log_mel(samples, n_mels)
    assert len(ours) == len(theirs) - 3000
    assert np.abs(ours - theirs[: len(ours)]).max() < 2e-3
    assert np.abs(ours - theirs[: len(ours)]).mean() < 1e-5


@pytest.mark.parametrize("length", [1, 50, 200, 401])
def test_the_shortest_chunks_have_a_spectrogram(length: int) -> None:
    """A chunk shorter than one transform gives finite values."""
    mel = audio.log_mel(np.full(length, 0.1, np.float32), 80)
    assert len(mel) >= 1
    assert np.isfinite(mel).all()


def test_silence_is_the_floor() -> None:
    """A chunk of zeros has the same value everywhere: log10 of the floor, scaled."""
    assert np.allclose(audio.log_mel(np.zeros(16_000, np.float32), 80), (-10 + 4) / 4)


def test_a_window_starts_where_it_is_told(speech: Any) -> None:
    """A window holds the frames from its start on, then zeros."""
    mel = audio.log_mel(speech("beckett")[:16_000], 80)
    piece = audio.window(mel, 40, 200)
    assert np.array_equal(piece[: len(mel) - 40], mel[40:])
    assert (piece[len(mel) - 40 :] == 0).all()


def test_sound_is_told_from_silence(speech: Any) -> None:
    """Speech that goes on is sound; a quiet end is none."""
    samples = np.concatenate([speech("beckett")[:48_000], np.zeros(48_000, np.float32)])
    assert audio.has_sound(samples, 16_000)
    assert not audio.has_sound(samples, 50_000)
    assert not audio.has_sound(samples, len(samples) - 10)


def test_a_spool_gives_what_was_asked(tmp_path: Path) -> None:
    """Offset and length count samples."""
    np.arange(100, dtype="<i2").tofile(tmp_path / "s")
    data = spool.read_spool(str(tmp_path / "s"), 10, 5)
    assert np.array_equal(audio.from_pcm(data) * 32768, [10, 11, 12, 13, 14])


def test_a_bad_spool_is_an_error(tmp_path: Path) -> None:
    """A file that is missing, a link, or too short is refused."""
    (tmp_path / "short").write_bytes(bytes(10))
    (tmp_path / "link").symlink_to(tmp_path / "short")
    for name, samples in (("none", 1), ("link", 1), ("short", 6)):
        with pytest.raises(spool.BadSpool):
            spool.read_spool(str(tmp_path / name), 0, samples)
