"""A batch: its columns as tensors and lists, without copies, and the lifetime of their memory."""

from __future__ import annotations

import datetime
import decimal
import gc
import io
import json
import tarfile

import numpy as np
import polars
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import feedstock as fs


@pytest.fixture(scope="module")
def pipeline(imagenet):
    ops = fs.decode_image(), fs.resize((24, 32))
    return fs.Dataset(imagenet).map("image", *ops).batch(8).options(threads=2)


@pytest.fixture
def batch(pipeline):
    with pipeline.loader() as loader:
        yield next(iter(loader))


def test_it_is_a_mapping_of_columns(batch):
    assert list(batch) == list(batch.keys()) == ["image", "image_path", "label", "width", "height"]
    assert batch.keys() & {"label", "no such"} == {"label"}
    assert len(batch) == 5
    assert "label" in batch
    assert "no such" not in batch
    assert batch.get("no such", 3) == 3
    assert dict(batch.items())["label"].dtype == "int64"
    with pytest.raises(KeyError, match="image_path"):
        batch["no such"]
    with pytest.raises(KeyError):
        batch[0]
    assert batch.num_rows == 8
    assert batch.sample_ids.tolist() == list(range(8))
    assert batch.sample_ids.dtype == np.uint64
    assert batch.valid.tolist() == [True] * 8


def test_numpy_torch_and_arrow_view_one_memory(batch):
    tensor = batch["image"]
    assert (tensor.shape, tensor.dtype, len(tensor)) == ((8, 24, 32, 3), "uint8", 8)
    array, other = tensor.numpy(), tensor.torch()
    assert array.shape == tensor.shape == tuple(other.shape)
    assert (array == other.numpy()).all()
    assert array.ctypes.data == other.data_ptr() == np.asarray(tensor).ctypes.data
    assert tensor.nbytes == array.nbytes
    record = pyarrow.record_batch(batch)
    values = record.column("image").storage.flatten()
    assert values.buffers()[1].address == array.ctypes.data
    assert record.column("sample_id").to_pylist() == list(range(8))
    assert record.column("image").type.shape == [24, 32, 3]
    frame = polars.DataFrame(batch)
    assert frame["label"].to_list() == batch["label"].numpy().tolist()
    assert (frame["image"].to_numpy().reshape(array.shape) == array).all()
    array[0] = 7  # the batch is the caller's until it is dropped
    assert (other[0] == 7).all()


def test_pixels_are_pillows(imagenet):
    table = pyarrow.parquet.read_table(next(imagenet.rglob("*.parquet")))
    encoded = [row["bytes"] for row in table.column("image").to_pylist()]
    ops = fs.decode_image(scaled=False), fs.resize((24, 32))
    with fs.Dataset(imagenet).map("image", *ops).batch(50).loader() as loader:
        for batch in loader:
            for row, sample in zip(batch["image"].numpy(), batch.sample_ids, strict=True):
                picture = Image.open(io.BytesIO(encoded[sample])).convert("RGB")
                expected = np.asarray(picture.resize((32, 24), Image.Resampling.BILINEAR)).astype(int)
                assert abs(expected - row).max() <= 3  # two libjpegs and two resizers, about one level each


def test_metadata_columns(batch, imagenet):
    table = pyarrow.parquet.read_table(next(imagenet.rglob("*.parquet")), columns=["label", "width"])
    assert batch["label"].torch().dtype == torch.int64
    assert batch["label"].numpy().tolist() == table.column("label").to_pylist()[:8]
    assert batch["width"].numpy().tolist() == table.column("width").to_pylist()[:8]
    assert all(isinstance(path, str) for path in batch["image_path"])


def test_dicts_for_training_loops(batch):
    arrays = batch.numpy(ids=True)
    assert arrays["sample_ids"].dtype == np.uint64
    tensors = batch.torch(ids=True)
    assert tensors["sample_ids"].dtype == torch.int64
    assert tensors["valid"].dtype == torch.bool
    assert tensors["image"].data_ptr() == batch["image"].torch().data_ptr()
    assert "valid" not in batch.torch()


