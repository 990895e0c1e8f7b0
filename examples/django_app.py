"""The same in Django, in one file.

pip install decibatch django
DECIBATCH_REDIS_URL=redis://127.0.0.1:6379/0 python django_app.py runserver
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from functools import cache

from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from decibatch import Client, InvalidJob, QueueFull, ServerUnavailable, UnknownJob

if not settings.configured:
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["127.0.0.1", "localhost", "testserver"],
        SECRET_KEY=secrets.token_hex(32),
        MIDDLEWARE=[f"{__name__}.Away"],
    )


class Away:
    """503 where Redis does not answer; not in the exception's words, which name the server."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, _request: HttpRequest, exc: Exception) -> HttpResponse | None:
        if not isinstance(exc, ServerUnavailable):
            return None
        return JsonResponse({"error": "try again shortly"}, status=503, headers={"Retry-After": "5"})


@cache
def client() -> Client:
    """One for the process; it may be shared by threads."""
    return Client.from_env()


@csrf_exempt  # of this example; a form of yours sends the token
@require_POST
def upload(request: HttpRequest) -> HttpResponse:
    if "file" not in request.FILES:
        return JsonResponse({"error": "no file"}, status=422)
    try:
        job = client().submit(request.FILES["file"].read(), lane="interactive")
    except QueueFull as exc:
        busy = {"Retry-After": str(int(exc.retry_after_s) + 1)}
        return JsonResponse({"error": "busy"}, status=503, headers=busy)
    except InvalidJob as exc:
        return JsonResponse({"error": str(exc)}, status=422)
    return JsonResponse({"job": job.id}, status=202, headers={"Location": f"/transcripts/{job}"})


@require_GET
def follow(request: HttpRequest, job: str) -> HttpResponse | StreamingHttpResponse:
    try:
        client().status(job)
    except UnknownJob:
        return JsonResponse({"error": "no such transcript"}, status=404)

    def lines() -> Iterator[str]:
        for event in client().events(job, after=request.headers.get("Last-Event-ID")):
            data = json.dumps({"attempt": event.attempt, **event.data})
            yield f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n"

    return StreamingHttpResponse(lines(), content_type="text/event-stream")


@require_GET
def transcript(request: HttpRequest, job: str) -> HttpResponse:
    try:
        status = client().status(job)
    except UnknownJob:
        return JsonResponse({"error": "no such transcript"}, status=404)
    if status.result is not None:
        return JsonResponse({"state": status.state.value, "text": status.result.text})
    error = status.error.model_dump(mode="json") if status.error is not None else None
    return JsonResponse(
        {"state": status.state.value, "error": error}, status=200 if status.state.terminal else 202
    )


urlpatterns = [
    path("transcripts", upload),
    path("transcripts/<slug:job>/events", follow),
    path("transcripts/<slug:job>", transcript),
]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
