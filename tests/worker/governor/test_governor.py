"""The governor over its parts: admission by prediction, moves of precision, rest, leaks."""

from __future__ import annotations

from engine.limits import Limits
from engine.protocol import Loaded, Requantized, Rung, Sample, Shape, StepDone
from worker.governor import Change, Governor, LeakLimits, Level, Load, Precision, Restart, Row, Thresholds

MIB = 1 << 20
SHAPE = Shape(4, 4, 384, 51_864, 4, 2)
RUNGS = (
    Rung(32, 144 * MIB, 0, 0),
    Rung(8, 44 * MIB, 22 * MIB, 135 * MIB),
    Rung(4, 30 * MIB, 12 * MIB, 126 * MIB),
)
ROW = Row(16.0, 4.0)
MODEL = "m"


class Rig:
    """A governor of an engine with one model, at rest at *rest* MiB. Readings come ten times a second."""

    def __init__(self, budget_mb: int, rest_mb: int = 200, **settings: object) -> None:
        self.governor = Governor(Thresholds(), max_items=16, **settings)  # type: ignore[arg-type]
        self.governor.engine_up(Limits(1 << 40, budget_mb * MIB, 0, 16 * MIB, 0))
        self.now = 0.0
        self.load(32, rest_mb)

    def load(self, bits: int, rest_mb: int) -> None:
        loaded = Loaded(MODEL, 1.0, 0, bits, 384, ("en",), False, SHAPE, RUNGS)
        self.governor.model_loaded(loaded, self.now)
        self.feed(rest_mb, 10)

    def feed(self, held_mb: float, times: int = 1) -> None:
        for _ in range(times):
            self.now += 0.1
            self.governor.observe(Sample(int(held_mb * MIB), 0, 0, 0), self.now)

    def room(self, row: Row = ROW) -> int:
        return self.governor.room(MODEL, row)

    def batch(self, rows: int, peak_mb: int, row: Row = ROW, rest_mb: int = 200) -> None:
        """Dispatch, peak, answer, rest."""
        ids = [f"c{i}" for i in range(rows)]
        self.governor.admitted(MODEL, [(name, row) for name in ids], self.now)
        reading = Sample(0, 0, 0, 0, peak_footprint=peak_mb * MIB)
        self.governor.step_done(StepDone("encode", 1, 0.1, (), (), 16.0, reading))
        for name in ids:
            self.governor.left(name, self.now)
        self.feed(rest_mb, 6)


def requantized(bits: int, freed_mb: int, before: int = 32) -> Requantized:
    return Requantized(MODEL, before, bits, 0.1, 200 * MIB, (200 - freed_mb) * MIB, 200 * MIB, 0, None)


def test_a_batch_that_would_cross_is_cut() -> None:
    """Where a full batch is predicted over the line of shrink, fewer rows are let in; with room, all are."""
    assert Rig(4000).room() == 16
    tight = Rig(350)
    rows = tight.room()
    assert 1 <= rows < 16
    cost = tight.governor._engine.costs[MODEL]
    line = 0.9 * 350 * MIB
    assert 200 * MIB + cost.predict(Load.alike(rows, ROW)).bytes <= line
    assert 200 * MIB + cost.predict(Load.alike(rows + 1, ROW)).bytes > line


def test_what_runs_counts_against_what_may_join() -> None:
    """Rows that are in the engine, started or not, leave less room beside them, and in the end none."""
    rig = Rig(420)
    rooms = []
    while (room := rig.room()) > 0:
        rooms.append(room)
        rig.governor.admitted(MODEL, [(f"c{len(rooms)}", ROW)], rig.now)
    assert rooms == sorted(rooms, reverse=True)
    assert 1 < len(rooms) < 16


def test_one_chunk_may_always_pass_when_nothing_runs() -> None:
    """However little room there is by prediction, one row goes when the engine is empty."""
    assert Rig(300).room(Row(30.0, 18.0)) == 1


def test_a_chunk_that_can_never_fit_is_told_so() -> None:
    """What a row was seen to need alone, at the fewest bits over the whole budget: the reason names the bytes, the
    rest and the budget. Shorter ones, and a budget with room, let it pass; so does a prediction that nothing proved."""
    rig = Rig(125, rest_mb=200, allowed=Precision(least_bits=4))
    long = Row(30.0, 18.0)
    assert rig.governor.never_fits(MODEL, long) is None
    rig.batch(1, 250, long)
    why = rig.governor.never_fits(MODEL, long)
    assert why is not None
    assert "needs 136 MiB" in why
    assert "the budget is 125 MiB" in why
    assert "86 MiB are held at rest" in why
    assert rig.governor.never_fits(MODEL, Row(8.0, 1.0)) is None
    roomy = Rig(4000)
    roomy.batch(1, 250, long)
    assert roomy.governor.never_fits(MODEL, long) is None


