"""Steps of pipelines in pickles of releases that stored their arguments without names."""

from __future__ import annotations

from typing import Any

_POSITIONAL = {
    "map": ("column", "output", "ops", "pad_value", "key"),
    "shuffle": ("kind", "seed", "window", "lanes"),
    "seed": ("seed",),
    "bucket_by": ("column", "window"),
    "lengths_from": ("column",),
    "batch": ("batch_size", "global_batch_size", "total", "global_total", "max_rows", "tail"),
    "on_error": ("policy", "max_fraction"),
    "nulls": ("column", "to"),
    "epochs": ("epochs",),
    "options": ("threads", "slots", "budget_bytes", "deadline"),
}


def named_arguments(method: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Returns the arguments of a step by name, as releases store them today."""
    named = dict(zip(_POSITIONAL[method], arguments, strict=False))
    if method == "batch":
        tail = named.pop("tail")
        return {"sizes": named, "tail": tail}
    return named