def test_columns_of_every_type_have_a_python_form(tmp_path):
    table = pyarrow.table(
        {
            "text": ["a", None, "c"],
            "bytes": pyarrow.array([b"x", b"", None], pyarrow.large_binary()),
            "flag": [True, False, True],
            "maybe": pyarrow.array([1, None, 3], pyarrow.int32()),
            "small": pyarrow.array([1, 2, 3], pyarrow.uint8()),
            "half": pyarrow.array(np.array([1, 2, 3], np.float16)),
            "words": [["a"], [], ["b", "c"]],
            "entry": [{"x": 1, "y": "a"}, None, {"x": 3, "y": None}],
            "vector": pyarrow.array(
                [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pyarrow.list_(pyarrow.float32(), 2)
            ),
            "kind": pyarrow.array(["u", "v", "u"]).dictionary_encode(),
            "day": pyarrow.array([1, 2, 3], pyarrow.date32()),
            "image": pyarrow.array([b"1", b"2", b"3"]),
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    batch = next(iter(fs.Dataset(tmp_path).batch(3).loader()))
    assert batch["text"] == ["a", None, "c"]
    assert batch["bytes"] == [b"x", b"", None]
    assert batch["flag"].numpy().tolist() == [True, False, True]
    assert batch["maybe"] == [1, None, 3]
    assert batch["small"].dtype == "uint8"
    assert batch["half"].numpy().tolist() == [1.0, 2.0, 3.0]
    assert batch["words"] == [["a"], [], ["b", "c"]]
    assert batch["entry"] == [{"x": 1, "y": "a"}, None, {"x": 3, "y": None}]
    assert batch["vector"].numpy().tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert batch["kind"] == ["u", "v", "u"]
    assert batch["image"] == [b"1", b"2", b"3"]
    assert batch["day"] == ["1970-01-02", "1970-01-03", "1970-01-04"]
    assert pyarrow.record_batch(batch).column("day").to_pylist() == table.column("day").to_pylist()


def test_views_outlive_batch_loader_and_pipeline(imagenet):
    pipeline = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.resize((24, 32))).batch(4)
    loader = pipeline.loader()
    batches = iter(loader)
    first = next(batches)
    array, tensor, arrow = first["image"].numpy(), first["image"].torch(), pyarrow.record_batch(first)
    expected = array.copy()
    del first
    for _ in range(20):  # every other slot is written again and again
        next(batches)
    assert (array == expected).all()
    loader.close()
    del loader, batches, pipeline
    gc.collect()
    assert (array == expected).all()
    assert (tensor.numpy() == expected).all()
    assert (np.asarray(arrow.column("image").storage.flatten()) == expected.ravel()).all()


def test_a_slot_is_free_once_all_views_are_gone(pipeline):
    with pipeline.loader() as loader:
        batches = iter(loader)
        views = [next(batches)["image"].numpy() for _ in range(4)]
        assert loader.stats()["held_batches"] == 4
        del views[0]
        gc.collect()
        assert loader.stats()["held_batches"] == 3
        assert next(batches) is not None
        capsule = views[0].base if views[0].base is not None else views[0]
        del views, capsule
        gc.collect()
        assert loader.stats()["held_batches"] == 0


def test_a_capsule_that_nobody_takes_frees_its_slot(pipeline):
    with pipeline.loader() as loader:
        tensor = next(iter(loader))["image"]
        for version in (None, (1, 0)):
            capsule = tensor.__dlpack__(max_version=version)
            del capsule
        del tensor
        gc.collect()
        assert loader.stats()["held_batches"] == 0


def test_dlpack_refuses_what_it_cannot_do(batch):
    tensor = batch["image"]
    assert tensor.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="host memory"):
        tensor.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="returns views"):
        tensor.__dlpack__(copy=True)


