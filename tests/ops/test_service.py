"""The service of launchd: its property list, and the order in which launchctl is asked.

Nothing here ran on macOS: launchd is played from recorded answers (tests/support/launchd.py).
"""

from __future__ import annotations

import json
import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ops.commands import service as commands
from ops.exits import Trouble
from ops.service.launchctl import Answer, parse_print
from ops.service.manager import Clock, Manager, Place, place
from ops.service.plist import NotAbsolute, Service, contents, render
from ops.settings import Settings
from tests.support.launchd import PlayedLaunchd

FIXTURES = Path(__file__).parents[1] / "fixtures" / "macos"
SECRET = "hunter2"


def service(folder: Path, **changed: Any) -> Service:
    told: dict[str, Any] = {
        "python": folder / "venv" / "bin" / "python3",
        "config": folder / "config.toml",
        "log_dir": folder / "Library" / "Logs" / "decibatch",
        "home": folder,
        "drain_s": 30.0,
        **changed,
    }
    return Service(**told)


@pytest.fixture
def launchd() -> PlayedLaunchd:
    return PlayedLaunchd()


@pytest.fixture
def manager(tmp_path: Path, launchd: PlayedLaunchd) -> Manager:
    made = service(tmp_path)
    where = place(made, system=False, uid=501, home=tmp_path)
    return Manager(made, where, launchd.ask, Clock(launchd.monotonic, launchd.sleep))


# --- the property list ------------------------------------------------------------------------------


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def test_the_list_is_read_back_as_it_was_meant(tmp_path: Path) -> None:
    """plistlib reads from the XML what was put into it, numbers as numbers and switches as switches."""
    made = service(tmp_path)
    assert plistlib.loads(render(made)) == contents(made)


def test_the_list_is_readable_by_another_reader(tmp_path: Path) -> None:
    """libplist's plistutil reads the file too, where it is installed; else XML's own parser does."""
    file = tmp_path / "worker.plist"
    file.write_bytes(render(service(tmp_path)))
    tool = shutil.which("plutil") or shutil.which("plistutil")
    if tool is None:
        from xml.etree import ElementTree as ET

        assert ET.parse(file).getroot().tag == "plist"
    else:
        subprocess.run([tool, "-i", file, "-o", os.devnull], check=True, capture_output=True)


def test_the_worker_is_not_throttled(tmp_path: Path) -> None:
    """The process type is Interactive: unset or Background, macOS gives it a fraction of the machine."""
    assert contents(service(tmp_path))["ProcessType"] == "Interactive"


@pytest.mark.parametrize("drain_s", [0.0, 30.0, 120.5])
def test_launchd_waits_longer_than_the_drain(tmp_path: Path, drain_s: float) -> None:
    """ExitTimeOut leaves ten seconds after the drain, and is a whole number."""
    told = contents(service(tmp_path, drain_s=drain_s))["ExitTimeOut"]
    assert isinstance(told, int)
    assert told >= drain_s + 10


def test_the_umask_is_decimal(tmp_path: Path) -> None:
    """Umask is the integer 63, which is 077: in a property list octal does not exist."""
    assert b"<key>Umask</key>\n\t<integer>63</integer>" in render(service(tmp_path))


def test_files_throttle_and_restart(tmp_path: Path) -> None:
    """Thousands of files may be open, starts are ten seconds apart, and only an exit that was asked for is the end."""
    told = contents(service(tmp_path))
    assert told["SoftResourceLimits"]["NumberOfFiles"] >= 4096
    assert told["ThrottleInterval"] == 10
    assert told["KeepAlive"] == {"SuccessfulExit": False}
    assert told["RunAtLoad"] is True


def test_every_path_is_absolute(tmp_path: Path) -> None:
    """No ``~`` and no variable is left to be expanded, and every path starts at the root."""
    told = contents(service(tmp_path))
    assert not any(sign in text for text in strings(told) for sign in ("~", "$"))
    paths = [told["ProgramArguments"][0], told["StandardOutPath"], told["StandardErrorPath"]]
    variables = told["EnvironmentVariables"]
    paths += [variables["HOME"], variables["DECIBATCH_CONFIG"], variables["DECIBATCH_LOG_FILE"]]
    assert all(path.startswith("/") for path in [*paths, *variables["PATH"].split(":")])


