"""The health server, metrics and ``decibatch top``, over a real worker with the stand-in engine."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from rich.console import Console

from ops import top
from ops.cli import COMMANDS
from ops.health import WorkerHealth
from ops.metrics import SECONDS, Metrics
from queueing.client import Client
from queueing.protocol import Depth, LaneDepth
from tests.ops.stand_in import clean_environment
from tests.support.watched import LANES, Watched, fetch
from worker.facts import ChunkHeard, EngineEnded, LevelChanged, StepRan
from worker.governor import Level

ROOT = Path(__file__).parents[2]


# --- the server -------------------------------------------------------------------------------------


def test_live_and_ready(watched: Watched) -> None:
    """A worker that works answers both with 200, and gives no reason."""
    assert fetch(watched.address, "/livez")[0] == 200
    status, told = watched.ready()
    assert (status, told["ready"], told["reasons"]) == (200, True, [])


def test_it_listens_on_loopback(watched: Watched) -> None:
    """Nobody on the network reaches it, unless a setting says so."""
    assert watched.address.startswith("127.0.0.1:")


def test_it_only_answers_questions(watched: Watched) -> None:
    """HEAD has no body, other methods and paths are refused."""
    assert fetch(watched.address, "/status", "HEAD")[::2] == (200, "")
    assert fetch(watched.address, "/status", "POST")[0] == 405
    assert fetch(watched.address, "/../etc/passwd")[0] == 404


def test_the_status_is_the_health_and_the_queue(watched: Watched) -> None:
    """/status holds what the worker says in Redis, and what waits."""
    told = watched.status()
    assert watched.worker.health().keys() <= told.keys()
    assert [lane["lane"] for lane in told["queue"]["lanes"]] == list(LANES)


def test_nothing_that_was_said_is_told(watched: Watched) -> None:
    """Neither status nor metrics nor log hold a path or a word of the text (invariant I9)."""
    everything = fetch(watched.address, "/status")[2] + fetch(watched.address, "/metrics")[2]
    everything += watched.worker.log.read_text()
    with Client(watched.url) as client:
        text = client.result(client.submit(watched.worker.folder / "clip.wav"), timeout=30).text
    everything += watched.worker.log.read_text() + fetch(watched.address, "/status")[2]
    assert len(text) == 12
    assert text not in everything
    assert "clip.wav" not in everything


def test_the_log_is_json(watched: Watched) -> None:
    """Where nobody reads along, each line of the log is an object with time, level, logger and event."""
    lines = [json.loads(line) for line in watched.worker.log.read_text().splitlines()]
    assert all({"timestamp", "level", "logger", "event"} <= line.keys() for line in lines)


# --- metrics ----------------------------------------------------------------------------------------


def selectors(node: Any) -> list[Any]:
    """Every vector selector in a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        return [node]
    if isinstance(node, promql_parser.MatrixSelector):
        return [node.vector_selector]
    found = []
    for name in ("lhs", "rhs", "expr", "param"):
        if getattr(node, name, None) is not None:
            found += selectors(getattr(node, name))
    for argument in getattr(node, "args", None) or ():
        found += selectors(argument)
    return found


def rules() -> list[tuple[str, str]]:
    told = yaml.safe_load((ROOT / "ops" / "alerts.yml").read_text("utf-8"))
    return [(rule["alert"], rule["expr"]) for group in told["groups"] for rule in group["rules"]]


def panels() -> list[tuple[str, str]]:
    told = json.loads((ROOT / "ops" / "grafana.json").read_text("utf-8"))
    named = [(panel["title"], target["expr"]) for panel in told["panels"] for target in panel["targets"]]
    return [
        (title, expr.replace("$__rate_interval", "5m").replace("$instance", ".*")) for title, expr in named
    ]


RULE_FIELDS = {"alert", "expr", "for", "labels", "annotations"}
EXPRESSIONS = [*rules(), *panels()]


@pytest.mark.parametrize(
    ("title", "expr"), EXPRESSIONS, ids=[f"{n}-{t}" for n, (t, _) in enumerate(EXPRESSIONS)]
)
def test_every_expression_has_its_series(watched: Watched, title: str, expr: str) -> None:
    """Each metric in a rule or a panel is there in a real scrape, with the labels that it is chosen by."""
    scrape = watched.scrape()
    found = selectors(promql_parser.parse(expr))
    assert found
    for selector in found:
        if selector.name == "up":
            continue
        wanted = {
            matcher.name: matcher.value
            for matcher in selector.matchers.matchers
            if matcher.name != "instance"
        }
        series = scrape.get(selector.name, {})
        assert any(wanted.items() <= dict(labels).items() for labels in series), (selector.name, wanted)


