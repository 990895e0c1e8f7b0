"""A server in front of Redis that loses replies."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path


class LosingProxy:
    """Hands everything on; while ``losing`` is above 0, a reply to ``EVALSHA`` or ``EVAL`` is thrown away, the
    connection is closed in its place, and ``losing`` falls by one."""

    def __init__(self, path: Path, backend: Path) -> None:
        self.path = path
        self.losing = 0
        self.lost = 0
        self._backend = backend
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"unix://{self.path}?db=0"

    def close(self) -> None:
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                front, _ = self._listener.accept()
                back = socket.socket(socket.AF_UNIX)
                back.connect(str(self._backend))
                self._open += [front, back]
                state = [False]
                self._start(self._asked, front, back, state)
                self._start(self._answered, front, back, state)

    def _asked(self, front: socket.socket, back: socket.socket, state: list[bool]) -> None:
        with contextlib.suppress(OSError):
            while asked := front.recv(1 << 20):
                state[0] = state[0] or b"EVAL" in asked  # a long script comes in pieces
                back.sendall(asked)
        with contextlib.suppress(OSError):
            back.shutdown(socket.SHUT_RDWR)

    def _answered(self, front: socket.socket, back: socket.socket, state: list[bool]) -> None:
        with contextlib.suppress(OSError):
            while reply := back.recv(1 << 20):
                if self.losing > 0 and state[0] and not reply.startswith(b"-NOSCRIPT"):
                    self.losing -= 1
                    self.lost += 1
                    break
                front.sendall(reply)
        with contextlib.suppress(OSError):
            front.shutdown(socket.SHUT_RDWR)
