"""Lists of images in a sample: against Pillow, torchvision and single images, in files of pyarrow and Hugging Face."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from draws import Draws, _absorb
from PIL import Image
from resumed import assert_resumes
from served import worker

import feedstock as fs

ROWS = 24
Lists = list[list[bytes | None] | None]


def count(row: int) -> int:
    return row * 7 % 5


def picture(row: int, number: int) -> Image.Image:
    small = np.random.default_rng(100 * row + number).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((60 + 7 * number + row, 90 - 2 * row), Image.Resampling.BICUBIC)


def encode(image: Image.Image, form: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def form(row: int, number: int) -> str:
    return "JPEG" if (row + number) % 3 else "PNG"


def stored(row: int, number: int) -> Image.Image:
    """Returns an image as it is after it was encoded."""
    return Image.open(io.BytesIO(encode(picture(row, number), form(row, number)))).convert("RGB")


def lists() -> Lists:
    return [
        [encode(picture(row, number), form(row, number)) for number in range(count(row))]
        for row in range(ROWS)
    ]


def table(images: Lists, item: str = "struct") -> pa.Table:
    if item == "struct":
        kind = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        values = [
            None if row is None else [{"bytes": one, "path": "some.jpg"} for one in row] for row in images
        ]
    else:
        items = {"binary": pa.binary(), "large": pa.large_binary(), "fixed": pa.binary()}
        kind = {"fixed": pa.list_(items["fixed"], 2), "large": pa.large_list(items["large"])}.get(
            item, pa.list_(items["binary"])
        )
        values = images
    ids = pa.array(range(len(images)), pa.int64())
    return pa.table({"id": ids, "images": pa.array(values, kind)})


def write(folder: Path, images: Lists | None = None, item: str = "struct") -> Path:
    pq.write_table(table(lists() if images is None else images, item), folder / "a.parquet", row_group_size=7)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("lists"))


def split(batch: dict[str, Any], name: str = "images") -> dict[int, np.ndarray]:
    """Returns a copy of each row's images by its id."""
    counts = batch[f"{name}_length"]
    assert batch[name].shape[0] == counts.sum()
    parts = np.split(np.array(batch[name]), np.cumsum(counts)[:-1])
    return dict(zip(batch["id"].tolist(), parts, strict=True))


def rows(pipeline: fs.Pipeline, name: str = "images", *place: int, **options: Any) -> dict[int, np.ndarray]:
    found: dict[int, np.ndarray] = {}
    pipeline = pipeline.shuffle(seed=5).batch(global_batch_size=8, tail="pad").epochs(1)
    for batch in pipeline.loader(*place, output="numpy", **options):
        found |= split(batch, name)
    return found


def same(one: dict[int, np.ndarray], other: dict[int, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[row], other[row]) for row in one)


WHOLE = fs.decode_image(scaled=False)
RANDOM = [WHOLE, fs.random_resized_crop(24), fs.horizontal_flip(), fs.color_jitter(0.4, 0.4)]


def test_images_are_pillows(data: Path) -> None:
    chains = {
        "small": [fs.resize((40, 30), filter="bicubic")],
        "middle": [fs.center_crop((36, 40))],
    }
    for name, chain in chains.items():
        found = rows(fs.Dataset(data).map("images", WHOLE, chain, output=name), name)
        assert found.keys() == set(range(ROWS))
        for row, images in found.items():
            assert len(images) == count(row)
            for number, image in enumerate(images):
                original = stored(row, number)
                if name == "small":
                    expected = np.asarray(original.resize((30, 40), Image.Resampling.BICUBIC))
                else:
                    left, top = round((original.width - 40) / 2.0), round((original.height - 36) / 2.0)
                    expected = np.asarray(original)[top : top + 36, left : left + 40]
                assert np.abs(image.astype(int) - expected.astype(int)).max() <= 1, (name, row, number)


