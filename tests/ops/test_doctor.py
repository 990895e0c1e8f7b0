"""``decibatch doctor``: each check by itself, against a real server, and as a user runs it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from engine.probe import probe
from ops.doctor import machine, server
from ops.doctor.finding import Finding
from ops.embedded import EmbeddedServer
from queueing.connect import connect
from queueing.protocol import Depth

SETUSER = ("ACL", "SETUSER")
RIGHTS = ("reset", "on", ">pw", "~decibatch:*", "&decibatch:*", "+@all")
LINUX, MAC = "linux", "darwin"


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in findings}


# --- this machine -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "system", "kind", "bits", "verdict"),
    [
        ((3, 11, 7), LINUX, "x86_64", 64, "ok"),
        ((3, 13, 0), MAC, "arm64", 64, "ok"),
        ((3, 10, 9), LINUX, "x86_64", 64, "fail"),
        ((3, 12, 0), MAC, "x86_64", 64, "fail"),
        ((3, 12, 0), LINUX, "armv7l", 32, "fail"),
    ],
)
def test_python(version: tuple[int, int, int], system: str, kind: str, bits: int, verdict: str) -> None:
    """Old, translated and 32-bit interpreters are found."""
    assert machine.python(version, system, kind, pointer_bits=bits).verdict == verdict


def test_folders_for_inputs(tmp_path: Path) -> None:
    """A folder that is not there is found, by name; any file and no file at all are choices, and told."""
    there, gone = str(tmp_path), str(tmp_path / "uplaods")
    verdicts_ = [finding.verdict for finding in machine.inputs((there, gone))]
    assert verdicts_ == ["ok", "warn"]
    assert gone in machine.inputs((gone,))[0].said
    assert [machine.inputs(roots)[0].verdict for roots in (None, ())] == ["ok", "ok"]
    assert machine.inputs(None)[0].said != machine.inputs(())[0].said


def test_missing_packages_are_named() -> None:
    """What is missing stands in the finding, with the command that installs it."""
    finding = machine.packages(["av", "mlx"])
    assert (finding.verdict, finding.mend) == ("fail", "pip install 'decibatch[worker]'")
    assert "av, mlx" in finding.said


TOLD = {"mlx": "0.32.4", "device": "cpu", "blas": "/x/libopenblas.so", "gflops": 150.0}


@pytest.mark.parametrize(
    ("changed", "system", "expected"),
    [
        ({}, LINUX, {"mlx": "ok", "blas": "ok"}),
        ({"blas": None, "gflops": 7.0}, LINUX, {"mlx": "ok", "blas": "warn"}),
        ({"gflops": 7.0}, LINUX, {"mlx": "ok", "blas": "warn"}),
        ({"device": "cuda", "blas": None}, LINUX, {"mlx": "ok"}),
        ({"device": "metal", "blas": None}, MAC, {"mlx": "ok"}),
        ({"device": "cpu", "blas": None}, MAC, {"mlx": "warn"}),
        ({"error": "ImportError: no"}, LINUX, {"mlx": "fail"}),
    ],
)
def test_mlx(changed: dict[str, Any], system: str, expected: dict[str, str]) -> None:
    """A reference BLAS, a slow one, a Mac without Metal and an MLX that does not start are found."""
    assert verdicts(machine.mlx({**TOLD, **changed}, system)) == expected


def test_the_probe_is_asked_in_a_process_of_its_own() -> None:
    """MLX on this machine answers with its version, device, BLAS and a speed above nothing."""
    told = machine.ask_mlx()
    assert set(told) == {"mlx", "device", "blas", "gflops"}
    assert told["gflops"] > 0
    assert probe.__module__ == "engine.probe"


def test_models() -> None:
    """A model that cannot be had fails, with its reason."""
    found = machine.models({"a": None, "b": "the package x is not installed"})
    assert [finding.verdict for finding in found] == ["ok", "fail"]
    assert "not installed" in found[1].said


@pytest.mark.parametrize(
    ("files", "budget_mb", "expected"),
    [(8192, None, ["ok"]), (256, None, ["warn"]), (8192, 15_900, ["ok", "warn"])],
)
def test_limits(files: int, budget_mb: int | None, expected: list[str]) -> None:
    """macOS' 256 files are too few, and a budget of nearly all memory too much."""
    assert [finding.verdict for finding in machine.limits(files, budget_mb, 16 * 1024**3)] == expected


