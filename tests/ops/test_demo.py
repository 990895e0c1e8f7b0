"""The demo, as a newcomer runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from ops import recordings
from tests.ops.stand_in import clean_environment

COMMAND = [sys.executable, "-m", "decibatch", "demo"]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of its own, to see that nothing stays in it. Short, for sockets lie in it."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


def test_the_demo_ends_well_and_leaves_nothing(scratch: Path) -> None:
    """Every recording is printed with its transcript, the exit code is 0, and no file of ours is left."""
    done = subprocess.run(
        COMMAND, env=clean_environment(), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in recordings.SPOKEN:
        assert f"{name}: done" in done.stdout
    assert "the best of times" in done.stdout
    assert "nothing is left running" in done.stdout
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_demo_cut_short_leaves_nothing_running(scratch: Path, number: signal.Signals) -> None:
    """Interrupted or killed in the middle, the demo's server, worker and engine end too."""
    demo = subprocess.Popen(COMMAND, env=clean_environment(), stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    while "side by side" not in (line := demo.stdout.readline()):
        assert line, "the demo ended before it began"
    family = psutil.Process(demo.pid).children(recursive=True)
    demo.send_signal(number)
    demo.communicate(timeout=60)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert len(family) >= 5
    assert not alive
    assert demo.returncode == (130 if number is signal.SIGINT else -number)
