"""Results on the GPU compared with the CPU's chain: equal after rounding to the type."""

from __future__ import annotations

from typing import Any

from report import Report

import feedstock as fs

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def measure(report: Report, data: fs.Dataset, options: Any) -> None:
    crop = fs.decode_image(), fs.random_resized_crop(224)
    end = fs.horizontal_flip(0.5), fs.normalize(MEAN, STD), fs.to_chw()
    bare = data.map("image", *crop).shuffle(seed=1).batch(64)
    chain = data.map("image", *crop, *end).shuffle(seed=1).batch(64)
    for dtype in ("float32", "float16", "bfloat16"):
        for layout in ("planes", "channels_last"):
            finish = {
                "image": fs.finish_pictures(dtype, layout=layout, normalize=fs.normalize(MEAN, STD), flip=0.5)
            }
            different, elements = 0, 0
            with bare.loader(device="cuda:0", finish=finish) as ours, chain.loader() as theirs:
                for got, wanted in zip(ours, theirs, strict=True):
                    image = got["image"].torch()
                    expected = wanted["image"].torch().cuda().to(image.dtype)
                    different += int((image != expected).sum())
                    elements += image.numel()
                    if elements > 50_000_000:
                        break
            report.add(
                f"equality: {dtype} {layout}, elements that differ",
                f"of {elements / 1e6:.0f} M",
                different,
                asked="0",
            )
