"""From tokens to segments."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.protocol import Segment
from engine.whisper import transcript

WORDS = [440, 3797, 1266]


def times(tokenizer: Any, *pieces: float | str) -> list[int]:
    tokens: list[int] = []
    for piece in pieces:
        if isinstance(piece, str):
            tokens += tokenizer.encode(piece)
        else:
            tokens.append(tokenizer.timestamp_begin + round(piece / 0.02))
    return tokens


def test_pairs_of_timestamps_cut_segments(tokenizer: Any) -> None:
    """Each pair ends one segment and begins the next; a single one at the end closes the audio."""
    tokens = times(tokenizer, 0.0, " One.", 2.0, 2.0, " Two.", 4.0)
    reading = transcript.read_tokens(tokens, tokenizer, 10.0)
    assert [(s.start, s.end, s.text) for s in reading.segments] == [(0, 2, " One."), (2, 4, " Two.")]
    assert (reading.covered_s, reading.silent_tail) == (4.0, True)


def test_an_unfinished_segment_is_left_to_the_next_decode(tokenizer: Any) -> None:
    """Text behind the last pair is dropped, and the next decode starts at that pair."""
    tokens = times(tokenizer, 0.0, " One.", 2.0, 2.0, " Tw")
    reading = transcript.read_tokens(tokens, tokenizer, 10.0)
    assert [s.text for s in reading.segments] == [" One."]
    assert (reading.covered_s, reading.silent_tail) == (2.0, False)


def test_an_unfinished_end_of_less_than_a_second_is_kept(tokenizer: Any) -> None:
    """Text behind the last pair is kept where too little audio is left to decode it again."""
    tokens = times(tokenizer, 0.0, " One.", 9.6, 9.6, " Two")
    reading = transcript.read_tokens(tokens, tokenizer, 10.0)
    assert [(s.start, s.end, s.text) for s in reading.segments] == [(0, 9.6, " One."), (9.6, 10.0, " Two")]
    assert reading.covered_s == 10.0


def test_text_without_an_end_covers_all(tokenizer: Any) -> None:
    """A decode without a closing timestamp is one segment to the end."""
    reading = transcript.read_tokens(times(tokenizer, 0.0, " One."), tokenizer, 3.0)
    assert [(s.start, s.end) for s in reading.segments] == [(0.0, 3.0)]
    assert reading.covered_s == 3.0


def test_what_is_heard_behind_the_audio_is_dropped(tokenizer: Any) -> None:
    """A segment that begins in the silence behind the chunk was never said."""
    tokens = times(tokenizer, 0.0, " One.", 2.0, 2.0, " Thanks for watching!", 2.5, 5.0, " Bye.", 6.0)
    reading = transcript.read_tokens(tokens, tokenizer, 2.4)
    assert [s.text for s in reading.segments] == [" One.", " Thanks for watching!"]
    assert all(s.end <= 2.4 for s in reading.segments)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 1500) | st.none(), max_size=30), st.floats(0.1, 30.0), st.floats(0.0, 20.0))
def test_segments_are_ordered_and_inside_the_chunk(
    tokenizer: Any, pieces: list[int | None], length: float, offset: float
) -> None:
    """Whatever a model gives, times rise and lie within the chunk, and the cover does not pass its end."""
    tokens = [WORDS[0] if piece is None else tokenizer.timestamp_begin + piece for piece in pieces]
    reading = transcript.read_tokens(tokens, tokenizer, length)
    moved = transcript.shifted(reading.segments, offset, offset, offset + length)
    ends = offset
    for segment in moved:
        assert ends <= segment.start <= segment.end <= offset + length + 1e-9
        ends = segment.end


def test_an_echo_is_not_said_twice() -> None:
    """Words that the transcript has just ended with are taken off what was heard behind them; what is new stays."""
    tail = [Segment(0.0, 1.0, " darkness."), Segment(1.0, 2.0, " More.")]
    assert [s.text for s in transcript.without_echo("the season of darkness", tail)] == [" More."]
    tail = [Segment(0.0, 1.0, " of Darkness, it was")]
    assert [s.text for s in transcript.without_echo("the season of darkness.", tail)] == [" it was"]
    tail = [Segment(0.0, 1.0, " Light.")]
    assert transcript.without_echo("the season of darkness.", tail) == tuple(tail)
    assert transcript.without_echo("", tail) == tuple(tail)
    assert transcript.without_echo("anything", []) == ()
