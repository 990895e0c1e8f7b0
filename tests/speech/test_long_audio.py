"""Audio that recognizers stumble over: seams in the middle of speech, edges of the window, and no speech at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from ops import recordings
from ops.bench import speech_references
from ops.bench.speech import audio
from ops.bench.words import errors, words
from queueing.client import Client
from queueing.job import Result
from worker.media import vad
from worker.media.ingest import ingest
from worker.media.types import SAMPLE_RATE, MediaLimits

TIMEOUT_S = 240
Samples = np.ndarray[Any, np.dtype[np.int16]]


def read(name: str) -> Samples:
    return audio.samples(recordings.folder() / name)


def without_pauses(samples: Samples) -> Samples:
    """The same speech in one breath: what is quieter than a fifth of the usual is left out, but for its edges."""
    frame = SAMPLE_RATE // 50
    frames = samples[: len(samples) // frame * frame].reshape(-1, frame)
    loud = np.abs(frames.astype(np.float32)).max(axis=1)
    speaks = loud > 0.2 * np.median(loud[loud > np.percentile(loud, 50)])
    near = speaks | np.roll(speaks, 1) | np.roll(speaks, -1)
    return frames[near].reshape(-1)


def tune() -> Samples:
    """Twelve seconds of chords with overtones, one every half second."""
    at = np.arange(SAMPLE_RATE // 2) / SAMPLE_RATE
    fades = np.exp(-3 * at)
    chords = [(220, 277, 330), (196, 247, 294), (175, 220, 262), (165, 208, 247)] * 6
    sound = np.concatenate(
        [
            sum(np.sin(2 * np.pi * tone * n * at) / n for tone in chord for n in range(1, 6)) * fades
            for chord in chords
        ]
    )
    return (sound / np.abs(sound).max() * 12_000).astype(np.int16)


def noise() -> Samples:
    return np.random.default_rng(1).normal(0, 800, 10 * SAMPLE_RATE).astype(np.int16)


SOUNDS: dict[str, Callable[[], Samples]] = {
    "breathless": lambda: without_pauses(read("two_cities.wav")),
    "30 s": lambda: read("two_cities.wav")[: 30 * SAMPLE_RATE],
    "30.01 s": lambda: read("two_cities.wav")[: round(30.01 * SAMPLE_RATE)],
    "0.2 s": lambda: read("beckett.wav")[SAMPLE_RATE : round(1.2 * SAMPLE_RATE)],
    "silence": lambda: np.zeros(8 * SAMPLE_RATE, np.int16),
    "tune": tune,
    "noise": noise,
    "refrain": lambda: np.tile(read("beckett.wav"), 4),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("long")
    written = {}
    for name, make in SOUNDS.items():
        written[name] = folder / f"{name}.wav"
        soundfile.write(written[name], make(), SAMPLE_RATE, subtype="PCM_16")
    return written


@pytest.fixture(scope="module")
def heard(client: Client, files: dict[str, Path]) -> dict[str, Result]:
    jobs = client.submit_many(files.values())
    return {name: client.result(job, timeout=TIMEOUT_S) for name, job in zip(files, jobs, strict=True)}


def wrong(reference: str, heard: str) -> float:
    """Word error rate."""
    return errors(words(reference), words(heard)) / len(words(reference))


def wrong_so_far(reference: str, heard: str) -> float:
    """Word error rate against so much of the reference as fits best: the audio ends in the middle of a sentence."""
    said, got = words(reference), words(heard)
    return min(errors(said[:n], got) / n for n in range(len(said) // 2, len(said) + 1))


def test_speech_across_a_seam_is_whole(
    heard: dict[str, Result], files: dict[str, Path], tmp_path: Path
) -> None:
    """Of forty seconds of speech without a pause, which are cut inside a sentence, no word is lost or said twice."""
    with files["breathless"].open("rb") as source, (tmp_path / "spool").open("wb") as spool:
        pieces = ingest(source.fileno(), spool, "breathless", MediaLimits(), vad.load()).cut.pieces
    assert any(before.end > after.offset for before, after in itertools.pairwise(pieces))
    assert wrong(speech_references.recordings()["two_cities.wav"], heard["breathless"].text) <= 0.10


def test_context_costs_no_words(client: Client, files: dict[str, Path]) -> None:
    """With the text before it as context, a piece that overlaps its neighbour still gives what is said in it."""
    result = client.result(client.submit(files["breathless"], carry_context=True), timeout=TIMEOUT_S)
    assert wrong(speech_references.recordings()["two_cities.wav"], result.text) <= 0.10


@pytest.mark.parametrize("name", ["30 s", "30.01 s"])
def test_the_edge_of_the_window_costs_nothing(heard: dict[str, Result], name: str) -> None:
    """Thirty seconds, and a hundredth more, are heard to their end."""
    assert wrong_so_far(speech_references.recordings()["two_cities.wav"], heard[name].text) <= 0.10
    assert heard[name].segments[-1].end > 29


def test_a_refrain_is_heard_as_often_as_it_is_said(heard: dict[str, Result]) -> None:
    """The same ten seconds four times over are neither taken for a loop nor made into one."""
    assert wrong(" ".join([speech_references.recordings()["beckett.wav"]] * 4), heard["refrain"].text) <= 0.10


def test_a_fifth_of_a_second_gives_no_sentence(heard: dict[str, Result]) -> None:
    """A shred of a word may be a word, and is no sentence."""
    assert len(words(heard["0.2 s"].text)) <= 2


@pytest.mark.parametrize("name", ["silence", "tune", "noise"])
def test_where_nobody_speaks_there_is_no_text(heard: dict[str, Result], name: str) -> None:
    """Silence, music and noise are done with an empty text: nothing is made up."""
    assert (heard[name].text, heard[name].segments) == ("", ())


@pytest.mark.parametrize("name", SOUNDS)
def test_times_rise_inside_the_audio(heard: dict[str, Result], name: str) -> None:
    """Whatever the sound, segments are in order, within it, and hold the text."""
    result = heard[name]
    times = [moment for segment in result.segments for moment in (segment.start, segment.end)]
    assert times == sorted(times)
    assert all(0 <= moment <= result.duration_s for moment in times)
    assert words(" ".join(segment.text for segment in result.segments)) == words(result.text)
