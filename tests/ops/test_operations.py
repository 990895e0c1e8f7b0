"""docs/operations.md, walked through: what it shows is run, and what it says is so."""

from __future__ import annotations

import configparser
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from ops.cli import main
from ops.commands import service as commands
from ops.service.plist import ENGINE_END_S, Service, contents
from ops.settings import ENV_PREFIX, Settings, read_file
from tests.ops.stand_in import clean_environment
from tests.support.launchd import PlayedLaunchd
from tests.support.watched import Watched
from worker import health
from worker.watch import Watch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
CURL = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[-1]).read().decode())"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def lines(kind: str) -> list[str]:
    return [line for block in blocks(kind) for line in block.splitlines() if line.strip()]


def test_the_page_has_what_is_run_here() -> None:
    """There are commands of both kinds, so that an empty list does not pass for a walk."""
    assert len(lines("sh")) >= 10
    assert len(lines("sh macos")) >= 10


@pytest.mark.parametrize("line", lines("sh"))
def test_a_command_of_the_page(watched: Watched, tmp_path: Path, line: str) -> None:
    """Each command that is shown for any system ends with 0 beside a worker that is well, and prints something."""
    tools = tmp_path / "bin"
    tools.mkdir()
    if shutil.which("curl") is None:
        script = tools / "curl"
        script.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{CURL}' \"$@\"\n")
        script.chmod(0o755)
    env = clean_environment(DECIBATCH_REDIS_URL=watched.url, DECIBATCH_SPOOL_DIR=str(tmp_path))
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), str(tools), env["PATH"]])
    command = line.replace("127.0.0.1:8377", watched.address)
    ran = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout or (tmp_path / "top.svg").stat().st_size > 1000


def test_the_commands_for_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands for macOS run in the page's order: files by a shell, the service against the played launchd."""
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "darwin")
    launchd = PlayedLaunchd(drain_s=0.0)
    monkeypatch.setattr(commands, "launchctl", lambda: launchd.ask)
    ran = []
    for line in lines("sh macos"):
        words = shlex.split(line.removeprefix("sudo "))
        if words[0] != "decibatch":
            subprocess.run(["sh", "-c", line], check=True, env={**os.environ, "HOME": str(tmp_path)})
        elif "--system" in words:
            # It would write to /Library: that the command and its options exist is what can be seen here.
            command = commands.service_command.commands[words[2]]
            command.make_context(words[2], words[3:])
        else:
            if words[2] == "logs":
                (tmp_path / "Library" / "Logs" / "decibatch" / "worker.log").write_text("{}\n")
            result = CliRunner().invoke(main, words[1:], standalone_mode=False)
            assert result.exception is None, (line, result.exception)
            assert result.return_value == 0, (line, result.output)
        ran.append(words[2] if words[0] == "decibatch" else words[0])
    assert set(ran) == {
        *("mkdir", "touch", "chmod", "install", "status", "logs"),
        *("restart", "stop", "start", "uninstall"),
    }
    assert launchd.loaded == {}


def test_the_settings_file_of_the_page(tmp_path: Path) -> None:
    """The file that the page shows is read without complaint."""
    file = tmp_path / "config.toml"
    file.write_text(blocks("toml")[0])
    assert Settings(**read_file(file)).drain_s == 30


def test_the_unit_for_systemd(tmp_path: Path) -> None:
    """The unit waits longer than the drain, sets settings that exist, and systemd, where it is, finds no fault."""
    text = blocks("ini")[0]
    unit = configparser.ConfigParser(strict=False)
    unit.read_string(text)
    assert unit.getint("Service", "TimeoutStopSec") >= Settings.model_fields["drain_s"].default + ENGINE_END_S
    assert unit.get("Service", "ExecStart").split()[-1] == "worker"
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields} | {"DECIBATCH_CONFIG"}
    assert set(re.findall(r"Environment=(\w+)=", text)) <= known
    tool = shutil.which("systemd-analyze")
    if tool is not None:
        file = tmp_path / "decibatch.service"
        file.write_text(
            text.replace("/opt/decibatch/bin/decibatch", sys.executable).replace("User=decibatch\n", "")
        )
        ran = subprocess.run([tool, "verify", file], capture_output=True, text=True, check=False)
        assert str(file) not in ran.stderr, ran.stderr


def test_the_scrape_of_the_page() -> None:
    """Prometheus is pointed at the port that the worker listens on by default."""
    told = yaml.safe_load(blocks("yaml")[0])
    fields = Settings.model_fields
    target = f"{fields['health_host'].default}:{fields['health_port'].default}"
    assert told["scrape_configs"][0]["static_configs"][0]["targets"] == [target]
    assert told["scrape_configs"][0]["job_name"] == "decibatch"


def test_every_metric_of_the_page_exists(watched: Watched) -> None:
    """Each metric in the table has a series in a real scrape, and each series of ours is in the table."""
    named = set(re.findall(r"`(decibatch_[a-z_]+)`", PAGE))
    there = {re.sub(r"_(bucket|count|sum)$", "", name) for name in watched.scrape()}
    assert named <= there
    assert {name for name in there if name.startswith("decibatch_")} - named == {"decibatch_worker_info"}


def test_the_list_of_the_page(tmp_path: Path) -> None:
    """The keys that the page explains are in the property list, with the values that it names."""
    made = Service(tmp_path / "python", tmp_path / "c.toml", tmp_path, tmp_path, 30.0)
    told = contents(made)
    assert told["ExitTimeOut"] == 30 + 15
    assert (told["ProcessType"], told["Umask"], told["ThrottleInterval"]) == ("Interactive", 63, 10)
    table = PAGE[PAGE.index("| key | value | why |") : PAGE.index("### Before anybody logs in")]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) <= told.keys()


def names_in(head: str) -> set[str]:
    """The code words in the first column of the table that begins so."""
    table = PAGE[PAGE.index(head) :].split("\n\n", 1)[0]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_warnings_of_the_page() -> None:
    """The warnings that the page explains are those that a worker gives."""
    given = set(re.findall(r'f"(\w+) [({]', inspect.getsource(Watch.warnings)))
    assert len(given) == 6
    assert names_in("| warning | meaning |") == given


def test_the_reasons_of_the_page() -> None:
    """The reasons that the page explains are those that a worker gives."""
    source = Path(health.__file__).read_text("utf-8")
    reasons = names_in("| reason | meaning |")
    states = {f"engine_{state}" for state in ("starting", "loading", "restarting", "stopped")}
    assert reasons - states <= set(re.findall(r'"(\w+)', source))
    given = set(re.findall(r'said\.append\(f?"(\w+)', source)) - {"engine_"}
    assert given <= reasons


def test_every_command_is_a_command() -> None:
    """Commands that are named in the running text exist too, with their subcommands."""
    for name, rest in re.findall(r"`decibatch ([a-z]+)([^`]*)`", PAGE):
        command = main.get_command(click.Context(main), name)
        assert command is not None
        words = rest.split()
        if isinstance(command, click.Group) and words:
            assert words[0] in command.commands
