"""Chunks are put back together in order, with times that rise and stay inside the recording."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import SAMPLE_RATE, ChunkDone, Segment, Word
from worker.joining import join_segments, join_text, main_language
from worker.media.types import Piece


def done(*segments: tuple[float, float, str], language: str = "en") -> ChunkDone:
    text = " ".join(text for _, _, text in segments)
    return ChunkDone(
        chunk="c",
        job="j",
        text=text,
        segments=tuple(Segment(*segment) for segment in segments),
        language=language,
        avg_logprob=-0.1,
        no_speech_prob=0.0,
        compression_ratio=1.0,
        temperature=0.0,
        tokens=3,
        window_s=10.0,
        widened=False,
        bits=32,
    )


def piece(start_s: float, duration_s: float) -> Piece:
    return Piece(int(start_s * SAMPLE_RATE), int(duration_s * SAMPLE_RATE))


def test_times_count_from_the_beginning_of_the_recording() -> None:
    """A segment of the second piece is moved by where that piece begins."""
    joined = join_segments([piece(0, 5), piece(6, 4)], [done((0, 5, "one")), done((1, 3, "two"))], 10.0)
    assert [(one.start, one.end, one.text) for one in joined] == [(0, 5, "one"), (7, 9, "two")]


def test_a_segment_past_its_piece_is_clamped() -> None:
    """A time that the model made up beyond the audio ends with the piece."""
    joined = join_segments([piece(0, 5)], [done((0, 29.9, "long"))], 5.0)
    assert joined[0].end == 5.0


def test_empty_segments_are_left_out() -> None:
    """A segment without text is no segment."""
    assert join_segments([piece(0, 5)], [done((0, 1, " "), (1, 2, "word"))], 5.0)[0].text == "word"


def test_texts_are_joined_by_one_space() -> None:
    """The seam between two pieces is one space, however the model padded them."""
    assert join_text([done((0, 1, " one ")), done(), done((0, 1, "two"))]) == "one two"


def test_the_language_is_that_of_most_speech() -> None:
    """Ten seconds of German outweigh two of English; a piece without text has no say."""
    pieces = [piece(0, 2), piece(2, 10), piece(12, 30)]
    results = [done((0, 1, "yes"), language="en"), done((0, 9, "ja"), language="de"), done(language="fr")]
    assert main_language(results, pieces) == "de"


def test_a_missing_result_is_an_error() -> None:
    """A piece without a result is never passed over in silence."""
    with pytest.raises(ValueError, match="1 results for 2 pieces"):
        join_segments([piece(0, 1), piece(1, 1)], [done()], 2.0)


segments = st.lists(
    st.tuples(st.floats(-5, 40), st.floats(-5, 40), st.sampled_from(["a", "b", "", " c "])), max_size=6
)


@given(st.lists(st.tuples(st.floats(0.1, 30), st.floats(0, 3), segments), max_size=6))
def test_times_rise_whatever_the_model_says(
    parts: list[tuple[float, float, list[tuple[float, float, str]]]],
) -> None:
    """For any times from the model: no text is lost, and 0 <= start <= end <= next start, within the recording."""
    pieces, results, clock = [], [], 0.0
    for length, gap, raw in parts:
        pieces.append(piece(clock, length))
        results.append(done(*raw))
        clock += length + gap
    joined = join_segments(pieces, results, clock)
    assert [one.text for one in joined] == [
        text.strip() for r in results for s in r.segments if (text := s.text).strip()
    ]
    last = 0.0
    for one in joined:
        assert last - 1e-3 <= one.start <= one.end <= clock + 1e-3
        last = one.end


def test_words_move_with_their_segment() -> None:
    """Words count from the beginning of the recording, rise, and stay within their segment."""
    spoken = Segment(0.5, 2.0, "one two", (Word(0.5, 1.0, "one", 0.9), Word(1.0, 2.5, " two", None)))
    heard = replace(done((0, 1, "x")), segments=(spoken,))
    (joined,) = join_segments([piece(4, 3)], [heard], 7.0)
    assert joined.words is not None
    found = [(word.start, word.end, word.text, word.probability) for word in joined.words]
    assert found == [(4.5, 5.0, "one", 0.9), (5.0, 6.0, " two", None)]


def test_a_segment_without_words_has_none() -> None:
    """Where no words were asked for, there is no empty list of them."""
    (joined,) = join_segments([piece(0, 3)], [done((0, 1, "x"))], 3.0)
    assert joined.words is None
