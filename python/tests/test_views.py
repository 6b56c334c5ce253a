"""Several views of one image, which is decoded once: against single maps, Pillow and torchvision."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from resumed import assert_resumes
from served import worker

import feedstock as fs

ROWS = 24


def picture(row: int) -> Image.Image:
    small = np.random.default_rng(row).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((150 - row, 100 + row), Image.Resampling.BICUBIC)


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def write(folder: Path, damaged: int | None = None) -> Path:
    encoded = [encode(picture(row), "JPEG" if row % 3 else "PNG") for row in range(ROWS)]
    if damaged is not None:
        encoded[damaged] = b"not an image"
    table = pa.table({"id": pa.array(range(ROWS), pa.int64()), "image": pa.array(encoded, pa.binary())})
    pq.write_table(table, folder / "a.parquet", row_group_size=7)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("views"))


def rows(pipeline: fs.Pipeline, **options: Any) -> dict[int, dict[str, np.ndarray]]:
    """Returns a copy of each sample's tensors by its id."""
    found = {}
    for batch in pipeline.shuffle(seed=5).batch(8).epochs(1).loader(output="numpy", **options):
        for row, identity in enumerate(batch["id"]):
            found[int(identity)] = {
                name: np.array(value[row]) for name, value in batch.items() if name != "id" and value.ndim > 1
            }
    assert len(found) == ROWS
    return found


def same(one: dict[int, dict[str, np.ndarray]], other: dict[int, dict[str, np.ndarray]]) -> bool:
    return all(
        one[identity].keys() == other[identity].keys()
        and all((value == other[identity][name]).all() for name, value in one[identity].items())
        for identity in one
    )


WHOLE = fs.decode_image(scaled=False)


def crop(size: int) -> list[fs.Op]:
    return [fs.random_resized_crop(size), fs.horizontal_flip(), fs.color_jitter(0.4, 0.4)]


CROPS = fs.views({"global_1": crop(32), "global_2": crop(32), "local": (4, crop(12))})


def test_each_image_of_a_view_is_the_map_with_its_key(data: Path) -> None:
    found = rows(fs.Dataset(data).map("image", WHOLE, CROPS))
    single = fs.Dataset(data).pipeline()
    names = [("global_1/0", 32), ("global_2/0", 32), *((f"local/{number}", 12) for number in range(4))]
    for name, size in names:
        single = single.map("image", WHOLE, crop(size), output=name, key=name)
    for identity, sample in rows(single).items():
        assert (found[identity]["global_1"] == sample["global_1/0"]).all()
        assert (found[identity]["global_2"] == sample["global_2/0"]).all()
        assert found[identity]["local"].shape == (4, 12, 12, 3)
        for number in range(4):
            assert (found[identity]["local"][number] == sample[f"local/{number}"]).all()
        assert (sample["global_1/0"] != sample["global_2/0"]).any()
        assert len({sample[f"local/{number}"].tobytes() for number in range(4)}) == 4


def test_views_without_random_numbers_are_pillows(data: Path) -> None:
    chains = {
        "small": fs.resize((40, 30), filter="bicubic"),
        "middle": (1, [fs.center_crop((50, 60))]),
    }
    for identity, sample in rows(fs.Dataset(data).map("image", WHOLE, fs.views(chains))).items():
        image = picture(identity)
        if identity % 3:
            image = Image.open(io.BytesIO(encode(image, "JPEG")))
        expected = np.asarray(image.resize((30, 40), Image.Resampling.BICUBIC)).astype(int)
        assert np.abs(sample["small"].astype(int) - expected).max() <= 1
        assert sample["middle"].shape == (1, 50, 60, 3)
        left, top = round((image.width - 60) / 2.0), round((image.height - 50) / 2.0)
        expected = np.asarray(image)[top : top + 50, left : left + 60]
        assert np.abs(sample["middle"][0].astype(int) - expected.astype(int)).max() <= 1


def test_centre_crops_are_torchvisions(data: Path) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    transform = v2.Compose([v2.Resize(40, v2.InterpolationMode.BILINEAR, antialias=True), v2.CenterCrop(36)])
    views = fs.views({"one": [fs.resize(40), fs.center_crop(36)], "other": fs.random_resized_crop(8)})
    for identity, sample in rows(fs.Dataset(data).map("image", WHOLE, views)).items():
        if identity % 3 == 0:  # PNG: the same pixels in
            expected = np.asarray(transform(picture(identity))).astype(int)
            assert np.abs(sample["one"].astype(int) - expected).max() <= 1


def test_names_alone_decide_what_a_view_draws(data: Path) -> None:
    views = {"global_1": crop(32), "global_2": crop(32), "local": (4, crop(12))}
    both = rows(fs.Dataset(data).map("image", WHOLE, fs.views(views)))
    swapped = dict(reversed(views.items()))
    assert same(both, rows(fs.Dataset(data).map("image", [WHOLE, fs.views(swapped)])))
    alone = rows(fs.Dataset(data).map("image", WHOLE, fs.views({"local": (2, crop(12))})))
    assert all((both[identity]["local"][:2] == sample["local"]).all() for identity, sample in alone.items())
    after = fs.Dataset(data).map("image", fs.decode_image(), fs.resize((8, 8))).map("image", WHOLE, CROPS)
    assert all(
        (both[identity][name] == sample[name]).all()
        for identity, sample in rows(after).items()
        for name in both[identity]
    )


