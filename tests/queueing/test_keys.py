"""The names of the keys."""

from __future__ import annotations

import re
from importlib import resources

from redis.cluster import key_slot

from queueing.keys import Keys


def _names(keys: Keys) -> dict[str, str]:
    return {
        "job": keys.job("j"),
        "inline": keys.inline("j"),
        "events": keys.events("j"),
        "bell": keys.bell("j"),
        "idem": keys.idempotency("t", "k"),
        "stream": keys.stream("m", "l"),
        "backlog": keys.backlog("m", "l", "t"),
        "ring": keys.ring("m", "l"),
        "worker": keys.worker("c"),
        "lock": keys.lock("c"),
        "life": keys.life("c"),
        "hooks": keys.hooks("http"),
        **{
            name: getattr(keys, name)
            for name in (
                "delayed",
                "deadlines",
                "sweep",
                "models",
                "served",
                "counts",
                "wake",
                "control",
                "incidents",
                "dead",
                "workers",
                "undelivered",
                "bridged",
            )
        },
    }


def test_one_hash_slot() -> None:
    """All keys of a queue lie in the hash slot of its root."""
    keys = Keys("any.queue")
    assert {key_slot(name.encode()) for name in _names(keys).values()} == {key_slot(keys.root.encode())}


def test_lua_and_python_name_the_same_keys() -> None:
    """Every word after the root in the scripts is one that keys.py builds, and the other way round."""
    folder = resources.files("queueing") / "lua"
    source = "".join(item.read_text("utf-8") for item in folder.iterdir() if item.name.endswith(".lua"))
    in_lua = set(re.findall(r"root \.\. ':([a-z]+)", source))
    assert in_lua == set(_names(Keys()))
