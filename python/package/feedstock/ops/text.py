"""Ops on text: from strings to i64 tokens [tokens]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from feedstock.ops._op import Op


def tokenize(
    tokenizer: str,
    *,
    add_special_tokens: bool | None = None,
    max_tokens: int | None = None,
    truncate: bool | None = None,
    max_text_bytes: int | None = None,
) -> Op:
    """Sub-word tokens by the ``tokenizer.json`` (Hugging Face tokenizers) at the URI ``tokenizer``.

    ``max_tokens``: longer texts are refused, or cut with ``truncate=True``; default no bound.
    ``max_text_bytes``: longer texts are refused before they are split, default 1,048,576. With ``truncate=True`` a
    longer text is cut there first, and refused only if that leaves no more than ``max_tokens``.
    """
    return Op(
        "tokenize",
        tokenizer=tokenizer,
        add_special_tokens=add_special_tokens,
        max_tokens=max_tokens,
        truncate=truncate,
        max_text_bytes=max_text_bytes,
    )


def tokenize_chars(
    vocabulary: str | Sequence[str],
    *,
    unknown: int | Literal["error"] | None = None,
    lowercase: bool | None = None,
) -> Op:
    """One token a character: its place in ``vocabulary`` (entries such as ``"<blank>"`` take ids and match no text).

    ``unknown``: the id of other characters; default ``"error"``, which makes the text a bad sample.
    """
    return Op("tokenize_chars", vocabulary=vocabulary, unknown=unknown, lowercase=lowercase)