def test_forecasts_are_kept_beside_what_came() -> None:
    """A batch's forecast holds the prediction that admitted it and the peak that was measured."""
    rig = Rig(4000)
    rig.batch(4, 333)
    (forecast,) = rig.governor.forecasts
    assert (forecast.rows, forecast.measured, forecast.rest) == (4, 333 * MIB, 200 * MIB)
    assert forecast.predicted > forecast.rest


def encoded(rig: Rig, peak_mb: int, *chunks: str) -> None:
    reading = Sample(0, 0, 0, 0, peak_footprint=peak_mb * MIB)
    rig.governor.step_done(StepDone("encode", 1, 0.1, chunks, (), 16.0, reading))


def test_rows_are_measured_once_they_have_been_encoded() -> None:
    """What joins before others are encoded is measured with them: a peak of which half is to come teaches nothing."""
    rig = Rig(4000)
    rig.governor.admitted(MODEL, [("a", ROW), ("b", ROW)], rig.now)
    encoded(rig, 220, "a")
    rig.governor.admitted(MODEL, [("c", ROW)], rig.now)
    assert not rig.governor.forecasts
    encoded(rig, 260, "b", "c")
    rig.governor.admitted(MODEL, [("d", ROW)], rig.now)
    (forecast,) = rig.governor.forecasts
    assert (forecast.rows, forecast.measured) == (3, 260 * MIB)
    encoded(rig, 270, "d")
    for name in "abcd":
        rig.governor.left(name, rig.now)
    assert [forecast.rows for forecast in rig.governor.forecasts] == [3, 4]


def test_a_peak_of_rows_that_have_left_is_not_laid_on_those_that_stay() -> None:
    """Three rows peak, two of them leave, and one joins before the last is encoded: two rows need no more than that."""
    rig = Rig(4000)
    cost = rig.governor._engine.costs[MODEL]
    alone = cost.predict(Load.alike(2, ROW)).expected
    rig.governor.admitted(MODEL, [(name, ROW) for name in "abc"], rig.now)
    encoded(rig, 420, "a", "b")
    for name in "ab":
        rig.governor.left(name, rig.now)
    rig.governor.admitted(MODEL, [("d", ROW)], rig.now)
    encoded(rig, 240, "c", "d")
    for name in "cd":
        rig.governor.left(name, rig.now)
    (forecast,) = rig.governor.forecasts
    assert (forecast.rows, forecast.measured) == (2, 420 * MIB)
    assert cost.predict(Load.alike(2, ROW)).expected == alone


def test_pages_that_malloc_keeps_are_no_need() -> None:
    """Small batches after a large one peak where the process stands anyway: what they need is not learned from that."""
    rig = Rig(4000)
    alone = rig.governor._engine.costs[MODEL].predict(Load.alike(1, ROW)).bytes
    rig.feed(400, 1)
    for _ in range(40):
        rig.governor.admitted(MODEL, [("c", ROW)], rig.now)
        encoded(rig, 402, "c")
        rig.governor.left("c", rig.now)
    assert rig.governor._engine.costs[MODEL].predict(Load.alike(1, ROW)).bytes == alone
    assert {forecast.predicted for forecast in rig.governor.forecasts} == {400 * MIB}


def test_what_was_called_off_teaches_nothing() -> None:
    """A batch of which a row was cancelled before it was encoded shows less than it would have needed."""
    rig = Rig(4000)
    rig.governor.admitted(MODEL, [("a", ROW), ("b", ROW)], rig.now)
    encoded(rig, 220, "a")
    rig.governor.left("b", rig.now, ran=False)
    rig.governor.left("a", rig.now)
    assert not rig.governor.forecasts


def test_what_the_encoder_has_not_come_to_is_called_back() -> None:
    """Of twelve rows: none while memory lasts, at *shrink* what no longer fits the batch, at *pause* all; but never the
    two that come next."""
    rig = Rig(400)
    names = [f"c{n}" for n in range(12)]
    rig.governor.admitted(MODEL, [(name, ROW) for name in names], rig.now)
    rig.feed(350, 2)
    assert rig.governor.surplus() == ()
    rig.feed(365, 2)
    assert (rig.governor.level, rig.governor.batch_items) == (Level.SHRINK, 8)
    assert rig.governor.surplus() == tuple(names[8:])
    rig.feed(410, 2)
    assert rig.governor.surplus() == tuple(names[2:])
    encoded(rig, 410, *names[:10])
    assert rig.governor.surplus() == ()


def test_a_rest_is_the_least_that_was_held_of_late() -> None:
    """Right after a burst malloc keeps more than at rest; a model that finds work at once is judged by its load."""
    rig = Rig(4000)
    rig.batch(4, 333, rest_mb=230)
    assert rig.governor.rest_bytes == 200 * MIB
    for _ in range(64):
        rig.batch(4, 333, rest_mb=230)
    assert rig.governor.rest_bytes == 230 * MIB
    rig.governor.engine_gone()
    rig.governor.loading = True
    rig.load(32, 210)
    assert rig.governor.rest_bytes == 0
    rig.governor.at_rest()
    assert rig.governor.rest_bytes == 210 * MIB


