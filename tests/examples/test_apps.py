"""The web applications of examples/, over a real server and a real worker, with their frameworks' own means."""

from __future__ import annotations

import http.client
import importlib.util
import io
import json
import socket
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvicorn

from decibatch import AsyncClient, Client
from tests.examples.conftest import WEBHOOK_SECRET, Stage
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str, monkeypatch: pytest.MonkeyPatch, stage: Stage) -> ModuleType:
    """An example as a module of its own, in the environment that its page describes."""
    monkeypatch.setenv("DECIBATCH_REDIS_URL", stage.url)
    monkeypatch.setenv("DECIBATCH_WEBHOOK_SECRET", WEBHOOK_SECRET)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its annotations are resolved by its name.
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def events_of(lines: Iterable[str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Server-sent events as (id, type, data)."""
    found = []
    for block in "".join(lines).strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


def check_events(events: list[tuple[str, str, dict[str, Any]]]) -> None:
    kinds = [kind for _, kind, _ in events]
    # Of a job of milliseconds, whether progress is told on the way is chance.
    assert kinds[0] == "started" and kinds[-1] == "done"


@pytest.fixture
def fastapi_port(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, ModuleType]]:
    """The FastAPI example behind uvicorn, as it is deployed."""
    module = load("fastapi_app", monkeypatch, stage)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(module.app, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive(), "uvicorn")
    yield listener.getsockname()[1], module
    server.should_exit = True
    thread.join(30)
    listener.close()


def request(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, headers)
    return connection.getresponse()


def form(data: bytes) -> tuple[bytes, str]:
    """A file upload as a browser sends it."""
    border = uuid.uuid4().hex
    head = f'--{border}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    return head.encode() + data + f"\r\n--{border}--\r\n".encode(), f"multipart/form-data; boundary={border}"


def post_file(port: int, data: bytes) -> http.client.HTTPResponse:
    body, kind = form(data)
    return request(port, "POST", "/transcripts", body, **{"Content-Type": kind})


def test_fastapi_upload_events_and_transcript(stage: Stage, fastapi_port: tuple[int, ModuleType]) -> None:
    """202 with where to look, server-sent events to the end and from the middle, then the text."""
    port, _ = fastapi_port
    answer = post_file(port, stage.clip.read_bytes())
    assert answer.status == 202
    said = json.loads(answer.read())
    stream = request(port, "GET", said["events"])
    assert stream.getheader("content-type", "").startswith("text/event-stream")
    events = events_of([stream.read().decode()])
    check_events(events)
    again = request(port, "GET", said["events"], **{"Last-Event-ID": events[0][0]})
    assert events_of([again.read().decode()]) == events[1:]
    got = request(port, "GET", answer.getheader("location", ""))
    assert json.loads(got.read()) == {"state": "done", "text": stage.text}


def test_fastapi_refuses_and_does_not_know(stage: Stage, fastapi_port: tuple[int, ModuleType]) -> None:
    """A file that is no recording ends with its error; a job that nobody has is 404; a forged webhook is 400."""
    port, module = fastapi_port
    job = json.loads(post_file(port, b"no recording").read())["job"]
    events_of([request(port, "GET", f"/transcripts/{job}/events").read().decode()])
    got = json.loads(request(port, "GET", f"/transcripts/{job}").read())
    assert (got["state"], got["error"]["code"]) == ("failed", "not_audio")
    assert request(port, "GET", "/transcripts/nobodyknows").status == 404
    assert request(port, "GET", "/transcripts/nobodyknows/events").status == 404
    assert request(port, "POST", "/hooks/decibatch", b"{}").status == 400
    assert module.told == []


def test_fastapi_is_told_the_end(
    stage: Stage, fastapi_port: tuple[int, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A webhook of the worker reaches the application, which finds it rightly signed."""
    port, module = fastapi_port
    monkeypatch.setenv("HOOK_URL", f"http://127.0.0.1:{port}/hooks/decibatch")
    job = json.loads(post_file(port, stage.clip.read_bytes()).read())["job"]
    wait_until(lambda: job in module.told, "told")


NOBODY = "redis://127.0.0.1:1/0"


def test_fastapi_without_redis(fastapi_port: tuple[int, ModuleType]) -> None:
    """While Redis is away an upload is answered with 503 and when to come back, and does not say where it is."""
    port, module = fastapi_port
    module.app.state.client = AsyncClient(NOBODY, patience_s=0)
    answer = post_file(port, b"sound")
    assert (answer.status, answer.getheader("Retry-After")) == (503, "5")
    assert b"127.0.0.1" not in answer.read()


def test_flask_without_redis(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in Flask."""
    module = load("flask_app", monkeypatch, stage)
    module.client.close()
    with Client(NOBODY, patience_s=0) as module.client:
        answer = module.app.test_client().post("/transcripts", data={"file": (io.BytesIO(b"sound"), "a.wav")})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "127.0.0.1" not in answer.text


def test_flask_upload_events_and_transcript(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with Flask's test client."""
    module = load("flask_app", monkeypatch, stage)
    with module.client:
        web = module.app.test_client()
        answer = web.post("/transcripts", data={"file": (io.BytesIO(stage.clip.read_bytes()), "a.wav")})
        assert answer.status_code == 202
        place = answer.headers["Location"]
        check_events(events_of([web.get(place + "/events").text]))
        assert web.get(place).json == {"state": "done", "text": stage.text}
        assert web.get("/transcripts/nobodyknows").status_code == 404
        assert web.get("/transcripts/nobodyknows/events").status_code == 404


def test_django_upload_events_and_transcript(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with Django's test client; and 503 where Redis is away."""
    import django
    from django.core.files.uploadedfile import SimpleUploadedFile

    module = load("django_app", monkeypatch, stage)
    django.setup()
    from django.test import Client as WebClient

    with module.client():
        web = WebClient()
        file = SimpleUploadedFile("a.wav", stage.clip.read_bytes())
        answer = web.post("/transcripts", {"file": file})
        assert answer.status_code == 202
        place = answer.headers["Location"]
        stream = web.get(place + "/events")
        check_events(events_of([part.decode() for part in stream.streaming_content]))
        assert web.get(place).json() == {"state": "done", "text": stage.text}
        assert web.get("/transcripts/nobodyknows").status_code == 404
        assert web.post("/transcripts").status_code == 422
        with Client(NOBODY, patience_s=0) as away:
            monkeypatch.setattr(module, "client", lambda: away)
            answer = web.get(place)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert b"127.0.0.1" not in answer.content


def test_rq_gets_its_result(stage: Stage) -> None:
    """A job enqueued by name with RQ comes back as a result of RQ's."""
    import redis
    from rq import Queue
    from rq.serializers import JSONSerializer

    with redis.Redis.from_url(stage.url) as connection:
        queue = Queue("audio", connection=connection, serializer=JSONSerializer)
        job = queue.enqueue("decibatch.transcribe", kwargs={"input": str(stage.clip)})
        result = job.latest_result(timeout=60)
        assert result is not None and result.return_value["text"] == stage.text
