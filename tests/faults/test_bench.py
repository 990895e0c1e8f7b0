"""``decibatch bench faults`` in short runs: it finds nothing where there is nothing, and something where there is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil

from ops.bench.faults.fleet import Manner
from ops.bench.faults.plan import Kind, script
from ops.bench.faults.run import Order, run

LEASE_S = 1.0


def seed_that_loses_replies_to(name: str, order: Order) -> int:
    """The first seed by which the replies that are lost are those to that script, and there are two."""
    for seed in range(1, 1000):
        planned = script(
            seed,
            jobs=order.jobs,
            faults=order.faults,
            seconds=order.seconds,
            workers=order.workers,
            lease_s=LEASE_S,
            clips=1,
        )
        if [fault.script for fault in planned.faults if fault.kind is Kind.REPLY_LOST] == [name] * 2:
            return seed
    raise AssertionError("no such seed")


def test_nothing_is_lost_and_nothing_comes_twice() -> None:
    """Over a dozen faults of all kinds every job ends once, with its own text, and nothing stays pending."""
    command = [sys.executable, "-m", "decibatch", "bench", "faults", "--json", "--seed", "5"]
    sizes = ["--jobs", "150", "--faults", "13", "--seconds", "8", "--workers", "2", "--quiet", "10"]
    ran = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    told = json.loads(ran.stdout)
    assert (told["submitted"], told["lost"], told["duplicated"], told["mixed_up"]) == (150, 0, 0, 0)
    assert told["done"] + told["failed"] + told["dead"] == 150
    assert told["pending_left"] == 0
    assert told["faults"] == sum(told["faults_by_kind"].values()) >= 8


def test_a_run_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM in the middle of a run ends its processes and removes its folder."""
    command = [sys.executable, "-m", "decibatch", "bench", "faults", "--jobs", "10000", "--seconds", "600"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen([*command, "--workers", "1"], env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        said = running.stderr.readline()
        assert "ready" in said
        family = psutil.Process(running.pid).children(recursive=True)
        assert len(family) >= 4
        assert list(tmp_path.iterdir())
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 128 + signal.SIGTERM
        _, alive = psutil.wait_procs(family, timeout=10)
        assert (alive, list(tmp_path.iterdir())) == ([], [])
    finally:
        running.kill()
        running.communicate()


def test_without_its_fence_results_come_twice() -> None:
    """Over workers whose settle script overwrites what has ended, the observer finds duplicates."""
    manner = Manner(LEASE_S, fenced=False)
    order = Order(jobs=80, faults=13, seconds=6.0, workers=2, quiet_s=8.0, manner=manner)
    told = run(replace(order, seed=seed_that_loses_replies_to("settle", order)))
    assert told.duplicated > 0
    assert not told.sound


def test_without_recovery_jobs_are_lost() -> None:
    """Where nobody takes up what a killed worker held, the observer finds it missing."""
    manner = Manner(LEASE_S, recovers=False)
    # Whether a kill strikes while something is held depends on the machine's pace: a few plans, until one has.
    for seed in range(2, 7):
        told = run(Order(seed=seed, jobs=60, faults=8, seconds=5.0, workers=2, quiet_s=4.0, manner=manner))
        if told.lost:
            break
    assert told.lost > 0
    assert told.pending_left == told.lost
    assert not told.sound