def test_the_rules_are_rules_and_say_what_to_do() -> None:
    """Every rule has the fields that Prometheus takes, a summary, and an action whose commands exist; promtool agrees,
    where it is installed."""
    path = ROOT / "ops" / "alerts.yml"
    (group,) = yaml.safe_load(path.read_text("utf-8"))["groups"]
    assert group.keys() == {"name", "rules"}
    assert len(group["rules"]) >= 15
    for rule in group["rules"]:
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys() <= RULE_FIELDS
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("page", "warn", "info")
        assert rule["annotations"].keys() == {"summary", "action"}
        for name in re.findall(r"\bdecibatch ([a-z]+)", rule["annotations"]["action"]):
            assert name in COMMANDS
    tool = shutil.which("promtool")
    if tool is not None:
        subprocess.run([tool, "check", "rules", path], check=True)


def test_jobs_are_counted_by_lane(watched: Watched) -> None:
    """Eleven jobs over three lanes are four, four and three observations of both latencies."""
    scrape = watched.scrape()
    for name in ("decibatch_job_seconds_count", "decibatch_first_text_seconds_count"):
        counts = {dict(labels)["lane"]: value for labels, value in scrape[name].items()}
        assert counts["interactive"] == 4
        assert counts["bulk"] == 3
        assert counts["normal"] >= 4


def test_first_text_comes_before_the_end(watched: Watched) -> None:
    """The first text of all jobs together took less time than the jobs did."""
    scrape = watched.scrape()
    lane = (("lane", "interactive"),)
    assert 0 < scrape["decibatch_first_text_seconds_sum"][lane] < scrape["decibatch_job_seconds_sum"][lane]


def test_padding_is_what_is_beyond_the_audio(watched: Watched) -> None:
    """Two seconds of speech in a window of 16 are an eighth of audio; the canary's four in 16 a quarter."""
    encoded = {
        dict(labels)["what"]: value
        for labels, value in watched.scrape()["decibatch_encoded_seconds_total"].items()
    }
    steps = [step for step in watched.worker.steps() if step["kind"] == "encode"]
    assert encoded["audio"] + encoded["padding"] == pytest.approx(
        sum(s["window_s"] * len(s["rows"]) for s in steps)
    )
    rows = [row for step in steps for row in step["rows"]]
    ours = sum(row.startswith("canary/") for row in rows)
    assert encoded["audio"] == pytest.approx(4.0 * ours + 2.0 * (len(rows) - ours), rel=0.05)


def test_memory_is_told_against_its_lines(watched: Watched) -> None:
    """The three lines stand at 80, 90 and 100 % of the budget."""
    scrape = watched.scrape()
    budget = scrape["decibatch_memory_bytes"][("kind", "budget"),]
    lines = {dict(labels)["level"]: value for labels, value in scrape["decibatch_memory_line_bytes"].items()}
    assert lines == pytest.approx({"queue": 0.8 * budget, "shrink": 0.9 * budget, "pause": budget})


def test_what_is_unknown_is_not_a_number(watched: Watched) -> None:
    """Where the GPU cannot be read there is a series, and its value is NaN: no rule fires on it."""
    if sys.platform != "darwin":
        assert math.isnan(watched.scrape()["decibatch_gpu_ratio"][()])


def test_chunks_are_counted_by_their_window(watched: Watched) -> None:
    """Every chunk that got its text counts, and none of the stand-in's has been tried again."""
    chunks = watched.scrape()["decibatch_chunks_total"]
    assert chunks[("window", "fitting"),] >= 1
    assert chunks[("window", "widened"),] == 0


def test_the_failure_is_counted_by_its_code(watched: Watched) -> None:
    """A job that failed counts under its outcome and its code."""
    scrape = watched.scrape()
    assert scrape["decibatch_failures_total"][("code", "input_not_found"),] == 1
    assert scrape["decibatch_jobs_total"][("outcome", "failed"),] == 1


