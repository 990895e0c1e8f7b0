"""An upload form's back end in FastAPI: 202 at once, progress as server-sent events, the transcript at the end.

pip install decibatch fastapi uvicorn python-multipart
DECIBATCH_REDIS_URL=redis://127.0.0.1:6379/0 uvicorn fastapi_app:app

HOOK_URL, where it is set, is this application's own /hooks/decibatch as workers reach it. It is not the user's to
choose: a worker would post there whatever it hears.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request, Response, UploadFile
from fastapi.responses import JSONResponse, StreamingResponse

from decibatch import (
    AsyncClient,
    InvalidJob,
    InvalidWebhook,
    QueueFull,
    ServerUnavailable,
    UnknownJob,
    verify_webhook,
)

MAX_UPLOAD = 32 * 1024 * 1024


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncClient.from_env() as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)
told: list[str] = []


@app.exception_handler(ServerUnavailable)
async def away(_request: Request, _exc: ServerUnavailable) -> JSONResponse:
    """Not the exception's words: they name the server."""
    return JSONResponse({"detail": "try again shortly"}, 503, {"Retry-After": "5"})


@app.post("/transcripts", status_code=202)
async def upload(request: Request, file: UploadFile, response: Response) -> dict[str, str]:
    """Enqueue the bytes themselves: the worker may run on another machine, and nothing is left on this one."""
    data = await file.read(MAX_UPLOAD + 1)
    if len(data) > MAX_UPLOAD:
        raise HTTPException(413, "at most 32 MiB")
    client: AsyncClient = request.app.state.client
    try:
        job = await client.submit(data, lane="interactive", webhook=os.environ.get("HOOK_URL"))
    except QueueFull as exc:
        raise HTTPException(503, "busy", headers={"Retry-After": str(int(exc.retry_after_s) + 1)}) from exc
    except InvalidJob as exc:
        raise HTTPException(422, str(exc)) from exc
    response.headers["Location"] = f"/transcripts/{job}"
    return {"job": job.id, "events": f"/transcripts/{job}/events"}


@app.get("/transcripts/{job}/events")
async def follow(
    request: Request, job: str, last_event_id: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """A browser's EventSource reconnects by itself and says which event it saw last."""
    client: AsyncClient = request.app.state.client

    async def lines() -> AsyncIterator[str]:
        async for event in client.events(job, after=last_event_id):
            data = json.dumps({"attempt": event.attempt, **event.data})
            yield f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n"

    try:
        await client.status(job)
    except UnknownJob as exc:
        raise HTTPException(404, "no such transcript") from exc
    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@app.get("/transcripts/{job}")
async def transcript(request: Request, job: str) -> Any:
    client: AsyncClient = request.app.state.client
    try:
        status = await client.status(job)
    except UnknownJob as exc:
        raise HTTPException(404, "no such transcript") from exc
    if status.result is not None:
        return {"state": status.state.value, "text": status.result.text}
    error = status.error.model_dump(mode="json") if status.error is not None else None
    return JSONResponse({"state": status.state.value, "error": error}, 200 if status.state.terminal else 202)


@app.post("/hooks/decibatch", status_code=204)
async def hook(request: Request) -> None:
    """Told by a worker that a job has ended; may come twice, with the same ``webhook-id``."""
    try:
        notice = verify_webhook(await request.body(), request.headers, os.environ["DECIBATCH_WEBHOOK_SECRET"])
    except InvalidWebhook as exc:
        raise HTTPException(400, "not signed by us") from exc
    told.append(notice.job_id)
