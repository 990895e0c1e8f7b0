"""Real speech, real containers, a web server on loopback, and a supervisor with real processes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import av
import moonshine_voice
import numpy as np
import psutil
import pytest
import soundfile

from tests.support.worker_process import command_line
from worker.media.supervisor import MediaSupervisor
from worker.media.types import MediaLimits

ASSETS = Path(moonshine_voice.__file__).parent / "assets"

AV_FORMATS = {
    "m4a": ("aac", 44_100, "mp4", {}),
    "faststart.m4a": ("aac", 44_100, "mp4", {"movflags": "faststart"}),
    "fragmented.mp4": (
        "aac",
        48_000,
        "mp4",
        {"movflags": "frag_keyframe+empty_moov", "frag_duration": "500000"},
    ),
    "aac": ("aac", 44_100, "adts", {}),
    "webm": ("libopus", 48_000, "webm", {}),
    "live.webm": ("libopus", 48_000, "webm", {"live": "1"}),
    "opus": ("libopus", 48_000, "ogg", {}),
    "mp3": ("libmp3lame", 44_100, "mp3", {}),
    "bare.mp3": ("libmp3lame", 44_100, "mp3", {"write_xing": "0"}),
    "amr": ("libopencore_amrnb", 8_000, "amr", {}),
    "av.flac": ("flac", 44_100, "flac", {}),
}
"""name: codec, rate, container, container options."""

SF_FORMATS = {
    "wav": ("WAV", "PCM_16"),
    "24.wav": ("WAV", "PCM_24"),
    "float.wav": ("WAV", "FLOAT"),
    "rf64": ("RF64", "PCM_16"),
    "w64": ("W64", "PCM_16"),
    "aiff": ("AIFF", "PCM_16"),
    "au": ("AU", "PCM_16"),
    "caf": ("CAF", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
}


@pytest.fixture(scope="session")
def speech() -> tuple[np.ndarray, int]:
    """12 s of a man reading: int16, mono, 48 kHz."""
    samples, rate = soundfile.read(ASSETS / "two_cities.wav", dtype="int16", frames=12 * 48_000)
    return samples, rate


def encode(path: Path, samples: np.ndarray, rate: int, kind: str) -> Path:
    codec, to_rate, container, options = AV_FORMATS[kind]
    layout = "mono" if codec == "libopencore_amrnb" else "stereo"
    with av.open(str(path), "w", format=container, container_options=options) as out:
        stream = out.add_stream(codec, rate=to_rate, layout=layout)
        resampler = av.AudioResampler(format=stream.format, layout=layout, rate=to_rate)
        for start in range(0, len(samples), 4096):
            # Both channels alike: FFmpeg's own way from mono to stereo takes 3 dB away.
            block = np.repeat(samples[start : start + 4096], 1 if layout == "mono" else 2)
            frame = av.AudioFrame.from_ndarray(block[None], format="s16", layout=layout)
            frame.sample_rate, frame.pts = rate, start
            for ready in resampler.resample(frame):
                out.mux(stream.encode(ready))
        for ready in resampler.resample(None):
            out.mux(stream.encode(ready))
        out.mux(stream.encode(None))
    return path


@pytest.fixture
def make(tmp_path: Path, speech: tuple[np.ndarray, int]) -> Callable[..., Path]:
    """make("webm", seconds=4) -> a file of that kind with real speech."""

    def build(kind: str, seconds: float = 4.0, name: str | None = None) -> Path:
        samples, rate = speech
        samples = samples[: int(seconds * rate)]
        path = tmp_path / (name or f"speech.{kind}")
        if kind in AV_FORMATS:
            return encode(path, samples, rate, kind)
        container, subtype = SF_FORMATS[kind]
        # As floats: libsndfile does not scale whole numbers that go into a float file.
        soundfile.write(path, samples / 32768, rate, format=container, subtype=subtype)
        return path

    return build


@pytest.fixture
def film(tmp_path: Path) -> Path:
    """Two seconds of pictures without sound."""
    path = tmp_path / "film.mp4"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for number in range(10):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), number, np.uint8), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 5)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


@pytest.fixture
def silence(tmp_path: Path) -> Callable[..., Path]:
    """silence(seconds) -> a wav of zeros that takes no room on disk, however long."""

    def build(seconds: float, rate: int = 16_000, channels: int = 1) -> Path:
        path = tmp_path / "silence.wav"
        soundfile.write(path, np.zeros((0, channels)), rate, format="WAV", subtype="PCM_16")
        header = bytearray(path.read_bytes())
        length = int(seconds * rate) * channels * 2
        header[4:8] = (len(header) - 8 + length).to_bytes(4, "little")
        header[-4:] = length.to_bytes(4, "little")
        path.write_bytes(header)
        with path.open("r+b") as file:
            file.truncate(len(header) + length)
        return path

    return build


@pytest.fixture
def supervise(tmp_path: Path) -> Callable[..., object]:
    """async with supervise(processes=1, timeout_s=2) as supervisor: afterwards no child and no file is left."""

    @asynccontextmanager
    async def run(
        processes: int = 1, recycle_after: int = 200, **limits: object
    ) -> AsyncIterator[MediaSupervisor]:
        folder = tmp_path / "spool"
        # A worker that other tests share may be running beside us, with media processes of its own.
        before = set(psutil.Process().children(recursive=True))
        supervisor = MediaSupervisor(folder, MediaLimits(**limits), processes, recycle_after=recycle_after)
        await supervisor.start()
        try:
            yield supervisor
        finally:
            await supervisor.stop()
            others = set(psutil.Process().children(recursive=True)) - before
            left = [p for p in others if "worker.media" in command_line(p)]
            assert not left
            assert not folder.exists()

    return run


async def _wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "The condition was not met in time."
        await asyncio.sleep(0.005)


@pytest.fixture
def wait_until() -> Callable[..., object]:
    """await wait_until(lambda: ...) polls a condition and fails after 10 s."""
    return _wait_until


class Web:
    """A server whose paths behave badly on purpose."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.hanging = threading.Event()
        self.release = threading.Event()
        web = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_args: object) -> None:
                pass

            def do_GET(self) -> None:
                web.answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        kind = request.path.partition("?")[0].strip("/")
        redirects = {
            "moved": "/audio",
            "loop": "/loop",
            "ftp": "ftp://127.0.0.1/audio",
            "file": "file:///etc/passwd",
        }
        if kind.isdigit():
            request.send_error(int(kind))
        elif kind in redirects:
            request.send_response(302)
            request.send_header("Location", redirects[kind])
            request.end_headers()
        else:
            stated = {"short": len(self.body) + 100, "huge": 1 << 40}.get(kind, len(self.body))
            request.send_response(200)
            if kind != "endless":
                request.send_header("Content-Length", str(stated))
            request.end_headers()
            self.send_body(request, kind)

    def send_body(self, request: BaseHTTPRequestHandler, kind: str) -> None:
        if kind == "hang":
            request.wfile.write(self.body[:1000])
            request.wfile.flush()
            self.hanging.set()
            self.release.wait(30)
        elif kind == "endless":
            try:
                while not self.release.is_set():
                    request.wfile.write(bytes(1 << 16))
            except OSError:
                return
        else:
            request.wfile.write(self.body)

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def web(make: Callable[..., Path]) -> Iterator[Web]:
    server = Web(make("wav", seconds=2).read_bytes())
    yield server
    server.close()