def test_measured_peaks_move_the_room() -> None:
    """Batches that needed less than the prior says let more rows in."""
    rig = Rig(420)
    before = rig.room()
    for _ in range(20):
        rig.batch(before, 240)
    assert rig.room() > before


def test_lasting_pressure_moves_a_model_to_fewer_bits() -> None:
    """After five seconds over the line of shrink a move is planned, and nothing joins until it is done."""
    rig = Rig(400)
    rig.governor.admitted(MODEL, [("c", ROW)], rig.now)
    rig.feed(380, 45)
    assert rig.governor.plan(rig.now) is None
    rig.feed(380, 10)
    change = rig.governor.plan(rig.now)
    assert isinstance(change, Change)
    assert (change.model, change.bits, change.in_place) == (MODEL, 8, True)
    assert rig.room() == 0
    rig.governor.left("c", rig.now)
    rig.governor.requantized(requantized(8, 100), rig.now)
    rig.feed(100, 100)
    assert rig.governor.level is Level.OPEN
    assert rig.governor.bits(MODEL) == 8
    assert rig.room() > 0


def test_bits_come_back_when_pressure_has_ended() -> None:
    """After calm with room the model goes all the way back up."""
    rig = Rig(400)
    rig.feed(380, 60)
    rig.governor.plan(rig.now)
    rig.governor.requantized(requantized(8, 100), rig.now)
    rig.feed(100, 290)
    assert rig.governor.plan(rig.now) is None
    rig.feed(100, 100)
    change = rig.governor.plan(rig.now)
    assert isinstance(change, Change)
    assert change.bits == 32


def test_small_batches_for_long_move_a_model_too() -> None:
    """Where prediction leaves room for an eighth of a batch, it is pressure that smaller batches cannot end."""
    rig = Rig(316)
    for _ in range(4):
        assert rig.governor.plan(rig.now) is None
        assert rig.room() <= 2
        rig.governor.admitted(MODEL, [("c", ROW)], rig.now)
        rig.feed(250, 20)
        rig.governor.left("c", rig.now)
    change = rig.governor.plan(rig.now)
    assert isinstance(change, Change)
    assert change.bits == 8


def test_a_full_rest_steps_down_at_load_and_then_gives_up() -> None:
    """At rest over the exit of queue: down the ladder, then not ready, never a crawl; a larger budget ends it."""
    rig = Rig(280, rest_mb=200)
    change = rig.governor.plan(rig.now)
    assert isinstance(change, Change)
    assert change.bits == 8
    rig.governor.requantized(requantized(8, 100), rig.now)
    rig.feed(100, 10)
    assert not rig.governor.budget_too_small
    worst = Rig(140, rest_mb=200)
    worst.governor.requantized(requantized(8, 100), worst.now)
    worst.feed(100, 10)
    assert worst.governor.budget_too_small
    assert not worst.governor.may_take()
    assert worst.room() == 0
    worst.feed(60, 10)
    assert not worst.governor.budget_too_small


def test_without_the_ladder_bits_stay() -> None:
    """Settings may forbid every move."""
    rig = Rig(400, allowed=Precision(ladder=False))
    rig.feed(380, 100)
    assert rig.governor.plan(rig.now) is None


def test_a_leak_past_the_limit_is_a_planned_restart() -> None:
    """Memory at rest that grows with jobs closes joins and asks for a new engine between batches."""
    rig = Rig(4000, leak_limits=LeakLimits(window_jobs=5, report_bytes=10 * MIB, restart_bytes=50 * MIB))
    for job in range(20):
        rig.feed(200 + 5 * job)
        rig.governor.job_settled()
    plan = rig.governor.plan(rig.now)
    assert isinstance(plan, Restart)
    assert rig.room() == 0
    rig.governor.engine_gone()
    assert rig.governor.pending is None


def test_a_new_engine_keeps_what_was_learned() -> None:
    """Costs outlive an engine; its rows, its rest and what was pending do not."""
    rig = Rig(4000)
    for _ in range(3):
        rig.batch(4, 333)
    learned = rig.governor._engine.costs[MODEL].batches
    rig.governor.admitted(MODEL, [("x", ROW)], rig.now)
    rig.governor.engine_gone()
    assert rig.governor.idle
    rig.load(32, 200)
    assert rig.governor._engine.costs[MODEL].batches == learned == 3


def test_what_is_held_while_loading_is_no_rest() -> None:
    """Neither the models of an earlier life nor what a load passes through moves anything."""
    rig = Rig(280, rest_mb=100)
    rig.governor.engine_gone()
    rig.feed(250, 20)
    assert rig.governor.plan(rig.now) is None
    rig.governor.loading = True
    rig.load(32, 250)
    assert rig.governor.pending is None
    rig.governor.loading = False
    rig.feed(100, 10)
    assert not rig.governor.budget_too_small
    assert rig.governor.plan(rig.now) is None
