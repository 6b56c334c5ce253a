"""Map-style data sets for ``test_from_torch.py``, without torch: processes import this module in a moment."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np

LENGTH = 48


class Augmented:
    """Draws from both global generators."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        assert type(index) is int
        pixels = np.full((4, 4), index, np.float32) + np.random.rand(4, 4).astype(np.float32)
        return pixels * np.float32(random.random()), index


class Made:
    """Items that a function makes."""

    def __init__(self, make: Any, length: int = LENGTH) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Together(Made):
    """Has only ``__getitems__``, which returns how many indexes it got."""

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("__getitems__ is there")

    def __getitems__(self, indexes: list[int]) -> list[Any]:
        return [(index, len(indexes), random.random()) for index in indexes]


class Locked(Made):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(pair)
        self.lock = threading.Lock()


class Lazy:
    """Makes its composition for the first item, and has another one in its class."""

    shared: Any = None

    def __init__(self) -> None:
        self.chain: Any = None

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> np.ndarray:
        import albumentations as A

        if self.chain is None:
            self.chain = A.Compose([A.RandomBrightnessContrast(p=0.7), A.CoarseDropout(p=0.7)])
        picture = np.full((16, 16, 3), 5 * index, np.uint8)
        return self.chain(image=picture)["image"]


def pair(index: int) -> Any:
    return np.arange(index, index + 3), index


def mixed(index: int) -> Any:
    return np.full((2, 3), index, np.float32), index, index / 2, index % 2 == 0, f"item {index}"


def nested(index: int) -> Any:
    return {"x": np.full(2, index), "target": {"label": index, "pair": (index, float(index))}}


def alone(index: int) -> Any:
    return np.full((2, 2), index, np.int32)


def listed(index: int) -> Any:
    return [np.full(2, index), index]


def of_lengths(index: int) -> Any:
    return {
        "tokens": np.arange(1 + index % 5),
        "target": {"boxes": np.full((index % 3, 4), index, np.float32)},
    }


def of_lengths_in_a_tuple(index: int) -> Any:
    return np.arange(1 + index % 5), index


def of_two_lengths(index: int) -> Any:
    return {"x": np.zeros((1 + index % 5, 1 + index % 3))}


def once_longer(index: int) -> Any:
    return np.zeros(3 if index == 20 else 2), index


def sometimes_bad(index: int) -> Any:
    if index % 10 == 3:
        raise ValueError(f"item {index} is damaged")
    return {"x": index, "text": str(index)}


def always_bad(index: int) -> Any:
    raise ValueError("nothing works")


def missing(index: int) -> Any:
    return index, None


def other_keys(index: int) -> Any:
    return {"x": index} if index == 0 else {"y": index}


def numbered(index: int) -> Any:
    return {1: index}


def reserved(index: int) -> Any:
    return {"valid": index}
