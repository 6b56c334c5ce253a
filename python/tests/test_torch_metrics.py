"""Metrics of torchmetrics over two ranks equal those of one process, padding left out."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchmetrics")

from programs import torch_ranks

PAGE = Path(__file__).parents[2] / "docs" / "python" / "metrics.md"


# 200 samples in steps of 2 × 30 leave 40 rows of padding. In one step of 2 × 180, a rank has 20; of 2 × 250, none.
@pytest.mark.parametrize("rows", [30, 180, 250])
def test_the_page_on_two_ranks(imagenet: Path, tmp_path: Path, rows: int) -> None:
    from programs import metrics_page

    assert torch_ranks.launch(metrics_page.run, 2, tmp_path, str(PAGE), str(imagenet), rows) == [0, 0], (
        torch_ranks.printed(tmp_path)
    )