@pytest.mark.parametrize("field", ["python", "config", "log_dir", "home"])
@pytest.mark.parametrize("path", ["venv/bin/python", "~/x", "/~/x"])
def test_a_path_that_launchd_would_not_find_is_refused(tmp_path: Path, field: str, path: str) -> None:
    """Relative paths and ``~`` are refused before anything is written."""
    with pytest.raises(NotAbsolute):
        service(tmp_path, **{field: Path(path)})


def test_the_variables_are_settings(tmp_path: Path) -> None:
    """What the list sets in the environment are variables that the program knows."""
    known = {f"DECIBATCH_{name.upper()}" for name in Settings.model_fields}
    ours = {name for name in contents(service(tmp_path))["EnvironmentVariables"] if "DECIBATCH" in name}
    assert ours - {"DECIBATCH_CONFIG"} <= known


def test_a_daemon_is_not_root(tmp_path: Path) -> None:
    """A system-wide service names the user that it runs as; an agent does not."""
    assert contents(service(tmp_path, user="ada"))["UserName"] == "ada"
    assert "UserName" not in contents(service(tmp_path))


# --- what launchctl says ----------------------------------------------------------------------------


def test_a_running_service_is_read() -> None:
    """State, process id, runs and last exit are read from a recorded print."""
    told = parse_print((FIXTURES / "launchctl-print-daemon.txt").read_text())
    assert (told.state, told.pid, told.runs, told.last_exit) == ("running", 24784, 2, "1")
    assert told.running


def test_only_the_state_of_the_service_counts() -> None:
    """Event channels have states of their own, deeper down: they are passed over."""
    told = parse_print((FIXTURES / "launchctl-print-agent.txt").read_text())
    assert (told.state, told.pid, told.last_exit) == ("not running", None, "78: EX_CONFIG")
    assert not told.running


# --- install, start, stop ---------------------------------------------------------------------------


def test_install_writes_and_starts(manager: Manager, launchd: PlayedLaunchd) -> None:
    """The file lies where launchd looks at the next login, closed to others' writes, and the service runs now."""
    manager.install()
    assert plistlib.loads(manager.place.file.read_bytes()) == contents(manager.service)
    assert manager.place.file.stat().st_mode & 0o777 == 0o644
    assert manager.service.log_dir.is_dir()
    status = manager.status()
    assert status is not None
    assert status.running


def test_install_twice_changes_nothing(manager: Manager, launchd: PlayedLaunchd) -> None:
    """A second install with the same settings asks launchd for nothing but the status."""
    manager.install()
    before = launchd.verbs()
    manager.install()
    assert launchd.verbs() == before


def test_install_anew_replaces(manager: Manager, launchd: PlayedLaunchd, tmp_path: Path) -> None:
    """With another setting the old instance is unloaded, waited for, and the new list loaded."""
    manager.install()
    other = Manager(service(tmp_path, drain_s=60.0), manager.place, launchd.ask, manager.clock)
    other.install()
    assert launchd.verbs()[-3:] == ["bootout", "enable", "bootstrap"]
    assert plistlib.loads(other.place.file.read_bytes())["ExitTimeOut"] == 75
    assert launchd.runs == 2


@pytest.mark.parametrize(
    "refusal",
    [
        Answer(5, "Bootstrap failed: 5: Input/output error\n"),
        Answer(37, "Bootstrap failed: 37: Operation already in progress\n"),
    ],
)
def test_bootstrap_is_tried_again(manager: Manager, launchd: PlayedLaunchd, refusal: Answer) -> None:
    """What launchd answers while an old instance is still going is no end: it is asked again until it works."""
    launchd.refusals = [refusal] * 3
    manager.install()
    assert launchd.verbs().count("bootstrap") == 4