@pytest.mark.parametrize(
    ("free", "writable", "verdict"),
    [(10 * 1024**3, True, "ok"), (1024**3, True, "warn"), (1024**2, True, "fail"), (10**12, False, "fail")],
)
def test_disk(free: int, writable: bool, verdict: str) -> None:
    """A folder that is nearly full, full, or not ours is found."""
    assert machine.disk("spool", Path("/x"), free, writable=writable).verdict == verdict


# --- the server -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "verdict"),
    [
        ({"redis_version": "7.2.4", "role": "master"}, "ok"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2", "role": "master"}, "ok"),
        ({"redis_version": "6.2.6", "role": "master"}, "warn"),
        ({"redis_version": "5.0.7", "role": "master"}, "fail"),
        ({"redis_version": "7.2.4", "role": "slave"}, "fail"),
        ({}, "fail"),
    ],
)
def test_version(info: dict[str, Any], verdict: str) -> None:
    """Servers that are too old, and replicas, are found."""
    assert server.version(info).verdict == verdict


@pytest.mark.parametrize(
    ("info", "verdict"),
    [
        ({"maxmemory_policy": "noeviction", "maxmemory": 0}, "ok"),
        ({"maxmemory_policy": "noeviction", "maxmemory": 100, "used_memory": 90}, "warn"),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 0}, "warn"),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 100, "used_memory": 1}, "fail"),
    ],
)
def test_eviction(info: dict[str, Any], verdict: str) -> None:
    """A server that may throw jobs away fails; one that could, or is nearly full, is a warning."""
    assert server.eviction(info).verdict == verdict


@pytest.mark.parametrize(
    ("info", "verdict"),
    [
        ({"aof_enabled": 1, "aof_last_write_status": "ok"}, "ok"),
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, "fail"),
        ({"aof_enabled": 0, "rdb_last_bgsave_status": "ok"}, "warn"),
        ({"aof_enabled": 0, "rdb_last_bgsave_status": "err"}, "fail"),
    ],
)
def test_persistence(info: dict[str, Any], verdict: str) -> None:
    """Without an append-only file the latest jobs can be lost; a file that cannot be written keeps nothing."""
    assert server.persistence(info).verdict == verdict


@pytest.mark.parametrize(
    ("skew_s", "round_trip_s", "verdict"),
    [(0.01, 0.001, "ok"), (5.0, 0.001, "warn"), (-5.0, 0.001, "warn"), (3.0, 4.0, "ok")],
)
def test_clock(skew_s: float, round_trip_s: float, verdict: str) -> None:
    """A clock that is off by seconds is found, ahead or behind; what the way there may explain is not."""
    assert server.clock(1000.0 + skew_s, 1000.0, round_trip_s).verdict == verdict