def test_webhooks_are_counted_by_what_became_of_them(watched: Watched) -> None:
    """One that was taken, and one whose receiver is gone: counted for the worker, and listed for the queue."""
    scrape = watched.scrape()
    counts = {dict(labels)["outcome"]: n for labels, n in scrape["decibatch_webhooks_total"].items()}
    assert counts == {"delivered": 1, "retried": 0, "given_up": 1}
    assert scrape["decibatch_queue_webhooks_given_up"][()] == 1
    assert scrape["decibatch_queue_webhooks_waiting"][()] == 0
    assert scrape["decibatch_queue_webhooks_overdue_seconds"][()] == 0


def test_jobs_of_rq_are_counted_by_what_became_of_them(watched: Watched) -> None:
    """One that was done, and one that named what there is not: bridged, finished, refused; none is left open."""
    scrape = watched.scrape()
    counts = {dict(labels)["outcome"]: n for labels, n in scrape["decibatch_rq_jobs_total"].items()}
    assert counts == {
        "bridged": 1,
        "refused": 1,
        "put_back": 0,
        "finished": 1,
        "failed": 0,
        "cancelled": 0,
        "overtaken": 0,
    }
    assert (scrape["decibatch_rq_up"][()], scrape["decibatch_queue_rq_open_jobs"][()]) == (1, 0)


def test_a_worker_that_does_neither_has_the_series_all_the_same(watched: Watched) -> None:
    """Without webhooks and bridge the counts stand at 0, so that rules have their series, and up is unknown."""
    metrics = Metrics()
    metrics.watch(lambda: {**watched.status(), "webhooks": None, "rq": None})
    told = metrics.scrape().decode()
    assert 'decibatch_webhooks_total{outcome="given_up"} 0.0' in told
    assert 'decibatch_rq_jobs_total{outcome="finished"} 0.0' in told
    assert "decibatch_rq_up NaN" in told


def test_levels_exits_and_slots_are_counted() -> None:
    """What seldom happens is counted as it is told: changes of level, ends of the engine, empty slots."""
    metrics = Metrics()
    metrics.note(LevelChanged(Level.OPEN, Level.QUEUE))
    metrics.note(EngineEnded("crashed"))
    metrics.note(StepRan("decode", 1.0, 5, 3, 4, 0.0, 0.0, again=False))
    for widened in (False, True, False):
        metrics.note(ChunkHeard(widened))
    told = metrics.scrape().decode()
    assert 'decibatch_chunks_total{window="fitting"} 2.0' in told
    assert 'decibatch_chunks_total{window="widened"} 1.0' in told
    assert 'decibatch_level_transitions_total{to="queue"} 1.0' in told
    assert "decibatch_engine_exits_total 1.0" in told
    assert 'decibatch_slot_steps_total{state="taken"} 15.0' in told
    assert 'decibatch_slot_steps_total{state="empty"} 5.0' in told


def test_buckets_are_fine_enough_for_a_p99() -> None:
    """Up to a minute no bound is more than 1.67 times the one before it, so a quantile is off by no more."""
    minute = [bound for bound in SECONDS if bound <= 60]
    assert list(SECONDS) == sorted(SECONDS)
    assert all(after / before <= 1.67 for before, after in itertools.pairwise(minute))
    assert minute[0] <= 0.025


# --- top --------------------------------------------------------------------------------------------


