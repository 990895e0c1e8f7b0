"""Names of languages, as language models write them, and their ISO 639 codes."""

from __future__ import annotations

from collections.abc import Iterable

CODES = {
    "arabic": "ar",
    "cantonese": "yue",
    "chinese": "zh",
    "czech": "cs",
    "danish": "da",
    "dutch": "nl",
    "english": "en",
    "filipino": "fil",
    "finnish": "fi",
    "french": "fr",
    "german": "de",
    "greek": "el",
    "hindi": "hi",
    "hungarian": "hu",
    "indonesian": "id",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "macedonian": "mk",
    "malay": "ms",
    "persian": "fa",
    "polish": "pl",
    "portuguese": "pt",
    "romanian": "ro",
    "russian": "ru",
    "spanish": "es",
    "swedish": "sv",
    "thai": "th",
    "turkish": "tr",
    "vietnamese": "vi",
}
"""The languages of Qwen3-ASR (its model card), and so those of the other recognizers here too."""

_KNOWN = frozenset(CODES.values())


def by_code(names: Iterable[str]) -> dict[str, str]:
    """The names that a model gives its languages, by their codes; names that are not known here are left out."""
    return {CODES[name.lower()]: name for name in names if name.lower() in CODES}


def code_of(name: str) -> str:
    """The code of a language that a model names, by name or by code; empty where it is neither."""
    lowered = name.strip().lower()
    return lowered if lowered in _KNOWN else CODES.get(lowered, "")
