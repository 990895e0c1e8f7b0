"""Real speech through the whole path: client, server, worker, media, engine, and back."""

from __future__ import annotations

import pytest

from ops import recordings
from ops.bench import speech, speech_references
from ops.bench.words import error_rate
from queueing.client import Client
from queueing.errors import JobFailed
from queueing.job import Result

TIMEOUT_S = 240


@pytest.fixture(scope="module")
def heard(client: Client) -> dict[str, Result]:
    """Every recording that has a reference, all sent before the first is awaited."""
    files = list(speech_references.recordings())
    jobs = client.submit_many([recordings.folder() / file for file in files])
    return {file: client.result(job, timeout=TIMEOUT_S) for file, job in zip(files, jobs, strict=True)}


def test_whole_recordings_are_heard(heard: dict[str, Result]) -> None:
    """Over all recordings, from 10 to 44 s, at most one word in ten is wrong."""
    references = speech_references.recordings()
    assert error_rate([*references.values()], [heard[file].text for file in references]) <= 0.10


def test_short_clips_are_heard(client: Client, tmp_path) -> None:
    """Cut into clips of 2 to 11 s and sent at once, the same speech has at most one word in ten wrong."""
    clips = speech_references.clips()
    jobs = client.submit_many(speech.cut(clips, tmp_path))
    texts = [client.result(job, timeout=TIMEOUT_S).text for job in jobs]
    assert error_rate([clip.text for clip in clips], texts) <= 0.10


def test_segments_hold_the_transcript_in_order(heard: dict[str, Result]) -> None:
    """The segments of a recording are in order, within it, and together hold its words."""
    for result in heard.values():
        times = [moment for segment in result.segments for moment in (segment.start, segment.end)]
        assert times == sorted(times)
        assert 0 <= times[0] <= times[-1] <= result.duration_s
        assert error_rate([result.text], [" ".join(segment.text for segment in result.segments)]) == 0


def test_timings_add_up(heard: dict[str, Result]) -> None:
    """No part of a job's time is longer than the whole, and the whole is at least the parts in a row."""
    for result in heard.values():
        times = result.timings
        parts = (times.queued, times.media, times.waiting, times.engine)
        assert min(parts) >= 0
        assert times.total >= max(parts) > 0


def test_a_job_gets_its_words(client: Client) -> None:
    """A job that asks for words, a beam and hot words gets segments whose words rise and are their text."""
    path = recordings.folder() / "beckett.wav"
    job = client.submit(path, words=True, beam_size=2, hot_words=["Ever tried", "Fail better"])
    result = client.result(job, timeout=TIMEOUT_S)
    assert result.segments
    clock = 0.0
    for segment in result.segments:
        assert segment.words is not None
        assert "".join(word.text for word in segment.words) == segment.text
        for word in segment.words:
            assert clock <= word.start <= word.end <= segment.end <= result.duration_s
            clock = word.end


def test_an_option_that_cannot_be_honoured_fails_the_job(client: Client) -> None:
    """Hot words that leave no room for context end the job with a clear error, at once and for good."""
    path = recordings.folder() / "beckett.wav"
    job = client.submit(path, hot_words=["Nebuchadnezzar of Babylon"] * 40)
    with pytest.raises(JobFailed) as caught:
        client.result(job, timeout=TIMEOUT_S)
    assert "unsupported_option" in str(caught.value) and "hot words" in str(caught.value)
