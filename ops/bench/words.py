"""Word error rate, and the normalizer that goes with it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

NORMALIZER = "plain-words"
"""Its name, to stand beside every figure: NFKC, lower case, curly apostrophes made straight, everything but
letters, digits and apostrophes taken as a space. No spelling, number or contraction is changed."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words(text: str) -> list[str]:
    """The words of a text as :data:`NORMALIZER` has them."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower().replace("’", "'"))


def errors(reference: Sequence[str], heard: Sequence[str]) -> int:
    """The least number of words put in, left out or exchanged (Levenshtein) between the two."""
    row = list(range(len(heard) + 1))
    for i, expected in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, got in enumerate(heard, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (expected != got))
    return row[-1]


def error_rate(references: Sequence[str], heard: Sequence[str]) -> float:
    """Errors of all pairs over the words of all references; 0.0 is perfect. Raises ValueError without words."""
    pairs = [(words(reference), words(text)) for reference, text in zip(references, heard, strict=True)]
    total = sum(len(reference) for reference, _ in pairs)
    if not total:
        raise ValueError("the references hold no words")
    return sum(errors(reference, text) for reference, text in pairs) / total
