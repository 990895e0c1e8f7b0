"""An HTTP server that a webhook is sent to."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Keeps what it is sent. Answers with each of ``statuses`` in turn, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.received: list[Received] = []
        self.statuses = list(statuses)
        self.hold = threading.Event()
        """Answers wait for it."""
        self.hold.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_args: object) -> None:
                pass

            def do_POST(self) -> None:
                receiver.answer(self)

            do_GET = do_POST

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(request.path, headers, body))
        status = self.statuses.pop(0) if self.statuses else 200
        self.hold.wait(30)
        try:
            request.send_response(status)
            if status in (301, 302, 307, 308):
                request.send_header("Location", self.url + "/elsewhere")
            request.send_header("Content-Length", "0")
            request.end_headers()
        except OSError:
            return

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
