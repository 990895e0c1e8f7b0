"""The same in Flask.

pip install decibatch flask
DECIBATCH_REDIS_URL=redis://127.0.0.1:6379/0 flask --app flask_app run
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from flask import Flask, Response, request

from decibatch import Client, InvalidJob, QueueFull, ServerUnavailable, UnknownJob

app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 32 * 1024 * 1024
client = Client.from_env()  # connects at its first call; may be shared by threads, and used after a fork


@app.errorhandler(UnknownJob)
def unknown(_exc: UnknownJob) -> Any:
    return {"error": "no such transcript"}, 404


@app.errorhandler(ServerUnavailable)
def away(_exc: ServerUnavailable) -> Any:
    return {"error": "try again shortly"}, 503, {"Retry-After": "5"}  # the exception's words name the server


@app.post("/transcripts")
def upload() -> Any:
    try:
        job = client.submit(request.files["file"].read(), lane="interactive")
    except QueueFull as exc:
        return {"error": "busy"}, 503, {"Retry-After": str(int(exc.retry_after_s) + 1)}
    except InvalidJob as exc:
        return {"error": str(exc)}, 422
    return {"job": job.id}, 202, {"Location": f"/transcripts/{job}"}


@app.get("/transcripts/<job>/events")
def follow(job: str) -> Response:
    client.status(job)
    last = request.headers.get("Last-Event-ID")  # read now: the request is over when the lines are sent

    def lines() -> Iterator[str]:
        for event in client.events(job, after=last):
            data = json.dumps({"attempt": event.attempt, **event.data})
            yield f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n"

    return app.response_class(lines(), mimetype="text/event-stream")


@app.get("/transcripts/<job>")
def transcript(job: str) -> Any:
    status = client.status(job)
    if status.result is not None:
        return {"state": status.state.value, "text": status.result.text}
    error = status.error.model_dump(mode="json") if status.error is not None else None
    return {"state": status.state.value, "error": error}, 200 if status.state.terminal else 202
