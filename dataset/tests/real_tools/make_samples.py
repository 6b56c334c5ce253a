"""Writes the samples in `samples/` with the tools that users have, so that feedstock is tested on real files.

    python3 -m venv /tmp/tools && /tmp/tools/bin/pip install datasets==5.2 webdataset==1.0.2 pyarrow pillow scipy
    /tmp/tools/bin/python dataset/tests/real_tools/make_samples.py

Twelve pictures of 24x16 px; picture i has the grey level 20 * i and the label i % 3. All files together stay below
500 KiB; they are committed, so the tests need no Python.
"""

import io
import pathlib
import shutil

import numpy as np
import pyarrow as pa
import scipy.io
import webdataset as wds
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Picture

HERE = pathlib.Path(__file__).parent / "samples"
NAMES = ["cat", "dog", "eel"]


def jpeg(i: int) -> bytes:
    out = io.BytesIO()
    Picture.new("L", (24, 16), 20 * i).save(out, "JPEG", quality=90)
    return out.getvalue()


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

    (HERE / "ipc").mkdir()
    table = data.data.table.combine_chunks()
    with pa.ipc.new_file(str(HERE / "ipc" / "plain.arrow"), table.schema) as out:
        out.write_table(table, max_chunksize=5)
    (HERE / "ipc_lz4").mkdir()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(str(HERE / "ipc_lz4" / "lz4.arrow"), table.schema, options=options) as out:
        out.write_table(table, max_chunksize=5)

    fields = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object)]
    synsets = np.zeros((3, 1), dtype=fields)
    for row, (number, wnid) in enumerate([(1, "n00000003"), (2, "n00000001"), (3, "n00000002")]):
        synsets[row, 0] = (number, wnid, "words")
    scipy.io.savemat(HERE / "meta.mat", {"synsets": synsets}, do_compression=True)


if __name__ == "__main__":
    main()
