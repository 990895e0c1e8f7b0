"""Which models there are, and where their files lie.

A registry maps aliases, which jobs name, to sources, which only the settings name: nothing that comes with a
job ever becomes a path. A source is written

- ``path:/folder`` - a Whisper folder in MLX's or in transformers' layout,
- ``hf:org/name`` or ``hf:org/name@revision`` - such a repository, fetched beforehand by :mod:`engine.fetch`,
- ``ct2:/folder`` - a CTranslate2 Whisper, converted once into the cache,
- ``package:name`` or ``package:name+name`` - the same, inside installed packages, its parts in this order,
- ``FAMILY:path:/folder`` or ``FAMILY:hf:org/name`` - a model of another family, as ``parakeet`` or ``qwen3_asr``,
  in mlx-audio's layout: see :mod:`engine.recognizers.families`.

Errors::

    ModelError
    ├── UnknownModel      the alias is not listed
    ├── BadSource         the source is not written as above
    ├── ModelMissing      the folder, package or fetched repository is not there
    └── ModelUnreadable   it is there and cannot be converted
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from engine import weights
from engine.recognizers import families

CONVERTER_VERSION = 1
"""Raise it when :mod:`engine.weights` writes something else: older conversions are then made anew."""


class ModelError(Exception):
    """A model cannot be had."""

    code: ClassVar[str] = "model_error"


class UnknownModel(ModelError):
    """The alias is not in the registry."""

    code = "unknown_model"


class BadSource(ModelError):
    """A source that is not written as the module's page says."""

    code = "bad_source"


class ModelMissing(ModelError):
    """The files are not there."""

    code = "model_missing"


class ModelUnreadable(ModelError):
    """The files are there, and are not a Whisper that can be read."""

    code = "model_unreadable"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A parsed source."""

    kind: Literal["path", "hf", "ct2", "package"]
    location: str
    """A folder, a repository, or package names joined by ``+``."""
    revision: str | None = None
    """Branch, tag or commit of a repository."""
    family: str = families.WHISPER

    @classmethod
    def parse(cls, text: str) -> ModelSource:
        """:raises BadSource: not one of the forms above."""
        kind, _, rest = text.partition(":")
        if rest.startswith(("path:", "hf:")) and families.family_named(kind) is not None:
            return replace(cls.parse(rest), family=kind)
        match kind:
            case "path" | "ct2" if rest.startswith("/"):
                return cls(kind, rest)
            case "hf" if match := re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", rest, re.ASCII):
                if ".." not in rest:
                    return cls("hf", match[1], match[2])
            case "package" if re.fullmatch(r"[A-Za-z_]\w*(\+[A-Za-z_]\w*)*", rest, re.ASCII):
                return cls("package", rest)
        raise BadSource(f"not a model source: {text!r}")

    def __str__(self) -> str:
        family = "" if self.family == families.WHISPER else f"{self.family}:"
        return f"{family}{self.kind}:{self.location}" + (f"@{self.revision}" if self.revision else "")


def repository_folder(cache_dir: Path, source: ModelSource) -> Path:
    """Where :mod:`engine.fetch` puts a repository."""
    name = source.location.replace("/", "--")
    revision = (source.revision or "main").replace("/", "--")
    return cache_dir / "hub" / f"{name}@{revision}"


class Registry:
    """The models that the settings list.

    :param aliases: alias to source.
    :param cache_dir: for conversions and fetched repositories; made with mode 0700 when needed.
    :raises BadSource: one of the sources is not well written.
    """

    def __init__(self, aliases: Mapping[str, str], cache_dir: Path) -> None:
        self._sources = {alias: ModelSource.parse(text) for alias, text in aliases.items()}
        self._cache_dir = cache_dir

    def source(self, alias: str) -> ModelSource:
        """:raises UnknownModel: the alias is not listed."""
        try:
            return self._sources[alias]
        except KeyError:
            raise UnknownModel(f"no model is called {alias!r}") from None

    def resolve(self, alias: str) -> Path:
        """The local folder of a model, converted into the cache if it has to be.

        :raises ModelError: see the module's page.
        """
        source = self.source(alias)
        match source.kind:
            case "path":
                return _model_folder(Path(source.location))
            case "hf":
                folder = repository_folder(self._cache_dir, source)
                if not folder.is_dir():
                    raise ModelMissing(f"{source} has not been fetched")
                return _model_folder(folder)
            case "ct2":
                folder = Path(source.location)
                return self._converted([folder / "model.bin"], folder)
            case "package":
                folders = [_package_folder(name) for name in source.location.split("+")]
                parts, folder = _package_parts(folders)
                return self._converted(parts, folder)

    def _converted(self, parts: list[Path], folder: Path) -> Path:
        for path in (*parts, folder / "config.json", folder / "tokenizer.json"):
            if not path.is_file():
                raise ModelMissing(f"{path} is not a file")
        target = self._cache_dir / "converted" / _stamp(parts)
        if target.is_dir():
            return target
        _make_private(target.parent)
        with _locked(target.parent / f"{target.name}.lock"):
            if not target.is_dir():
                _convert(parts, folder, target)
        return target


def _model_folder(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelMissing(f"{folder} holds no config.json")
    return folder


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModelMissing(f"the package {name} is not installed")
    return Path(spec.submodule_search_locations[0])


def _package_parts(folders: list[Path]) -> tuple[list[Path], Path]:
    """The parts of ``model.bin``, one of each package, and the folder of the first."""
    parts = []
    for folder in folders:
        found = sorted(folder.glob("**/model.bin*"))
        if len(found) != 1:
            raise ModelMissing(f"{folder} holds {len(found)} files called model.bin*, not one")
        parts.append(found[0])
    return parts, parts[0].parent


def _stamp(parts: list[Path]) -> str:
    """Names a conversion by its converter and by its input, so that neither is ever stale."""
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in parts]
    text = json.dumps([CONVERTER_VERSION, facts])
    return f"v{CONVERTER_VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _convert(parts: list[Path], folder: Path, target: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        weights.convert_ctranslate2(parts, folder, scratch)
        # Only a whole conversion ever bears the final name.
        scratch.rename(target)
    except (weights.BadWeights, ValueError) as exc:
        raise ModelUnreadable(str(exc)) from exc
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _make_private(folder: Path) -> None:
    if folder.is_dir():
        return
    for parent in reversed([folder, *folder.parents]):
        if not parent.is_dir():
            parent.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file against other processes; the kernel drops it when the holder dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