def test_ragged_columns_say_their_lengths(common_voice):
    data = fs.Dataset(common_voice, split="train")
    vocabulary = sorted(
        {
            c
            for row in pyarrow.table(data.sql("select sentence from catalog")).column(0).to_pylist()
            for c in row
        }
    )
    pipeline = (
        data.map("audio", fs.decode_audio(), fs.resample(16_000), fs.log_mel(40), pad_value=-5.0)
        .map("sentence", fs.tokenize_chars(["<blank>", *vocabulary]), pad_value=-1)
        .batch(6)
    )
    with pipeline.loader() as loader:
        batch = next(iter(loader))
        audio = batch["audio"]
        assert audio.padded_axis == 1
        assert batch["audio_length"].numpy().tolist() == audio.lengths
        array = audio.numpy()
        assert array.shape == (6, max(audio.lengths), 40)
        for row, length in zip(array, audio.lengths, strict=True):
            assert (row[length:] == -5.0).all()
            assert np.isfinite(row).all()
        assert batch["sentence"].dtype == "int64"
        assert 0.0 < loader.padding_share("audio") < 1.0
        assert loader.padding_share("no such") is None


def test_sql_results_are_arrow(imagenet):
    table = pyarrow.table(fs.Dataset(imagenet).sql("select count(*) as n, max(label) as most from catalog"))
    assert table.to_pylist() == [{"n": 200, "most": 199}]
    nothing = pyarrow.table(fs.Dataset(imagenet).sql("select label from catalog where label < 0"))
    assert (nothing.num_rows, nothing.column_names) == (0, ["label"])
    assert json.dumps(fs.Dataset(imagenet).schema["label"]) == '"Int64"'


def test_boxes_of_a_webdataset_are_lists_of_dicts(tmp_path):
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "JPEG")
    about = [
        {"boxes": [{"xywh": [1, 2, 3, 4], "label": "cat"}], "size": {"w": 8, "h": 8}},
        {"boxes": [], "size": {"w": 8, "h": 8}},
        {"boxes": [{"xywh": [0.5, 2, 3, 4], "crowd": True}], "size": None},
    ]
    for shard, rows in enumerate([about[:2], about[2:]]):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as tar:
            for row, values in enumerate(rows):
                for name, data in [("jpg", picture.getvalue()), ("json", json.dumps(values).encode())]:
                    member = tarfile.TarInfo(f"{shard}{row}.{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    dataset = fs.Dataset(tmp_path, catalog="memory")
    assert dataset.schema["boxes"].startswith("List(")
    boxes = [
        [{"crowd": None, "label": "cat", "xywh": [1.0, 2.0, 3.0, 4.0]}],
        [],
        [{"crowd": True, "label": None, "xywh": [0.5, 2.0, 3.0, 4.0]}],
    ]
    for chosen in (dataset, dataset.columns(["image", "boxes", "size"])):
        with (
            chosen.map("image", fs.decode_image(), fs.resize((4, 4)))
            .batch(3)
            .options(threads=1)
            .loader() as loader
        ):
            batch = next(iter(loader))
            assert batch["boxes"] == boxes
            assert batch["size"] == [{"h": 8, "w": 8}, {"h": 8, "w": 8}, None]
    assert len(dataset.filter("cardinality(boxes) > 0")) == 2


def test_dates_times_and_decimals_are_texts(tmp_path):
    """One such column must not make a data set unreadable in NumPy."""
    pa = pyarrow
    noon = datetime.datetime(2026, 11, 27, 12, 0, 0, 5000)
    columns = {
        "day": pa.array([noon.date(), None]),
        "instant": pa.array([noon, None], pa.timestamp("ms", "UTC")),
        "instants": pa.array([[noon], []], pa.list_(pa.timestamp("us"))),
        "clock": pa.array([noon.time(), None], pa.time64("us")),
        "price": pa.array([decimal.Decimal("1.50"), None]),
        "names": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    batch = next(iter(fs.Dataset(tmp_path).batch(2).loader(output="numpy")))
    assert batch["day"] == ["2026-11-27", None]
    assert batch["instant"] == ["2026-11-27T12:00:00.005Z", None]
    assert batch["instants"] == [["2026-11-27T12:00:00.005"], []]
    assert batch["clock"] == ["12:00:00.005", None]
    assert batch["price"] == ["1.50", None]
    assert batch["names"] == [[{"key": "a", "value": 1}], None]
