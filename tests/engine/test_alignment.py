"""Words and their times, without a model: warping, splitting, joining, clamping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from engine.protocol import Segment, Word
from engine.whisper import alignment, words
from engine.whisper.words import Piece, Timed

UNTIMED = settings(deadline=None, max_examples=60)
"""No assertion on wall time: the machine may be busy."""

COSTS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 7), st.integers(1, 9)),
    elements=st.floats(-3, 3, width=16),
)


def cheapest(cost: Any) -> float:
    """The least sum over all paths, by the plain recurrence."""
    best = np.full((cost.shape[0] + 1, cost.shape[1] + 1), np.inf)
    best[0, 0] = 0
    for i in range(1, best.shape[0]):
        for j in range(1, best.shape[1]):
            best[i, j] = cost[i - 1, j - 1] + min(best[i - 1, j - 1], best[i - 1, j], best[i, j - 1])
    return float(best[-1, -1])


@UNTIMED
@given(COSTS)
def test_the_path_is_the_cheapest(cost: Any) -> None:
    """No path from corner to corner costs less, and it never goes back or jumps."""
    rows, columns = alignment.warp(cost)
    assert (rows[0], columns[0]) == (0, 0)
    assert (rows[-1], columns[-1]) == (cost.shape[0] - 1, cost.shape[1] - 1)
    steps = set(zip(np.diff(rows).tolist(), np.diff(columns).tolist(), strict=True))
    assert steps <= {(0, 1), (1, 0), (1, 1)}
    assert cost[rows, columns].astype(np.float64).sum() == pytest.approx(cheapest(cost), abs=1e-4)


def test_the_path_is_that_of_mlx_audio(mlx: Any) -> None:
    """Where no two paths cost the same, it is the one that Whisper's own code finds."""
    from mlx_audio.stt.models.whisper.timing import dtw

    draw = np.random.Generator(np.random.Philox(5))
    for shape in ((1, 1), (1, 9), (9, 1), (4, 30), (25, 60), (30, 8)):
        cost = draw.standard_normal(shape)
        ours, theirs = alignment.warp(cost.astype(np.float32)), dtw(cost)
        assert (ours[0].tolist(), ours[1].tolist()) == (theirs[0].tolist(), theirs[1].tolist())


@UNTIMED
@given(
    arrays.arrays(
        np.float32, st.tuples(st.integers(1, 3), st.integers(1, 20)), elements=st.floats(-5, 5, width=16)
    )
)
def test_the_median_filter_is_a_running_median(x: Any) -> None:
    """Each value is the median of the seven around it, mirrored at the ends."""
    found = alignment.median_filter(x)
    if x.shape[-1] <= 3:
        assert np.array_equal(found, x)
        return
    padded = np.pad(x, ((0, 0), (3, 3)), mode="reflect")
    for i in range(x.shape[-1]):
        assert np.array_equal(found[:, i], np.median(padded[:, i : i + 7], axis=1))


@UNTIMED
@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 30)),
        elements=st.floats(0, 1, width=16),
    )
)
def test_token_times_rise(weights: Any) -> None:
    """Whatever is attended to, there is a time for each token and for the end, and none is before the last."""
    times = alignment.token_times(weights)
    assert len(times) == weights.shape[1]
    assert times[0] == 0 and (np.diff(times) >= 0).all()
    assert times[-1] <= weights.shape[2] * alignment.FRAME_S


def test_tokens_are_found_where_they_are_attended_to() -> None:
    """Heads that look at one stretch after another give these stretches' bounds."""
    weights = np.full((2, 4, 40), 0.01, np.float32)
    for token, start in enumerate((0, 10, 25, 35)):
        weights[:, token, start : (10, 25, 35, 40)[token]] = 1.0
    assert alignment.token_times(weights) == pytest.approx([0.0, 0.2, 0.5, 0.7])


def test_heads_are_those_of_the_model() -> None:
    """What the files say goes first, then the published table, then the last half of the layers."""
    assert alignment.heads_of(4, 6, 51_864)[:3] == ((1, 0), (2, 0), (2, 5))
    assert alignment.heads_of(4, 6, 51_865) == ((2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5))
    assert len(alignment.heads_of(32, 20, 51_866)) == 10 and len(alignment.heads_of(32, 20, 51_865)) == 23
    assert len(alignment.heads_of(4, 20, 51_866)) == 6
    assert alignment.heads_of(4, 2, 51_866) == ((2, 0), (2, 1), (3, 0), (3, 1))
    assert alignment.heads_of(4, 6, 51_864, given=[[3, 1], [2, 5]]) == ((2, 5), (3, 1))
    with pytest.raises(ValueError, match="head that the decoder has not"):
        alignment.heads_of(4, 6, 51_864, given=[[4, 0]])


def test_the_table_fits_the_models() -> None:
    """Every head of the published table is one that its model has."""
    sizes = {"tiny": (4, 6), "base": (6, 8), "small": (12, 12), "medium": (24, 16), "large": (32, 20)}
    for name, listed in alignment.ALIGNMENT_HEADS.items():
        layers, heads = (4, 20) if name.endswith("turbo") else sizes[name.split(".")[0].split("-")[0]]
        for item in listed.split():
            layer, head = map(int, item.split("."))
            assert layer < layers and head < heads, name


