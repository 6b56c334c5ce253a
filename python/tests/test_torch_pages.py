"""The Python on the documentation's pages runs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from programs import torch_pages, torch_ranks

PAGES = Path(__file__).parents[2] / "docs" / "python"


@pytest.mark.parametrize("page", ["torch.md", "from_dataloader.md", "lightning.md"])
def test_page(imagenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    if page == "lightning.md":
        pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)  # for the files that it saves
    assert torch_ranks.launch(torch_pages.run, 1, tmp_path, str(PAGES / page), str(imagenet)) == [0], (
        torch_ranks.printed(tmp_path)
    )
