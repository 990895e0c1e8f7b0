"""The folder of spool files: names, sizes, sweeping."""

from __future__ import annotations

import os
import re
from pathlib import Path

from worker.media.types import BYTES_PER_SAMPLE

PCM, TEMP = ".pcm", ".input"


class Spool:
    """Files of one worker's life. Names never repeat within it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._held: dict[str, int] = {}
        self._count = 0
        self._made = False
        self._opened = False

    @property
    def held_bytes(self) -> int:
        """Files that nobody has discarded and nobody writes to."""
        return sum(self._held.values())

    def open(self) -> None:
        """Makes the folder, for this user alone, and sweeps it. Raises OSError, also for another's."""
        self._made = not self.folder.exists()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = self.folder.lstat()
        if self.folder.is_symlink() or info.st_uid != os.getuid():
            raise PermissionError(f"The spool folder {self.folder} is a link or belongs to somebody else.")
        self.folder.chmod(0o700)
        self._opened = True
        self.sweep()

    def sweep(self) -> None:
        """Removes every spool file, and no other."""
        self._held.clear()
        for suffix in (PCM, TEMP):
            for path in self.folder.glob(f"*{suffix}"):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Sweeps, and removes the folder where `open` made it and nothing else is in it."""
        if not self._opened or not self.folder.is_dir():
            return
        self._opened = False
        self.sweep()
        if self._made and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def names(self, job: str) -> tuple[Path, Path]:
        """Fresh paths for the sound and for the input of a job."""
        self._count += 1
        stem = f"{re.sub(r'[^A-Za-z0-9_-]', '_', job)[:48]}-{self._count:06d}"
        return self.folder / (stem + PCM), self.folder / (stem + TEMP)

    def write(self, path: Path, data: bytes) -> None:
        """A new file, mode 0600. Raises OSError."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)

    def samples(self, path: Path) -> int:
        """How many whole samples a file has by now; 0 where there is none."""
        return path.stat().st_size // BYTES_PER_SAMPLE if path.exists() else 0

    def lend(self, path: Path) -> None:
        """Somebody reads a file that is still written, and will discard it. What it may come to is counted as
        reserved meanwhile."""
        self._held[str(path)] = 0

    def keep(self, path: Path, samples: int) -> None:
        """Counts a finished file. Raises ValueError where it has another length."""
        size = path.stat().st_size
        if size != samples * BYTES_PER_SAMPLE:
            raise ValueError(f"The spool file has {size} bytes instead of {samples * BYTES_PER_SAMPLE}.")
        self._held[str(path)] = size

    def drop(self, path: Path) -> None:
        """A file will not be finished: removes it, or counts it until it is discarded where it is lent."""
        if str(path) not in self._held:
            path.unlink(missing_ok=True)
        elif path.exists():
            self._held[str(path)] = path.stat().st_size

    def discard(self, path: str) -> None:
        """Removes a file that is finished or lent; anything else that is named is left alone."""
        if self._held.pop(path, None) is not None:
            Path(path).unlink(missing_ok=True)
