"""Single samples, tables, descriptions, previews, and where samples are."""

from __future__ import annotations

import base64
import io
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from programs import pages
from synthetic import synth

import feedstock as fs
from feedstock._preview import png

PAGE = Path(__file__).parents[2] / "docs" / "python" / "looking.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns 40 images in folders by class."""
    made = tmp_path_factory.mktemp("folder")
    synth("imagenet", made, "--samples", 40, "--seed", 1, "--layout", "folder")
    return made


@pytest.fixture(scope="module")
def stored(imagenet: Path) -> list[dict[str, Any]]:
    """Returns the rows of the data set as pyarrow reads them."""
    return pq.read_table(imagenet).to_pylist()


class Parsed(HTMLParser):
    """Tags in order, and all text; fails for tags that are not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("img", "br", "meta"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def without_id(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "sample_id"}


def payload(row: dict[str, Any]) -> bytes:
    return row["image"]["bytes"] if isinstance(row["image"], dict) else row["image"]


def test_samples_are_those_that_pyarrow_reads(imagenet: Path, stored: list[dict[str, Any]]) -> None:
    data = fs.Dataset(imagenet)
    for index in (0, 7, 199, -1, np.int64(-200)):
        row = data[index]
        assert (payload(row), row["label"]) == (payload(stored[index]), stored[index]["label"])
        assert row["sample_id"] == int(index) % 200
    assert [payload(row) for row in data.head(200).rows()] == [payload(row) for row in stored]


def test_samples_of_a_filter_count_only_those_that_it_keeps(
    imagenet: Path, stored: list[dict[str, Any]]
) -> None:
    labels = [row["label"] for row in stored]
    limit = sorted(labels)[100]
    kept = [number for number, label in enumerate(labels) if label < limit]
    data = fs.Dataset(imagenet).filter(f"label < {limit}").columns(["label"])
    assert [data[number]["sample_id"] for number in range(0, len(kept), 9)] == kept[::9]
    assert data[-1] == {"sample_id": kept[-1], "label": labels[kept[-1]]}
    assert [row["sample_id"] for row in data.head(1000).rows()] == kept
    assert len(data.head(0)) == 0


def test_files_of_a_folder_are_read_as_they_are(folder: Path) -> None:
    data = fs.Dataset(folder)
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if path.is_file())
    assert [data[number]["path"] for number in range(len(data))] == paths
    assert data[3]["image"] == (folder / paths[3]).read_bytes()


def test_indices_are_checked(imagenet: Path) -> None:
    data = fs.Dataset(imagenet)
    for index in (200, -201):
        with pytest.raises(IndexError, match=f"no sample {index}: numbers are -200 to 199"):
            data[index]
    with pytest.raises(TypeError, match="head.* skip.*take"):
        data[0:3]  # type: ignore[index]
    with pytest.raises(TypeError, match="'a'"):
        data["a"]  # type: ignore[index]
    with pytest.raises(TypeError, match="not iterable"):
        list(data)  # type: ignore[call-overload]
    with pytest.raises(fs.ConfigError, match="n must be an integer >= 0; got -1"):
        data.head(-1)


def test_class_names(folder: Path, tmp_path: Path) -> None:
    data = fs.Dataset(folder)
    assert data.class_names("label") == sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert data.class_names("path") is None
    with pytest.raises(fs.ConfigError, match="column must be one of .*label.*; got 'lable'"):
        data.class_names("lable")
    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    table = pa.table({"image": [b"\xff\xd8\xff"] * 2, "label": pa.array([1, 0], pa.int64())})
    pq.write_table(
        table.replace_schema_metadata({"huggingface": json.dumps(features)}), tmp_path / "a.parquet"
    )
    hugging_face = fs.Dataset(tmp_path)
    assert hugging_face.class_names("label") == ["cat", "dog"]
    assert "1 (dog)" in repr(hugging_face.head())


def test_tables_print_and_are_arrow(imagenet: Path, folder: Path) -> None:
    head = fs.Dataset(imagenet).head(3)
    lines = repr(head).splitlines()
    assert lines[0].split()[0] == "sample_id"
    assert len(lines) == 5
    assert lines[-1] == "3 rows"
    assert max(map(len, lines)) < 160
    assert pa.table(head).num_rows == 3
    assert pa.table(head).column_names == list(head.schema)
    html = Parsed(fs.Dataset(folder).head(3)._repr_html_())
    assert html.tags.count("img") == 3
    counts = fs.Dataset(imagenet).sql("select sample_id, 'a<b>' as text from catalog order by sample_id")
    assert isinstance(counts, fs.Table)
    assert "200 rows, of which the first 20 are shown" in repr(counts)
    assert "a<b>" in Parsed(counts._repr_html_()).text
    assert counts.rows()[150] == {"sample_id": 150, "text": "a<b>"}


def test_a_pipeline_describes_itself(imagenet: Path) -> None:
    data = fs.Dataset(imagenet).filter("sample_id < 100")
    pipeline = data.map("image", fs.decode_image(), fs.random_resized_crop(32), fs.normalize(), fs.to_chw())
    pipeline = pipeline.shuffle(seed=7, window=64).batch(8).options(threads=3, slots=5)
    described = pipeline.describe(world_size=2)
    assert described.filter is not None
    assert (described.samples, described.catalog_samples, described.steps) == (100, 200, 6)
    (image,) = described.maps
    assert (image.dtype, image.shape, image.layout) == ("float32", (3, 32, 32), "chw")
    assert str(image).endswith("float32 [3, 32, 32] by decode_image, random_resized_crop, normalize, to_chw")
    assert "size=[32, 32]" in repr(image.ops[1])
    assert [(one.name, one.is_tensor) for one in described.columns if one.name == "label"] == [
        ("label", True)
    ]
    assert (described.threads, described.memory.slots, described.global_batch_size) == (3, 5, 16)
    assert described.memory.slot_bytes == 8 * 3 * 32 * 32 * 4
    assert described.reads is not None
    assert described.reads.bytes > 0
    with pipeline.loader(0, 2, output="numpy") as loader:
        batch = next(iter(loader))
        assert (len(loader), loader.global_batch_size) == (described.steps, described.global_batch_size)
    assert (batch["image"].shape[1:], batch["image"].dtype.name) == (image.shape, image.dtype)
    text = repr(described)
    for part in ("float32 [3, 32, 32]", "sample_id < 100", "windows of 64 samples", "seed 7", "6 steps"):
        assert part in text
    assert Parsed(pipeline._repr_html_()).tags.count("tr") == len(text.splitlines())
    assert Parsed(data._repr_html_()).tags.count("tr") == 4 + len(data.schema)


def test_descriptions_of_audio_and_functions(common_voice: Path) -> None:
    data = fs.Dataset(common_voice, split="train")
    pipeline = (
        data.map("audio", fs.decode_audio(), fs.resample(16000)).bucket_by("duration").batch(total=20.0)
    )
    described = pipeline.map_python(len).describe()
    (audio,) = described.maps
    assert (audio.shape, described.bucketed_by, described.global_batch_size) == ((None,), "duration", None)
    assert described.memory.has_variable_length
    assert described.functions == (f"map_python({len!r})",)
    assert described.steps == len(pipeline.loader())
    with pytest.raises(fs.ConfigError, match="show needs a column of images"):
        pipeline.show()


def test_a_pipeline_that_is_not_valid_has_no_description(imagenet: Path) -> None:
    with pytest.raises(fs.ConfigError, match="batch"):
        fs.Dataset(imagenet).batch(1000).describe()


def shown(preview: fs.Preview) -> list[Image.Image]:
    encoded = re.findall(r"base64,([^\"]*)\"", preview._repr_html_())
    return [Image.open(io.BytesIO(base64.b64decode(one))) for one in encoded]


def test_a_preview_has_the_pixels_of_the_first_batch(imagenet: Path, tmp_path: Path) -> None:
    pipeline = (
        fs.Dataset(imagenet).map("image", fs.decode_image(), fs.random_resized_crop(32)).shuffle(seed=7)
    )
    with pipeline.batch(6).loader(output="numpy") as loader:
        loader.set_epoch(2)
        batch = next(iter(loader))
    preview = pipeline.batch(64).show(6, epoch=2)
    assert len(preview) == 6
    page = Parsed(preview._repr_html_())
    assert page.tags.count("figure") == 6
    captions = [int(sample) for sample in re.findall(r"sample (\d+)", page.text)]
    expected = dict(zip(batch["sample_ids"].tolist(), batch["image"], strict=True))
    assert sorted(captions) == sorted(expected)
    for image, sample in zip(shown(preview), captions, strict=True):
        assert (np.asarray(image) == expected[sample]).all()
    preview.save(tmp_path / "page.html")
    assert Parsed((tmp_path / "page.html").read_text()).tags.count("img") == 6
    planes = pipeline.map_rows(lambda row, rng: {"image": row["image"]}, num_workers=1).batch(4).show(2)
    assert len(shown(planes)) == 2


def test_a_preview_shows_floats_stored_images_and_bad_samples(folder: Path, tmp_path: Path) -> None:
    data = fs.Dataset(folder)
    floats = data.map("image", fs.decode_image(), fs.resize((16, 16)), fs.normalize(), fs.to_chw()).show(2)
    for image in shown(floats):
        assert image.size == (16, 16)
        assert np.asarray(image).max() == 255
    assert len(shown(data.pipeline().show(3))) == 3
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(b"not an image")
    (tmp_path / "a" / "1.jpg").write_bytes(next(folder.rglob("*.JPEG")).read_bytes())
    damaged = fs.Dataset(tmp_path).map("image", fs.decode_image(), fs.resize((8, 8))).show()
    assert len(damaged) == 2
    assert len(shown(damaged)) == 1
    assert "0.jpg" in Parsed(damaged._repr_html_()).text


@pytest.mark.parametrize("channels", [3, 4])
def test_pngs_are_what_pillow_reads(channels: int) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 9, channels), dtype=np.uint8)
    assert (np.asarray(Image.open(io.BytesIO(png(pixels)))) == pixels).all()


def place_by_search(loader: fs.Loader, sample: int, epoch: int) -> list[tuple[int, int, int, int]]:
    """Looks through every step of an epoch."""
    found = []
    for step in range(len(loader)):
        for rank, ids in enumerate(loader.samples_in(step, epoch)):
            found += [(epoch, step, rank, int(row)) for row in np.flatnonzero(ids == sample)]
    return found


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("shuffle", [{}, {"window": 32}, {"full": True}])
def test_where_finds_what_a_search_finds(imagenet: Path, world_size: int, shuffle: dict[str, Any]) -> None:
    pipeline = fs.Dataset(imagenet).filter("sample_id <> 5").shuffle(seed=3, **shuffle)
    loader = pipeline.batch(global_batch_size=24).loader(0, world_size)
    found = [loader.where(sample, epoch=1) for sample in range(200)]
    assert found == [place_by_search(loader, sample, 1) for sample in range(200)]
    assert found[5] == []
    assert sum(map(len, found)) == 192  # 7 of 199 are in the last step, which is dropped
    assert found[6][0].epoch == 1
    with pytest.raises(fs.ConfigError, match="sample 200 does not exist: ids of this data set are 0 to 199"):
        loader.where(200)


def test_where_with_totals_padding_and_repeats(common_voice: Path, imagenet: Path) -> None:
    speech = fs.Dataset(common_voice, split="train")
    pipeline = speech.shuffle(seed=2).bucket_by("duration").batch(global_total=40.0)
    loader = pipeline.loader(0, 2)
    for sample in range(0, len(speech), 7):
        assert loader.where(sample) == place_by_search(loader, sample, 0)
    padded = fs.Dataset(imagenet).shuffle(seed=1).batch(global_batch_size=32, tail="pad").loader(0, 2)
    assert [len(padded.where(sample)) for sample in range(200)] == [1] * 200
    small = fs.Dataset(imagenet).filter("sample_id < 20").named("small")
    mixed = fs.Dataset.mix([(small, 1), (fs.Dataset(imagenet).named("all"), 1)], stop="all_exhausted")
    loader = mixed.shuffle(seed=1).batch(8).loader()
    assert loader.where(3) == place_by_search(loader, 3, 0)
    assert len(loader.where(3)) > 5


@pytest.mark.parametrize("functions", [False, True])
def test_peeking_consumes_nothing(imagenet: Path, functions: bool) -> None:
    pipeline: fs.Pipeline = fs.Dataset(imagenet).shuffle(seed=3).batch(40)
    if functions:
        pipeline = pipeline.map_python(lambda batch: batch)

    def ids(batch: Any) -> list[int]:
        return batch.sample_ids.tolist()

    whole = pipeline.loader()
    expected = [[ids(batch) for batch in whole] for _ in range(2)]
    loader = pipeline.epochs(2).loader()
    state = loader.state_dict()
    assert loader.peek() is loader.peek()
    assert loader.state_dict() == state
    seen = []
    for batch in loader:
        seen.append(ids(batch))
        place = len(seen) % 5
        assert ids(loader.peek()) == (expected[0][place] if place else expected[1][0])
        assert loader.position == 40 * place
        assert loader.epoch == (0 if place else 1)
    assert seen == expected[0]
    resumed = pipeline.loader()
    resumed.load_state_dict(loader.state_dict())
    assert ids(resumed.peek()) == expected[1][0]
    assert [ids(batch) for batch in loader] == expected[1]
    assert loader.peek() is None
    assert list(loader) == []
    loader.close()


def test_a_peek_over_an_epochs_end_ends_the_iteration_once(imagenet: Path) -> None:
    loader = fs.Dataset(imagenet).batch(40).loader()
    positions = []
    for batch in loader:
        positions.append(batch.position)
        if batch.position == 160:
            assert loader.peek().epoch == 1  # type: ignore[union-attr]
            loader.reconfigure(batch_size=20)
    assert positions == [0, 40, 80, 120, 160]
    assert [batch.epoch for batch in loader] == [1] * 10
    evaluation = fs.Dataset(imagenet).batch(40).loader(restart=True)
    for one in (loader, evaluation):
        epoch = one.epoch
        for _ in one:
            one.peek()
        ledger = one.ledger()
        assert ledger is not None
        assert (ledger["epoch"], ledger["delivered"], ledger["exact"]) == (epoch, 200, True)


def test_a_forked_child_does_not_get_a_peeked_batch(imagenet: Path) -> None:
    loader = fs.Dataset(imagenet).batch(40).loader()
    loader.peek()
    child = os.fork()
    if child == 0:
        refused = 0
        for take in (loader.peek, lambda: next(iter(loader))):
            try:
                take()
            except fs.ForkError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert next(iter(loader)).position == 0


def test_a_peeked_batch_is_forgotten_by_moves(imagenet: Path) -> None:
    loader = fs.Dataset(imagenet).batch(40).loader()
    assert loader.peek().position == 0  # type: ignore[union-attr]
    loader.seek(2)
    assert loader.peek().position == 80  # type: ignore[union-attr]
    loader.set_epoch(3)
    assert loader.peek().epoch == 3  # type: ignore[union-attr]
    loader.reconfigure(batch_size=20)
    assert (loader.peek().position, loader.peek().num_rows) == (0, 20)  # type: ignore[union-attr]
    loader.close()
    assert (loader.epoch, loader.position) == (3, 0)
    assert [batch.position for batch in loader] == list(range(0, 200, 20))
    assert loader.ledger()["exact"]  # type: ignore[index]


def test_evaluation_begins_anew_after_a_peek(imagenet: Path) -> None:
    loader = fs.Dataset(imagenet).batch(40).loader(restart=True)
    for batch in loader:
        if batch.position == 80:
            break
    assert loader.peek().position == 120  # type: ignore[union-attr]
    assert [batch.position for batch in loader] == [0, 40, 80, 120, 160]
    with pytest.raises(fs.ConfigError, match="leave out static"):
        fs.Dataset(imagenet).batch(40).loader(device="cpu", static=True).peek()


def test_page(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for the page that it saves
    pages.run(
        PAGE, {"s3://corpus/imagenet/train": str(folder), "batch(256)": "batch(8)", "(224)": "(32)"}, {}
    )
    assert (tmp_path / "first.html").stat().st_size > 1000
