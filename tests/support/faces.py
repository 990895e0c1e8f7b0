"""Both clients behind one face, so that one suite holds for both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from queueing.client import AsyncClient, Client

FACES = ("sync", "async")


class SyncFace:
    """A Client; ``start`` runs a call in a thread."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.client = Client(*args, **options)
        self._threads = ThreadPoolExecutor(max_workers=256)

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        return getattr(self.client, name)(*args, **options)

    def start(self, name: str, *args: Any, **options: Any) -> Future[Any]:
        return self._threads.submit(getattr(self.client, name), *args, **options)

    def events(self, *args: Any, **options: Any) -> Iterator[Any]:
        return self.client.events(*args, **options)

    def close(self) -> None:
        self.client.close()

    def finish(self) -> None:
        self.close()
        self._threads.shutdown()


class AsyncFace:
    """An AsyncClient on a loop in a thread of its own; ``start`` runs a call as a task."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def make() -> AsyncClient:
            return AsyncClient(*args, **options)

        try:
            self.client = self._on_loop(make()).result(30)
        except BaseException:
            self._end()
            raise

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        return self.start(name, *args, **options).result(120)

    def start(self, name: str, *args: Any, **options: Any) -> Future[Any]:
        return self._on_loop(getattr(self.client, name)(*args, **options))

    def events(self, *args: Any, **options: Any) -> Iterator[Any]:
        events = self.client.events(*args, **options)
        try:
            while True:
                try:
                    yield self._on_loop(anext(events)).result(120)
                except StopAsyncIteration:
                    return
        finally:
            self._on_loop(events.aclose()).result(30)  # type: ignore[attr-defined]

    def close(self) -> None:
        self.call("close")

    def finish(self) -> None:
        if self._loop.is_closed():
            return
        try:
            self.close()
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


Face = SyncFace | AsyncFace


def make_face(kind: str, *args: Any, **options: Any) -> Face:
    return SyncFace(*args, **options) if kind == "sync" else AsyncFace(*args, **options)
