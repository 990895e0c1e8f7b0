"""``decibatch bench overhead``, small: its figures are measured by running it, not by a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ops.bench import environments
from ops.bench.environments import PeerUnavailable
from ops.bench.overhead import peers
from ops.bench.overhead.peers import BY_NAME, OURS
from ops.bench.overhead.run import Entry, Measured, Order, report, run

JOBS = 50


def test_everybody_answers_every_job(tmp_path: Path) -> None:
    """Over a tiny run our worker and RQ's SimpleWorker each hand back every result, and the rows say so."""
    told = run(Order((BY_NAME["rq-simple"],), jobs=JOBS, rounds=1, idle=10, with_media=False), cache=tmp_path)
    ours, theirs = told["rows"]
    assert [row["name"] for row in told["rows"]] == ["decibatch", "rq-simple"]
    assert [row["answered"] for row in told["rows"]] == [JOBS, JOBS]
    assert (ours["durable"], theirs["durable"]) == (True, False)
    assert (ours["ratio"], ours["media"]) == (1.0, "stand-in")
    for row in told["rows"]:
        assert row["jobs_per_s"] > 0
        assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p99"]
        assert row["version"] and row["concurrency"] and row["why"]
    assert (told["jobs"], told["rounds"], told["idle_jobs"]) == (JOBS, 1, 10)


def test_medians_are_of_the_rounds() -> None:
    """A row holds the median rate, and the median of the ratios of each round, not the ratio of the medians."""
    mine = Entry(OURS[0], None, rounds=[Measured(100, s, (0.001, 0.003)) for s in (1.0, 2.0, 4.0)])
    theirs = Entry(BY_NAME["rq"], None, rounds=[Measured(100, s, (0.01, 0.03)) for s in (10.0, 10.0, 80.0)])
    rows = report([mine, theirs], Order((BY_NAME["rq"],)))["rows"]
    assert [row["jobs_per_s"] for row in rows] == [50.0, 10.0]
    assert [row["ratio"] for row in rows] == [1.0, 10.0]
    assert [row["latency_ms"]["p50"] for row in rows] == [2.0, 20.0]


def test_the_spread_is_told() -> None:
    """Beside each median stand the least and the most of the rounds."""
    mine = Entry(OURS[0], None, rounds=[Measured(100, s, (0.001 * s, 0.003 * s)) for s in (1.0, 2.0, 4.0)])
    theirs = Entry(BY_NAME["rq"], None, rounds=[Measured(100, s, (0.01, 0.03)) for s in (10.0, 10.0, 80.0)])
    mine_row, row = report([mine, theirs], Order((BY_NAME["rq"],)))["rows"]
    assert (mine_row["ratio_range"], row["ratio_range"]) == ([1.0, 1.0], [5.0, 20.0])
    assert (mine_row["jobs_per_s_range"], row["jobs_per_s_range"]) == ([25.0, 100.0], [1.2, 10.0])
    assert mine_row["latency_ms"]["p50_range"] == [2.0, 8.0]


def test_who_cannot_be_had_is_a_row() -> None:
    """A peer that could not be installed stands in the report as unavailable, with the reason."""
    mine = Entry(OURS[0], None, rounds=[Measured(100, 1.0, (0.001, 0.003))])
    row = report([mine, Entry(BY_NAME["arq"], None, "no network")], Order((BY_NAME["arq"],)))["rows"][1]
    assert (row["available"], row["unavailable"], row["jobs_per_s"]) == (False, "no network", None)
    assert row["version"]


def test_an_environment_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pip refuses, the peer is unavailable with pip's own words, and the half-made folder is not used."""

    def refuse(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(
            command, int("pip" in command), "", "ERROR: No matching distribution"
        )

    monkeypatch.setattr(environments.subprocess, "run", refuse)
    for _ in range(2):
        with pytest.raises(PeerUnavailable, match="No matching distribution"):
            peers.interpreter(BY_NAME["arq"], tmp_path, lambda sentence: None)


def test_peers_of_our_own_environment_need_none(tmp_path: Path) -> None:
    """RQ runs with our own interpreter, and nothing is made for it."""
    python = peers.interpreter(BY_NAME["rq"], tmp_path, lambda sentence: None)
    assert (python, list(tmp_path.iterdir())) == (Path(sys.executable), [])


@pytest.mark.parametrize("peer", [peer for peer in peers.PEERS if peer.pins], ids=lambda peer: peer.name)
def test_every_pin_is_exact(peer: peers.Contestant) -> None:
    """Every line of a list of pins names one version, and the version that is told is among them."""
    assert peer.pins is not None
    lines = peers.pins_of(peer.pins).read_text().split()
    assert all(line.count("==") == 1 for line in lines)
    assert f"{peer.package}=={peers.version_of(peer)}" in lines
