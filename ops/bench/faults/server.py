"""The server of a run: keeps an append-only file, ends by a signal, comes back on the same data and port."""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path

from ops.embedded import EmbeddedServer, free_port
from queueing.connect import connect


class Server:
    """A context manager that stops it. Raises ServerNotFound, ServerNotStarted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.password = secrets.token_urlsafe(18)
        self._life: EmbeddedServer | None = None

    @property
    def url(self) -> str:
        """Straight to the server, with the password."""
        return self.url_through(self.port)

    def url_through(self, port: int) -> str:
        """The same by way of a line."""
        return f"redis://:{self.password}@127.0.0.1:{port}/0"

    def start(self) -> None:
        """Returns once it answers; does nothing where it runs."""
        if self._life is None:
            self._life = EmbeddedServer(self._folder, port=self.port, durable=True, password=self.password)

    def end(self, number: signal.Signals) -> None:
        """Send the signal and wait for the end."""
        if self._life is None:
            return
        os.kill(self._life.pid, number)
        self._life.wait()
        self._life.stop()
        self._life = None

    @property
    def version(self) -> str:
        """Name and version, as it tells them. Raises RedisError."""
        with connect(self.url, max_connections=1) as client:
            told = client.info("server")
        return f"{told.get('server_name', 'redis')} {told.get('valkey_version', told['redis_version'])}"

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._life is not None:
            self._life.stop()
            self._life = None