def test_large_images_are_decoded_as_finely_as_a_view_needs(tmp_path: Path) -> None:
    buffer = encode(picture(0).resize((1024, 1024), Image.Resampling.BICUBIC), "JPEG")
    pq.write_table(pa.table({"image": pa.array([buffer], pa.binary())}), tmp_path / "a.parquet")

    def made(decode: fs.Op, **views: Any) -> dict[str, np.ndarray]:
        return next(
            iter(fs.Dataset(tmp_path).map("image", decode, fs.views(views)).batch(1).loader(output="numpy"))
        )

    half, tiny = fs.resize((200, 200)), fs.resize((40, 40))
    scaled = made(fs.decode_image(), half=half, tiny=tiny)
    assert (scaled["half"] == made(fs.decode_image(), half=half)["half"]).all()
    assert (scaled["tiny"] != made(fs.decode_image(), tiny=tiny)["tiny"]).any()
    exact = made(WHOLE, whole=fs.center_crop(900), tiny=tiny)
    mixed = made(fs.decode_image(), whole=fs.center_crop(900), tiny=tiny)
    assert (mixed["tiny"] == exact["tiny"]).all(), "a view of single pixels needs the whole size"
    assert np.abs(scaled["tiny"].astype(int) - exact["tiny"].astype(int)).max() <= 4


def test_ranks_workers_and_processes_make_the_same_views(data: Path) -> None:
    pipeline = fs.Dataset(data).map("image", WHOLE, CROPS)
    alone = rows(pipeline)
    serving = worker(data)
    assert same(alone, rows(pipeline, workers=serving.address))
    assert same(alone, rows(pickle.loads(pickle.dumps(pipeline))))
    found = {}
    for rank in range(2):
        loader = pipeline.shuffle(seed=5).batch(global_batch_size=8).epochs(1).loader(rank, 2, output="numpy")
        for batch in loader:
            for row, identity in enumerate(batch["id"]):
                names = ("global_1", "global_2", "local")
                found[int(identity)] = {name: np.array(batch[name][row]) for name in names}
    assert same(alone, found)


def test_a_resumed_loader_goes_on_with_the_same_views(data: Path) -> None:
    pipeline = fs.Dataset(data).map("image", WHOLE, CROPS).shuffle(seed=5).batch(4)
    assert_resumes(pipeline)


def test_a_bad_image_is_one_bad_sample(tmp_path: Path) -> None:
    pipeline = fs.Dataset(write(tmp_path, damaged=5)).map("image", WHOLE, CROPS).batch(8).epochs(1)
    with pytest.raises(fs.SampleError, match=r"a\.parquet row 5.*, column 'image'"):
        list(pipeline.loader())
    loader = pipeline.on_error("skip", max_fraction=0.1).loader()
    assert sum(int(batch.valid.sum()) for batch in loader) == ROWS - 1
    assert loader.skip_report()["count"] == 1
    small = fs.views({"large": fs.random_crop(120), "small": fs.random_resized_crop(8)})
    with pytest.raises(fs.SampleError, match="view 'large': "):
        list(fs.Dataset(tmp_path).filter("id = 0").map("image", WHOLE, small).batch(1).loader())


def test_shapes_are_described_and_shown(data: Path) -> None:
    pipeline = fs.Dataset(data).map("image", WHOLE, CROPS, []).batch(8)
    described = pipeline.describe()
    assert [(one.output, one.shape) for one in described.maps] == [
        ("global_1", (32, 32, 3)),
        ("global_2", (32, 32, 3)),
        ("local", (4, 12, 12, 3)),
    ]
    assert "local of image: BinaryView → uint8 [4, 12, 12, 3] by decode_image, random_resized_crop" in str(
        described
    )
    assert pipeline.show(2)._repr_html_().count("<img") == 2 * 6
    batch = next(iter(pipeline.loader()))
    assert batch["local"].torch().shape == (8, 4, 12, 12, 3)


def test_finishing_normalizes_each_view(data: Path) -> None:
    crops = [fs.random_resized_crop(16)]
    views = fs.views({"one": crops, "many": (3, crops)})
    finish = {name: fs.finish_pictures(dtype="float32") for name in ("one", "many")}
    pipeline = fs.Dataset(data).map("image", WHOLE, views).batch(8)
    batch = next(iter(pipeline.loader(device="cpu", finish=finish)))
    on_cpu = [*crops, fs.normalize(), fs.to_chw()]
    plain = fs.Dataset(data).map("image", WHOLE, fs.views({"one": on_cpu, "many": (3, on_cpu)})).batch(8)
    expected = next(iter(plain.loader(output="numpy")))
    assert batch["many"].shape == (8, 3, 3, 16, 16)
    for name in ("one", "many"):
        np.testing.assert_allclose(batch[name].numpy(), expected[name], atol=1e-6)


