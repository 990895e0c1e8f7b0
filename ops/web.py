"""The health server of a worker: ``/livez``, ``/readyz``, ``/metrics`` and ``/status``, read-only.

It runs on the worker's own event loop, so that an answer means that the loop turns. HTTP is uvicorn's and h11's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import uvicorn

from ops.metrics import CONTENT_TYPE, Metrics
from worker.facts import Fact
from worker.watch import View

log = logging.getLogger("decibatch.health")

JSON = "application/json"
MAX_CONNECTIONS = 64
GRACE_S = 2.0
"""Seconds that answers under way may take at the end."""
Message = MutableMapping[str, Any]
Answer = tuple[int, str, bytes]


class HealthServer:
    """Beside a worker (:class:`worker.watch.Companion`).

    :param host: address to listen on.
    :param port: 0 takes a free one.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._metrics = Metrics()
        self.address = ""
        """ "host:port" once it listens."""
        self.problem = ""
        """Why it does not."""

    def note(self, fact: Fact) -> None:
        """See :class:`worker.facts.Witness`."""
        self._metrics.note(fact)

    async def run(self, view: View) -> None:
        """Serve until cancelled. A port that is taken is logged: a worker must not stop because of it."""
        try:
            listener = listen(self._host, self._port)
        except OSError as exc:
            self.problem = f"{self._host}:{self._port}: {(exc.strerror or str(exc)).lower()}"
            log.error(
                "no health server",
                extra={
                    "host": self._host,
                    "port": self._port,
                    "error": exc.strerror or str(exc),
                    "mend": "DECIBATCH_HEALTH_PORT takes another port, 0 a free one",
                },
            )
            return
        host, port = listener.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        log.info("health server", extra={"address": self.address})
        self._metrics.watch(view.status)
        server = _Server(
            uvicorn.Config(
                application(view, self._metrics),
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=1,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="uvicorn")
        try:
            await asyncio.shield(serving)
        finally:
            self.address = ""
            server.should_exit = True
            try:
                await asyncio.wait({serving}, timeout=GRACE_S)
            finally:
                # Cancelled again meanwhile, as an impatient worker does.
                serving.cancel()
                listener.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the worker's: the first one drains, and health must be told meanwhile."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError where the port is taken or the address is not ours."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(MAX_CONNECTIONS)
    except BaseException:
        listener.close()
        raise
    return listener


def answer(path: str, view: View, metrics: Metrics) -> Answer:
    """Status, content type and body for a path.

    ``/livez``: 200, always: whoever reads it knows that the worker's loop turns. ``/readyz``: 200 while the worker
    takes work, else 503, with the reasons. ``/status``: everything.
    """
    match path:
        case "/livez":
            return 200, JSON, b'{"live": true}\n'
        case "/readyz":
            said = view.health()
            told = {key: said[key] for key in ("ready", "reasons", "warnings", "progress_s")}
            return 200 if said["ready"] else 503, JSON, json.dumps(told).encode() + b"\n"
        case "/status":
            return 200, JSON, json.dumps(view.status()).encode() + b"\n"
        case "/metrics":
            return 200, CONTENT_TYPE, metrics.scrape()
        case _:
            paths = b"/livez, /readyz, /metrics or /status\n"
            return 404, "text/plain; charset=utf-8", paths


def application(view: View, metrics: Metrics) -> Callable[..., Awaitable[None]]:
    """An ASGI application (version 3) of :func:`answer`."""

    async def app(
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            status, kind, body = 405, "text/plain; charset=utf-8", b"GET or HEAD\n"
        else:
            status, kind, body = answer(scope["path"], view, metrics)
        headers = [
            (b"content-type", kind.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app
