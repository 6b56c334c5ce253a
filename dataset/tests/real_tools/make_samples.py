"""Writes the samples in `samples/` with the tools that users have, so that feedstock is tested on real files.

    python3 -m venv /tmp/tools
    /tmp/tools/bin/pip install datasets==5.2 webdataset==1.0.2 pyarrow pillow scipy soundfile
    /tmp/tools/bin/python dataset/tests/real_tools/make_samples.py

Twelve images of 24x16 px; image i has the grey level 20 * i and the label i % 3. Twelve audio clips of 16 kHz FLAC; audio
clip i is a tone of 200 + 50 * i Hz that lasts 0.05 * (i + 1) s. Image i of `boxes` has i % 3 boxes. All files
together stay below 500 KiB; they are committed, so the tests need no Python.
"""

import io
import pathlib
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.io
import soundfile
import webdataset as wds
from datasets import Audio, ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Picture

HERE = pathlib.Path(__file__).parent / "samples"
NAMES = ["cat", "dog", "eel"]


def jpeg(i: int) -> bytes:
    out = io.BytesIO()
    Picture.new("L", (24, 16), 20 * i).save(out, "JPEG", quality=90)
    return out.getvalue()


def flac(i: int) -> bytes:
    out = io.BytesIO()
    seconds = np.arange(int(16_000 * 0.05 * (i + 1))) / 16_000
    soundfile.write(out, 0.5 * np.sin(2 * np.pi * (200 + 50 * i) * seconds), 16_000, format="FLAC")
    return out.getvalue()


def said(i: int) -> str:
    return f'tone "{i}"'


def speech() -> None:
    rows = {
        "audio": [{"bytes": flac(i), "path": f"{i}.flac"} for i in range(12)],
        "sentence": [said(i) for i in range(12)],
        "up_votes": list(range(12)),
    }
    # casting keeps the bytes; encoding through the feature would need torch
    data = Dataset.from_dict(rows).cast_column("audio", Audio(sampling_rate=16_000))
    (HERE / "audio_parquet").mkdir()
    data.to_parquet(str(HERE / "audio_parquet" / "train-00000-of-00001.parquet"), batch_size=5)
    data.save_to_disk(str(HERE / "audio_save_to_disk"))

    (HERE / "audio_webdataset").mkdir()
    pattern = str(HERE / "audio_webdataset" / "shard-%03d.tar")
    with wds.ShardWriter(pattern, maxcount=6, verbose=0) as shards:
        for i in range(12):
            about = {"duration": 0.05 * (i + 1), "up_votes": i}
            shards.write({"__key__": f"{i:04d}", "flac": flac(i), "txt": said(i), "json": about})


def boxes() -> None:
    (HERE / "boxes").mkdir()
    with wds.ShardWriter(str(HERE / "boxes" / "shard-%03d.tar"), maxcount=6, verbose=0) as shards:
        for i in range(12):
            # In the first shard coordinates are whole numbers and no box has a score.
            box = {"xywh": [i, 1, 2, 3]} if i < 6 else {"xywh": [i + 0.5, 1, 2, 3], "score": 0.25}
            about = {
                "boxes": [box | {"label": NAMES[n]} for n in range(i % 3)],
                "camera": {"id": i, "tags": ["day"]},
                "either": i if i % 2 else [i],
            }
            shards.write({"__key__": f"{i:04d}", "jpg": jpeg(i), "json": about})


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir(parents=True)
    features = Features({"image": Image(), "label": ClassLabel(names=NAMES), "width": Value("int32")})
    rows = {
        "image": [{"bytes": jpeg(i), "path": f"{i}.jpg"} for i in range(12)],
        "label": [i % 3 for i in range(12)],
        "width": [24] * 12,
    }
    data = Dataset.from_dict(rows, features=features)
    (HERE / "parquet").mkdir()
    data.to_parquet(str(HERE / "parquet" / "train-00000-of-00001.parquet"), batch_size=5)
    data.save_to_disk(str(HERE / "save_to_disk"), num_shards=2)

    (HERE / "webdataset").mkdir()
    with wds.ShardWriter(str(HERE / "webdataset" / "shard-%03d.tar"), maxcount=6, verbose=0) as shards:
        for i in range(12):
            shards.write({"__key__": f"{i:04d}", "jpg": jpeg(i), "cls": i % 3, "json": {"width": 24, "source": "made"}})

    boxes()
    speech()

    (HERE / "ipc").mkdir()
    table = data.data.table.combine_chunks()
    with pa.ipc.new_file(str(HERE / "ipc" / "plain.arrow"), table.schema) as out:
        out.write_table(table, max_chunksize=5)
    (HERE / "ipc_lz4").mkdir()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(str(HERE / "ipc_lz4" / "lz4.arrow"), table.schema, options=options) as out:
        out.write_table(table, max_chunksize=5)

    for samples in (1, 3):  # a page
        (HERE / f"parquet_pages_{samples}").mkdir()
        pq.write_table(
            table,
            HERE / f"parquet_pages_{samples}" / "pages.parquet",
            row_group_size=6,
            data_page_size=1,
            write_batch_size=samples,
            write_page_index=True,
            use_dictionary=["label"],
        )

    fields = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object)]
    synsets = np.zeros((3, 1), dtype=fields)
    for row, (number, wnid) in enumerate([(1, "n00000003"), (2, "n00000001"), (3, "n00000002")]):
        synsets[row, 0] = (number, wnid, "words")
    scipy.io.savemat(HERE / "meta.mat", {"synsets": synsets}, do_compression=True)


if __name__ == "__main__":
    main()
