"""What a webhook says, how it is signed, and how its receiver makes sure of it.

Headers and signature are those of the Standard Webhooks specification 1.0 (https://www.standardwebhooks.com), for
which libraries exist in many languages: ``webhook-id`` (the same for each try: what was seen before may be dropped),
``webhook-timestamp`` (Unix seconds of this try) and ``webhook-signature``, "v1," and the base64 of an HMAC-SHA256
over "id.timestamp.body".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Literal

from pydantic import ValidationError

from queueing.errors import DecibatchError
from queueing.job import Answer, ErrorInfo, Result, State

SECRET_PREFIX = "whsec_"  # noqa: S105 - what every secret begins with
MIN_SECRET_BYTES = 24
"""The specification's own bound: 24 to 64 random bytes."""
TOLERANCE_S = 300.0

Kind = Literal["job.done", "job.failed", "job.dead", "job.cancelled", "job.expired"]


class Notice(Answer):
    """The body of a webhook: how a job ended. Times are Unix milliseconds of Redis' clock."""

    type: Kind
    job_id: str
    state: State
    attempt: int
    created_ms: int
    finished_ms: int
    result: Result | None = None
    """Of a job that is done; None where it is too large, see ``result_omitted``."""
    result_omitted: bool = False
    """The result is larger than a worker sends; ask for it with ``Client.result``."""
    error: ErrorInfo | None = None


class InvalidWebhook(DecibatchError, ValueError):
    """A request that was not sent by whoever knows the secret, or too long ago. Answer it with 400."""

    code = "invalid_webhook"


def key_of(secret: str) -> bytes:
    """The signing key of ``whsec_`` and base64. Raises ValueError where it is none, or too short."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ValueError(
            "a webhook secret is whsec_ and base64; docs/web-apps.md shows how to make one"
        ) from exc
    if len(key) < MIN_SECRET_BYTES:
        raise ValueError(
            f"a webhook secret has {MIN_SECRET_BYTES} bytes or more; docs/web-apps.md shows how to make one"
        )
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """One signature as it stands in the header."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def verify_webhook(
    body: bytes,
    headers: Mapping[str, str],
    secret: str,
    *,
    now: float | None = None,
    tolerance_s: float = TOLERANCE_S,
) -> Notice:
    """Check a request and read what it says.

    Args:
        body: The bytes as they came: not parsed and written again.
        headers: Of the request, in any case.
        secret: What ``DECIBATCH_WEBHOOK_SECRET`` of the workers is.
        now: Unix seconds; None for this machine's clock.
        tolerance_s: How old, or how far ahead of ``now``, a request may be.

    Raises:
        InvalidWebhook: it is not to be trusted.
        ValueError: ``secret`` is none.
    """
    key = key_of(secret)
    named = {name.lower(): value for name, value in headers.items()}
    message_id, stamp = named.get("webhook-id", ""), named.get("webhook-timestamp", "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 16):
        raise InvalidWebhook("there is no timestamp")
    if abs((time.time() if now is None else now) - int(stamp)) > tolerance_s:
        raise InvalidWebhook("the timestamp is too far from now")
    wanted = signature(key, message_id, int(stamp), body).encode()
    given = named.get("webhook-signature", "").encode("utf-8", "replace").split()
    # Several stand there while a secret is replaced.
    if not any(hmac.compare_digest(wanted, one) for one in given):
        raise InvalidWebhook("the signature does not fit")
    try:
        return Notice.model_validate_json(body)
    except ValidationError as exc:
        raise InvalidWebhook("the body is not a notice") from exc
