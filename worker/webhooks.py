"""Tells the ends of jobs to the URLs that asked for them: signed, tried again, and to the public internet alone.

An end to tell is written by the script that ends the job (``finish`` in lua/common.lua) and stays in Redis until some
worker has told it: a death in between loses nothing. So it may be told twice, with the same ``webhook-id``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from pydantic import ValidationError

from queueing.errors import InvalidJob
from queueing.job import ErrorInfo, Result, State, parse_job
from queueing.protocol import Ended, Queue
from queueing.webhook import Notice, key_of, signature
from worker import outbound
from worker.link import Link, LinkDown
from worker.settle import backoff_s

log = logging.getLogger("decibatch.webhooks")

POLL_S = 0.5
AT_ONCE = 32
HOLD_MARGIN_S = 10.0
"""Beyond the time-out, before another worker may tell the same end."""
GONE = 410
"""What a receiver answers that wants to hear no more (Standard Webhooks, "Operational considerations")."""
MAX_HEAD = 16 * 1024
OUTCOMES = ("delivered", "retried", "given_up")
"""What became of a try: it was taken, it will be made again, or it was the last."""


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    secret: str
    """``whsec_`` and base64; signs every request."""
    schemes: tuple[str, ...] = ("https",)
    allow_private_hosts: bool = False
    tries: int = 12
    timeout_s: float = 10.0
    """Seconds that one try may take, from the look-up of the name to the status."""
    backoff_s: float = 5.0
    """The pause after the first failure; it doubles, to ``cap_s``."""
    cap_s: float = 3600.0
    max_bytes: int = 1024 * 1024
    """A result larger than this is left out of the body."""


class NotTold(Exception):
    """A try failed. ``final``: no other will succeed."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final = final


class Webhooks:
    """Runs as one task of a worker. ``clock`` gives Unix seconds, for the timestamps."""

    def __init__(
        self,
        link: Link,
        queue: Queue,
        config: WebhookConfig,
        *,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self._link = link
        self._queue = queue
        self._config = config
        self._key = key_of(config.secret)
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self.counts = dict.fromkeys(OUTCOMES, 0)
        """Tries of this worker, by OUTCOMES."""

    async def run(self) -> None:
        """Tell until cancelled. What is under way then is told again by somebody when its hold is over."""
        telling: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                taken = await self._take(AT_ONCE - len(telling))
                telling |= {group.create_task(self._tell(ended)) for ended in taken}
                if telling:
                    _, telling = await asyncio.wait(
                        telling, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
                    )
                else:
                    await asyncio.sleep(POLL_S)

    async def _take(self, free: int) -> tuple[Ended, ...]:
        await self._link.wait_up()
        hold_ms = int((self._config.timeout_s + HOLD_MARGIN_S) * 1000)
        try:
            return await self._link.run(self._queue.hook_take("http", free, hold_ms)) if free else ()
        except LinkDown:
            return ()

    async def _tell(self, ended: Ended) -> None:
        config = self._config
        try:
            async with asyncio.timeout(config.timeout_s):
                await self._send(ended)
        except (NotTold, TimeoutError) as exc:
            failure = exc if isinstance(exc, NotTold) else NotTold("it did not answer in time")
        except Exception as exc:
            log.exception("webhook failed by our own fault", extra={"job": ended.job_id})
            failure = NotTold(f"the worker failed: {type(exc).__name__}")
        else:
            self.counts["delivered"] += 1
            await self._link.insist(self._queue.hook_end("http", ended, "sent"))
            return
        if failure.final or ended.tries >= config.tries:
            self.counts["given_up"] += 1
            log.error("webhook given up", extra={"job": ended.job_id, "tries": ended.tries})
            await self._link.insist(self._queue.hook_end("http", ended, "dead", note=failure.reason))
            return
        self.counts["retried"] += 1
        pause_s = backoff_s(ended.tries, config.backoff_s, config.cap_s, self._rng.random())
        call = self._queue.hook_end("http", ended, "retry", delay_ms=int(pause_s * 1000), note=failure.reason)
        await self._link.insist(call)

    async def _send(self, ended: Ended) -> None:
        try:
            url = parse_job(ended.payload).webhook or ""
        except InvalidJob as exc:
            raise NotTold("the job cannot be read", final=True) from exc
        body = notice(ended, self._config.max_bytes).model_dump_json(exclude_none=True).encode()
        message_id = f"{ended.job_id}.{ended.finished_ms}"
        stamp = int(self._clock())
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "user-agent": "decibatch",
            "webhook-id": message_id,
            "webhook-timestamp": str(stamp),
            "webhook-signature": signature(self._key, message_id, stamp, body),
            "connection": "close",
        }
        status = await post(
            url,
            headers,
            body,
            schemes=self._config.schemes,
            allow_private=self._config.allow_private_hosts,
        )
        if not 200 <= status < 300:
            # A redirect as well: following it would post the result where nobody asked for it.
            raise NotTold(f"it answered with status {status}", final=status == GONE)


