"""Checks of the Redis server: reachable, new enough, safe with work, allowed, and of the same time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

import redis

from ops.doctor.finding import Finding, fail, ok, warn
from queueing.keys import Keys
from queueing.protocol import Depth

MIN_VERSION = (6, 2)
"""The scripts need XAUTOCLAIM. 7.0 also reports entries that were deleted while they were pending."""
GOOD_VERSION = (7, 0)
SKEW_S = 2.0
"""Deadlines and start times are made by clients' clocks, and judged by Redis'."""

RIGHTS = """
local key = KEYS[1]
local group = 'doctor'
local tries = {
  { 'HSET', key .. ':h', 'a', '1' }, { 'HINCRBY', key .. ':h', 'a', '1' }, { 'HMGET', key .. ':h', 'a' },
  { 'SET', key .. ':s', '1', 'PX', '60000' }, { 'PEXPIRE', key .. ':s', '60000' }, { 'INCR', key .. ':n' },
  { 'SADD', key .. ':w', 'a' }, { 'SMEMBERS', key .. ':w' }, { 'ZADD', key .. ':z', '1', 'a' },
  { 'ZCARD', key .. ':z' }, { 'RPUSH', key .. ':l', 'a' }, { 'LPOP', key .. ':l' },
  { 'XADD', key .. ':x', '*', 'a', '1' }, { 'XGROUP', 'CREATE', key .. ':x', group, '0' },
  { 'XREADGROUP', 'GROUP', group, 'me', 'COUNT', '1', 'STREAMS', key .. ':x', '>' },
  { 'XPENDING', key .. ':x', group }, { 'XAUTOCLAIM', key .. ':x', group, 'me', '0', '0', 'JUSTID' },
  { 'XINFO', 'GROUPS', key .. ':x' }, { 'PUBLISH', key .. ':bell', 'event' },
}
local refused = {}
for _, try in ipairs(tries) do
  local answer = redis.pcall(unpack(try))
  if type(answer) == 'table' and answer.err then refused[#refused + 1] = try[1] end
end
for _, part in ipairs({ ':h', ':s', ':n', ':w', ':z', ':l', ':x' }) do redis.pcall('DEL', key .. part) end
return refused
"""
"""Does on keys of its own what the queue does, and takes them away again: no list of rights is as sure as a try."""


def version(info: Mapping[str, Any]) -> Finding:
    """:param info: the reply of INFO, all sections together."""
    name = str(info.get("valkey_version") or info.get("redis_version") or "?")
    kind = "Valkey" if info.get("valkey_version") else "Redis"
    numbers = _numbers(str(info.get("redis_version", "0")))
    if numbers < MIN_VERSION:
        return fail(
            "redis",
            f"{kind} {name} is older than 6.2.",
            "upgrade the server to Redis 7.0 or Valkey 7.2, or newer",
        )
    if numbers < GOOD_VERSION:
        said = f"{kind} {name} does not report entries that were deleted while they were pending."
        return warn("redis", said, "upgrade the server to Redis 7.0 or Valkey 7.2, or newer")
    if info.get("role") not in (None, "master"):
        return fail("redis", f"{kind} {name} is a replica.", "DECIBATCH_REDIS_URL must name the primary")
    return ok("redis", f"{kind} {name}.")


def _numbers(text: str) -> tuple[int, int]:
    parts = [int(part) for part in text.split(".")[:2] if part.isdigit()]
    return (*parts, 0, 0)[0], (*parts, 0, 0)[1]


def eviction(info: Mapping[str, Any]) -> Finding:
    """What the server does when its memory is full: a job that is evicted is lost."""
    policy, most = str(info.get("maxmemory_policy", "?")), int(info.get("maxmemory", 0))
    used = int(info.get("used_memory", 0))
    if policy != "noeviction" and most:
        said = f"maxmemory-policy is {policy}: when its memory is full, the server throws jobs away."
        return fail(
            "eviction", said, "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        )
    if policy != "noeviction":
        said = f"maxmemory-policy is {policy}; there is no maxmemory, so nothing is thrown away yet."
        return warn(
            "eviction", said, "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        )
    if most and used > 0.8 * most:
        said = f"{used / most:.0%} of maxmemory is used; when it is full, clients are refused."
        return warn("eviction", said, "redis-cli CONFIG SET maxmemory ..., or let what waits be worked off")
    return ok("eviction", "Nothing is evicted.")


def persistence(info: Mapping[str, Any]) -> Finding:
    """Whether jobs survive a crash of the server."""
    if info.get("aof_enabled"):
        if info.get("aof_last_write_status", "ok") != "ok":
            return fail(
                "persistence",
                "The append-only file could not be written.",
                "look at the server's log and disk",
            )
        return ok("persistence", "An append-only file is kept.")
    mend = "redis-cli CONFIG SET appendonly yes, and the same in redis.conf (docs/delivery.md: what each setting keeps)"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return fail("persistence", "Snapshots could not be written, and there is no append-only file.", mend)
    return warn(
        "persistence", "Without an append-only file, a crash of the server loses the latest jobs.", mend
    )


def rights(refused: list[str], user: str) -> Finding:
    """:param refused: commands that the server did not let this user run."""
    if not refused:
        return ok("acl", f"The user {user} may do what the queue needs.")
    names = ", ".join(refused)
    mend = f"redis-cli ACL SETUSER {user} '~decibatch:*' '&decibatch:*' " + " ".join(
        f"+{one.lower()}" for one in refused
    )
    return fail("acl", f"The user {user} may not run {names}.", mend)


def clock(here_s: float, there_s: float, round_trip_s: float) -> Finding:
    """:param here_s: this machine's time, at the middle of the round trip; Unix seconds."""
    skew = here_s - there_s
    if abs(skew) - round_trip_s / 2 > SKEW_S:
        way = "ahead of" if skew > 0 else "behind"
        said = f"This machine's clock is {abs(skew):.1f} s {way} Redis': deadlines are off by that."
        return warn(
            "clock", said, "let both set their clocks over the network (macOS: sudo sntp -sS time.apple.com)"
        )
    return ok("clock", f"The clocks agree to {max(abs(skew), round_trip_s / 2):.3f} s.")


def webhooks(depth: Depth) -> Finding:
    """Whether the ends of jobs reach those who asked to be told."""
    if depth.webhooks_are_late:
        said = f"{depth.webhooks_waiting} wait, the first of them for {depth.webhooks_overdue_s:.0f} s."
        return warn("webhooks", said, "set DECIBATCH_WEBHOOK_SECRET on a worker, or add workers")
    if depth.webhooks_given_up:
        said = f"Given up, because their receivers did not take them: {depth.webhooks_given_up}."
        return warn("webhooks", said, "decibatch webhooks list, then decibatch webhooks retry JOB")
    return ok("webhooks", "None waits for long, and none was given up.")


def ask(client: redis.Redis, queue: str) -> list[Finding]:
    """All checks of a server that answers. Raises what redis-py raises."""
    began = time.time()
    reply: Any = client.time()
    ended = time.time()
    there = int(reply[0]) + int(reply[1]) / 1e6
    info = _info(client)
    found = [version(info), eviction(info), persistence(info)] if info is not None else []
    if info is None:
        found = [
            warn(
                "redis",
                "This user may not run INFO: version, eviction and persistence are unknown.",
                "redis-cli ACL SETUSER ... +info",
            )
        ]
    found.append(_ask_rights(client, queue))
    return [*found, clock((began + ended) / 2, there, ended - began)]


def _info(client: redis.Redis) -> Mapping[str, Any] | None:
    try:
        told: Any = client.info("all")
    except redis.exceptions.NoPermissionError:
        return None
    return dict(told)


def _ask_rights(client: redis.Redis, queue: str) -> Finding:
    try:
        user: Any = client.acl_whoami()
    except redis.exceptions.ResponseError:
        user = b"default"
    name = user.decode() if isinstance(user, bytes) else str(user)
    key = f"{Keys(queue).root}:doctor:{secrets.token_hex(6)}"
    try:
        refused: Any = client.eval(RIGHTS, 1, key)
    except redis.exceptions.NoPermissionError:
        refused = [b"EVAL", b"EVALSHA"]
    return rights([one.decode() if isinstance(one, bytes) else str(one) for one in refused], name)