# --- words --------------------------------------------------------------------------------------


def test_words_are_cut_at_blanks_and_marks(tokenizer: Any) -> None:
    """Joined, the words are the text; none begins in the middle of another, nor of a character."""
    text = " Ever tried — “naïve” 日本, no?"
    tokens = tokenizer.encode(text)
    found = words.split_words(tokens, tokenizer, "en")
    assert "".join(piece.text for piece in found) == text
    assert sum(piece.tokens for piece in found) == len(tokens)
    assert [piece.text for piece in found][:2] == [" Ever", " tried"]
    assert not any("\ufffd" in piece.text for piece in found)


def test_characters_are_words_where_there_are_no_blanks(tokenizer: Any) -> None:
    """In Chinese and its like, each character is a word, however many tokens it takes."""
    tokens = tokenizer.encode("明天见")
    found = words.split_words(tokens, tokenizer, "zh")
    assert [piece.text for piece in found] == ["明", "天", "见"]


PIECES = st.sampled_from([" a", " word", "'", '"', ".", ",", " (", " “", "-", "?", " ."]).map(
    lambda t: Piece(t, 1)
)


@st.composite
def timed_words(draw: Any) -> list[Timed]:
    """Words with rising times."""
    found, clock = [], 0.0
    for piece in draw(st.lists(PIECES, max_size=12)):
        start = clock + draw(st.floats(0, 2))
        clock = start + draw(st.floats(0, 3))
        found.append(Timed(piece, start, clock, 0.5))
    return found


@UNTIMED
@given(timed_words())
def test_joining_marks_loses_nothing(spoken: list[Timed]) -> None:
    """Text and tokens are the same after punctuation has been joined to words, and the order too."""
    joined = words.merged(spoken)
    assert "".join(w.piece.text for w in joined) == "".join(w.piece.text for w in spoken)
    assert sum(w.piece.tokens for w in joined) == sum(w.piece.tokens for w in spoken)
    assert [w.start for w in joined] == sorted(w.start for w in joined)


def test_marks_belong_to_the_words_beside_them() -> None:
    """An opening mark goes to the word behind it, a closing one to the word before."""
    spoken = [
        Timed(Piece(text, 1), i, i + 1, 1.0)
        for i, text in enumerate([" Say", " “", "no", ",", "”", " again", "."])
    ]
    assert [w.piece.text for w in words.merged(spoken)] == [" Say", " “no,”", " again."]


@UNTIMED
@given(
    st.lists(st.tuples(st.floats(-5, 40), st.floats(-5, 40)), max_size=8), st.floats(0, 10), st.floats(0, 20)
)
def test_clamped_words_rise_within_their_bounds(
    times: list[tuple[float, float]], begin: float, more: float
) -> None:
    """Whatever times words come with, they leave in order and inside."""
    end = begin + more
    found = words.clamped([Word(a, b, "w", 1.0) for a, b in times], begin, end)
    moments = [moment for word in found for moment in (word.start, word.end)]
    assert len(found) == len(times) and moments == sorted(moments)
    assert all(begin <= moment <= end for moment in moments)


@UNTIMED
@given(st.lists(timed_words(), min_size=1, max_size=4), st.floats(1, 30))
def test_segments_hold_their_words(parts: list[list[Timed]], length_s: float) -> None:
    """A segment with words begins and ends with them; all times rise and lie inside the audio."""
    pieces = [[w.piece for w in part] for part in parts]
    count = sum(len(part) for part in pieces)
    times = sorted(float(t) for t in np.random.Generator(np.random.Philox(count)).uniform(0, 30, count + 1))
    given_segments = [Segment(i, i + 1.0, "".join(p.text for p in part)) for i, part in enumerate(pieces)]
    found = words.with_words(given_segments, pieces, times, [0.5] * count, length_s)
    clock = 0.0
    for segment, part in zip(found, pieces, strict=True):
        if segment.words:
            assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)
            for word in segment.words:
                assert clock <= word.start <= word.end <= length_s
                clock = word.end
        kept = "".join(word.text for word in segment.words)
        assert kept.split() == "".join(piece.text for piece in part).split()


def test_a_pause_is_nobodys() -> None:
    """A full stop that swallowed a pause is cut to twice the median word, and so is a word behind it."""
    spoken = [
        Timed(Piece(" One", 1), 0.0, 0.5, 1.0),
        Timed(Piece(".", 1), 0.5, 5.0, 1.0),
        Timed(Piece(" Two", 1), 5.0, 5.5, 1.0),
    ]
    assert words.restrained(spoken, 0.5)[1].end == 1.5
    late = [
        Timed(Piece(" One", 1), 0, 0.5, 1.0),
        Timed(Piece(".", 1), 0.5, 0.6, 1.0),
        Timed(Piece(" Two", 1), 0.6, 5, 1.0),
    ]
    assert words.restrained(late, 0.5)[2].start == 4.0
