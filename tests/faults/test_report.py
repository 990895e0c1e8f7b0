"""What is made of what was seen."""

from __future__ import annotations

import json
from pathlib import Path

from ops.bench.faults import report
from ops.bench.faults.observer import Held, Outcome, Seen
from ops.bench.faults.plan import Fault, Kind
from ops.bench.faults.play import Struck

DONE = Outcome("done", 1_000_500, "a")


def struck(*held: Held) -> Struck:
    return Struck(Fault(0.0, Kind.LINE_CUT, 0), 1_000_000, held)


def test_a_job_without_an_end_is_lost() -> None:
    """No outcome is a loss, and so is an outcome whose hash is gone."""
    assert report.lost([Seen(0), Seen(0, outcome=DONE), Seen(0, outcome=DONE, vanished=True)]) == 2


def test_each_sign_of_a_second_end_counts() -> None:
    """Another outcome, a second ring and a second final event each make a job a duplicate."""
    other = Seen(0, outcome=DONE, others={Outcome("done", 1_000_501, "b")})
    rung, told = Seen(0, outcome=DONE, rings=2), Seen(0, outcome=DONE, ends=2)
    once = Seen(0, outcome=DONE, rings=1, ends=1)
    assert report.duplicated([other, rung, told, once], counted_ends=4) == 3


def test_a_surplus_of_the_counters_counts() -> None:
    """More ends by the server's counters than jobs that ended is a duplicate, whoever it was."""
    assert report.duplicated([Seen(0, outcome=DONE, rings=1)], counted_ends=3) == 2


def test_another_clips_text_is_mixed_up() -> None:
    """A text that differs from what most jobs of the same clip have is somebody else's."""
    jobs = [Seen(0, text="a"), Seen(0, text="a"), Seen(0, text="b"), Seen(1, text="b"), Seen(1)]
    assert report.mixed_up(jobs) == 1


def test_recovery_is_the_end_or_the_next_delivery() -> None:
    """A struck job is well again with its end or with a newer attempt, whichever is first; a fault with its last."""
    jobs = {
        "ended": Seen(0, outcome=DONE, starts={1: 999_000}),
        "again": Seen(0, outcome=Outcome("done", 1_009_000, "a"), starts={1: 999_000, 2: 1_002_000}),
    }
    assert report.recoveries([struck(Held("ended", 1))], jobs) == [0.5]
    assert report.recoveries([struck(Held("ended", 1), Held("again", 1))], jobs) == [2.0]
    assert report.recoveries([struck(Held("again", 2))], jobs) == [9.0]


def test_a_fault_that_never_healed_has_no_recovery() -> None:
    """A lost job leaves its fault out of the times: it is counted as lost instead."""
    assert report.recoveries([struck(Held("lost", 1))], {"lost": Seen(0, starts={1: 999_000})}) == []


def test_percentiles_are_of_the_nearest_rank() -> None:
    """Of a hundred values the 50th, the 99th and the last; of none, none."""
    assert report.percentiles([float(n) for n in range(1, 101)]) == {"p50": 50.0, "p99": 99.0, "max": 100.0}
    assert report.percentiles([]) == {"p50": None, "p99": None, "max": None}


def test_executions_are_counted_over_all_lives(tmp_path: Path) -> None:
    """A job that the engines of two lives encoded was executed once more than needed; a torn line is passed over."""
    step = {"kind": "encode", "jobs": ["a", "b", "b"], "rows": ["a/1/0", "b/1/0", "b/1/1"]}
    again = {"kind": "encode", "jobs": ["a"], "rows": ["a/2/0"]}
    decode = {"kind": "decode", "jobs": ["a"], "rows": ["a/1/0"]}
    (tmp_path / "1").write_text(json.dumps(step) + "\n" + json.dumps(decode) + "\n" + '{"kind": "enc')
    (tmp_path / "2").write_text(json.dumps(again) + "\n")
    assert report.executed_again([tmp_path / "1", tmp_path / "2"]) == 1
