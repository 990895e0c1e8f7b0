"""Files outside of the folders that are allowed stay closed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.media import source
from worker.media.types import MediaError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder ``in`` that is allowed and one ``out`` that is not, and ways from one to the other."""
    for name in ("in", "out", "in-beside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.wav").write_bytes(b"abc")
    (tmp_path / "in" / "link.wav").symlink_to(tmp_path / "out" / "a.wav")
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "own.wav").symlink_to("a.wav")
    (tmp_path / "out" / "back.wav").symlink_to(tmp_path / "in" / "a.wav")
    return tmp_path


def opened(path: Any, *roots: Any) -> str:
    """What becomes of opening a path: "open", or the code of the error."""
    try:
        fd = source.open_regular(str(path), 1000, tuple(map(str, roots)))
    except MediaError as exc:
        assert not exc.retryable
        return exc.code
    os.close(fd)
    return "open"


@pytest.mark.parametrize("path", ["in/a.wav", "in/own.wav", "in/../in/a.wav", "out/back.wav"])
def test_what_lies_within_opens(tree: Path, path: str) -> None:
    """A file below a root, by whatever way."""
    assert opened(tree / path, tree / "in") == "open"


@pytest.mark.parametrize(
    "path",
    ["out/a.wav", "in/../out/a.wav", "in/link.wav", "in/folder/a.wav", "in-beside/a.wav", "in/folder/none"],
)
def test_what_lies_outside_stays_closed(tree: Path, path: str) -> None:
    """Neither dots, nor links, nor a folder whose name begins alike lead out, and nothing tells what is there."""
    assert opened(f"{tree}/{path}", tree / "in") == "input_not_allowed"


def test_without_a_root_no_file_opens(tree: Path) -> None:
    """No folder allowed is no file allowed, and the message says what to do."""
    assert opened(tree / "in" / "a.wav") == "input_not_allowed"
    with pytest.raises(MediaError, match="DECIBATCH_INPUT_ROOTS"):
        source.open_regular(str(tree / "in" / "a.wav"), 1000, ())


def test_the_root_of_all_allows_all(tree: Path) -> None:
    """`/` is any file; a root that is itself a link is the folder it leads to."""
    assert opened(tree / "out" / "a.wav", "/") == "open"
    (tree / "root").symlink_to(tree / "out")
    assert opened(tree / "root" / "a.wav", tree / "root") == "open"


def test_a_link_that_is_swapped_in_the_middle_opens_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open file is asked where it lies, so that a change between check and opening gains nothing."""
    real_open = os.open

    def swap_and_open(path: str, flags: int) -> int:
        victim = tree / "in" / "a.wav"
        victim.unlink()
        victim.symlink_to(tree / "out" / "a.wav")
        return real_open(path, flags)

    monkeypatch.setattr(source.os, "open", swap_and_open)
    assert opened(tree / "in" / "a.wav", tree / "in") == "input_not_allowed"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(
        st.sampled_from(["..", ".", "in", "out", "folder", "link.wav", "a.wav", "", "\u202e", "%2e%2e", "~"]),
        max_size=7,
    )
)
def test_no_path_leads_out(tree: Path, parts: list[str]) -> None:
    """Whatever is put together of dots, links and names: what opens lies within."""
    path = f"{tree}/in/" + "/".join(parts)
    if opened(path, tree / "in") == "open":
        assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(tree / "in"))


def test_the_limit_reaches_the_media_process(
    supervise: Callable[..., Any], make: Callable[..., Path]
) -> None:
    """A supervisor that is given roots refuses a path outside of them, and takes one within."""
    import asyncio

    from worker.media.types import MediaRequest

    inside = make("wav", seconds=1)

    async def run() -> None:
        async with supervise(roots=(str(inside.parent),)) as supervisor:
            done = await supervisor.prepare(MediaRequest("a", path=str(inside)))
            supervisor.discard(done.spool)
            with pytest.raises(MediaError) as caught:
                await supervisor.prepare(MediaRequest("b", path="/etc/hostname"))
            assert caught.value.code == "input_not_allowed"

    asyncio.run(run())
