import errno
import io
import socket

import pytest

from worker import outbound
from worker.media.fetch import fetch
from worker.media.types import MediaError, MediaLimits


def get(url, **limits):
    into = io.BytesIO()
    assert fetch(url, into, MediaLimits(**limits)) == len(into.getvalue())
    return into.getvalue()


def failure(url, **limits):
    with pytest.raises(MediaError) as caught:
        get(url, **limits)
    assert "secret" not in caught.value.message
    return caught.value.code, caught.value.retryable


@pytest.mark.parametrize("path", ["/audio", "/moved", "/audio?token=secret", "/a b/../é", ""])
def test_a_file_is_fetched_whole(web, path):
    """The body arrives byte for byte, through a redirect, a query or odd characters too."""
    assert get(web.url + path.replace(" ", "%20")) == web.body


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (404, ("input_not_found", False)),
        (410, ("input_not_found", False)),
        (403, ("fetch_failed", False)),
        (429, ("fetch_failed", True)),
        (500, ("fetch_failed", True)),
        (503, ("fetch_failed", True)),
    ],
)
def test_a_status_decides_whether_to_try_again(web, status, outcome):
    """What is gone is final; what is broken for now is not."""
    assert failure(f"{web.url}/{status}?token=secret") == outcome


@pytest.mark.parametrize("path", ["ftp", "file"])
def test_a_redirect_cannot_leave_the_allowed_schemes(web, path):
    """A server cannot send the worker to another protocol or to a local file."""
    assert failure(f"{web.url}/{path}") == ("url_not_allowed", False)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/a",
        "file:///etc/passwd",
        "/etc/passwd",
        "http://",
        "http://user:secret@host/",
        "http://[1/",
        "http://h:99999/",
        "http://a\nb/",
        "http://127.0.0.1/a b",
    ],
)
def test_a_url_that_is_not_allowed_is_never_opened(url):
    """Other schemes, passwords in the URL and malformed ones are final."""
    assert failure(url) == ("url_not_allowed", False)


def test_https_may_not_turn_into_http():
    """A redirect that drops the encryption is refused."""
    from worker.media.fetch import _checked

    with pytest.raises(MediaError, match="from https to http"):
        _checked("http://host/", MediaLimits(), True)


def test_schemes_can_be_narrowed(web):
    """Where https alone is allowed, http is not."""
    assert failure(web.url + "/audio", allowed_schemes=("https",)) == ("url_not_allowed", False)


def test_private_hosts_can_be_refused(web):
    """A worker that serves strangers does not look into its own network for them."""
    assert failure(web.url + "/audio", allow_private_hosts=False) == ("url_not_allowed", False)


def test_a_redirect_to_a_private_host_is_refused(web, monkeypatch):
    """Each hop is judged by itself: a public server cannot send the worker into its own network."""
    seen = []

    def judge(address):
        seen.append(address)
        return len(seen) == 1

    monkeypatch.setattr(outbound, "is_public", judge)
    assert failure(web.url + "/moved", allow_private_hosts=False) == ("url_not_allowed", False)
    assert len(seen) == 2


def test_redirects_end(web):
    """A redirect to itself is given up."""
    assert failure(web.url + "/loop") == ("fetch_failed", False)


def test_a_stated_length_over_the_limit_is_refused(web):
    """A terabyte is refused before its first byte."""
    assert failure(web.url + "/huge") == ("too_large", False)


def test_a_body_without_end_is_stopped(web):
    """Where no length is stated, bytes are counted."""
    assert failure(web.url + "/endless", max_bytes=1 << 20) == ("too_large", False)


def test_a_body_that_ends_early_is_tried_again(web):
    """A lost connection does not pass for a short file."""
    assert failure(web.url + "/short") == ("fetch_failed", True)


def test_a_server_that_falls_silent_is_left(web):
    """The read time-out ends a download that hangs."""
    assert failure(web.url + "/hang", read_timeout_s=0.2) == ("fetch_failed", True)


def test_nobody_there_is_tried_again():
    """A refused connection may be a restart."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert failure(f"http://127.0.0.1:{unused.getsockname()[1]}/") == ("fetch_failed", True)


def test_a_full_disk_is_not_taken_for_a_lost_connection(web):
    """An error of the file goes through as what it is."""

    class Full(io.BytesIO):
        name = "spool"

        def write(self, _data):
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="No space left") as caught:
        fetch(web.url + "/audio", Full(), MediaLimits())
    assert caught.value.errno == errno.ENOSPC