def test_functions_of_rows_get_all_views(data: Path) -> None:
    def mean(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"mean": np.float32(row["local"].mean()), "count": len(row["local"])}

    pipeline = fs.Dataset(data).map("image", WHOLE, CROPS).batch(8)
    rows_of = pipeline.map_rows(mean, inputs=["local"], executor="thread", num_workers=1)
    with rows_of.loader(output="numpy") as loader:
        batch = next(iter(loader))
    np.testing.assert_allclose(batch["mean"], batch["local"].mean(axis=(1, 2, 3, 4)), rtol=1e-5)
    assert (batch["count"] == 4).all()


def test_the_page_runs(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "python" / "views.md").read_text()
    real = fs.Dataset
    monkeypatch.setattr(fs, "Dataset", lambda uri: real(data))
    namespace: dict[str, Any] = {"images": str(data)}
    # Small crops in small batches; the last blocks run on the CPU.
    smaller = {"(224,": "(32,", "(96,": "(12,", ".batch(64)": ".batch(4).epochs(1)", '"cuda"': '"cpu"'}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    for number, block in enumerate(blocks):
        for old, new in smaller.items():
            block = block.replace(old, new)
        exec(compile(block, f"views.md block {number}", "exec"), namespace)
    assert namespace["local"].shape == (4, 8, 12, 12, 3)
    finished = next(iter(namespace["loader"]))
    assert (finished["global_1"].shape, finished["local"].shape) == ((4, 3, 32, 32), (4, 8, 3, 12, 12))


def test_mistakes_are_named(data: Path) -> None:
    source = fs.Dataset(data)

    def refused(match: str, *ops: Any, **options: Any) -> None:
        with pytest.raises(fs.ConfigError, match=match):
            source.map("image", *ops, **options)

    one = fs.views({"a": crop(8)})
    refused(r"must come last in a map, and once", fs.decode_image(), one, fs.horizontal_flip())
    refused(r"must come last in a map, and once", fs.decode_image(), one, one)
    refused(r"comes after fs.decode_image\(…\) alone; got \[\]", one)
    refused(r"comes after fs.decode_image\(…\) alone", fs.decode_image(), fs.resize(64), one)
    refused(r"comes after fs.decode_image\(…\) alone", fs.decode_audio(), one)
    refused("takes no output, pad_value and key", fs.decode_image(), one, output="x")
    refused("takes no output, pad_value and key", fs.decode_image(), one, key="x")
    refused(
        "view 'b': op 1 .*size must be", fs.decode_image(), fs.views({"a": crop(8), "b": fs.resize((0, 1))})
    )
    refused("view 'a': the chain has no fixed output size", fs.decode_image(), fs.views({"a": fs.resize(9)}))
    with pytest.raises(fs.ConfigError, match=r"do not follow fs\.views"):
        source.map({"image": fs.image()}, one)
    for bad, match in [
        ({}, "must be a dict with a chain of ops"),
        ([crop(8)], "must be a dict with a chain of ops"),
        ({"": crop(8)}, "must not be empty"),
        ({1: crop(8)}, "the name of a view must be a string"),
        ({"a": (0, crop(8))}, "the number of images of view 'a' must be an integer >= 1; got 0"),
        ({"a": (2.5, crop(8))}, "must be an integer >= 1; got 2.5"),
        ({"a": (1025, crop(8))}, "must be at most 1024"),
        ({"a": (2, *crop(8))}, "must be ops, or"),
        ({"a": [fs.decode_image(), *crop(8)]}, "the image is decoded once"),
    ]:
        with pytest.raises(fs.ConfigError, match=match):
            fs.views(bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ops must be feedstock's"):
        fs.views({"a": [len]})


def test_names_that_collide_are_named(data: Path) -> None:
    source = fs.Dataset(data)

    def refused(match: str, pipeline: fs.Pipeline, **options: Any) -> None:
        with pytest.raises(fs.ConfigError, match=match):
            pipeline.batch(8).loader(**options)

    def named(name: str) -> tuple[fs.Op, fs.Views]:
        return fs.decode_image(), fs.views({name: crop(8)})

    refused("the view 'id' of 'image' has the name of the column 'id'", source.map("image", named("id")))
    refused("the view 'image' of 'image' has the name of the column", source.map("image", named("image")))
    other = source.map("image", fs.decode_image(), fs.resize((8, 8)), output="a")
    refused("the map of 'image' to 'a' and the view 'a' of 'image'", other.map("image", named("a")))
    refused(
        "the view 'a' of 'image' and the view 'a'", source.map("image", named("a")).map("image", named("a"))
    )
    views = source.map("image", named("a"))
    refused("nvjpeg: 'a' is a view of 'image'", views, device="cpu", nvjpeg=0.5)
    several = source.map("image", fs.decode_image(), fs.views({"a": (2, crop(8))}))
    mixed = {"a": fs.finish_pictures(mix=fs.mixup_cutmix(labels="id"))}
    refused("finish of 'a': mix mixes rows of one image", several, device="cpu", finish=mixed)
