"""Runs the Python of documentation pages with other names, numbers and places."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def blocks(page: str | Path) -> list[str]:
    """Returns the ```python blocks of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", Path(page).read_text(), re.M | re.S)


def run(page: str | Path, replacements: Mapping[str, str], namespace: dict[str, Any]) -> None:
    """Runs all blocks of a page in one namespace, after replacing text in them."""
    for number in range(len(blocks(page))):
        run_block(page, number, replacements, namespace)


def run_block(
    page: str | Path, number: int, replacements: Mapping[str, str], namespace: dict[str, Any]
) -> None:
    """Runs one block."""
    block = blocks(page)[number]
    for old, new in replacements.items():
        block = block.replace(old, new)
    exec(compile(block, f"{page} block {number}", "exec"), namespace)
