"""The batch size and the learning rate follow evaluation, and every sample is trained on once an epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from programs import torch_ranks

PAGE = Path(__file__).parents[2] / "docs" / "python" / "plateau.md"


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_page(imagenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    from programs import plateau_page

    monkeypatch.chdir(tmp_path)  # for state.pt
    codes = torch_ranks.launch(plateau_page.run, ranks, tmp_path, str(PAGE), str(imagenet))
    assert codes == [0] * ranks, torch_ranks.printed(tmp_path)