def test_bootstrap_gives_up_in_time(manager: Manager, launchd: PlayedLaunchd) -> None:
    """A bootstrap that never works ends in launchd's own words after half a minute."""
    launchd.refusals = [Answer(5, "Bootstrap failed: 5: Input/output error\n")] * 1000
    with pytest.raises(Trouble, match="Input/output error"):
        manager.install()
    assert 30 <= launchd.now <= 40


def test_another_refusal_is_told_at_once(manager: Manager, launchd: PlayedLaunchd) -> None:
    """An error that waiting does not mend is not waited for."""
    launchd.refusals = [Answer(134, "Bootstrap failed: 134: Service cannot be loaded on this hardware\n")]
    with pytest.raises(Trouble, match="cannot be loaded"):
        manager.install()
    assert launchd.now == 0


def test_restart_waits_for_the_drain(manager: Manager, launchd: PlayedLaunchd) -> None:
    """The new instance is loaded only when the old one has gone, however long it drains."""
    manager.install()
    launchd.drain_s = 40.0
    manager.restart()
    assert launchd.now >= 40
    assert launchd.verbs()[-3:] == ["bootout", "enable", "bootstrap"]
    assert launchd.runs == 2


def test_stop_and_start(manager: Manager, launchd: PlayedLaunchd) -> None:
    """Stopped, launchd no longer knows it; started, it runs again; each twice is harmless."""
    manager.install()
    assert "is stopped" in manager.stop()
    assert manager.status() is None
    assert "was not running" in manager.stop()
    assert "runs, as process" in manager.start()
    assert "runs already" in manager.start()


def test_a_worker_that_dies_at_once_is_told(manager: Manager, launchd: PlayedLaunchd) -> None:
    """A start after which nothing runs is an error that names the log."""
    manager.install()
    manager.stop()
    launchd.dies = True
    with pytest.raises(Trouble, match="service logs"):
        manager.start()


def test_uninstall_leaves_nothing(manager: Manager, launchd: PlayedLaunchd) -> None:
    """Neither the file nor the loaded service is left; a second time says so."""
    manager.install()
    assert "is removed" in manager.uninstall()
    assert not manager.place.file.exists()
    assert launchd.loaded == {}
    assert "was not installed" in manager.uninstall()


def test_start_without_install_says_what_to_do(manager: Manager) -> None:
    """Without a file there is nothing to start."""
    with pytest.raises(Trouble, match="decibatch service install"):
        manager.start()


def test_nobody_logged_in(manager: Manager, launchd: PlayedLaunchd) -> None:
    """Over ssh on a Mac at its login window, the answer names the way that needs no login."""
    launchd.logged_in = False
    with pytest.raises(Trouble, match="--system"):
        manager.install()


def test_a_daemon_lies_in_the_system_folder(tmp_path: Path) -> None:
    """--system means /Library/LaunchDaemons and the system's domain."""
    assert place(service(tmp_path), system=True, uid=0, home=tmp_path) == Place(
        "system", Path("/Library/LaunchDaemons/decibatch.worker.plist"), "decibatch.worker"
    )


