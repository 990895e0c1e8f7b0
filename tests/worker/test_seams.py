"""Where two pieces heard the same seconds, every word stands once: none lost, none doubled."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import SAMPLE_RATE, Segment
from tests.worker.test_joining import done, piece
from worker.joining import join_segments, join_text, without_overlaps
from worker.seams import MEASURED_SLACK_S, Overlap, Word, meet, spread


def timed(words: list[str], begin: float = 0.0, each: float = 0.4) -> list[Word]:
    """Words one after another, as a model that measures times would have them."""
    return [Word(f" {word}", begin + i * each, begin + (i + 1) * each) for i, word in enumerate(words)]


def texts(words: list[Word]) -> list[str]:
    return [word.key for word in words]


def met(left: list[Word], right: list[Word], overlap: Overlap, **options: float) -> list[str]:
    kept, onwards = meet(left, right, overlap, **options)
    return texts(left[:kept] + right[onwards:])


few = st.sampled_from(["no", "yes", "and", "go", "on"])


@st.composite
def divided(draw: st.DrawFn, words: st.SearchStrategy[list[str]]) -> tuple[list[Word], int, int]:
    """Words, and of these the first that the right piece holds and the first that the left one lacks."""
    said = timed(draw(words))
    stop = draw(st.integers(1, len(said) - 1))
    return said, draw(st.integers(max(0, stop - 8), stop - 1)), stop


@given(divided(st.lists(few, min_size=2, max_size=40)), st.floats(-0.1, 0.1))
def test_with_times_no_word_is_lost_or_doubled(given: tuple[list[Word], int, int], shift: float) -> None:
    """Both sides agree on the overlap, word for word, and time differs a little: the whole is what was said,
    even of a speaker who says five words over and over."""
    said, begin, stop = given
    overlap = Overlap(said[begin].start, said[stop - 1].end)
    right = [Word(word.text, word.start + shift, word.end + shift) for word in said[begin:]]
    assert met(said[:stop], right, overlap, slack_s=MEASURED_SLACK_S) == texts(said)


unlike = st.lists(st.integers(0, 500).map(lambda n: f"w{n}"), min_size=2, max_size=40, unique=True)


@given(divided(unlike), st.floats(-0.6, 0.6), st.randoms(use_true_random=False))
def test_without_times_no_word_is_lost_or_doubled(
    given: tuple[list[Word], int, int], shift: float, random: object
) -> None:
    """The same where times are estimates that lie off by more than a word."""
    said, begin, stop = given
    overlap = Overlap(said[begin].start, said[stop - 1].end)
    if stop - begin == 1:
        # All that both heard is one word: it counts where its times are near.
        shift = max(-0.4, min(0.4, shift))
    right = [Word(word.text, word.start + shift, word.end + shift) for word in said[begin:]]
    assert met(said[:stop], right, overlap) == texts(said)


@given(divided(unlike), st.booleans(), st.booleans())
def test_words_cut_at_the_edges_give_way(
    given: tuple[list[Word], int, int], left_cut: bool, right_cut: bool
) -> None:
    """A word that the end or the beginning of a piece cuts in two is taken from the side that has it whole."""
    said, begin, stop = given
    if stop - begin < 4:
        return
    left, right = list(said[:stop]), list(said[begin:])
    if left_cut:
        left[-1] = Word(" half", left[-1].start, left[-1].end)
    if right_cut:
        right[0] = Word(" alf", right[0].start, right[0].end)
    assert met(left, right, Overlap(said[begin].start, said[stop - 1].end)) == texts(said)


def test_a_side_that_heard_nothing_there_costs_nothing() -> None:
    """The left piece gave up before the overlap, the right one has all of it: nothing of the right is dropped."""
    said = timed(["one", "two", "three", "four", "five", "six"])
    assert met(said[:2], said[2:], Overlap(0.8, 2.0)) == texts(said)
    assert met(said[:4], said[4:], Overlap(0.4, 1.6)) == texts(said)


def test_without_agreement_it_parts_in_the_middle() -> None:
    """Two sides that have no word in common are each believed for their half."""
    left = timed(["a", "b", "c", "d"])
    right = timed(["w", "x", "y", "z"], begin=0.8)
    assert met(left, right, Overlap(0.8, 1.6)) == ["a", "b", "c", "x", "y", "z"]


def test_one_chance_word_far_away_is_no_agreement() -> None:
    """A single word in common counts only where both sides heard it at the same time."""
    left = [*timed(["we", "saw", "the"]), Word(" boat", 1.2, 1.6)]
    right = [Word(" ship", 0.9, 1.4), Word(" and", 1.4, 1.8), Word(" the", 1.8, 2.0), Word(" sea", 2.0, 2.4)]
    assert met(left, right, Overlap(0.8, 1.6)) == ["we", "saw", "the", "ship", "and", "the", "sea"]


def test_case_and_stops_do_not_count() -> None:
    """A piece that begins in a sentence gets a capital, one that ends in it a full stop: both are the same words."""
    left = spread("as I said in short.", 0.0, 3.0)
    right = spread("In short, the period", 2.0, 5.0)
    kept, onwards = meet(left, right, Overlap(2.0, 3.0))
    assert "".join(word.text for word in left[:kept] + right[onwards:]) == "as I said in short, the period"


@given(st.text(alphabet="ab ,.\n今日はกา'-", max_size=40))
def test_the_words_of_a_text_are_the_text(text: str) -> None:
    """Taking a segment apart and putting it together changes nothing but the blanks at its end."""
    words = spread(text, 1.0, 2.0)
    assert "".join(word.text for word in words) == text.rstrip()
    assert all(1.0 <= a.start <= a.end <= b.end <= 2.0 + 1e-9 for a, b in itertools.pairwise(words))


def test_text_without_blanks_is_merged_letter_by_letter() -> None:
    """Japanese has no blanks: the letters in the overlap stand once."""
    left = done((0.0, 4.0, "今日はとても"))
    right = done((0.0, 4.0, "とても寒い"))
    resolved = without_overlaps([piece(0, 4), piece(2, 4)], [left, right])
    assert "".join(one.text for one in resolved) == "今日はとても寒い"


def test_overlapping_pieces_are_joined_to_one_text() -> None:
    """Text and segments of two pieces that overlap hold each word once, and times rise."""
    pieces = [piece(0, 10), piece(8, 10)]
    results = [
        done((0, 5, "It was the best of times,"), (5, 10, "it was the age of wis")),
        done((0, 4.5, "the age of wisdom,"), (4.5, 10, "it was the spring of hope.")),
    ]
    resolved = without_overlaps(pieces, results)
    expected = "It was the best of times, it was the age of wisdom, it was the spring of hope."
    assert join_text(resolved) == expected
    joined = join_segments(pieces, resolved, 18.0)
    assert " ".join(one.text for one in joined) == expected
    times = [moment for one in joined for moment in (one.start, one.end)]
    assert times == sorted(times)


def test_pieces_apart_are_left_alone() -> None:
    """Where pieces only meet, the same word on both sides was said twice."""
    results = [done((0, 5, "no no")), done((0, 5, "no no"))]
    assert without_overlaps([piece(0, 5), piece(5, 5)], results) == results


def test_a_result_without_segments_is_merged_too() -> None:
    """A model that gives text alone is spread over its piece."""
    first, second = done((0, 1, "x")), done((0, 1, "x"))

    results = [
        replace(first, text="one two three four", segments=()),
        replace(second, text="three four five six", segments=()),
    ]
    resolved = without_overlaps([piece(0, 4), piece(2, 4)], results)
    assert join_text(resolved) == "one two three four five six"
    assert all(one.segments == () for one in resolved)


def test_a_piece_whose_words_are_all_said_before_is_empty() -> None:
    """A short last piece inside the overlap adds nothing, and no empty segment."""
    results = [done((0, 4, "one two three four")), done((0, 2, "three four"))]
    resolved = without_overlaps([piece(0, 4), piece(2, 2)], results)
    assert join_text(resolved) == "one two three four"
    assert [segment.text for one in resolved for segment in one.segments if not segment.text] == []


def test_a_missing_result_is_told() -> None:
    """A piece without a result is never passed over."""
    with pytest.raises(ValueError, match="1 results for 2 pieces"):
        without_overlaps([piece(0, 1), piece(0, 1)], [done()])


segments = st.lists(
    st.tuples(st.floats(0, 12), st.floats(0, 12), st.sampled_from(["a", "b c", "", "a b", "今日"])),
    max_size=4,
)


@given(st.lists(segments, min_size=2, max_size=5), st.floats(0.5, 4))
def test_whatever_the_model_says_times_rise(said: list[list[tuple[float, float, str]]], over: float) -> None:
    """For any times and words of overlapping pieces: segments rise, lie in the recording, and hold the text."""
    pieces = [piece(i * (10 - over), 10) for i in range(len(said))]
    results = [done(*sorted((min(a, b), max(a, b), text) for a, b, text in one)) for one in said]
    resolved = without_overlaps(pieces, results)
    joined = join_segments(pieces, resolved, pieces[-1].end / SAMPLE_RATE)
    assert join_text(resolved).split() == " ".join(one.text for one in joined).split()
    last = 0.0
    for one in joined:
        assert last - 1e-3 <= one.start <= one.end <= pieces[-1].end / SAMPLE_RATE + 1e-3
        last = one.end
    assert all(isinstance(segment, Segment) for one in resolved for segment in one.segments)
