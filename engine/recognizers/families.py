"""Which kinds of recognizer there are beside Whisper, and what each can be asked for. No MLX here.

A family is a package of ``mlx_audio.stt.models``. Those in :data:`FAMILIES` are known by name; any other one there is
is taken at its word: its ``generate`` is called with nothing but the audio, and what else is asked for is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from engine.protocol import DecodeOptions

WHISPER = "whisper"
"""The family of sources that name none; decoded by :mod:`engine.whisper`."""

Option = Literal["prompt", "hot_words", "temperature", "max_tokens", "words"]


@dataclass(frozen=True, slots=True)
class Family:
    """What a kind of recognizer honours."""

    name: str
    form: Literal["aligned", "tokens", "whole"] = "whole"
    """How it is run: tokens with times and batches (``aligned``), token by token (``tokens``), or in one piece."""
    options: frozenset[Option] = frozenset()


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("parakeet", "aligned", frozenset({"words"})),
        Family("qwen3_asr", "tokens", frozenset({"prompt", "hot_words", "temperature", "max_tokens"})),
        Family("moonshine", "whole", frozenset({"max_tokens"})),
        Family("mms"),
        Family("sensevoice"),
    )
}
"""Families whose ``generate`` has been read, in mlx-audio 0.6.2."""

_NOT_RECOGNIZERS = frozenset({WHISPER, "nemo", "wav2vec", "qwen3_forced_aligner"})
"""Packages there that are parts of others, or align a text that is known."""


def family_named(name: str) -> Family | None:
    """The family of this name; None where mlx-audio has none."""
    if name in FAMILIES:
        return FAMILIES[name]
    return Family(name) if name in _packages() else None


def _packages() -> frozenset[str]:
    """Recognizers of the installed mlx-audio, read from its folder, so that nothing is imported."""
    spec = find_spec("mlx_audio")
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    folder = Path(spec.submodule_search_locations[0]) / "stt" / "models"
    if not folder.is_dir():
        return frozenset()
    return frozenset(path.parent.name for path in folder.glob("*/__init__.py")) - _NOT_RECOGNIZERS


def refusal(family: Family, options: DecodeOptions) -> tuple[str, str] | None:
    """Why a family cannot do what is asked: a code of ``ChunkFailed`` and a message, or None."""
    asked: dict[Option, bool] = {
        "prompt": bool(options.prompt and options.prompt.strip()),
        "hot_words": bool(options.hot_words),
        "temperature": bool(options.temperatures) and options.temperatures[0] > 0,
        "max_tokens": options.max_tokens is not None,
        "words": options.words,
    }
    for option, wanted in asked.items():
        if wanted and option not in family.options:
            return "unsupported_option", f"a model of the family {family.name} cannot honour {option}"
    if options.beam_size != 1 or options.best_of != 1:
        return "unsupported_option", f"a model of the family {family.name} has no beam search and no best-of"
    return None