def notice(ended: Ended, max_bytes: int) -> Notice:
    """What is told of an end."""
    omitted = len(ended.result) > max_bytes
    result = error = None
    try:
        result = Result.model_validate_json(ended.result) if ended.result and not omitted else None
        error = ErrorInfo.model_validate_json(ended.error) if ended.error else None
    except ValidationError:
        # Of a worker that writes what this one does not understand: the receiver can still ask for it.
        omitted = True
    return Notice(
        type=f"job.{ended.state.value}",  # type: ignore[arg-type]  # checked by pydantic
        job_id=ended.job_id,
        state=State(ended.state),
        attempt=ended.attempt,
        created_ms=ended.created_ms,
        finished_ms=ended.finished_ms,
        result=result,
        result_omitted=omitted,
        error=error,
    )


async def post(
    url: str, headers: dict[str, str], body: bytes, *, schemes: tuple[str, ...], allow_private: bool
) -> int:
    """Send one request and return the status of the answer, whose body is not read. Raises NotTold."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise NotTold("the URL is malformed", final=True) from exc
    tls = parts.scheme == "https"
    if parts.scheme not in schemes:
        allowed = ", ".join(schemes)
        raise NotTold(
            f"its URL begins with {parts.scheme}; DECIBATCH_WEBHOOK_SCHEMES has {allowed}", final=True
        )
    if not host or parts.username is not None:
        raise NotTold("the URL is malformed: it must name a host, without user or password", final=True)
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        target += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
    authority = f"[{host}]" if ":" in host else host
    named = authority if port is None else f"{authority}:{port}"
    head = f"POST {target} HTTP/1.1\r\nhost: {named}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    try:
        reader, writer = await _open(host, port or (443 if tls else 80), tls=tls, allow_private=allow_private)
        try:
            writer.write(head.encode("ascii") + body)
            await writer.drain()
            return _status(await reader.readline())
        finally:
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()
    except outbound.PrivateAddress as exc:
        raise NotTold(
            "the host is not on the public internet (DECIBATCH_WEBHOOK_PRIVATE_HOSTS allows such)", final=True
        ) from exc
    except (OSError, ValueError, UnicodeError) as exc:
        raise NotTold(f"the connection failed: {outbound.why(exc)}") from exc


async def _open(
    host: str, port: int, *, tls: bool, allow_private: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    pairs = [(str(info[4][0]), int(info[4][1])) for info in infos]
    context = ssl.create_default_context() if tls else None
    failure: OSError | None = None
    for address, its_port in outbound.allowed(pairs, allow_private=allow_private):
        try:
            # Judged and connected to are the same address; the certificate is checked against the name.
            return await asyncio.open_connection(
                address, its_port, ssl=context, server_hostname=host if tls else None, limit=MAX_HEAD
            )
        except OSError as exc:
            failure = exc
    raise failure or OSError("no address")


def _status(line: bytes) -> int:
    words = line.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise NotTold("it does not answer with HTTP")
    return int(words[1][:3])
