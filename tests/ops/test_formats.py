"""Transcripts in the formats that other programs read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.formats import render, srt, timestamp, vtt
from queueing.job import Result, Segment, Word

TWO = (Segment(start=0.0, end=1.5, text=" Hello."), Segment(start=3661.25, end=3662.0, text="Good\n\nbye."))


def test_srt_numbers_cues_and_writes_commas() -> None:
    """A SubRip cue has a number, times with a comma, one line of text and a blank line."""
    assert srt(TWO) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello.\n\n2\n01:01:01,250 --> 01:01:02,000\nGood bye.\n\n"
    )


def test_vtt_has_its_header_and_points() -> None:
    """A WebVTT file begins with WEBVTT and writes times with a point."""
    assert vtt(TWO[:1]) == "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello.\n\n"


def test_vtt_escapes_markup() -> None:
    """What WebVTT would read as a tag or an entity is written as character references."""
    assert "a &lt;b&gt; &amp;amp; c" in vtt([Segment(start=0, end=1, text="a <b> &amp; c")])


@pytest.mark.parametrize("write", [srt, vtt])
def test_an_arrow_in_the_text_is_no_cue_timing(write) -> None:
    """A transcript that holds an arrow yields no second line of times."""
    assert write([Segment(start=0, end=1, text="from --> to")]).count("-->") == 1


def test_a_cue_without_text_is_left_out() -> None:
    """Numbers go on over a segment without words."""
    blank = Segment(start=1.5, end=2.0, text="  ")
    assert [line for line in srt([TWO[0], blank, TWO[1]]).splitlines() if line.isdigit()] == ["1", "2"]


def test_rounding_carries_into_the_minute() -> None:
    """59.9996 s is written as one minute, never as 1000 milliseconds."""
    assert timestamp(59.9996, ".") == "00:01:00.000"


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_timestamps_sort_as_their_seconds_do(a: float, b: float) -> None:
    """Of two times the earlier one never gets the later timestamp."""
    assert (len(timestamp(min(a, b), ".")), timestamp(min(a, b), ".")) <= (
        len(timestamp(max(a, b), ".")),
        timestamp(max(a, b), "."),
    )


def test_text_is_the_transcript_and_a_line_break() -> None:
    """Plain text has neither the space that models put first nor a second line break."""
    assert render(Result(text=" Hello. "), "text") == "Hello.\n"


def test_json_is_the_whole_result() -> None:
    """The JSON of a result reads back as that result."""
    result = Result(text="é", segments=TWO, language="en", duration_s=3.0)
    assert Result.model_validate(json.loads(render(result, "json"))) == result


def test_an_unknown_format_is_refused() -> None:
    """A format that is not listed raises instead of falling back to text."""
    with pytest.raises(ValueError, match="docx"):
        render(Result(text=""), "docx")


def test_vtt_words_have_times_of_their_own() -> None:
    """Each word but the first has its time before it; one that is not later than the last has none."""
    words = (
        Word(start=1.0, end=1.2, text="<Go>"),
        Word(start=1.5, end=1.5, text=" on"),
        Word(start=1.5, end=2.0, text="-air."),
    )
    cue = vtt([Segment(start=1.0, end=2.0, text="<Go> on-air.", words=words)])
    assert cue.splitlines()[3] == "&lt;Go&gt; <00:00:01.500>on-air."


def test_json_holds_the_words() -> None:
    """Words with their times stand in the JSON of a result."""
    words = (Word(start=0, end=1, text="Hi", probability=0.5),)
    result = Result(text="Hi", segments=(Segment(start=0, end=1, text="Hi", words=words),))
    told = json.loads(render(result, "json"))["segments"][0]["words"]
    assert told == [{"start": 0, "end": 1, "text": "Hi", "probability": 0.5}]