# --- the commands -----------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of a user with a settings file that holds a password."""
    for name in [name for name in os.environ if name.startswith("DECIBATCH_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "config.toml"
    file.write_text(f'redis_url = "redis://app:{SECRET}@queue.example:6379/0"\ndrain_s = 12\n')
    file.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DECIBATCH_CONFIG", str(file))
    return tmp_path


@pytest.fixture
def run(home: Path, launchd: PlayedLaunchd, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``decibatch service ...`` against the played launchd."""
    monkeypatch.setattr(commands, "launchctl", lambda: launchd.ask)

    def call(*args: str) -> Result:
        return CliRunner().invoke(commands.service_command, args, standalone_mode=False)

    return call


def output(result: Result) -> str:
    assert result.exception is None, result.exception
    return result.output


def test_the_commands_of_a_day(run: Any, home: Path, launchd: PlayedLaunchd) -> None:
    """Install, status, logs, restart, stop, start and uninstall, as an operator types them."""
    launchd.drain_s = 0.0
    assert "installed and started" in output(run("install"))
    told = json.loads(output(run("status", "--json")))
    assert (told["running"], told["pid"], told["installed"]) == (True, 4201, True)
    log = home / "Library" / "Logs" / "decibatch" / "worker.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert output(run("logs", "-n", "2")) == "line 98\nline 99\n"
    assert "runs, as process" in output(run("restart"))
    assert "is stopped" in output(run("stop"))
    assert run("status").return_value == 1
    assert "runs, as process" in output(run("start"))
    assert "is removed" in output(run("uninstall"))


def test_no_secret_reaches_the_list(run: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password in the file or in this shell is not in the list, and the shell's variables are named, not shown."""
    monkeypatch.setenv("DECIBATCH_REDIS_URL", f"redis://:{SECRET}@other.example/0")
    said = output(run("install"))
    file = home / "Library" / "LaunchAgents" / "decibatch.worker.plist"
    assert SECRET not in file.read_text() + said + output(run("print"))
    assert "DECIBATCH_REDIS_URL is set in this shell" in said


def test_the_drain_of_the_file_is_used(run: Any) -> None:
    """ExitTimeOut follows the setting."""
    assert plistlib.loads(output(run("print")).encode())["ExitTimeOut"] == 27


def test_settings_that_others_can_read_are_told(run: Any, home: Path) -> None:
    """A settings file with a server's URL that others may read is named, with the command that closes it."""
    (home / "config.toml").chmod(0o644)
    assert "chmod 600" in output(run("install"))


def test_install_needs_a_settings_file(run: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file the service would run with other settings than this shell: it is refused, and the place named."""
    monkeypatch.setenv("DECIBATCH_CONFIG", "")
    result = run("install")
    assert isinstance(result.exception, Trouble)
    assert str(home) in str(result.exception)


def test_a_list_of_another_version_is_found(run: Any, home: Path) -> None:
    """The doctor's finding names an outdated file, and the command that mends it; afterwards it is sound."""
    assert commands.service_finding().said == "None is installed."
    output(run("install"))
    assert commands.service_finding().verdict == "ok"
    file = home / "Library" / "LaunchAgents" / "decibatch.worker.plist"
    file.write_bytes(file.read_bytes().replace(b"Interactive", b"Background"))
    finding = commands.service_finding()
    assert (finding.verdict, finding.mend) == ("warn", "decibatch service install")


@pytest.mark.skipif(sys.platform == "darwin", reason="on macOS these act")
@pytest.mark.parametrize("name", ["install", "uninstall", "start", "stop", "restart", "status", "logs"])
def test_elsewhere_the_commands_say_what_to_do(cli: Any, name: str) -> None:
    """On Linux each ends with a sentence that names the way there, and changes nothing."""
    ended = cli("service", name)
    assert ended.returncode == 2
    assert "docs/operations.md" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_print_works_everywhere(cli: Any) -> None:
    """The list can be looked at on any system, and begins with this environment's interpreter."""
    ended = cli("service", "print", "--system")
    assert ended.returncode == 0
    told = plistlib.loads(ended.stdout.encode())
    assert told["ProgramArguments"][0] == str(Path(sys.executable).absolute())
    assert told["UserName"]


def test_following_a_log_survives_its_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines go on coming after the file was put aside and begun anew."""
    file = tmp_path / "worker.log"
    file.write_text("old\n" * 50)
    steps = iter(
        [
            lambda: file.open("a").write("one\ntw"),
            lambda: file.open("a").write("o\n"),
            lambda: (file.rename(tmp_path / "worker.log.1"), file.write_text("three\n")),
        ]
    )
    monkeypatch.setattr(commands.time, "sleep", lambda seconds: next(steps)())
    lines = commands.following(file)
    assert [next(lines) for _ in range(3)] == ["one", "two", "three"]
