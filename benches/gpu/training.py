"""ResNet-50 from JPEGs, compared with the same loop on one resident batch, and with torch's DataLoader and DALI."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rivals
import torch
import torchvision
from report import Report

import feedstock as fs

WARM_UP = 20


def measure(report: Report, data: fs.Dataset, options: Any) -> None:
    shape = (options.batch, 3, 224, 224)
    image = torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    label = torch.randint(0, 1000, (options.batch,), device="cuda")
    train = trainer(image, label)

    def resident() -> Iterator[Any]:
        while True:
            yield image, label

    ceiling = rate(train, resident(), options)
    decoded = decode_rate(data, options)
    report.add("training: one resident batch", "images/s", ceiling)
    report.add("training: decoding alone, all CPUs", "images/s", decoded)
    ours = rate(train, feedstock_batches(data, options), options)
    report.add("training: feedstock, against the lesser", "images/s", ours, min(ceiling, decoded), "≥ 98 %")
    folder = Path(os.environ["FEEDSTOCK_CACHE"]) / "rivals"
    for name, batches in rivals.all_of(data, folder, options):
        report.add(f"training: {name}", "images/s", rate(train, batches, options), min(ceiling, decoded))
    for missing in rivals.missing():
        report.note(f"training: {missing}")


def trainer(image: torch.Tensor, label: torch.Tensor) -> Any:
    """Returns a training step, compiled for batches of this shape if that works."""
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step_of(forward: Any) -> Any:
        def train(image: torch.Tensor, label: torch.Tensor) -> None:
            with torch.autocast("cuda", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(forward(image), label)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return train

    compiled = step_of(torch.compile(model, dynamic=False))
    try:
        compiled(image, label)  # forward and backward, in the shapes that are measured
    except Exception as error:  # no compiler for its kernels on this machine
        print(f"  torch.compile does not work here ({type(error).__name__}); running in eager mode")
        optimizer.zero_grad(set_to_none=True)
        return step_of(model)
    return compiled


def rate(train: Any, batches: Iterator[Any], options: Any) -> float:
    """Returns images per second over `steps` steps, after a warm-up."""
    for _ in range(WARM_UP):
        train(*next(batches))
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(options.steps):
        train(*next(batches))
    torch.cuda.synchronize()
    return options.batch * options.steps / (time.perf_counter() - begun)


def feedstock_batches(data: fs.Dataset, options: Any) -> Iterator[Any]:
    pipeline = (
        data.map("image", fs.decode_image(), fs.random_resized_crop(224)).shuffle(seed=1).batch(options.batch)
    )
    finish = {"image": fs.finish_pictures("bfloat16", layout="channels_last", flip=0.5)}
    with pipeline.loader(device="cuda:0", finish=finish) as loader:
        while True:
            for batch in loader:
                yield batch["image"].torch(), batch["label"].torch()


def decode_rate(data: fs.Dataset, options: Any) -> float:
    pipeline = (
        data.map("image", fs.decode_image(), fs.random_resized_crop(224)).shuffle(seed=1).batch(options.batch)
    )
    with pipeline.loader() as loader:
        taken, begun = 0, 0.0
        while taken < 40:
            for batch in loader:
                taken += 1
                if taken == 10:
                    begun = time.perf_counter()
                if taken == 40:
                    break
                del batch
        return options.batch * 30 / (time.perf_counter() - begun)