def test_crops_and_colors_are_torchvisions(data: Path) -> None:
    torch = pytest.importorskip("torch")
    v2 = pytest.importorskip("torchvision.transforms.v2")
    transform = v2.Compose(
        [
            v2.Resize(40, v2.InterpolationMode.BILINEAR, antialias=True),
            v2.CenterCrop(36),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    chain = [WHOLE, fs.resize(40), fs.center_crop(36), fs.normalize(), fs.to_chw()]
    for row, images in rows(fs.Dataset(data).map("images", chain)).items():
        assert images.shape == (count(row), 3, 36, 36)
        for number, image in enumerate(images):
            expected = transform(stored(row, number)).numpy()
            assert np.abs(image - expected).max() <= 1.5 / 255 / 0.224, (row, number)


def test_each_image_draws_by_its_number(data: Path, tmp_path: Path) -> None:
    chain = [WHOLE, fs.resize((20, 30)), fs.horizontal_flip()]
    plain = rows(fs.Dataset(data).map("images", chain[:2]))
    flips = []
    for row, images in rows(fs.Dataset(data).map("images", chain)).items():
        for number, image in enumerate(images):
            tagged = _absorb(_absorb(0, 3), number)  # as ops/src/seed.rs documents it
            flipped = Draws(5, 0, row, tagged, 2).chance(0.5)
            assert np.array_equal(image, plain[row][number][:, ::-1] if flipped else plain[row][number])
            flips.append(flipped)
    assert 0.3 < np.mean(flips) < 0.7
    same_image = encode(picture(0, 0), "PNG")
    write(tmp_path, [[same_image] * 6])
    crops = rows(fs.Dataset(tmp_path).map("images", RANDOM))[0]
    assert len({image.tobytes() for image in crops}) == 6
    twice = fs.Dataset(tmp_path).map("images", RANDOM).map("images", RANDOM, output="second")
    batch = next(iter(twice.batch(1).loader(output="numpy")))
    assert len({image.tobytes() for image in [*batch["images"], *batch["second"]]}) == 12


@pytest.mark.parametrize("item", ["binary", "large"])
def test_types_of_pyarrow_have_the_same_images(data: Path, tmp_path: Path, item: str) -> None:
    expected = rows(fs.Dataset(data).map("images", RANDOM))
    assert same(expected, rows(fs.Dataset(write(tmp_path, item=item)).map("images", RANDOM)))
    arrow = tmp_path / "arrow"
    arrow.mkdir()
    feather.write_feather(table(lists(), item), arrow / "a.arrow", compression="uncompressed", chunksize=7)
    assert same(expected, rows(fs.Dataset(arrow).map("images", RANDOM)))


def test_lists_of_a_fixed_size(tmp_path: Path) -> None:
    pairs: Lists = [[encode(picture(row, number), "PNG") for number in range(2)] for row in range(9)]
    found = rows(fs.Dataset(write(tmp_path, pairs, "fixed")).map("images", WHOLE, fs.center_crop(20)))
    assert {row: len(images) for row, images in found.items()} == dict.fromkeys(range(9), 2)


def test_files_of_hugging_face(data: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict(
        {
            "id": list(range(ROWS)),
            "images": [[{"bytes": one, "path": None} for one in row or []] for row in lists()],
        },
        features=datasets.Features(
            {"id": datasets.Value("int64"), "images": datasets.Sequence(datasets.Image())}
        ),
    )
    expected = rows(fs.Dataset(data).map("images", RANDOM))
    (tmp_path / "parquet").mkdir()
    made.to_parquet(str(tmp_path / "parquet" / "train.parquet"))
    made.save_to_disk(str(tmp_path / "saved"))
    for source in [
        fs.Dataset(tmp_path / "parquet"),
        fs.Dataset(tmp_path / "saved"),
        fs.from_huggingface(made, folder=tmp_path / "held"),
    ]:
        assert same(expected, rows(source.map("images", RANDOM))), source
    # What its own reader makes of the lists.
    found = rows(fs.Dataset(tmp_path / "parquet").map("images", WHOLE, fs.center_crop(30)))
    for row, sample in enumerate(made):
        assert len(sample["images"]) == len(found[row])
        for image, given in zip(sample["images"], found[row], strict=True):
            left, top = round((image.width - 30) / 2.0), round((image.height - 30) / 2.0)
            own = np.asarray(image.convert("RGB"))[top : top + 30, left : left + 30]
            assert np.abs(own.astype(int) - given.astype(int)).max() <= 1


def test_images_of_pil_that_hugging_face_encodes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict(
        {"images": [[picture(row, number) for number in range(count(row))] for row in range(8)]},
        features=datasets.Features({"images": datasets.Sequence(datasets.Image())}),
    )
    made.to_parquet(str(tmp_path / "train.parquet"))
    batch = next(
        iter(fs.Dataset(tmp_path).map("images", WHOLE, fs.resize((9, 9))).batch(8).loader(output="numpy"))
    )
    assert batch["images_length"].tolist() == [count(row) for row in range(8)]
    first = np.asarray(picture(1, 0).resize((9, 9), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(batch["images"][0].astype(int) - first).max() <= 1


def test_ranks_workers_and_processes_make_the_same_lists(data: Path) -> None:
    pipeline = fs.Dataset(data).map("images", RANDOM, max_images=4)
    alone = rows(pipeline)
    assert alone.keys() == set(range(ROWS))
    serving = worker(data)
    assert same(alone, rows(pipeline, workers=serving.address))
    assert same(alone, rows(pickle.loads(pickle.dumps(pipeline))))
    assert same(alone, rows(pipeline, "images", 0, 2) | rows(pipeline, "images", 1, 2))
    assert same(alone, rows(pipeline.options(threads=1)))


def test_a_resumed_loader_goes_on_with_the_same_lists(data: Path) -> None:
    pipeline = fs.Dataset(data).map("images", RANDOM).shuffle(seed=5).batch(4)
    assert_resumes(pipeline)


def test_batches_have_every_form(data: Path) -> None:
    torch = pytest.importorskip("torch")
    pipeline = fs.Dataset(data).map("images", WHOLE, fs.resize((8, 10))).batch(5)
    batch = next(iter(pipeline.loader()))
    tensor = batch["images"]
    counts = [count(row) for row in range(5)]
    assert (tensor.shape, tensor.dtype) == ((sum(counts), 8, 10, 3), "uint8")
    assert (tensor.lengths, tensor.padded_axis) == (counts, None)
    assert len(tensor) == sum(counts)
    assert len(batch.valid) == 5
    assert "images of all rows" in repr(tensor)
    array = tensor.numpy()
    assert np.array_equal(tensor.torch().numpy(), array)
    assert np.array_equal(torch.from_dlpack(tensor).numpy(), array)
    record = pa.record_batch(batch)
    assert record.column("images_length").to_pylist() == counts
    column = record.column("images")
    assert column.type == pa.list_(pa.field("item", pa.fixed_shape_tensor(pa.uint8(), (8, 10, 3)), False))
    flat = column.flatten()
    assert np.array_equal(flat.to_numpy_ndarray(), array)
    assert [len(one) for one in column] == counts
    on_cpu = next(iter(pipeline.loader(device="cpu")))
    assert np.array_equal(on_cpu["images"].numpy(), array)
    assert on_cpu["images_length"].numpy().tolist() == counts
    whole = next(iter(pipeline.loader(output="torch")))
    assert whole["images"].shape == (sum(counts), 8, 10, 3)
    assert whole["images_length"].tolist() == counts


def test_batches_without_images_are_empty(tmp_path: Path) -> None:
    pipeline = fs.Dataset(write(tmp_path, [[], [], [], []])).map("images", WHOLE, fs.resize((8, 10))).batch(2)
    for options in ({}, {"device": "cpu"}):
        batch = next(iter(pipeline.loader(**options)))
        assert batch["images"].shape == (0, 8, 10, 3)
        assert batch["images"].lengths == [0, 0]
        assert batch["images"].numpy().shape == (0, 8, 10, 3)
    assert pa.record_batch(next(iter(pipeline.loader()))).column("images").to_pylist() == [[], []]


def test_masks_and_depths_in_lists(tmp_path: Path) -> None:
    depth = np.arange(30 * 40, dtype=np.uint16).reshape(30, 40) * 50
    classes = np.arange(30 * 40, dtype=np.uint8).reshape(30, 40) % 7
    grey = encode(Image.fromarray(depth), "PNG")
    mask = encode(Image.fromarray(classes), "PNG")
    write(tmp_path, [[grey, grey], [mask]])
    source = fs.Dataset(tmp_path)
    crop = fs.center_crop((20, 30))
    deep = rows(source.filter("id = 0").map("images", fs.decode_image(mode="gray16"), crop))
    assert np.array_equal(deep[0], np.stack([depth[5:25, 5:35, None]] * 2))
    of_classes = source.filter("id = 1").map("images", fs.decode_image(mode="indices"), crop)
    assert np.array_equal(rows(of_classes)[1], classes[None, 5:25, 5:35])
    clear = rows(source.filter("id = 1").map("images", fs.decode_image(mode="rgba"), crop))
    assert clear[1].shape == (1, 20, 30, 4)
    assert (clear[1][..., 3] == 255).all()


def test_a_bad_list_is_one_bad_sample(tmp_path: Path) -> None:
    broken = lists()

    def refused(match: str, row: int, images: list[bytes | None] | None, **options: Any) -> None:
        changed = [*broken]
        changed[row] = images
        write(tmp_path, changed)
        pipeline = fs.Dataset(tmp_path).map("images", RANDOM, **options).batch(8).epochs(1)
        with pytest.raises(fs.SampleError, match=match) as caught:
            list(pipeline.loader())
        assert caught.value.sample_id == row
        assert caught.value.column == "images"
        loader = pipeline.on_error("skip", max_fraction=0.1).loader()
        batches = list(loader)
        assert sum(int(batch.valid.sum()) for batch in batches) == ROWS - 1
        assert loader.skip_report()["count"] == 1
        for batch in batches:
            assert batch["images"].shape[0] == sum(batch["images"].lengths)

    good = broken[4][0]  # type: ignore[index]
    refused(r"a\.parquet row 5 \(sample 5\): image 1 of the list: ", 5, [good, b"not an image", good])
    refused(r"\(sample 5\): image 0 of the list: its bytes are null.*'some\.jpg'", 5, [None])
    refused(r"\(sample 6\): image 1 of the list: it is empty \(0 bytes\)", 6, [good, b""])
    refused(r"\(sample 7\): the list is null; correct the file", 7, None)
    refused(r"\(sample 9\): the list has 5 images, over max_images \(4\)", 9, [good] * 5, max_images=4)


def test_lists_are_described_and_shown(data: Path) -> None:
    pipeline = fs.Dataset(data).map("images", RANDOM).batch(8)
    described = pipeline.describe()
    assert [(one.output, one.shape) for one in described.maps] == [("images", (None, 24, 24, 3))]
    assert "→ uint8 [N, 24, 24, 3] by decode_image, random_resized_crop" in str(described)
    assert described.memory.has_variable_length
    assert pipeline.show(4)._repr_html_().count("<img") == sum(count(row) for row in range(4))


def test_batches_go_through_functions(data: Path) -> None:
    def brightest(batch: dict[str, Any]) -> dict[str, Any]:
        return {"most": max((int(image.max()) for image in batch["images"]), default=0), **batch}

    pipeline = fs.Dataset(data).map("images", RANDOM).batch(8)
    batch = next(iter(pipeline.map_python(brightest).loader(output="numpy")))
    assert batch["most"] == batch["images"].max()

    def fails(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        raise AssertionError

    outputs = {"x": fs.tensor("int64", ())}
    for executor in ("thread", "process"):
        with pytest.raises(fs.ConfigError, match="map_rows: 'images' has lists of images"):
            next(iter(pipeline.map_rows(fails, outputs=outputs, executor=executor).loader(output="numpy")))
    on_worker = pipeline.map_rows(fails, outputs=outputs, executor="worker")
    with pytest.raises(fs.ConfigError, match="map_rows: 'images' has lists of images"):
        next(iter(on_worker.loader(output="numpy", workers=worker(data).address)))


def test_the_page_runs(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "python" / "lists.md").read_text()
    real = fs.Dataset
    monkeypatch.setattr(fs, "Dataset", lambda uri: real(data if str(uri).startswith("s3:") else uri))
    namespace: dict[str, Any] = {"folder": str(tmp_path)}
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)):
        block = block.replace(".batch(32)", ".batch(8).epochs(1)")
        exec(compile(block, f"lists.md block {number}", "exec"), namespace)
    counts = namespace["counts"].tolist()
    assert [len(images) for images in namespace["by_row"]] == counts
    assert namespace["row"].tolist() == [row for row, number in enumerate(counts) for _ in range(number)]
    starts = namespace["first"].tolist()
    assert starts == [sum(counts[:row]) for row in range(8)]


def test_mistakes_are_named(data: Path, tmp_path: Path) -> None:
    source = fs.Dataset(data)

    def refused(match: str, pipeline: fs.Pipeline, **options: Any) -> None:
        with pytest.raises(fs.ConfigError, match=match):
            pipeline.batch(8).loader(**options)

    views = fs.views({"a": fs.random_resized_crop(8)})
    refused("the view 'a' is of 'images', which has lists of images", source.map("images", WHOLE, views))
    joint = source.map({"images": fs.image()}, fs.resize((8, 8)))
    refused("'images' has lists of images, and a joint map takes one image", joint)
    refused("only images can be in lists", source.map("images", fs.decode_audio(), fs.resample(16_000)))
    refused("lists of images in: images", source.map("id", RANDOM))
    mapped = source.map("images", RANDOM)
    refused("nvjpeg: 'images' has lists of images", mapped, device="cpu", nvjpeg=0.5)
    finish = {"images": fs.finish_pictures()}
    refused("finish of 'images', which has lists of images", mapped, device="cpu", finish=finish)
    for bad in (0, -1, 2.5, "4"):
        with pytest.raises(fs.ConfigError, match=r"max_images must be an integer >= 1"):
            source.map("images", RANDOM, max_images=bad)  # type: ignore[arg-type]
    with pytest.raises(fs.ConfigError, match="below 2"):
        source.map("images", RANDOM, max_images=2**32)
    with pytest.raises(fs.ConfigError, match="max_images is for a column of lists of images"):
        source.map("images", WHOLE, views, max_images=3)
    one = pa.table({"image": pa.array([encode(picture(0, 0), "PNG")] * 8, pa.binary())})
    pq.write_table(one, tmp_path / "a.parquet")
    alone = fs.Dataset(tmp_path).map("image", RANDOM, max_images=3, output="x")
    refused("max_images is for columns of lists of images, and 'image', which is mapped to 'x'", alone)
