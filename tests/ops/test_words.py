"""Word error rate, and the references that it is taken against."""

from __future__ import annotations

import jiwer
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from ops import recordings
from ops.bench import speech_references
from ops.bench.words import error_rate, words

SENTENCE = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=12).map(" ".join)


@given(SENTENCE, SENTENCE)
def test_the_rate_is_that_of_jiwer(reference: str, heard: str) -> None:
    """Our count of errors agrees with the library that others use."""
    assert error_rate([reference], [heard]) == pytest.approx(jiwer.wer(reference, heard))


def test_the_rate_is_over_all_words_together() -> None:
    """One error in a long text and one in a short one weigh the same."""
    assert error_rate(["a b c d e f g", "a"], ["a b c d e f x", "b"]) == pytest.approx(2 / 8)


def test_case_and_punctuation_do_not_count() -> None:
    """The normalizer takes away case, punctuation and the shape of apostrophes, and nothing else."""
    assert words("“That’s—well—GOOD, isn't it?”") == ["that's", "well", "good", "isn't", "it"]


def test_no_reference_is_an_error() -> None:
    """A rate over no words is refused rather than being perfect."""
    with pytest.raises(ValueError, match="no words"):
        error_rate(["..."], ["a"])


def test_the_clips_are_all_of_each_recording() -> None:
    """Each clip begins where the one before it ended, from the first second to the last."""
    for file in speech_references.recordings():
        mine = [clip for clip in speech_references.clips() if clip.file == file]
        assert [mine[0].start_s, *(clip.end_s for clip in mine)] == [*(clip.start_s for clip in mine), None]


def test_every_clip_is_short() -> None:
    """The clips last from 2 to 11 s."""
    for clip in speech_references.clips():
        whole = soundfile.info(recordings.folder() / clip.file).duration
        assert 2 <= (clip.end_s or whole) - clip.start_s <= 11
