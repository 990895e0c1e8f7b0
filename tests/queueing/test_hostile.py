"""Nothing that a job says reaches a shell, a format string, an import or the path of a model."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueing.errors import InvalidJob
from queueing.job import encode_job, parse_job
from queueing.keys import Keys
from tests.support.bench import make_job
from worker.media.source import open_regular
from worker.media.types import MediaError

ROOT = Path(__file__).parents[2]
FORBIDDEN = {
    *("eval", "exec", "compile", "__import__", "system", "popen", "execv", "execve", "spawnl"),
    *(
        "loads_pickle",
        "create_subprocess_shell",
        "import_module",
        "import_attribute",
        "run_path",
        "run_module",
    ),
}
EXCUSED = {"worker/media/vad.py": {"import_module"}, "queueing/scripts.py": {"eval"}}
"""One imports one of two packages that it names; the other is Redis' EVAL of our own scripts."""


def with_field(name: str, value: object) -> str:
    return json.dumps({**json.loads(encode_job(make_job())), name: value})


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["model", "tenant"]), st.text(min_size=1, max_size=70))
def test_a_name_is_a_name(field: str, value: str) -> None:
    """A model or tenant that is taken holds nothing that a key, a path, a glob or a shell would read."""
    try:
        job = parse_job(with_field(field, value))
    except InvalidJob:
        return
    kept = getattr(job, field)
    assert kept.isascii() and not set(kept) & set("/\\:{}*?[]$`'\"|&;<>()!~ \n\r\t\0")
    assert kept[0].isalnum() and len(kept) <= 64
    assert Keys().stream(job.model, job.lane).startswith("decibatch:{main}:stream:")


@pytest.mark.parametrize(
    "model",
    ["../etc", "/srv/m", "path:/srv/m", "hf:org/name", "ct2:/x", "package:os", "a/b", "..", ".", "", "a\n"],
)
def test_no_job_names_a_path_to_a_model(model: str) -> None:
    """What a source of a model looks like is no name of a model."""
    with pytest.raises(InvalidJob):
        parse_job(with_field("model", model))


def calls(path: Path) -> set[str]:
    """Names that are called in a file, and marks for what is dangerous by its arguments."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            of = called.value if isinstance(called, ast.Attribute) else None
            if isinstance(of, ast.Name) and of.id in ("re", "mx"):
                continue  # re.compile, mx.compile: neither runs text
            if isinstance(of, ast.Name) and of.id in ("pickle", "marshal") and name.startswith("load"):
                name = "loads_pickle"
            if name == "format" and not isinstance(of, ast.Constant):
                name = "format of a variable"
            if any(key.arg == "shell" for key in node.keywords):
                name = "shell"
            found.add(name)
    return found


def test_no_code_that_could_run_what_a_job_says() -> None:
    """No file that handles jobs evaluates, imports by name, unpickles, starts a shell, or formats by a variable."""
    dangerous = FORBIDDEN | {"shell", "format of a variable"}
    for package in ("queueing", "worker"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            assert calls(path) & dangerous <= EXCUSED.get(name, set()), name
    # RQ's pickles are loaded by RQ's own serializer, and in one place.
    where = [
        path.name for path in (ROOT / "queueing").rglob("*.py") if "DefaultSerializer" in path.read_text()
    ]
    assert where == ["rq_jobs.py"]


def test_the_search_for_dangerous_code_finds_it(tmp_path: Path) -> None:
    """Each of the things that are looked for is found where it is."""
    (tmp_path / "bad.py").write_text(
        "import os, pickle, subprocess\nos.system('x')\npickle.loads(b'')\neval('1')\n"
        "subprocess.run('x', shell=True)\nname.format(1)\n'{}'.format(1)\n"
    )
    assert calls(tmp_path / "bad.py") == {
        *("system", "loads_pickle", "eval", "shell", "format of a variable", "format")
    }


def test_directives_are_text() -> None:
    """Format directives and commands in a path or a prompt come back as they were."""
    text = "{0.__class__}%s%n$(touch x)`id`.wav"
    with pytest.raises(MediaError) as caught:
        open_regular(f"/nowhere/{text}", 1000)
    assert text in caught.value.message
    job = parse_job(with_field("options", {"prompt": text}))
    assert job.options.prompt == text and parse_job(encode_job(job)) == job
