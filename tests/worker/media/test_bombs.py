"""Small inputs that would become large."""

from __future__ import annotations

import gzip
import io
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.worker.media.test_decode import code
from worker.media.fetch import fetch
from worker.media.types import MediaLimits


def test_a_few_kilobytes_of_hours_are_stopped_on_the_way(tmp_path: Path) -> None:
    """A flac of two hours of silence that states no length is stopped at the limit, not when it has been unpacked."""
    path = tmp_path / "bomb.flac"
    soundfile.write(path, np.zeros(2 * 3600 * 1000, np.int16), 1000, format="FLAC", subtype="PCM_16")
    data = bytearray(path.read_bytes())
    assert len(data) < 50_000
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    path.write_bytes(data)
    assert code(path, max_duration_s=60) == "too_long"


def test_a_compressed_answer_is_not_unpacked() -> None:
    """A server that compresses unasked is taken at its bytes: nothing is inflated, and the limit counts those."""
    bomb = gzip.compress(bytes(20 << 20))

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            pass

        def do_GET(self) -> None:
            assert self.headers["Accept-Encoding"] == "identity"
            self.send_response(200)
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(bomb)))
            self.end_headers()
            self.wfile.write(bomb)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        into = io.BytesIO()
        limits = MediaLimits(max_bytes=len(bomb), allow_private_hosts=True)
        assert fetch(f"http://127.0.0.1:{server.server_port}/", into, limits) == len(bomb)
        thread.join(10)
    assert into.getvalue() == bomb


@pytest.mark.parametrize("kind", ["mp4", "matroska"])
def test_a_header_that_promises_days_is_refused_or_cut_short(tmp_path: Path, kind: str) -> None:
    """A stated length is no reason to allocate: what is not there is not audio, or cut short."""
    heads = {
        "mp4": b"\x00\x00\x00\x18ftypM4A \x00\x00\x00\x00M4A mp42" + b"\x7f\xff\xff\xffmdat",
        "matroska": b"\x1a\x45\xdf\xa3\xff" + b"\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xfe",
    }
    path = tmp_path / f"promise.{kind}"
    path.write_bytes(heads[kind] + bytes(2000))
    assert code(path) in ("not_audio", "truncated_input", "corrupt_audio", "no_audio_stream")
