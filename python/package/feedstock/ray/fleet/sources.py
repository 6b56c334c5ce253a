"""What workers need to read a pipeline's data: permitted URIs, storage settings, places of ready catalogs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

from ... import ConfigError, Dataset, Pipeline
from ..._rows.function import ItemFunction, RowFunction

#: Parameters of ops that are URIs.
_URIS = ("noise", "tokenizer")


def allowed(pipeline: Pipeline) -> tuple[str, ...]:
    """Returns the URI prefixes of the data sets, and of files that ops read."""
    found = {_prefix(uri) for uri, _ in _opened(pipeline.dataset)}
    for method, arguments in pipeline._steps:
        for op in json.loads(arguments["ops"]) if method == "map" else ():
            found.update(_prefix(op[name]) for name in _URIS if isinstance(op.get(name), str))
    return tuple(sorted(found))


def settings(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the storage settings of the pipeline's data sets, secrets included.

    Raises:
        ConfigError: Data sets of a mix or a concatenation have different settings.
    """
    given: list[dict[str, Any]] = [options["storage"] for _, options in _opened(pipeline.dataset)]
    if any(one != given[0] for one in given):
        raise ConfigError(
            "the data sets of this pipeline have different storage settings; give the workers' settings as storage=…"
        )
    return given[0] if given else {}


def sources(pipeline: Pipeline) -> tuple[str, ...]:
    """Returns where the pipeline's data sets look for ready catalogs; also next to the data if theirs are there."""
    found: dict[str, None] = {}
    for _, options in _opened(pipeline.dataset):
        found.update(dict.fromkeys([name for name in [options["catalog"]] if name == "beside"]))
        found.update(dict.fromkeys(options["catalogs_from"]))
    return tuple(found)


def check_code(pipeline: Pipeline, allow_code: bool) -> None:
    """Raises ConfigError if workers are to run functions of the pipeline, and may not."""
    for function in pipeline._functions:
        if not isinstance(function, RowFunction) or not function.is_for_workers or allow_code:
            continue
        if isinstance(function, ItemFunction):
            raise ConfigError(
                f"{function} makes its items on workers, and workers of this fleet run no code; give allow_code=True, "
                "or make the loader without workers="
            )
        raise ConfigError(
            f'{function} has executor="worker", and workers of this fleet run no code; give allow_code=True, or '
            "another executor, which runs it on the ranks' machines"
        )


def _opened(dataset: Dataset) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields URI and options of every stored data set that this one was made of."""
    step, *rest = dataset._recipe
    if step == "from_torch":
        return
    if step == "open":
        uri, options = rest
        yield uri, options
    elif step == "mix":
        for part, _ in rest[0]:
            yield from _opened(part)
    elif step == "concat":
        for part in rest[0]:
            yield from _opened(part)
    else:
        yield from _opened(rest[0])


def _prefix(uri: str) -> str:
    """Returns the common prefix of all URIs that a pattern matches."""
    if "://" not in uri:
        uri = os.path.abspath(uri)
    head = re.split(r"[*?\[{]", uri, maxsplit=1)[0]
    return uri if head == uri else head[: head.rfind("/") + 1]
