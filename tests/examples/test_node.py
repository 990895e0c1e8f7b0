"""The contract from another language: a client in Node.js that runs the same scripts."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.conftest import Stage

EXAMPLE = Path(__file__).parents[2] / "examples" / "node"


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not here: install Node.js 18 or later, or deselect with -m 'not node'")
    return found


@pytest.fixture(scope="session")
def node_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its dependencies, which are fetched once for each lock file."""
    lock = (EXAMPLE / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decibatch-tests"
    modules = cache / f"node-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not (modules / "node_modules" / "ioredis").exists():
        fresh = tmp_path_factory.mktemp("npm")
        for name in ("package.json", "package-lock.json"):
            shutil.copy(EXAMPLE / name, fresh)
        subprocess.run([tool("npm"), "ci", "--no-audit", "--no-fund"], cwd=fresh, check=True, timeout=240)
        cache.mkdir(parents=True, exist_ok=True)
        try:
            shutil.move(fresh, modules)
        except OSError:
            # Another run was quicker.
            assert (modules / "node_modules" / "ioredis").exists()
    project = tmp_path_factory.mktemp("node")
    shutil.copy(EXAMPLE / "transcribe.mjs", project)
    (project / "node_modules").symlink_to(modules / "node_modules")
    return project


@pytest.mark.node
def test_node_submits_and_reads_the_transcript(stage: Stage, node_project: Path, tmp_path: Path) -> None:
    """The example prints the transcript that a Python client gets, after the events of the job."""
    scripts = subprocess.run(
        [sys.executable, "-m", "queueing.scripts", str(tmp_path / "lua")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert len(scripts.stdout.split()) == 3
    done = subprocess.run(
        [tool("node"), "transcribe.mjs", str(tmp_path / "lua"), str(stage.clip), str(stage.socket)],
        cwd=node_project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, stage.text), done.stderr
    said = [line.split(" ")[0] for line in done.stderr.splitlines()]
    assert said[:2] == ["job", "started"] and said[-1] == "done"


@pytest.mark.node
def test_node_hears_why_there_is_no_transcript(stage: Stage, node_project: Path, tmp_path: Path) -> None:
    """A file that is no audio ends the example with the state and the error."""
    letter = tmp_path / "letter.txt"
    letter.write_text("not a recording")
    subprocess.run([sys.executable, "-m", "queueing.scripts", str(tmp_path / "lua")], check=True, timeout=60)
    done = subprocess.run(
        [tool("node"), "transcribe.mjs", str(tmp_path / "lua"), str(letter), str(stage.socket)],
        cwd=node_project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert '"code":"not_audio"' in done.stderr.splitlines()[-1]
