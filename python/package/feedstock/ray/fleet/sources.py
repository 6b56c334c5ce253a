"""What a pipeline reads, from its recipe: where workers must be allowed to read, and with which settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

from ... import ConfigError, Dataset, Pipeline

#: Parameters of ops that name what is read.
_URIS = ("noise", "tokenizer")


def allowed(pipeline: Pipeline) -> tuple[str, ...]:
    """URI prefixes: the data sets, and what ops refer to."""
    found = {_prefix(uri) for uri, _ in _opened(pipeline.dataset)}
    for method, arguments in pipeline._steps:
        for op in json.loads(arguments[2]) if method == "map" else ():
            found.update(_prefix(op[name]) for name in _URIS if isinstance(op.get(name), str))
    return tuple(sorted(found))


def settings(pipeline: Pipeline) -> dict[str, Any]:
    """The storage settings of its data sets, secrets included.

    Raises:
        ConfigError: Data sets of a mix or a concatenation have different ones.
    """
    given = [storage for _, storage in _opened(pipeline.dataset)]
    if any(one != given[0] for one in given):
        raise ConfigError(
            "the data sets of this pipeline have different storage settings: give the workers theirs with storage=…"
        )
    return given[0]


def _opened(dataset: Dataset) -> Iterator[tuple[str, dict[str, Any]]]:
    """URI and storage settings of every data set that was opened on the way to this one."""
    step, *rest = dataset._recipe
    if step == "open":
        uri, options = rest
        yield uri, options["storage"]
    elif step == "mix":
        for part, _ in rest[0]:
            yield from _opened(part)
    elif step == "concat":
        for part in rest[0]:
            yield from _opened(part)
    else:
        yield from _opened(rest[0])


def _prefix(uri: str) -> str:
    """What all that a pattern means begins with."""
    if "://" not in uri:
        uri = os.path.abspath(uri)
    head = re.split(r"[*?\[{]", uri, maxsplit=1)[0]
    return uri if head == uri else head[: head.rfind("/") + 1]
