"""The assembler is pure: what waits goes in, a plan comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import ChunkRequest, Loaded, Shape
from queueing.job import LANES, Lane
from worker.assembler import BatchLimits, Plan, WaitingChunk, default_window_s, plan

LIMITS = BatchLimits()


def chunk(
    name: str,
    *,
    job: str | None = None,
    model: str = "m",
    lane: Lane = Lane.NORMAL,
    ready_at: float = 0.0,
    window_s: float = 10.0,
    alone: bool = False,
) -> WaitingChunk:
    request = ChunkRequest(id=name, job=job or name, model=model, path="/spool", offset=0, samples=16000)
    return WaitingChunk(request, lane, ready_at, window_s, alone)


def decide(
    waiting: list[WaitingChunk],
    *,
    now: float = 1.0,
    max_items: int = 16,
    max_window_s: float = 1000.0,
    more_coming: bool = False,
    limits: BatchLimits = LIMITS,
    running: Sequence[WaitingChunk] = (),
) -> Plan:
    return plan(
        waiting,
        now,
        limits,
        max_items=max_items,
        max_window_s=max_window_s,
        more_coming=more_coming,
        running=running,
    )


def names(planned: Plan) -> list[str]:
    return [one.request.id for one in planned.batch]


def test_nothing_waiting_plans_nothing() -> None:
    """An empty room gives an empty plan and no time to look again."""
    assert decide([]) == Plan()


def test_jobs_share_a_batch() -> None:
    """Chunks of different jobs, alike in model and window, go together."""
    assert names(decide([chunk("a"), chunk("b"), chunk("c")])) == ["a", "b", "c"]


def test_unlike_windows_stay_apart() -> None:
    """A chunk of another window does not join, for it would be encoded at a length not its own."""
    assert names(decide([chunk("a"), chunk("b", window_s=20.0), chunk("c")])) == ["a", "c"]


def test_models_stay_apart() -> None:
    """A batch runs on one model."""
    assert names(decide([chunk("a"), chunk("b", model="other")])) == ["a"]


def test_lanes_go_in_order() -> None:
    """An interactive chunk that came last leads the batch."""
    waiting = [chunk("bulk", lane=Lane.BULK), chunk("now", lane=Lane.INTERACTIVE, ready_at=0.9)]
    assert names(decide(waiting, max_items=1)) == ["now"]


def test_age_lifts_bulk() -> None:
    """Bulk work that has waited for more than two lanes' worth of aging goes before fresh interactive work."""
    now = 2 * LIMITS.aging_s + 2.0
    waiting = [
        chunk("old", lane=Lane.BULK, ready_at=0.0),
        chunk("fresh", lane=Lane.INTERACTIVE, ready_at=now),
    ]
    assert names(decide(waiting, now=now, max_items=1)) == ["old"]


def test_padded_seconds_are_capped() -> None:
    """The cap counts the window that is encoded, not the audio in it."""
    assert len(decide([chunk(str(n)) for n in range(10)], max_window_s=45.0).batch) == 4


def test_one_chunk_always_fits() -> None:
    """A chunk larger than the allowance goes alone rather than never."""
    assert names(decide([chunk("a", window_s=30.0), chunk("b", window_s=30.0)], max_window_s=5.0)) == ["a"]


def test_a_long_file_does_not_fill_the_batch() -> None:
    """While others wait, one job has at most its share of the rows."""
    waiting = [chunk(f"long{n}", job="long") for n in range(20)] + [chunk("short", ready_at=0.5)]
    planned = decide(waiting)
    assert "short" in names(planned)
    assert sum(one.request.job == "long" for one in planned.batch) == LIMITS.max_items_per_job


def test_a_long_file_alone_leaves_some_room() -> None:
    """With nobody else waiting, one job has nearly every row and second: who comes next finds room at once."""
    waiting = [chunk(f"long{n}", job="long") for n in range(20)]
    assert len(decide(waiting).batch) == 14
    assert len(decide(waiting, max_window_s=80.0).batch) == 7
    assert names(decide([chunk("short")], running=waiting[:14])) == ["short"]


