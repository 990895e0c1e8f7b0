"""The package that users import, and the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import decibatch

ROOT = Path(decibatch.__file__).resolve().parent.parent


def python(
    *arguments: str, first: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(folder) for folder in (first, ROOT) if folder is not None)
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


def test_every_name_is_there() -> None:
    """Each public name can be had, and is listed."""
    for name in decibatch.__all__:
        assert getattr(decibatch, name) is not None
    assert set(decibatch.__all__) <= set(dir(decibatch))


def test_types_and_names_agree() -> None:
    """The names that a type checker sees are those that are loaded when used."""
    loaded = {name for names in decibatch._HOMES.values() for name in names} | {"__version__"}
    assert loaded == set(decibatch.__all__)
    source = Path(decibatch.__file__).read_text("utf-8")
    checked = source[source.index("if TYPE_CHECKING:") : source.index("_HOMES")]
    assert all(f" {name}" in checked for name in loaded)
    assert Path(decibatch.__file__).with_name("py.typed").exists()


def test_an_unknown_name() -> None:
    """A name that is not there is an AttributeError."""
    assert not hasattr(decibatch, "nonsense")


def test_importing_is_light() -> None:
    """Importing the client loads neither what a worker needs nor what only using it needs."""
    code = "import sys; from decibatch import Client; print(*sys.modules)"
    loaded = set(python("-c", code).stdout.split())
    assert "queueing.client" in loaded
    heavy = {
        "mlx",
        "av",
        "soundfile",
        "numpy",
        "rq",
        "pydantic_settings",
        "pydantic",
        "redis",
        "click",
        "rich",
        "asyncio",
    }
    assert loaded & heavy == set()


def test_using_a_client_is_light() -> None:
    """Making a client loads redis and pydantic and nothing that a worker needs."""
    code = "import sys; from decibatch import Client; Client().close(); print(*sys.modules)"
    loaded = set(python("-c", code).stdout.split())
    assert {"redis", "pydantic"} <= loaded
    assert loaded & {"mlx", "av", "soundfile", "numpy", "rq", "pydantic_settings", "click", "rich"} == set()


def test_the_environment_is_not_read_at_import() -> None:
    """A setting that makes no sense does not disturb an import."""
    done = python("-c", "from decibatch import Client, AsyncClient; Client()", DECIBATCH_REDIS_URL="nonsense")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_foreign_package(tmp_path: Path) -> None:
    """Another distribution's package in place of ours is named in one sentence, and the exit code is 2."""
    foreign = tmp_path / "ops"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("raise SystemExit('somebody else ran')\n", "utf-8")
    done = python("-P", "-m", "decibatch", "--help", first=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert str(foreign) in done.stderr
    assert "virtual environment" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_our_own_packages() -> None:
    """In a sound installation nothing is foreign."""
    done = python("-c", "from decibatch.__main__ import foreign_package; print(foreign_package())")
    assert done.stdout.strip() == "None"
