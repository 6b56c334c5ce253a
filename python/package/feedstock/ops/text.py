"""Ops on text: from strings to tokens, int64 [tokens]."""

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
    """Splits text into sub-word tokens by a ``tokenizer.json`` of Hugging Face tokenizers.

    Args:
        tokenizer: The URI of the file.
        add_special_tokens: Whether to add the tokenizer's special tokens.
        max_tokens: A longer text is a bad sample, or is cut with ``truncate=True``; default: no limit.
        truncate: Whether to cut texts of more than ``max_tokens``; default ``False``.
        max_text_bytes: A longer text is a bad sample, before it is split; default 1,048,576. With ``truncate=True`` it
            is cut there first, and is bad only if that leaves no more than ``max_tokens``.
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
    """Splits text into one token for each character.

    Args:
        vocabulary: The characters; a token is a character's index. Longer entries such as ``"<blank>"`` have an index
            and match no text.
        unknown: The token of other characters; default ``"error"``: the text is a bad sample.
        lowercase: Whether to convert text to lower case first; default ``False``.
    """
    return Op("tokenize_chars", vocabulary=vocabulary, unknown=unknown, lowercase=lowercase)
