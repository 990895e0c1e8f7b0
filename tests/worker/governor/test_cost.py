"""The cost model predicts the peak of a batch, and learns."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol import Shape
from worker.governor.cost import PRIOR, CostModel, Load, Row, terms

MIB = 1 << 20
TINY = Shape(4, 4, 384, 51_864, 4, 2)
LARGE = Shape(32, 4, 1280, 51_866, 2, 0)
"""large-v3-turbo on Metal: half precision, a whole step in the encoder at once."""
BUCKETS = (8.0, 12.8, 16.0, 20.16, 30.0)
ROWS = st.builds(Row, st.sampled_from(BUCKETS), st.floats(1.0, 18.0))


def test_terms_are_the_sizes_of_the_buffers() -> None:
    """Two windows of 30 s in tiny's encoder, 8 rows of features, tokens and scores: each as many MiB as NumPy has."""
    row = Row(30.0, 10.0)
    cache, encoder, features, tokens, scores = terms(Load.alike(8, row), TINY, 64 * MIB)
    assert cache == 4
    assert terms(Load.alike(8, row), LARGE, 64 * MIB)[0] == 64
    assert encoder == 2 * 1500 * 384 * 4 / MIB
    assert features == 8 * 1500 * 384 * 4 * 2 * 4 / MIB
    assert tokens == 8 * 64 * 384 * 4 * 2 * 4 / MIB
    assert scores == 8 * 51_864 * 4 / MIB


def test_beside_running_rows_the_encoder_takes_less() -> None:
    """On Metal 24 s of windows are in the encoder beside rows that are decoded; what waits for it counts again."""
    row = Row(8.0, 6.0)
    alone, beside = (terms(Load.alike(20, row, running), LARGE, 0)[1] for running in ((), (row,)))
    assert (alone, beside) == (8 * beside / 3, beside)
    assert terms(Load.alike(1, row, (row, row), (row,)), LARGE, 0)[1] == 2 * beside / 3


def test_without_a_window_limit_a_step_of_the_encoder_counts() -> None:
    """On Metal 64 s of windows are in the encoder together, however many rows wait."""
    few, many = (terms(Load.alike(n, Row(30.0, 10.0)), LARGE, 0)[1] for n in (2, 20))
    assert few == many


@pytest.mark.parametrize("shape", [TINY, LARGE])
def test_the_prior_is_safe(shape: Shape) -> None:
    """Before anything was measured the prediction lies above the sum of what must be held at the same time."""
    load = Load.alike(4, Row(16.0, 5.0))
    cost = CostModel(shape, 32 * MIB)
    assert cost.predict(load).bytes > sum(terms(load, shape, 32 * MIB)) * MIB


def world(rng: random.Random, load: Load) -> int:
    """A device whose factors differ from the prior, with 3 MiB of noise."""
    factors = (0.6, 14.0, 1.05, 1.1, 2.5)
    return int(
        (sum(f * t for f, t in zip(factors, terms(load, TINY, 64 * MIB), strict=True)) + rng.gauss(0, 3))
        * MIB
    )


def test_it_learns_a_device_and_knows_buckets_that_it_never_saw() -> None:
    """After 50 mixed batches, 30 s windows that were not among them are within 15 %, and none is 10 % too low."""
    rng = random.Random(3)
    cost = CostModel(TINY, 64 * MIB)
    for _ in range(50):
        load = Load.alike(rng.randint(1, 16), Row(rng.choice(BUCKETS[:-1]), rng.uniform(1, 15)))
        cost.learn(load, world(rng, load))
    for count in range(1, 17):
        load = Load.alike(count, Row(30.0, 18.0))
        ratio = cost.predict(load).bytes / world(rng, load)
        assert 0.9 <= ratio <= 1.15


def test_the_margin_follows_the_errors() -> None:
    """Where peaks scatter more, more is kept clear."""
    margins = []
    for noise in (1.0, 30.0):
        rng = random.Random(1)
        cost = CostModel(TINY, 64 * MIB)
        load = Load.alike(4, Row(16.0, 5.0))
        for _ in range(60):
            cost.learn(load, 200 * MIB + int(rng.gauss(0, noise) * MIB))
        margins.append(cost.predict(load).margin)
    assert margins[1] > 5 * margins[0]


def test_what_a_full_batch_was_off_by_is_not_laid_on_a_single_row() -> None:
    """After one peak far over its prediction a row alone may need as much more in proportion, and no more."""
    cost = CostModel(TINY, 64 * MIB)
    row = Row(30.0, 22.0)
    before = cost.predict(Load.alike(1, row)).bytes
    for _ in range(12):
        cost.learn(Load.alike(1, Row(8.0, 5.0)), cost.predict(Load.alike(1, Row(8.0, 5.0))).expected)
    full = Load.alike(12, row)
    cost.learn(full, 2 * cost.predict(full).expected)
    assert cost.predict(Load.alike(1, row)).bytes < 4 * before


def test_memory_that_was_there_already_may_not_have_been_needed() -> None:
    """A peak above kept pages tells a range: within it nothing is learned, from outside it is the nearer end."""
    cost, row = CostModel(TINY, 64 * MIB), Load.alike(1, Row(8.0, 5.0))
    before = cost.predict(row).expected
    for _ in range(50):
        cost.learn(row, before + 80 * MIB, slack=85 * MIB)
    assert cost.predict(row).expected == before
    cost.learn(row, before // 2, slack=before // 4)
    less = cost.predict(row).expected
    assert less < before
    cost.learn(row, before + 200 * MIB, slack=80 * MIB)
    assert less < cost.predict(row).expected < before + 120 * MIB


def test_no_stream_of_peaks_carries_it_away() -> None:
    """Hundreds of small rows that seem to need far too much leave a large batch within a few times its prior."""
    rng = random.Random(5)
    cost, large = CostModel(TINY, 64 * MIB), Load.alike(12, Row(30.0, 22.0))
    before = cost.predict(large).bytes
    for _ in range(500):
        row = Row(rng.choice(BUCKETS[:-1]), rng.uniform(1, 15))
        cost.learn(Load.alike(rng.randint(1, 3), row), int(rng.uniform(20, 150) * MIB))
    assert cost.predict(large).bytes < 6 * before


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.lists(ROWS, min_size=1, max_size=16), st.integers(0, 1 << 33)), max_size=40), ROWS
)
def test_more_rows_never_need_less(history: list[tuple[list[Row], int]], row: Row) -> None:
    """Whatever was learned, a prediction is never negative and grows with the rows."""
    cost = CostModel(TINY, 64 * MIB)
    for rows, measured in history:
        cost.learn(Load(tuple(rows), tuple(rows)), measured)
    sizes = [cost.predict(Load.alike(count, row)).bytes for count in range(1, 17)]
    assert sizes[0] >= 0
    assert sizes == sorted(sizes)


def test_nothing_costs_nothing() -> None:
    """An empty engine has no peak, and a factor for each term."""
    assert CostModel(TINY, 0).predict(Load((), ())).bytes == 0
    assert len(PRIOR) == len(terms(Load((), ()), TINY, 0))
