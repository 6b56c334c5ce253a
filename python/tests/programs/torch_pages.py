"""Runs the Python of a documentation page unchanged, on small data and a small model."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from .torch_train import Model


def run(page: str, pictures: str) -> None:
    """Runs all ```python blocks of the page in order, in one namespace."""
    replacements = {
        "s3://corpus/imagenet/train": pictures,
        "s3://corpus/imagenet/val": pictures,
        "/data/imagenet/train": pictures,
        "torchvision.models.resnet50()": "Model()",
        "import torchvision\n": "",
        '"cuda", torch.distributed.get_node_local_rank()': '"cpu"',
        '"cuda"': '"cpu"',
        "(224)": "(32)",
        "(256": "(24",
        "batch_size=256": "batch_size=24",
        " < 90": " < 2",
        "max_epochs=90": "max_epochs=2, limit_val_batches=1.0, logger=False, enable_progress_bar=False, "
        "enable_model_summary=False, accelerator='cpu'",
        "dist.init_process_group() ": "assert dist.is_initialized() ",
        'batch["label"].to(device)': 'batch["label"] % 10',  # the model's classes
        'model(pictures), batch["label"]': 'model(pictures), batch["label"] % 10',
        ".permute(0, 3, 1, 2).float() / 255": "",  # the model does that
    }
    text = Path(page).read_text()
    namespace = {"Model": Model, "model": lightning_model() if "lightning" in page else None}
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)):
        for old, new in replacements.items():
            block = block.replace(old, new)
        exec(compile(block, f"{page} block {number}", "exec"), namespace)


def lightning_model() -> object:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Model()

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.net(batch["image"]), batch["label"] % 10)

        def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
            self.log("rows", batch["valid"].float().mean(), batch_size=len(batch["valid"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Module()