def test_what_runs_counts() -> None:
    """Both caps, and the cap on one job, hold for all that is in the engine, not for each batch."""
    running = [chunk(f"r{n}") for n in range(10)]
    waiting = [chunk(f"w{n}") for n in range(10)]
    assert len(decide(waiting, running=running).batch) == 6
    assert len(decide(waiting, running=running, max_window_s=130.0).batch) == 3
    assert decide(waiting, running=running, max_items=8) == Plan()
    long = [chunk(f"long{n}", job="long") for n in range(12)]
    assert names(decide([*long[7:], chunk("x", ready_at=0.5)], running=long[:7])) == ["long7", "x"]


def test_a_job_that_has_its_share_is_overtaken() -> None:
    """A long file whose chunks fill its share waits for them, and not others for it."""
    long = [chunk(f"long{n}", job="long") for n in range(10)]
    short = chunk("short", ready_at=0.5, window_s=6.4)
    assert names(decide([*long[8:], short], running=long[:8])) == ["short"]


def test_room_is_kept_for_the_first() -> None:
    """A chunk that does not fit yet is not overtaken by those behind it that would."""
    running = [chunk("r", window_s=20.0)]
    waiting = [chunk("large", window_s=30.0), chunk("small", ready_at=0.5, window_s=6.4)]
    assert decide(waiting, running=running, max_window_s=45.0) == Plan()
    assert names(decide(waiting, running=running, max_window_s=50.0)) == ["large"]


def test_a_suspect_waits_for_an_empty_engine() -> None:
    """A suspect joins nobody, nobody joins it, and nobody overtakes it meanwhile; its own job's chunks may."""
    bad = chunk("bad1", job="bad", alone=True)
    ok = chunk("ok", ready_at=0.5)
    assert decide([bad, ok], running=[chunk("other")]) == Plan()
    assert decide([ok], running=[bad]) == Plan()
    assert names(decide([chunk("bad2", job="bad", alone=True), ok], running=[bad])) == ["bad2"]


def test_joining_does_not_linger() -> None:
    """Company is waited for in an idle engine alone: a running one can be joined at any step."""
    waiting = [chunk("a", ready_at=1.0)]
    assert names(decide(waiting, now=1.0, more_coming=True, running=[chunk("r")])) == ["a"]


def test_suspects_run_alone() -> None:
    """A job suspected of crashing the engine shares a batch with no other job."""
    waiting = [chunk("bad1", job="bad", alone=True), chunk("bad2", job="bad", alone=True), chunk("ok")]
    assert names(decide(waiting)) == ["bad1", "bad2"]


def test_innocent_batches_leave_suspects_out() -> None:
    """A suspect that waits does not join the batch of another leader."""
    assert names(decide([chunk("ok"), chunk("bad", ready_at=0.5, alone=True), chunk("fine")])) == [
        "ok",
        "fine",
    ]


def test_lingers_only_for_company() -> None:
    """An idle engine waits for what media is decoding, and only then."""
    waiting = [chunk("a", ready_at=1.0)]
    assert decide(waiting, now=1.0).batch
    lingering = decide(waiting, now=1.0, more_coming=True)
    assert lingering == Plan(again_at=1.0 + LIMITS.linger_s)


def test_lingering_ends() -> None:
    """Once the linger has passed, the batch goes with what there is."""
    assert decide([chunk("a", ready_at=1.0)], now=1.0 + LIMITS.linger_s, more_coming=True).batch


def test_a_full_batch_does_not_linger() -> None:
    """Company is not waited for where there is no room for it."""
    assert len(decide([chunk(str(n)) for n in range(4)], now=0.0, max_items=4, more_coming=True).batch) == 4


def loaded(width: int, layers: int, item_bytes: int = 2) -> Loaded:
    shape = Shape(layers, layers, width, 51_865, item_bytes, 0)
    return Loaded("m", 0.0, 0, 16, width, (), True, shape, ())


