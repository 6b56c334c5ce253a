"""Writes Parquet files with lists, whose pages begin within rows, in `samples/lists/`.

    python3 -m venv /tmp/tools
    /tmp/tools/bin/pip install pyarrow==21.0.0
    /tmp/tools/bin/python dataset/tests/real_tools/make_lists.py [FOLDER [SEED ROWS PAGE_BYTES]]

Each file is one row group of several lists, with null and empty ones and some that are longer than a page, and has no offset
index. pyarrow 21 begins pages of version 1 within rows; pyarrow 26 no longer does. All files together stay below 200 KiB; they are committed, so the tests need no Python.
"""

import pathlib
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq

SAMPLES = pathlib.Path(__file__).parent / "samples" / "lists"
CODECS = ["none", "snappy", "gzip", "zstd", "lz4"]


def some(dice: random.Random, most: int, make) -> list | None:
    """A list of values or nulls; now and then null, empty or ten times as long."""
    kind = dice.random()
    if kind < 0.15:
        return None
    length = 0 if kind < 0.3 else dice.randint(1, 10 * most if kind > 0.95 else most)
    return [None if dice.random() < 0.1 else make() for _ in range(length)]


def table(dice: random.Random, rows: int) -> pa.Table:
    def word() -> str:
        return dice.choice(["eel", "cat", "a longer word", "x" * dice.randint(0, 60)])

    def number() -> int:
        return dice.randint(-9, 9)

    columns = {
        "row": pa.array(range(rows), pa.int64()),
        "words": pa.array([some(dice, 3, word) for _ in range(rows)], pa.list_(pa.string())),
        "blobs": pa.array(
            [some(dice, 4, lambda: dice.randbytes(dice.randint(0, 250))) for _ in range(rows)], pa.list_(pa.binary())
        ),
        "nested": pa.array(
            [some(dice, 3, lambda: some(dice, 4, number)) for _ in range(rows)], pa.list_(pa.list_(pa.int16()))
        ),
        "boxes": pa.array(
            [some(dice, 2, lambda: {"x": dice.random(), "label": word(), "tags": some(dice, 2, word)}) for _ in range(rows)],
            pa.list_(pa.struct([("x", pa.float32()), ("label", pa.string()), ("tags", pa.list_(pa.string()))])),
        ),
        "image": pa.array([dice.randbytes(dice.randint(9, 60)) for _ in range(rows)], pa.binary()),
    }
    return pa.table(columns)


def write(folder: pathlib.Path, seed: int, rows: int, page_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = [(codec, "1.0") for codec in CODECS] + [("snappy", "2.0")]
    for number, (codec, version) in enumerate(files):
        pq.write_table(
            table(random.Random(seed + number), rows),
            folder / f"{codec}-{version}.parquet",
            compression=codec,
            data_page_version=version,
            data_page_size=page_bytes,
            write_batch_size=16,
            use_dictionary=["words"] if number % 2 else False,
        )


def main() -> None:
    folder, *numbers = sys.argv[1:] or [SAMPLES]
    seed, rows, page_bytes = (int(n) for n in numbers) if numbers else (22, 60, 512)
    write(pathlib.Path(folder), seed, rows, page_bytes)


if __name__ == "__main__":
    main()
