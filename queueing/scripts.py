"""The Lua scripts, and a call of one as a value: what to send and how to read the reply.

Nothing here talks to a server. The clients and the worker run a :class:`Call` over whatever
connection they have (:func:`run`, :func:`arun`), so that one core serves sync and async.

``python -m queueing.scripts FOLDER`` writes the scripts out, complete, for clients in other languages.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, complete with what all of them share."""

    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    """Load ``lua/<name>.lua`` behind ``lua/common.lua``. Raises FileNotFoundError for no such script."""
    folder = resources.files("queueing") / "lua"
    source = (folder / "common.lua").read_text("utf-8") + "\n" + (folder / f"{name}.lua").read_text("utf-8")
    # EVALSHA names a script by its SHA-1; nothing depends on that hash being strong.
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One script call. ``parse`` turns the raw reply into a T."""

    script: Script
    root: str
    args: tuple[str | bytes | int | float, ...]
    parse: Callable[[Any], T]

    @property
    def size(self) -> int:
        """Characters or bytes of its texts: what makes a call large."""
        return sum(len(arg) for arg in self.args if isinstance(arg, str | bytes))


class SyncRedis(Protocol):
    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any: ...
    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any: ...


class AsyncRedis(Protocol):
    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Awaitable[Any]: ...
    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Awaitable[Any]: ...


def run(redis: Any, call: Call[T]) -> T:
    """Run a call over a ``redis.Redis``. A server that does not know the script is given its source."""
    from redis.exceptions import NoScriptError

    server = cast(SyncRedis, redis)
    try:
        reply = server.evalsha(call.script.sha, 1, call.root, *call.args)
    except NoScriptError:
        reply = server.eval(call.script.source, 1, call.root, *call.args)
    return call.parse(reply)


async def arun(redis: Any, call: Call[T]) -> T:
    """Run a call over a ``redis.asyncio.Redis``; see :func:`run`."""
    from redis.exceptions import NoScriptError

    server = cast(AsyncRedis, redis)
    try:
        reply = await server.evalsha(call.script.sha, 1, call.root, *call.args)
    except NoScriptError:
        reply = await server.eval(call.script.source, 1, call.root, *call.args)
    return call.parse(reply)


async def arun_all(redis: Any, calls: Sequence[Call[Any]]) -> list[Any]:
    """Run calls over a ``redis.asyncio.Redis`` in one round trip; each is on its own.

    Returns for each what :func:`arun` would return, or the exception that it would raise. Raises only where the
    round trip as a whole failed: then any of them may have been carried out or not.
    """
    async with redis.pipeline(transaction=False) as pipe:
        for call in calls:
            pipe.evalsha(call.script.sha, 1, call.root, *call.args)
        replies = await pipe.execute(raise_on_error=False)
    return [await _answer(redis, call, reply) for call, reply in zip(calls, replies, strict=True)]


async def _answer(redis: Any, call: Call[Any], reply: Any) -> Any:
    from redis.exceptions import NoScriptError

    try:
        if isinstance(reply, NoScriptError):
            # Refused, so not carried out: it is given the source.
            return await arun(redis, call)
        return reply if isinstance(reply, Exception) else call.parse(reply)
    except Exception as exc:
        return exc


FOR_CLIENTS = ("submit", "status", "cancel")
"""What one who enqueues needs; the other scripts are for workers and operators."""


def write_out(folder: Path) -> list[Path]:
    """Write each script for clients, complete, to ``folder``; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in FOR_CLIENTS:
        path = folder / f"{name}.lua"
        path.write_text(script(name).source, "utf-8")
        files.append(path)
    return files


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m queueing.scripts FOLDER")
    for written in write_out(Path(sys.argv[1])):
        print(written)