def test_window_default_follows_memory_and_what_rows_keep() -> None:
    """60 padded seconds for 16 GB and the largest model; more memory, or fewer bytes kept of a second, gives more."""
    large, gib = loaded(1280, 32), 1024**3
    assert default_window_s(16 * gib, [large]) == 60.0
    assert default_window_s(16 * gib, [loaded(1280, 32, item_bytes=4)]) == 60.0
    assert default_window_s(64 * gib, [large]) == 240.0
    assert default_window_s(16 * gib, [loaded(640, 16)]) == 240.0
    assert default_window_s(16 * gib, [loaded(640, 16), large]) == 60.0
    assert default_window_s(16 * gib, [loaded(1280, 0)]) == 60.0
    assert default_window_s(1 * gib, [large]) == 60.0


chunks = st.builds(
    lambda n, job, model, lane, at, window, alone: chunk(
        f"c{n}", job=f"{alone}{job}", model=model, lane=lane, ready_at=at, window_s=window, alone=alone
    ),
    st.integers(0, 10**6),
    st.integers(0, 3),
    st.sampled_from(["m", "n"]),
    st.sampled_from(LANES),
    st.floats(0, 100),
    st.sampled_from([6.4, 10.24, 30.0]),
    st.booleans(),
)


@given(
    st.lists(chunks, max_size=40, unique_by=lambda one: one.request.id),
    st.integers(0, 12),
    st.integers(1, 20),
    st.floats(1, 500),
)
def test_every_plan_is_lawful(
    everything: list[WaitingChunk], going: int, max_items: int, max_window_s: float
) -> None:
    """Whatever waits and runs: caps hold together, a batch is alike, suspects meet nobody, no idle engine waits."""
    running = [one for one in everything[:going] if not one.alone]
    waiting = [one for one in everything if one not in running]
    batch = decide(waiting, now=100.0, max_items=max_items, max_window_s=max_window_s, running=running).batch
    assert bool(batch) or not waiting or bool(running)
    if not batch:
        return
    together = [*running, *batch]
    assert len({one.request.id for one in batch}) == len(batch)
    assert len(together) <= max_items
    assert len(together) == 1 or sum(one.window_s for one in together) <= max_window_s + 1e-6
    assert len({(one.request.model, one.window_s) for one in batch}) == 1
    if any(one.alone for one in together):
        assert len({one.request.job for one in together}) == 1


@given(st.lists(chunks, min_size=1, max_size=30, unique_by=lambda one: one.request.id))
def test_everything_goes_in_the_end(waiting: list[WaitingChunk]) -> None:
    """Planning again and again empties the room: nothing waits for ever."""
    left = list(waiting)
    for _ in range(len(waiting)):
        batch = decide(left, now=100.0, max_items=3, max_window_s=31.0).batch
        left = [one for one in left if one not in batch]
    assert left == []


@given(st.lists(chunks, min_size=1, max_size=30, unique_by=lambda one: one.request.id))
def test_order_of_arrival_in_the_list_is_no_matter(waiting: list[WaitingChunk]) -> None:
    """The plan depends on what waits, not on the order in which it is handed over (ties aside)."""
    distinct = [replace(one, ready_at=float(n)) for n, one in enumerate(waiting)]
    assert set(names(decide(distinct))) == set(names(decide(distinct[::-1])))


def test_a_batch_is_cut_to_what_fits() -> None:
    """The governor's word on chunks like the leader bounds the batch; none means that it waits, leader and all."""
    waiting = tuple(chunk(f"c{i}") for i in range(8))
    for room, size in ((3, 3), (0, 0), (100, 8)):
        decision = plan(
            waiting,
            10.0,
            BatchLimits(),
            max_items=16,
            max_window_s=1000.0,
            more_coming=False,
            room=lambda leader, room=room: room,
        )
        assert len(decision.batch) == size


def test_what_fits_counts_beside_what_runs() -> None:
    """Of chunks that may join, the governor's word is a number of newcomers, the level's a number of all."""
    running = tuple(chunk(f"r{i}") for i in range(4))
    waiting = tuple(chunk(f"c{i}") for i in range(8))
    for most, room, size in ((16, 3, 3), (6, 3, 2), (4, 3, 0)):
        decision = plan(
            waiting,
            10.0,
            BatchLimits(reserve=0.0),
            max_items=most,
            max_window_s=1000.0,
            more_coming=False,
            running=running,
            room=lambda leader, room=room: room,
        )
        assert len(decision.batch) == size
