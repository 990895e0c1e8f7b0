import errno
import os
import socket

import pytest

from worker.media import source
from worker.media.child import _storage_error
from worker.media.types import MediaError, MediaLimits, MediaRequest


def code(path, max_bytes=1000):
    with pytest.raises(MediaError) as caught:
        source.open_regular(str(path), max_bytes)
    return caught.value.code, caught.value.retryable


def test_a_regular_file_opens(tmp_path):
    """An ordinary file is handed over at its start."""
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    fd = source.open_regular(str(path), 3)
    assert os.read(fd, 10) == b"abc"
    os.close(fd)


@pytest.mark.parametrize("path", ["relative.wav", "", "/nowhere/a.wav", "/etc/passwd/a.wav", "/etc/pass\0wd"])
def test_what_is_not_there_is_not_found(path):
    """Missing files and paths that are not absolute are final."""
    assert code(path) == ("input_not_found", False)


def test_folders_devices_pipes_and_sockets_are_no_files(tmp_path):
    """Nothing but a regular file is opened, and a FIFO without a writer holds nobody."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "socket"))
        for path in (tmp_path, tmp_path / "fifo", tmp_path / "socket", tmp_path / "link", "/dev/zero"):
            assert code(path) == ("input_not_file", False)


def test_a_file_that_becomes_a_fifo_while_it_is_opened_holds_nobody(tmp_path, monkeypatch):
    """The kind is checked again on what was opened."""
    path = tmp_path / "a"
    os.mkfifo(path)
    checks = []
    require = source._require_regular
    monkeypatch.setattr(
        source, "_require_regular", lambda *a: checks.append(a) if not checks else require(*a)
    )
    assert code(path) == ("input_not_file", False)


@pytest.mark.parametrize(
    ("error", "retryable"), [(errno.EACCES, False), (errno.EPERM, False), (errno.EIO, True)]
)
def test_a_file_that_may_not_be_read_says_so(tmp_path, monkeypatch, error, retryable):
    """Permission is final; a failing disk is not."""
    path = tmp_path / "a"
    path.write_bytes(b"abc")

    def refuse(*_args):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(source.os, "open", refuse)
    assert code(path) == ("input_unreadable", retryable)


def test_an_empty_file_is_empty(tmp_path):
    """0 bytes have a code of their own."""
    (tmp_path / "a").touch()
    assert code(tmp_path / "a") == ("empty_input", False)


def test_a_file_over_the_limit_is_too_large(tmp_path):
    """The limit itself is allowed, one byte more is not."""
    (tmp_path / "a").write_bytes(bytes(1001))
    assert code(tmp_path / "a") == ("too_large", False)
    os.close(source.open_regular(str(tmp_path / "a"), 1001))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errno.ENOSPC, ("spool_full", True)),
        (errno.EFBIG, ("too_large", False)),
        (errno.EIO, ("input_unreadable", True)),
    ],
)
def test_an_error_of_the_disk_has_a_code(error, outcome):
    """A full disk is waited for; a file over the process's limit is final."""
    got = _storage_error(OSError(error, os.strerror(error)), "a")
    assert (got.code, got.retryable) == outcome


@pytest.mark.parametrize(
    "sources", [{}, {"path": "/a", "url": "http://a"}, {"url": "http://a", "data": b"a"}]
)
def test_a_request_names_exactly_one_source(sources):
    """None or two are a mistake of the caller."""
    with pytest.raises(ValueError, match="exactly one"):
        MediaRequest("job", **sources)


@pytest.mark.parametrize(
    "limits", [{"timeout_s": 0}, {"max_bytes": -1}, {"max_chunk_s": 31}, {"max_chunk_s": 1}]
)
def test_limits_that_make_no_sense_are_refused(limits):
    """A limit of nothing, or a piece that no window holds, is a mistake of the caller."""
    with pytest.raises(ValueError, match="must"):
        MediaLimits(**limits)


def test_what_was_sent_is_not_called_by_the_name_of_a_file(tmp_path):
    """A file of ours that holds what was sent is named in messages by what it is."""
    (tmp_path / "ours.input").write_bytes(b"")
    with pytest.raises(MediaError, match=r"The input \(inline\) is empty"):
        source.open_regular(str(tmp_path / "ours.input"), 10, name="inline")
