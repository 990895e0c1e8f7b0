"""Opening an input so that nothing but a regular, readable, non-empty file of bounded size gets through."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from pathlib import Path

from worker.media.types import MediaError


def open_regular(
    path: str, max_bytes: int, roots: tuple[str, ...] | None = None, *, name: str | None = None
) -> int:
    """A descriptor at the start of the file. Raises MediaError.

    The kind is asked before opening, since opening a device can act on it, and again on the descriptor,
    since the name may have changed hands. O_NONBLOCK keeps a FIFO from holding the process.

    :param roots: folders under which the file must lie when all symbolic links are resolved. Asked of the path
        before anything else, so that the answer tells nothing of what lies outside, and of the open descriptor.
    :param name: what messages call the file; None for its base name.
    """
    name = shown_name(path) if name is None else name
    if not Path(path).is_absolute() or "\0" in path:
        raise MediaError("input_not_found", "The path of the input must be absolute.")
    try:
        if roots is not None:
            path = os.path.realpath(path)
            _require_within(path, roots, name)
        _require_regular(os.stat(path).st_mode, name)  # noqa: PTH116 - beside os.open and os.fstat
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as exc:
        raise _as_media_error(exc, name) from exc
    try:
        info = os.fstat(fd)
        _require_regular(info.st_mode, name)
        if roots is not None:
            _require_within(_path_of(fd), roots, name)
        check_size(info.st_size, max_bytes, name)
    except OSError as exc:
        os.close(fd)
        raise _as_media_error(exc, name) from exc
    except MediaError:
        os.close(fd)
        raise
    return fd


def _require_within(path: str, roots: tuple[str, ...], name: str) -> None:
    # A root may itself be a link, as /tmp is on macOS.
    if any(Path(path).is_relative_to(os.path.realpath(root)) for root in roots):
        return
    why = "lies outside of the folders that DECIBATCH_INPUT_ROOTS names" if roots else "is a path"
    hint = (
        ""
        if roots
        else ", and this worker reads no files: DECIBATCH_INPUT_ROOTS names no folder; send the bytes"
    )
    raise MediaError("input_not_allowed", f"The input ({name}) {why}{hint}.")


def _path_of(fd: int) -> str:
    """The path of an open file as the system knows it. Raises OSError."""
    if sys.platform == "darwin":
        # F_GETPATH of sys/fcntl.h; its buffer is MAXPATHLEN.
        return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115


def shown_name(path: str) -> str:
    """The base name as it may stand in a message."""
    return "".join(c if c.isprintable() else "?" for c in Path(path).name)[:100]


def check_size(size: int, max_bytes: int, name: str) -> None:
    """Raises MediaError where an input of `size` bytes is empty or too large."""
    if size == 0:
        raise MediaError("empty_input", f"The input ({name}) is empty (0 bytes).")
    if size > max_bytes:
        raise MediaError("too_large", f"The input ({name}) has {size} bytes; the limit is {max_bytes}.")


def _require_regular(mode: int, name: str) -> None:
    if not stat.S_ISREG(mode):
        raise MediaError("input_not_file", f"The input ({name}) is not a regular file.")


def _as_media_error(exc: OSError, name: str) -> MediaError:
    if isinstance(exc, FileNotFoundError | NotADirectoryError):
        return MediaError("input_not_found", f"There is no such file ({name}).")
    if isinstance(exc, PermissionError):
        return MediaError("input_unreadable", f"The worker may not read the input ({name}).")
    reason = exc.strerror or type(exc).__name__
    # A disk or network file system that fails now may answer later.
    return MediaError("input_unreadable", f"Reading the input ({name}) failed: {reason}.", retryable=True)