@pytest.fixture
def asked(server_for_doctor: EmbeddedServer) -> Iterator[Callable[..., list[Finding]]]:
    """Asks a real server, as some user of it."""
    clients: list[redis.Redis] = []

    def ask(user: str = "", password: str = "") -> list[Finding]:
        url = server_for_doctor.url
        if user:
            url = f"redis://{user}:{password}@{urlsplit(url).hostname}:{urlsplit(url).port}/0"
        clients.append(connect(url))
        return server.ask(clients[-1], "doctor")

    yield ask
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def server_for_doctor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server whose settings the tests here may change."""
    with EmbeddedServer(tmp_path_factory.mktemp("doctor"), durable=True) as running:
        yield running


def test_a_sound_server(asked: Callable[..., list[Finding]], server_for_doctor: EmbeddedServer) -> None:
    """A durable server passes every check, and no key is left behind."""
    assert set(verdicts(asked()).values()) == {"ok"}
    with connect(server_for_doctor.url) as client:
        assert client.keys("*") == []


def test_an_evicting_server_without_a_file(
    asked: Callable[..., list[Finding]], server_for_doctor: EmbeddedServer
) -> None:
    """What CONFIG SET changes in a real server is found, and the command that mends it mends it."""
    with connect(server_for_doctor.url) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
        told = verdicts(asked())
        assert (told["eviction"], told["persistence"]) == ("fail", "warn")
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("appendonly", "yes")
        client.config_set("maxmemory", "0")
    assert verdicts(asked())["eviction"] == "ok"


def test_a_user_without_rights(
    asked: Callable[..., list[Finding]], server_for_doctor: EmbeddedServer
) -> None:
    """A user who may not read streams is told so by name of the command, and the mend gives just that right."""
    with connect(server_for_doctor.url) as client:
        client.execute_command(*SETUSER, "app", *RIGHTS, "-xreadgroup", "-publish")
        finding = next(one for one in asked("app", "pw") if one.check == "acl")
        assert finding.verdict == "fail"
        assert finding.said == "The user app may not run XREADGROUP, PUBLISH."
        words = finding.mend.replace("redis-cli ", "").replace("'", "").split()
        client.execute_command(*words)
        assert verdicts(asked("app", "pw"))["acl"] == "ok"


def test_a_user_without_info(asked: Callable[..., list[Finding]], server_for_doctor: EmbeddedServer) -> None:
    """A user who may not run INFO gets a warning in place of what only INFO tells."""
    with connect(server_for_doctor.url) as client:
        client.execute_command(*SETUSER, "shy", *RIGHTS, "-info")
    told = verdicts(asked("shy", "pw"))
    assert told["redis"] == "warn"
    assert told["acl"] == "ok"


# --- the command ------------------------------------------------------------------------------------


def test_the_command_on_a_sound_machine(cli: Any, tmp_path: Path) -> None:
    """Every check is there once at least, nothing fails, and the exit code is 0; a warning does not count."""
    ended = cli("doctor", "--json", env={"DECIBATCH_SPOOL_DIR": str(tmp_path)})
    told = json.loads(ended.stdout)
    checks = {finding["check"] for finding in told["findings"]}
    assert checks >= {
        *(
            "python",
            "packages",
            "mlx",
            "model",
            "limits",
            "inputs",
            "disk",
            "redis",
            "eviction",
            "persistence",
        ),
        *("acl", "clock", "workers", "webhooks", "service"),
    }
    assert [finding for finding in told["findings"] if finding["verdict"] == "fail"] == []
    assert told["sound"] is True
    assert ended.returncode == 0


def test_the_command_names_what_is_wrong(cli: Any) -> None:
    """Without a server and with a model that is not there the exit code is 1, and each has its mend; no password."""
    env = {
        "DECIBATCH_REDIS_URL": "redis://app:hunter2@127.0.0.1:1/0",
        "DECIBATCH_MODELS": '{"mine": "path:/nowhere/at/all"}',
        "DECIBATCH_SERVE": "mine",
    }
    ended = cli("doctor", env=env)
    assert ended.returncode == 1
    assert "fail redis" in ended.stdout
    assert "fail model" in ended.stdout
    assert ended.stdout.count("mend:") >= 2
    assert "hunter2" not in ended.stdout + ended.stderr


def test_every_finding_that_is_not_sound_has_a_mend() -> None:
    """A warning or failure without a way out does not exist: each check's bad findings say what to do."""
    bad = [
        machine.python((3, 9, 0), LINUX, "x86_64", pointer_bits=64),
        machine.packages(["av"]),
        *machine.mlx({"error": "x"}, LINUX),
        *machine.models({"a": "x"}),
        *machine.limits(10, 10**9, 1024**3),
        machine.disk("spool", Path("/x"), 0, writable=True),
        *machine.inputs(("/nowhere/at/all",)),
        server.version({}),
        server.eviction({"maxmemory_policy": "allkeys-lru", "maxmemory": 1}),
        server.persistence({}),
        server.rights(["EVAL"], "app"),
        server.clock(time.time(), 0.0, 0.0),
        server.webhooks(Depth((), 0, 0, 0, webhooks_waiting=2, webhooks_overdue_s=90.0)),
        server.webhooks(Depth((), 0, 0, 0, webhooks_given_up=1)),
    ]
    assert all(finding.verdict != "ok" and finding.mend for finding in bad)
