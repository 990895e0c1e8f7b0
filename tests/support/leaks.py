"""Which keys may be left in Redis."""

from __future__ import annotations

from typing import Any

STATIC = (
    "stream",
    "models",
    "served",
    "counts",
    "wake",
    "control",
    "incidents",
    "memory",
    "dead",
    "workers",
    "life",
    "sweep",
    "hooks",
    "undelivered",
    "bridged",
)
"""Bounded in number or in length, and shared by all jobs of a queue."""
LIVING = frozenset({"waiting", "running"})


def leaked_keys(client: Any) -> list[str]:
    """Keys without a time to live that belong neither to the queue as a whole nor to a job that goes on."""
    return sorted(key for raw in client.scan_iter(count=1000) if not _accounted(client, key := raw.decode()))


def _accounted(client: Any, key: str) -> bool:
    if not key.startswith("decibatch:{"):
        return key.startswith("rq:")
    if client.ttl(key) != -1:
        return True
    root, _, rest = key.partition("}:")
    what, _, which = rest.partition(":")
    match what:
        case "job" | "events" | "inline":
            return _lives(client, root, which)
        case "idem":
            return _lives(client, root, (client.get(key) or b"").decode().split(" ")[0])
        case "deadlines":
            return all(_lives(client, root, raw.decode()) for raw in client.zrange(key, 0, -1))
        case "backlog" | "ring" | "delayed":
            return int(client.hget(f"{root}}}:counts", "waiting") or 0) > 0
    return what in STATIC


def _lives(client: Any, root: str, job_id: str) -> bool:
    state = client.hget(f"{root}}}:job:{job_id}", "state")
    return state is not None and state.decode() in LIVING
