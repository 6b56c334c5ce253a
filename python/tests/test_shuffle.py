"""`Pipeline.shuffle`: what is permuted by default, its options, and states of other orders."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import feedstock as fs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for sample in range(60):
        path = tmp_path / f"class{sample % 3}" / f"{sample:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), sample, np.uint8)).save(path)
    return tmp_path


def order(pipeline: fs.Pipeline) -> str:
    return str(pipeline.batch(global_batch_size=10).shuffle_quality()["order"]["shuffle"])


def test_the_layout_decides_what_is_permuted(folder: Path, imagenet: Path) -> None:
    files, parquet = fs.Dataset(folder), fs.Dataset(imagenet)
    assert order(files.shuffle(seed=7)).startswith("a full shuffle")
    assert "in blocks" in order(parquet.shuffle(seed=7))
    assert "windows of 20 samples in blocks" in order(files.shuffle(seed=7, window=20))
    assert "windows of 20 samples in pieces of 4" in order(files.shuffle(seed=7, window=20, piece=4))
    assert "in pieces of 3" in order(parquet.shuffle(seed=7, piece=3, shuffle_bytes=1 << 20))
    assert order(parquet.shuffle(seed=7, full=True)).startswith("a full shuffle")


def test_options_are_checked(folder: Path) -> None:
    for wrong in ({"piece": 0}, {"shuffle_bytes": 0}, {"piece": "many"}):
        with pytest.raises(fs.ConfigError, match="must be an integer >= 1"):
            fs.Dataset(folder).shuffle(seed=7, **wrong)


def test_a_saved_order_is_kept(folder: Path) -> None:
    def loader(**options: int) -> fs.Loader:
        pipeline = fs.Dataset(folder).columns(["path"]).shuffle(seed=7, **options).batch(10)
        return pipeline.epochs(2).loader()

    saved = loader(window=20)  # as an earlier release shuffled
    taken = [batch.sample_ids.tolist() for _, batch in zip(range(2), saved, strict=False)]
    state = saved.state_dict()
    rest = [batch.sample_ids.tolist() for batch in saved]
    resumed = loader()
    resumed.load_state_dict(state)
    assert [batch.sample_ids.tolist() for batch in resumed] == rest
    assert sorted(sample for batch in taken + rest for sample in batch) == list(range(60))


def pictures(file: int) -> tuple[list[bytes], dict[str, pa.Array]]:
    """45 pictures, each of its own brightness and length, and their other columns."""
    images, numbers = [], range(file * 45, file * 45 + 45)
    for number in numbers:
        encoded = io.BytesIO()
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(encoded, "png")
        images.append(encoded.getvalue() + bytes(number))
    labels = pa.array([number if number % 5 else None for number in numbers], pa.int16())
    return images, {"label": labels, "name": pa.array([f"picture {number}" for number in numbers])}


def ipc(folder: Path, compression: str | None) -> Path:
    """90 pictures in two files of batches of 7 rows as pyarrow writes them."""
    folder.mkdir()
    for file in range(2):
        images, others = pictures(file)
        table = pa.table({"image": pa.array(images, pa.large_binary()), **others})
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(folder / f"part-{file}.arrow", table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=7)
    return folder


def test_ipc_of_pyarrow_is_shuffled_in_full_unless_it_is_compressed(tmp_path: Path) -> None:
    plain, compressed = fs.Dataset(ipc(tmp_path / "plain", None)), fs.Dataset(ipc(tmp_path / "lz4", "lz4"))
    assert order(plain.shuffle(seed=7)).startswith("a full shuffle")
    assert "in blocks" in order(compressed.shuffle(seed=7))
    for data in (plain, compressed):
        pipeline = (
            data.columns(["image", "name"]).map("image", fs.decode_image(), fs.resize((8, 8))).shuffle(seed=7)
        )
        seen = []
        for batch in pipeline.batch(10).epochs(1).loader():
            samples = batch.sample_ids.tolist()
            assert batch["image"].numpy()[:, 0, 0, 0].tolist() == samples
            assert list(batch["name"]) == [f"picture {sample}" for sample in samples]
            seen += samples
        assert sorted(seen) == list(range(90))
        assert seen != sorted(seen)


def pages(folder: Path, samples: int) -> Path:
    """90 pictures in two files of Parquet whose pages have this number of samples, as pyarrow writes them."""
    folder.mkdir()
    for file in range(2):
        images, others = pictures(file)
        named = [{"bytes": image, "path": f"{number}.png"} for number, image in enumerate(images)]
        table = pa.table({"image": named, **others})
        pq.write_table(
            table,
            folder / f"part-{file}.parquet",
            row_group_size=15,
            data_page_size=1,
            write_batch_size=samples,
            write_page_index=True,
            use_dictionary=["name"],
            compression="snappy" if file else "none",
        )
    return folder


@pytest.mark.parametrize(
    ("samples", "expected"), [(1, "a full shuffle"), (3, "in pieces of 3"), (4, "in blocks")]
)
def test_parquet_of_pyarrow_is_shuffled_by_pages(tmp_path: Path, samples: int, expected: str) -> None:
    data = fs.Dataset(pages(tmp_path / "pages", samples))  # row groups of 15 rows have no whole pages of 4
    pipeline = (
        data.columns(["image", "name"]).map("image", fs.decode_image(), fs.resize((8, 8))).shuffle(seed=7)
    )
    assert expected in order(pipeline)
    quality = pipeline.batch(10).shuffle_quality()
    assert ("--page-samples" in (quality["why_blocks"] or "")) == (samples == 4)
    seen = []
    for batch in pipeline.batch(10).epochs(1).loader():
        numbers = batch.sample_ids.tolist()
        assert batch["image"].numpy()[:, 0, 0, 0].tolist() == numbers
        assert list(batch["name"]) == [f"picture {number}" for number in numbers]
        seen += numbers
    assert sorted(seen) == list(range(90))
    assert seen != sorted(seen)


def test_a_window_beyond_the_budget_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in range(60):
        (tmp_path / f"{name:02}.jpg").write_bytes(bytes(1024))
    data = fs.Dataset(tmp_path, block_bytes=4096)
    with caplog.at_level("WARNING", logger="feedstock"):
        for window, is_beyond in ((None, False), (60, True)):
            pipeline = data.shuffle(seed=7, window=window).batch(3).epochs(1).options(budget_bytes=5 * 4096)
            with pipeline.loader() as loader:
                samples = sorted(sample for batch in loader for sample in batch.sample_ids.tolist())
                refetched = loader.stats()["refetched_blocks"]
            assert samples == list(range(60))
            assert (refetched > 0) == is_beyond
            assert caplog.text.count("does not hold all data until it is needed again") == int(is_beyond)
