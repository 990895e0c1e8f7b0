"""What the benchmark reports. It is measured by running it, not by a test."""

from __future__ import annotations

import pytest
import soundfile

from ops.bench import search, speech, speech_references
from ops.bench.speech import Round
from ops.commands.bench import as_sentence

FACTS = {"mlx_audio": "0", "mlx": "0", "device": "cpu", "dtype": "float32", "blas": None}


def told() -> dict:
    clips = speech_references.clips()
    right = tuple(clip.text for clip in clips)
    wrong = ("", *right[1:])
    seconds = [(2.0, 10.0), (4.0, 12.0), (1.0, 8.0)]
    return speech.report(clips, [(Round(mine, right), Round(other, wrong)) for mine, other in seconds], FACTS)


def test_a_row_has_medians_and_their_word_error_rates() -> None:
    """A row holds the median rate of each side, the median of the ratios, and each side's own errors."""
    (row,) = told()["rows"]
    count = len(speech_references.clips())
    assert list(row) == ["work", "against", "ours", "theirs", "ratio", "wer", "wer_theirs"]
    assert (row["ours"], row["theirs"], row["ratio"]) == (count / 2, count / 10, 5.0)
    assert row["wer"] == 0
    assert row["wer_theirs"] > 0


def test_the_normalizer_is_named() -> None:
    """Whoever reads an error rate is told how the words were taken."""
    assert told()["normalizer"] == "plain-words"


def test_the_sentence_holds_both_figures() -> None:
    """For people a row is one line with both rates."""
    line = as_sentence(told()["rows"][0])
    assert "mlx-audio 0 Model.generate" in line
    assert "5.0 times" in line


def test_cutting_loses_nothing(tmp_path) -> None:
    """The clips of a recording together are as long as the recording, to a sample."""
    clips = speech_references.clips()
    files = speech.cut(clips, tmp_path)
    for name in speech_references.recordings():
        lengths = [
            soundfile.info(f).frames for f, clip in zip(files, clips, strict=True) if clip.file == name
        ]
        assert sum(lengths) == soundfile.info(speech.recordings.folder() / name).frames


def test_a_clip_that_is_refused_is_told(tmp_path) -> None:
    """A clip without a transcript ends the benchmark instead of making it faster."""

    class Client:
        def submit_many(self, inputs):
            return ["job" for _ in inputs]

        def result(self, job, timeout):
            from queueing.errors import ResultTimeout

            raise ResultTimeout("not yet")

    with pytest.raises(speech.Trouble, match="not transcribed"):
        speech.ours(Client(), [tmp_path / "a.wav"])


def test_a_search_is_compared_round_by_round() -> None:
    """The beam's row has the median of the ratios, each side's errors, and on how many clips it is likelier."""
    rounds = [
        {
            "1": {"seconds": 2.0, "texts": ["one two", "three"], "totals": [-3.0, -2.0]},
            "5": {"seconds": seconds, "texts": ["one two", "four"], "totals": [-2.5, -2.0001]},
        }
        for seconds in (4.0, 5.0, 8.0)
    ]
    told = search.report(["one two", "three"], {"rounds": rounds}, beam=5, model="m")
    (row,) = told["rows"]
    assert (row["ours"], row["theirs"], row["ratio"]) == (0.4, 1.0, 0.4)
    assert row["wer_theirs"] == 0 and row["wer"] == pytest.approx(1 / 3, abs=1e-3)
    assert told["total_logprob"] == {"higher": 1, "equal": 1, "lower": 0}


def test_times_of_words_are_compared_where_both_heard_them() -> None:
    """A word that one side alone heard counts as a word, and has no difference."""
    ours = [[" Ever", 0.0, 0.5], [" tried,", 0.5, 1.2]]
    theirs = [[" ever", 0.0, 0.5], [" well", 0.5, 0.6], [" tried.", 0.6, 1.24]]
    found = search.word_times([{"ours": ours, "theirs": theirs}])
    assert (found["words"], found["in_both"]) == (3, 2)
    assert (found["median_s"], found["max_s"]) == (0.02, 0.1)