def drawn(seen: top.Snapshot, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(top.picture(seen))
    return console.export_text()


def test_top_shows_a_real_worker(watched: Watched) -> None:
    """Lanes, worker, memory, batches, latencies and the failure are in the picture, from Redis alone."""
    text = drawn(top.read(watched.url, "main"))
    for word in (*LANES, "studio", "ready", "memory", "slots", "padding", "input_not_found", "jobs/min"):
        assert word in text
    assert "1 of 1 worker ready" in text


def test_top_and_health_show_webhooks_and_rq(watched: Watched) -> None:
    """What was told to others stands with the worker, what was given up at the head, and both in `health`."""
    counts = ("1 delivered  1 given up", "1 bridged  1 refused  1 finished")
    text = drawn(top.read(watched.url, "main"))
    assert f"webhooks {counts[0]}" in text
    assert f"rq       {counts[1]}" in text
    assert "webhooks 0 waiting 1 given up" in text
    command = [sys.executable, "-m", "decibatch", "health"]
    env = clean_environment(DECIBATCH_REDIS_URL=watched.url)
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert f"studio  webhooks: {counts[0]}" in ran.stdout
    assert f"studio  rq: {counts[1]}" in ran.stdout


def test_top_leaves_names_as_they_are() -> None:
    """The name of a reason loses its underscores; a setting that stands behind it keeps them."""
    fields = {"warnings": ["webhooks_overdue (1 wait; is DECIBATCH_WEBHOOK_SECRET set?)"]}
    seen = top.Snapshot(
        "main", (WorkerHealth("w", True, (), 0.0, 0.0, fields),), Depth((), 0, 0, 0), time.time()
    )
    assert "webhooks overdue (1 wait; is DECIBATCH_WEBHOOK_SECRET set?)" in drawn(seen)


def test_top_fits_eighty_columns(watched: Watched) -> None:
    """No line is longer than 80 columns, and none is wrapped: a wider terminal shows the same lines."""
    seen = top.read(watched.url, "main")
    narrow, wide = drawn(seen).splitlines(), drawn(seen, 200).splitlines()
    assert max(len(line.rstrip()) for line in narrow) <= 80
    assert [line.rstrip() for line in narrow] == [line.rstrip() for line in wide]


def test_top_once(watched: Watched, tmp_path: Path) -> None:
    """The command prints one look where it is no terminal, and writes one as a picture."""
    env = clean_environment(DECIBATCH_REDIS_URL=watched.url)
    picture = tmp_path / "top.svg"
    command = [sys.executable, "-m", "decibatch", "top"]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert "studio" in ran.stdout
    subprocess.run([*command, "--svg", picture], env=env, timeout=60, check=True)
    text = picture.read_text("utf-8")
    assert "<svg" in text
    assert "url(http" not in text


@pytest.mark.parametrize(
    "fields", [{}, {"memory": None}, {"steps": {}, "batch_rows": {}, "cores": {}}, {"lanes": {"normal": {}}}]
)
def test_top_bears_a_worker_of_another_version(fields: dict[str, Any]) -> None:
    """What a worker does not tell is left out or shown as a dash."""
    depth = Depth(tuple(LaneDepth(lane, 0, 0, 0.0) for lane in LANES), 0, 0, 0)
    seen = top.Snapshot("main", (WorkerHealth("old", True, (), 0.0, 0.0, fields),), depth, time.time())
    assert "old" in drawn(seen)


def test_long_names_crowd_out_nothing() -> None:
    """With the long id of a job of RQ and a worker of a long name, time, outcome and code stay whole at 80 columns, and
    the id can be read to its end."""
    job = "rq-" + "0123456789abcdef" * 2 + "fedcba98"
    failures = [{"at_ms": 0, "job": job, "outcome": "handback", "code": "url_not_allowed"}]
    fields = {"failures": failures}
    worker = WorkerHealth("studio-on-the-second-floor", True, (), 0.0, 0.0, fields)
    told = drawn(top.Snapshot("main", (worker,), Depth((), 0, 0, 0), 0.0))
    table = told[told.index("failed") :].splitlines()[1:]
    assert time.strftime("%H:%M:%S", time.localtime(0)) in table[0]
    assert "handback" in table[0] and "url_not_allowed" in table[0]
    assert "".join(line[table[0].index("rq-") :].strip() for line in table) == job
    assert max(len(line.rstrip()) for line in table) <= 80


def test_top_escapes_what_others_wrote() -> None:
    """Names and codes are shown as they are, never taken as markup."""
    depth = Depth(tuple(LaneDepth(lane, 0, 0, 0.0) for lane in LANES), 0, 0, 0)
    failures = [{"at_ms": 0, "job": "[red]j[/]", "outcome": "failed", "code": "[bold]x"}]
    seen = top.Snapshot(
        "main", (WorkerHealth("[b]w", False, ("[i]",), 0.0, 0.0, {"failures": failures}),), depth, 0.0
    )
    text = drawn(seen)
    for written in ("[red]j[/]", "[bold]x", "[b]w", "[i]"):
        assert written in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.44, "0.4 s"), (12.0, "12 s"), (180.0, "3 min"), (9000.0, "2.5 h")]
)
def test_ages_are_short(value: float, text: str) -> None:
    """Ages have the unit that fits them."""
    assert top.seconds(value) == text


def test_the_memory_bar_shows_its_lines() -> None:
    """The marks stand at 80, 90 and 100 % of the bar, and it fills up to the share."""
    bar = top.memory_bar(0.5, [0.8, 0.9, 1.0], "open").plain
    assert len(bar) == top.BAR + 2
    assert bar.count("|") == 3
    assert bar.count("■") == top.BAR // 2
