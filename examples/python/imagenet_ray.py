"""Trains ResNet-50 on ImageNet with Ray Train, and records top-1 and top-5 accuracy against time and money.

    python imagenet_ray.py                                       # small: sample data, a minute on two cores
    ray job submit --working-dir examples/python -- python imagenet_ray.py --real --gpu --trainers 8 \\
        --data s3://corpus/imagenet --runs s3://runs/imagenet --name resnet-1 --price-per-hour 98.32
    … --workers ray --max-workers 16                             # a fleet on other nodes decodes the images

The run's folder gets the loss of every step (steps.csv), the accuracy after each epoch with the seconds and dollars
until then (accuracy.csv, accuracy.svg), the best and the last checkpoint. A run under a name that was used before
continues from its last checkpoint. For DDP and FSDP2 without Ray, see imagenet_ddp.py and imagenet_fsdp2.py.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import ray.train
import torch
import torchvision
from ray.train.torch import get_device, prepare_model
from torch import nn

import feedstock as fs
from imagenet_resnet import finished, learning_rate, tiny_resnet
from ray_run import Run, fit, parser, sample_data, summed


def pipelines(options: argparse.Namespace) -> dict[str, fs.Pipeline]:
    size = 224 if options.real else 64
    crop = fs.decode_image(), fs.random_resized_crop(size), fs.horizontal_flip()
    centre = fs.decode_image(), fs.resize(size * 8 // 7), fs.center_crop(size)
    train = fs.Dataset(options.data, split="train").map("image", *crop).shuffle(seed=7)
    evaluation = fs.Dataset(options.data, split=options.validation).map("image", *centre)
    rows = options.global_batch_size
    return {
        "train": train.batch(global_batch_size=rows).options(threads=options.threads),
        "evaluation": evaluation.batch(global_batch_size=rows, tail="pad").options(threads=options.threads),
    }


def train(config: dict[str, Any]) -> None:
    """Runs in each rank."""
    loader, evaluation = ray.train.get_dataset_shard("train"), ray.train.get_dataset_shard("evaluation")
    ranks = ray.train.get_context().get_world_size()
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.resnet50() if config["real"] else tiny_resnet()
    model = prepare_model(model.to(memory_format=torch.channels_last))
    peak = 0.1 * config["global_batch_size"] / 256  # Goyal et al. 2017
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.9, weight_decay=1e-4)
    run = Run(config, model, optimizer, loader)
    steps = config["epochs"] * len(loader)

    while (epoch := loader.epoch) < config["epochs"]:
        model.train()
        # On this rank's device: page-locked slots are copied to a GPU and finished while the model computes.
        for batch in loader.iter_torch_batches():
            rate = learning_rate(peak, run.step / steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = nn.functional.cross_entropy(scores(model, batch), batch["label"], label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step += 1
            run.log("steps", epoch=epoch, loss=summed(loss) / ranks, rate=rate)
            if run.due():
                run.save(top1=-math.inf)  # not evaluated
        top1, top5 = accuracy(model, evaluation)
        dollars = run.seconds / 3600 * config["price_per_hour"]
        run.log("accuracy", epoch=epoch, top1=top1, top5=top5, dollars=dollars)
        run.write("accuracy.svg", plot(run.tables["accuracy"], config["price_per_hour"]).encode())
        run.save(top1=top1)


def scores(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    image = batch["image"]
    with torch.autocast(image.device.type, torch.bfloat16, enabled=image.is_cuda):
        return model(image).float()


@torch.inference_mode()
def accuracy(model: nn.Module, loader: Any) -> tuple[float, float]:
    """Returns the shares of images whose label is the model's first guess, and one of its first five guesses. Each
    image is counted once over all ranks."""
    model.eval()
    counts = torch.zeros(3, dtype=torch.int64, device=get_device())
    for batch in loader.iter_torch_batches():
        right = scores(model, batch).topk(5).indices == batch["label"][:, None]
        counted = right[:, 0], right.any(1), batch["valid"]
        counts += torch.stack([(what & batch["valid"]).sum() for what in counted])
    top1, top5, seen = summed(counts).tolist()
    return top1 / seen, top5 / seen


def plot(rows: list[dict[str, Any]], price_per_hour: float) -> str:
    """Returns an SVG image of both accuracies over hours, with dollars as a second scale."""
    width, height, hours = 600, 300, float(rows[-1]["seconds"]) / 3600
    parts = []

    def write(x: float, y: float, anchor: str, text: str) -> None:
        parts.append(f'<text x="{x}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>')

    for share in (0, 0.2, 0.4, 0.6, 0.8, 1):
        x, y = width * share, height * (1 - share)
        parts.append(f'<path d="M0 {y:.1f}H{width}" stroke="lightgrey"/>')
        write(-8, y + 4, "end", f"{share:.0%}")
        write(x, height + 20, "middle", f"{hours * share:.3g} h")
        if price_per_hour:
            write(x, -10, "middle", f"${hours * share * price_per_hour:,.2f}")
    for name, colour in {"top1": "steelblue", "top5": "darkorange"}.items():
        points = [
            (width * float(row["seconds"]) / 3600 / hours, height * (1 - float(row[name]))) for row in rows
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        write(width + 8, points[-1][1], "start", name)
    style = 'viewBox="-60 -40 720 380" font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {style}>{"".join(parts)}</svg>'


def arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    add = options.add_argument
    add("--real", action="store_true", help="ResNet-50 at 224 px; default: a tiny ResNet at 64 px")
    add("--validation", default="validation", help="its split for evaluation; default: validation")
    add("--epochs", type=int, default=2, help="default 2; 90 in the paper")
    add("--global-batch-size", type=int, default=32, help="images of a step over all ranks; default 32")
    add("--price-per-hour", type=float, default=0.0, help="of all the job's machines, in US dollars")
    return options.parse_args()


def main() -> None:
    options = arguments()
    if not options.data:
        options.data, options.validation = sample_data("imagenet", "parquet", 256), "train"
    result = fit(train, options, pipelines(options), ("top1", "max"), finish=finished())
    best = max(metrics["top1"] for _, metrics in result.best_checkpoints)
    print(f"{result.path}: the top-1 accuracy of the best model is {best:.3f}")


if __name__ == "__main__":
    main()
