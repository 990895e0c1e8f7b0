"""Every block of docs/web-apps.md and docs/wire.md is run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from decibatch import Client
from queueing.webhook import Notice, key_of, signature
from tests.examples.conftest import WEBHOOK_SECRET, Stage

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text("utf-8")
    return [body for found, body in BLOCK.findall(text) if found == language]


@pytest.fixture
def desk(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recording, and the environment that the page speaks of."""
    shutil.copy(stage.clip, tmp_path / "interview.wav")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DECIBATCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DECIBATCH_CONFIG", "")
    monkeypatch.setenv("DECIBATCH_REDIS_URL", stage.url)
    monkeypatch.setenv("DECIBATCH_WEBHOOK_SECRET", WEBHOOK_SECRET)
    return tmp_path


def run_block(number: int) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(blocks("web-apps.md", "python")[number], f"web-apps.md[{number}]", "exec"), names)
    return names


SAYS = {
    0: ["{text}"],
    1: ["failed not_audio"],
    2: ["{text}"],  # how much progress is told of a job of milliseconds is chance
    3: ["20 sent, 0 refused", "{text}"],
    5: ["{text}"],
}
"""Number of a block, and lines that it prints."""


@pytest.mark.parametrize("number", SAYS)
def test_a_block_prints_what_it_should(
    stage: Stage, desk: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    """The block runs as it stands on the page, against a real worker."""
    run_block(number)
    said = capsys.readouterr().out.splitlines()
    for line in SAYS[number]:
        assert line.format(text=stage.text) in said


def test_the_receiver_on_the_page_tells_right_from_wrong(desk: Path) -> None:
    """Its function answers 204 to what is signed and 400 to what is not."""
    hook = run_block(4)["hook"]
    told = Notice(type="job.done", job_id="x", state="done", attempt=1, created_ms=1, finished_ms=2)  # type: ignore[arg-type]
    body = told.model_dump_json().encode()
    stamp = int(time.time())
    headers = {
        "webhook-id": "m",
        "webhook-timestamp": str(stamp),
        "webhook-signature": signature(key_of(WEBHOOK_SECRET), "m", stamp, body),
    }
    assert hook(body, headers) == 204
    assert hook(body + b" ", headers) == 400


def test_every_block_is_run() -> None:
    """No block of the page is left out here."""
    assert set(range(len(blocks("web-apps.md", "python")))) == {*SAYS, 4}


def shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A line of the page with this environment's Python and command."""
    words = shlex.split(line)
    here = {"decibatch": [sys.executable, "-m", "decibatch"], "python": [sys.executable]}
    command = [*here[words[0]], *words[1:]]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **env}
    )


def test_every_command_of_the_pages_works(stage: Stage, desk: Path) -> None:
    """Each shell line does what the page says, or stands for what another test or the fixtures do."""
    elsewhere = {
        "pip install decibatch",  # tests/ops/test_install.py
        "DECIBATCH_RQ_QUEUES=audio decibatch worker",  # the worker that serves these tests
    }
    lines = [
        line
        for page in ("web-apps.md", "wire.md")
        for body in blocks(page, "sh")
        for line in body.splitlines()
    ]
    seen = set()
    for line in lines:
        if line in elsewhere:
            continue
        seen.add(line)
        if line == "decibatch bench import":
            done = shell(line + " --rounds 1")
            assert done.returncode == 0 and done.stdout.startswith("interpreter")
        elif line == "decibatch webhooks list":
            assert shell(line).stderr.strip() == "No webhook was given up."
        elif line == "decibatch webhooks retry JOB":
            with Client.from_env() as client:
                job = client.submit("interview.wav", webhook="https://user:pw@127.0.0.1/")
                client.wait(job, timeout=60)
                until = time.monotonic() + 30
                while client.status(job).hook_state != "dead":
                    assert time.monotonic() < until
                    time.sleep(0.05)
                assert job in shell("decibatch webhooks list").stdout
                assert shell(line.replace("JOB", job)).stdout.strip() == f"{job} is sent again"
                assert shell(line.replace("JOB", "unknown-job")).returncode == 6
        elif line == "python -m queueing.scripts lua":
            assert shell(line).returncode == 0 and len(list((desk / "lua").iterdir())) == 3
        else:
            assert line.startswith("python -c "), line
            made = shell(line)
            assert len(key_of(made.stdout.strip())) == 32
    assert len(seen) == 5
