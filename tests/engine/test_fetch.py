"""Fetching from a hub, played by a server on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine import fetch
from engine.models import BadSource, ModelSource, Registry, repository_folder


class Hub(BaseHTTPRequestHandler):
    """Refuses all; holds on to whoever asks for a repository called "slow"."""

    released = threading.Event()

    def _answer(self) -> None:
        if "slow" in self.path:
            self.released.wait(60)
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    Hub.released.clear()
    yield
    Hub.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_download_that_hangs_is_killed(hub: None, tmp_path: Path) -> None:
    """A hub that never answers costs the time limit and not more, and leaves no repository."""
    source = ModelSource.parse("hf:org/slow")
    with pytest.raises(fetch.FetchFailed, match="within 3 s"):
        fetch.fetch(source, tmp_path, 3)
    assert not repository_folder(tmp_path, source).exists()


def test_a_repository_that_is_refused_is_an_error(hub: None, tmp_path: Path) -> None:
    """A repository that the hub does not have fails with the hub's reason in one line."""
    with pytest.raises(fetch.FetchFailed, match="could not be fetched") as caught:
        fetch.fetch(ModelSource.parse("hf:org/none@v1"), tmp_path, 60)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "hub").glob("org--none*"))


def test_a_repository_that_is_there_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetched repository is used as it is, and the registry finds it."""
    monkeypatch.setattr(fetch, "_run", lambda *args: pytest.fail("asked the hub"))
    source = ModelSource.parse("hf:org/name@v1")
    folder = repository_folder(tmp_path, source)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert fetch.fetch(source, tmp_path, 1) == folder
    assert Registry({"m": "hf:org/name@v1"}, tmp_path).resolve("m") == folder


def test_only_repositories_are_fetched(tmp_path: Path) -> None:
    """A folder or a package is never looked for on a hub."""
    with pytest.raises(BadSource):
        fetch.fetch(ModelSource.parse("path:/m"), tmp_path, 1)
