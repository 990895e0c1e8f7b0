"""README.md, walked through: each of its commands is run, here or where it is said."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.fake import FakeConfig
from queueing.connect import connect
from tests.ops.stand_in import clean_environment
from tests.support.waiting import wait_until
from tests.support.worker_process import RATE, speech
from tests.worker.media.conftest import encode

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text("utf-8")
ACTIVATE = ". .venv/bin/activate"
ELSEWHERE = {
    "decibatch bench speech --json": "ops/test_bench.py",
    "decibatch bench faults --json --seed 1": "faults/test_bench.py",
    "decibatch bench soak --json": "ops/test_soak.py",
    "decibatch bench overhead --json": "ops/test_overhead.py",
}
"""Commands that take minutes, and where they are run with less to do."""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def lines() -> list[str]:
    return [line.split("  #")[0].rstrip() for block in blocks("sh") for line in block.splitlines()]


HERE = [line for line in lines() if line.startswith("decibatch") and line not in ELSEWHERE]
SERVING = ("decibatch redis", "decibatch worker")
"""Of HERE, those that go on until they are stopped."""


@dataclass(frozen=True)
class Desk:
    """Where a reader of the page sits: a folder with a recording, a server and a worker in two other terminals."""

    folder: Path
    env: dict[str, str]

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """The server and the worker are started by the page's own lines: on a free port, and with the stand-in engine. Both
    end with 0 when they are told to."""
    folder = tmp_path_factory.mktemp("desk")
    encode(folder / "interview.m4a", speech(2.0), RATE, "m4a")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"redis://127.0.0.1:{port}/0"
    env = clean_environment(
        HOME=str(folder),
        DECIBATCH_REDIS_URL=url,
        DECIBATCH_SPOOL_DIR=str(folder / "spool"),
        DECIBATCH_HEALTH_PORT="0",
        DECIBATCH_ENGINE_COMMAND=f"{sys.executable} -m engine.fake",
        **FakeConfig().environment(),
    )
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    here = Desk(folder, env)
    running = []
    try:
        for line, more in ((SERVING[0], ["--port", str(port)]), (SERVING[1], [])):
            assert line in HERE
            with (folder / "log").open("ab") as log:
                command = [*shlex.split(line), *more]
                running.append(subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log))
            if more:
                with connect(url) as redis:
                    wait_until(lambda redis=redis: answers(redis), "the server")
        wait_until(lambda: here.run("decibatch health").returncode == 0, "a ready worker", 60)
        yield here
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, (folder / "log").read_text()
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait(30)


def answers(redis: object) -> bool:
    try:
        return bool(redis.ping())  # type: ignore[attr-defined]
    except Exception:
        return False


def test_every_command_is_run_somewhere() -> None:
    """No line of the page is overlooked: it is run here, with less to do by another test, or is one of make or pip."""
    assert len(HERE) >= 6
    for line in lines():
        assert line in (*HERE, *ELSEWHERE, ACTIVATE) or line.split()[0] in ("make", "pip"), line
    for name in ELSEWHERE.values():
        assert (ROOT / "tests" / name).exists()


@pytest.mark.parametrize("line", [line for line in HERE if line not in SERVING])
def test_a_command_of_the_page(desk: Desk, line: str) -> None:
    """Each command ends with 0 and prints what it should, on standard output or into the file that it names."""
    done = desk.run(line)
    assert done.returncode == 0, done.stdout + done.stderr
    into = line.partition(" > ")[2]
    printed = (desk.folder / into).read_text() if into else done.stdout
    assert printed.strip()
    if "--format srt" in line:
        assert re.match(r"1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n", printed)
        assert done.stdout == ""
    elif "submit" in line:
        assert len(done.stdout.strip()) == 12
        assert "interview.m4a" in done.stderr


def test_the_program_of_the_page(desk: Desk) -> None:
    """The Python that the page shows prints events to the last one, then the text."""
    (program,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=desk.folder,
        env=desk.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    *events, text = done.stdout.splitlines()
    assert events[-1].startswith("done")
    assert len(text) == 12


def test_make_runs_what_the_tests_run() -> None:
    """`make demo` is the demo of tests/ops/test_demo.py, and `make test` the linters and all tests."""
    told = {}
    # These tests run under make themselves, which tells its children so.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    for line in [line for line in lines() if line.startswith("make ")]:
        words = [*shlex.split(line), "--dry-run", f"PYTHON={sys.executable}"]
        done = subprocess.run(
            words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True
        )
        told[line] = done.stdout
    assert told.keys() == {"make demo", "make test"}
    assert told["make demo"].rstrip().endswith("decibatch demo")
    assert all(
        tool in told["make test"] for tool in ("ruff check", "ruff format", "mypy", "lint-imports", "pytest")
    )


def test_the_extras_of_the_page_exist() -> None:
    """What the page has pip install is there to be installed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = re.findall(r"pip install '?\.(?:\[(\w+)\])?'?", PAGE)
    assert set(named) - {""} <= extras.keys()
    assert len(named) >= 3
