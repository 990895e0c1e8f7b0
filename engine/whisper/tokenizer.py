"""Whisper's vocabulary: byte-pair text tokens, then special tokens, then timestamps (paper, section 2.3)."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as BytePairTokenizer

TIMESTAMP_STEP_S = 0.02

ENGLISH_ONLY_SIZE = 51_864
"""Vocabulary of the English-only models; every multilingual one is larger."""

_SYMBOLS = '"#()*+/:;<=>@[\\]^_`{|}~「」『』'
_GROUPS = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
_MUSIC = "♩♪♫♬♭♮♯"


class BadTokenizer(ValueError):
    """A tokenizer file that is not Whisper's."""


class TooManyHotWords(ValueError):
    """Hot words that leave too little room for context."""


class Tokenizer:
    """Text to tokens and back, and the tokens that steer the decoder.

    :param folder: holds ``tokenizer.json``.
    :param n_vocab: size of the model's vocabulary.
    :raises BadTokenizer: a special token is missing.
    :raises OSError: the file cannot be read.
    """

    def __init__(self, folder: Path, n_vocab: int) -> None:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        added = {token["content"]: token["id"] for token in json.loads(text)["added_tokens"]}
        self._bpe: Any = BytePairTokenizer.from_str(text)
        try:
            self.eot: int = added["<|endoftext|>"]
            self.sot: int = added["<|startoftranscript|>"]
            self.translate: int = added["<|translate|>"]
            self.transcribe: int = added["<|transcribe|>"]
            self.sot_prev: int = added["<|startofprev|>"]
            self.no_timestamps: int = added["<|notimestamps|>"]
            self.sot_lm: int = added["<|startoflm|>"]
            # Called nocaptions up to large-v2.
            self.no_speech: int = added.get("<|nospeech|>") or added["<|nocaptions|>"]
        except KeyError as exc:
            raise BadTokenizer(f"tokenizer.json lacks {exc.args[0]}") from exc
        self.timestamp_begin: int = self.no_timestamps + 1
        if n_vocab <= self.timestamp_begin:
            raise BadTokenizer("tokenizer.json belongs to another model")
        self.multilingual = n_vocab > ENGLISH_ONLY_SIZE
        first_task = min(self.translate, self.transcribe)
        self.language_tokens: dict[str, int] = {
            content[2:-2]: token
            for content, token in sorted(added.items(), key=lambda item: item[1])
            if self.multilingual and self.sot < token < first_task
        }

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that the model takes."""
        return tuple(self.language_tokens) if self.multilingual else ("en",)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: list[int]) -> str:
        """Text of the tokens, special tokens and timestamps left out."""
        text: str = self._bpe.decode([token for token in tokens if token < self.eot])
        return text

    def prompt(self, text: str | None, limit: int) -> list[int]:
        """Tokens that give *text* as earlier context, or none (Whisper's ``initial_prompt``).

        Text that spells a special token is text, not a command: such tokens are dropped.

        :param limit: most text tokens; the last ones are kept.
        """
        if text is None or not text.strip():
            return []
        ids = [token for token in self.encode(" " + text.strip()) if token < self.eot]
        return [self.sot_prev, *ids[-limit:]]

    def context(self, prompt: str | None, hot_words: Sequence[str], limit: int) -> list[int]:
        """Tokens that give hot words, then earlier context (as faster-whisper's ``hotwords`` do), or none.

        :param limit: most text tokens; of the context the last ones are kept, of the hot words all.
        :raises TooManyHotWords: they take more than half of *limit*.
        """
        hot = self.prompt(", ".join(hot_words), limit) if hot_words else []
        if len(hot) > 1 + limit // 2:
            raise TooManyHotWords(f"the hot words take more than {limit // 2} tokens")
        earlier = self.prompt(prompt, limit - max(0, len(hot) - 1))
        return [*hot, *earlier[1:]] if hot else earlier

    def start(self, language: str, task: str, timestamps: bool) -> list[int]:
        """Tokens that open a transcript (paper, figure 1)."""
        tokens = [self.sot]
        if self.multilingual:
            tokens += [
                self.language_tokens[language],
                self.translate if task == "translate" else self.transcribe,
            ]
        return tokens if timestamps else [*tokens, self.no_timestamps]

    @functools.cached_property
    def blank(self) -> list[int]:
        """Tokens that may not come first: a lone space, and the end."""
        return [*self.encode(" "), self.eot]

    @functools.cached_property
    def suppressed(self) -> list[int]:
        """Tokens that are never transcript: annotations such as "[music]", and steering tokens.

        The list is that of Whisper's ``Tokenizer.non_speech_tokens`` and ``_get_suppress_tokens``.
        """
        found = {self.encode(" -")[0], self.encode(" '")[0]}
        for symbol in [*_SYMBOLS, *_GROUPS.split(), *_MUSIC]:
            for ids in (self.encode(symbol), self.encode(" " + symbol)):
                if len(ids) == 1 or symbol in _MUSIC:
                    found.add(ids[0])
        steering = {self.transcribe, self.translate, self.sot, self.sot_prev, self.sot_lm, self.no_speech}
        return sorted(found | steering)
