"""Log-mel spectrograms, computed on the CPU in NumPy while the device decodes.

The transform is Whisper's (paper, section 2.2): 16 kHz, 25 ms Hann windows every 10 ms, slaney mel filters,
log10, clipped to 8 below the loudest bin, scaled to about -1 to 1. Only the chunk itself is transformed:
what follows it is filled with zeros, as Whisper's own transcription does (``pad_or_trim`` of the spectrogram).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.protocol import SAMPLE_RATE

FloatArray = npt.NDArray[np.float32]

N_FFT = 400
HOP = 160
MEL_FRAMES_PER_SECOND = SAMPLE_RATE // HOP
FLOOR = 1e-10


def from_pcm(data: bytes) -> FloatArray:
    """Samples of 16-bit little-endian PCM, scaled to -1..1."""
    return np.frombuffer(data, "<i2").astype(np.float32) * np.float32(1 / 32768)


def log_mel(audio: FloatArray, n_mels: int) -> FloatArray:
    """Spectrogram of a chunk.

    :param audio: shape (samples,), 16 kHz.
    :param n_mels: 80, or 128 for large-v3.
    :returns: array of shape (frames, n_mels), ``frames = max(1, samples // 160)`` at 10 ms each.
    """
    power = _power(audio)
    mel = power @ _mel_filters(n_mels)
    np.maximum(mel, FLOOR, out=mel)
    np.log10(mel, out=mel)
    floor = max(float(mel.max(initial=np.log10(FLOOR))) - 8.0, float(np.log10(FLOOR)))
    np.maximum(mel, np.float32(floor), out=mel)
    mel += 4.0
    mel /= 4.0
    # A frame that lies partly behind the end is none of the recording's.
    return mel[: max(1, len(audio) // HOP)]


def _power(audio: FloatArray) -> FloatArray:
    """Squared magnitudes, shape (frames, 201), of frames centred every 10 ms up to the chunk's end."""
    half = N_FFT // 2
    frames = -(-len(audio) // HOP) + 1
    padded = np.zeros((frames - 1) * HOP + N_FFT, np.float32)
    padded[half : half + len(audio)] = audio
    # The first window's left half mirrors the signal (reflect padding of a centred STFT).
    mirror = audio[1 : half + 1][::-1]
    padded[half - len(mirror) : half] = mirror
    view = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
    spectrum = np.fft.rfft(view * _hann(), axis=-1)
    power: FloatArray = np.square(spectrum.real) + np.square(spectrum.imag)
    return power


@functools.cache
def _hann() -> FloatArray:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)


@functools.cache
def _mel_filters(n_mels: int) -> FloatArray:
    """Triangular filters on the slaney mel scale, of equal area (Slaney, Auditory Toolbox, 1998).

    :returns: shape (201, n_mels).
    """
    edges = _mel_to_hz(np.linspace(_hz_to_mel(0.0), _hz_to_mel(SAMPLE_RATE / 2), n_mels + 2))
    bins = np.linspace(0, SAMPLE_RATE / 2, N_FFT // 2 + 1)
    rising = (bins[None, :] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins[None, :]) / (edges[2:] - edges[1:-1])[:, None]
    filters = np.maximum(0, np.minimum(rising, falling))
    filters *= (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return np.ascontiguousarray(filters.T, np.float32)


_LINEAR_HZ_PER_MEL = 200.0 / 3
_LOG_FROM_HZ = 1000.0
_LOG_STEP = float(np.log(6.4)) / 27.0


def _hz_to_mel(hz: float) -> float:
    if hz < _LOG_FROM_HZ:
        return hz / _LINEAR_HZ_PER_MEL
    return _LOG_FROM_HZ / _LINEAR_HZ_PER_MEL + float(np.log(hz / _LOG_FROM_HZ)) / _LOG_STEP


def _mel_to_hz(mel: npt.NDArray[Any]) -> npt.NDArray[Any]:
    linear = mel * _LINEAR_HZ_PER_MEL
    knee = _LOG_FROM_HZ / _LINEAR_HZ_PER_MEL
    return np.where(mel < knee, linear, _LOG_FROM_HZ * np.exp(_LOG_STEP * (mel - knee)))


def window(mel: FloatArray, start: int, frames: int) -> FloatArray:
    """*frames* mel frames of a spectrogram from *start* on, filled up with zeros.

    Zero is not silence, which lies at the floor, near -1; but it is what Whisper is given behind the end of a
    recording by everybody who follows its transcription loop, and it hears best with it.

    :returns: shape (frames, n_mels).
    """
    piece = mel[start : start + frames]
    filled = np.zeros((frames, mel.shape[1]), np.float32)
    filled[: len(piece)] = piece
    return filled


def is_audible(audio: FloatArray) -> bool:
    """Whether any 100 ms of the audio are louder than -54 dBFS; speech that was meant to be heard is."""
    loudness = _loudness(audio, min(SAMPLE_RATE // 10, max(1, len(audio))))
    return loudness.size > 0 and float(loudness.max()) > 0.002


def has_sound(audio: FloatArray, start: int) -> bool:
    """Whether what follows sample *start* is as loud as the chunk's speech, give or take 20 dB.

    Judged by the loudest 100 ms: a word is never shorter.
    """
    block = SAMPLE_RATE // 10
    whole, rest = _loudness(audio, block), _loudness(audio[start:], block)
    return rest.size > 0 and float(rest.max()) > max(0.003, 0.1 * float(np.quantile(whole, 0.95)))


def _loudness(audio: FloatArray, block: int) -> FloatArray:
    count = len(audio) // block
    loudness: FloatArray = np.sqrt(np.square(audio[: count * block]).reshape(count, block).mean(axis=1))
    return loudness
