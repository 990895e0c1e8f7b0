"""``python -m engine.fetch org/name``: fetch a repository of a hub, under a wall-clock limit, before it is needed.

:func:`fetch` runs it in a process of its own, since a download that hangs cannot be stopped otherwise. Nothing
that comes with a job leads here.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from engine.models import BadSource, ModelMissing, ModelSource, repository_folder

PATTERNS = ("*.json", "*.safetensors", "*.npz", "merges.txt", "*.model", "*.mvn")
"""What a folder of Whisper or of another recognizer needs. Nothing that could be run is fetched."""


class FetchFailed(ModelMissing):
    """The hub does not give the repository, or not in time."""

    code = "fetch_failed"


def fetch(source: ModelSource, cache_dir: Path, timeout_s: float) -> Path:
    """Fetch a repository unless it is there, and return its folder. Blocks; for another thread than MLX's.

    :param source: of kind ``hf``.
    :param timeout_s: after which the download is killed.
    :raises BadSource: of another kind.
    :raises FetchFailed: refused, unreachable, or too slow. Only a whole download bears the final name.
    """
    if source.kind != "hf":
        raise BadSource(f"{source} is not on a hub")
    target = repository_folder(cache_dir, source)
    if target.is_dir():
        return target
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = target.with_name(f".partial-{target.name}")
    command = [sys.executable, "-m", "engine.fetch", source.location, "--to", str(scratch)]
    if source.revision:
        command += ["--revision", source.revision]
    try:
        _run(command, timeout_s)
    except subprocess.TimeoutExpired as exc:
        raise FetchFailed(f"{source} was not fetched within {timeout_s:g} s") from exc
    except subprocess.CalledProcessError as exc:
        last = exc.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise FetchFailed(f"{source} could not be fetched: {' '.join(last)[:300]}") from exc
    scratch.rename(target)
    return target


def _run(command: list[str], timeout_s: float) -> None:
    """Run a command in a process group of its own, all of which is killed when the time is up."""
    root = str(Path(__file__).resolve().parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, env=environment
    ) as child:
        try:
            _, stderr = child.communicate(timeout=timeout_s)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
        if child.returncode != 0:
            raise subprocess.CalledProcessError(child.returncode, command, stderr=stderr)


def main() -> int:
    """Download into a folder; what was there already is kept, so that an interrupted one goes on."""
    parser = argparse.ArgumentParser(prog="python -m engine.fetch", description="Fetch a model from a hub.")
    parser.add_argument("repository")
    parser.add_argument("--revision")
    parser.add_argument("--to", required=True)
    arguments = parser.parse_args()
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            arguments.repository,
            revision=arguments.revision,
            local_dir=arguments.to,
            allow_patterns=list(PATTERNS),
        )
    except Exception as exc:
        # Whatever the hub's client raises ends here as one line for the caller.
        sys.stderr.write(f"{type(exc).__name__}: {exc}".replace("\n", " ") + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
