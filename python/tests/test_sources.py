"""``fs.from_arrow``, ``from_pandas``, ``from_items`` and ``from_huggingface``: values, identities, files."""

from __future__ import annotations

import datetime
import io
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedstock as fs

pa = pytest.importorskip("pyarrow")

PAGE = Path(__file__).parents[2] / "docs" / "python" / "sources.md"


def rows_of(dataset: fs.Dataset, **nulls: Any) -> dict[str, Any]:
    """Returns all columns of a data set, in its sequence."""
    (batch,) = dataset.batch(len(dataset)).nulls(nulls or {}).epochs(1).loader(output="numpy")
    assert batch["sample_ids"].tolist() == list(range(len(dataset)))
    return {
        name: column.tolist() if hasattr(column, "tolist") else column
        for name, column in batch.items()
        if name not in ("sample_ids", "valid")
    }


def table(rows: int = 5000) -> Any:
    numbers = range(rows)
    return pa.table(
        {
            "number": pa.array(numbers, pa.int32()),
            "maybe": pa.array([None if n % 3 == 0 else n / 4 for n in numbers]),
            "town": pa.array(["abc"[n % 3] for n in numbers]).dictionary_encode(),
            "is_odd": pa.array([n % 2 == 1 for n in numbers]),
            "body": pa.array([bytes([n % 256]) * (n % 7) for n in numbers]),
        }
    )


def test_a_table_has_its_rows() -> None:
    given = table()
    found = rows_of(fs.from_arrow(given), maybe=-1.0)
    expected = given.to_pydict()
    expected["maybe"] = [-1.0 if value is None else value for value in expected["maybe"]]
    assert {name: list(map(_plain, column)) for name, column in found.items()} == expected


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, (memoryview, np.ndarray)) else value


def scattered(given: Any) -> Any:
    """Returns the same rows in other chunks, types of offsets, and bytes under nulls."""
    maybe = given.column("maybe").combine_chunks()
    under = np.where(np.arange(len(given)) % 3 == 0, 99.0, np.arange(len(given)) / 4)
    dirty = pa.Array.from_buffers(
        pa.float64(), len(given), [maybe.buffers()[0], pa.py_buffer(under.tobytes())]
    )
    other = (
        given.set_column(1, "maybe", dirty)
        .set_column(2, "town", given.column("town").cast(pa.large_string()))
        .set_column(4, "body", given.column("body").cast(pa.binary_view()))
        .replace_schema_metadata({"pandas": "{}"})
    )
    return pa.concat_tables([other.slice(0, 1), other.slice(1, 2000), other.slice(2001)])


def test_identity_is_that_of_the_rows_alone() -> None:
    given = table()
    one = fs.from_arrow(given)
    for same in (
        scattered(given),
        given.to_reader(77),
        pa.concat_tables([given.slice(9), given]).slice(4991),
    ):
        assert fs.from_arrow(same).uri == one.uri
    for other in (
        given.slice(1),
        given.rename_columns([*given.column_names[:-1], "bytes"]),
        given.drop("body"),
    ):
        assert fs.from_arrow(other).uri != one.uri

    def loader(dataset: fs.Dataset) -> fs.Loader[Any]:
        return dataset.shuffle(seed=4).nulls({"maybe": -1.0}).batch(50).loader(output="numpy")

    with loader(one) as first:
        seen = next(iter(first))["number"].tolist()
        state = json.loads(json.dumps(first.state_dict()))
    with loader(fs.from_arrow(scattered(given))) as second:
        second.load_state_dict(state)
        assert second.position == 50
        assert not set(seen) & set(next(iter(second))["number"].tolist())
    with loader(fs.from_arrow(given.slice(1))) as third, pytest.raises(fs.ConfigError):
        third.load_state_dict(state)


def test_another_machine_has_the_same_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fs.from_arrow(table(300)).shuffle(seed=4).nulls({"maybe": -1.0}).batch(50).loader() as loader:
        next(iter(loader))
        state = loader.state_dict()
    monkeypatch.setenv("FEEDSTOCK_CACHE", str(tmp_path / "elsewhere"))
    dataset = fs.from_arrow(table(300))
    assert str(tmp_path) in dataset.uri
    with dataset.shuffle(seed=4).nulls({"maybe": -1.0}).batch(50).loader() as loader:
        loader.load_state_dict(state)
        assert loader.position == 50


def test_files_are_written_once_and_removed_when_unused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDSTOCK_CACHE", str(tmp_path))
    first = Path(fs.from_arrow(table(100)).uri.removeprefix("file://"))
    assert first.parent == tmp_path / "sources"
    written = first.stat()
    os.utime(first, (0, 0))
    fs.from_arrow(table(100))
    assert first.stat().st_ino == written.st_ino
    assert first.stat().st_mtime == 0.0, "readers would take it for another file"
    assert time.time() - first.stat().st_atime < 60.0, "opening a file does not count as its use"
    fs.from_arrow(table(102))
    assert len(list(first.parent.iterdir())) == 2
    os.utime(first, (0, 0))
    (tmp_path / "sources" / ".writing-x").mkdir()
    os.utime(tmp_path / "sources" / ".writing-x", (0, 0))
    os.utime(
        next(path for path in first.parent.iterdir() if path.suffix == ".arrow" and path != first), (0, 0)
    )
    second = fs.from_arrow(table(101)).uri.removeprefix("file://")
    assert [str(path) for path in first.parent.iterdir()] == [second]


def test_a_running_loader_goes_on_when_others_open_its_table() -> None:
    dataset = fs.from_arrow(table(103))
    with (
        dataset.batch(10)
        .nulls({"maybe": -1.0})
        .options(slots=2, prefetch_bytes=0)
        .loader(output="numpy") as loader
    ):
        iterator = iter(loader)
        next(iterator)
        fs.from_arrow(table(103).to_reader())  # written again, and dropped
        assert len(list(iterator)) == 9


def test_a_folder_of_the_callers_keeps_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    dataset = fs.from_arrow(table(10), folder=folder)
    os.utime(folder / os.path.basename(dataset.uri), (0, 0))
    fs.from_items([1, 2], folder=folder)
    assert len(list(folder.iterdir())) == 2
    assert len(dataset) == 10


def test_tables_of_other_libraries() -> None:
    polars = pytest.importorskip("polars")
    columns = {"n": [1, 2, 3], "s": ["a", "b", "c"]}
    frame = polars.DataFrame(columns)
    assert rows_of(fs.from_arrow(frame)) == columns
    assert fs.from_arrow(frame).uri == fs.from_arrow(pa.table(columns)).uri
    result = fs.from_arrow(frame).sql("select n + 1 as n from catalog where n > 1")
    assert rows_of(fs.from_arrow(result)) == {"n": [3, 4]}


def test_data_frames_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "stars": pandas.array([5, None, 1], "Int64"),
            "text": ["good", None, "bad"],
            "class": pandas.Categorical(["x", "y", "x"]),
            "flag": pandas.array([True, None, False], "boolean"),
            "weight": [0.5, float("nan"), 1.5],
        },
        index=[7, 8, 9],
    )
    found = rows_of(fs.from_pandas(frame), stars=-1, flag=False, weight=-1.0)
    assert found == {
        "stars": [5, -1, 1],
        "text": ["good", None, "bad"],
        "class": ["x", "y", "x"],
        "flag": [True, False, False],
        "weight": [0.5, -1.0, 1.5],
    }
    assert fs.from_pandas(frame.reset_index(drop=True)).uri == fs.from_pandas(frame).uri
    with pytest.raises(fs.ConfigError, match=r"must be strings; got 0"):
        fs.from_pandas(pandas.DataFrame([[1, 2]]))
    with pytest.raises(fs.ConfigError, match="as Arrow"):
        fs.from_pandas(pandas.DataFrame({"mixed": [1, "a"]}, dtype=object))
    with pytest.raises(fs.ConfigError, match="must be a pandas.DataFrame"):
        fs.from_pandas({"a": [1]})


def test_items_of_several_kinds() -> None:
    items = [
        {"label": 3, "text": "a", "tokens": np.arange(3), "at": datetime.date(2026, 1, 2)},
        {"label": 4, "tokens": [7, 8, 9], "text": None, "at": datetime.date(2026, 1, 3)},
    ]
    found = rows_of(fs.from_items(items).columns(["label", "text", "tokens"]))
    assert found == {"label": [3, 4], "text": ["a", None], "tokens": [[0, 1, 2], [7, 8, 9]]}
    assert rows_of(fs.from_items(iter(range(5)))) == {"item": list(range(5))}
    assert rows_of(fs.from_items([2.5, 1])) == {"item": [2.5, 1.0]}


def test_items_of_encoded_images() -> None:
    Image = pytest.importorskip("PIL.Image")
    items = []
    for label in range(4):
        file = io.BytesIO()
        Image.new("RGB", (8, 6), (40 * label, 0, 0)).save(file, "PNG")
        items.append({"image": file.getvalue(), "label": label})
    pipeline = (
        fs.from_items(items).map("image", fs.decode_image(), fs.center_crop(6)).shuffle(seed=1).batch(4)
    )
    (batch,) = pipeline.epochs(1).loader(output="numpy")
    assert batch["image"].shape == (4, 6, 6, 3)
    assert (batch["image"][:, 0, 0, 0] == 40 * batch["label"]).all()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "no rows"),
        ("text", "list of dicts or values; got str"),
        ({"a": 1}, "list of dicts or values; got dict"),
        (3, "list of dicts or values; got int"),
        ([{"a": 1}, 2], "item 1 is int"),
        ([{"a": 1}, {"a": "x"}], "values of 'a' cannot be one column"),
        ([{1: 1}], "keys of items must be non-empty strings; got 1"),
        ([2**70], "values of 'item' cannot be one column"),
        ([np.zeros((2, 2))], "values of 'item' cannot be one column"),
    ],
)
def test_bad_items(items: Any, message: str) -> None:
    with pytest.raises(fs.ConfigError, match=message):
        fs.from_items(items)


def test_bad_tables() -> None:
    with pytest.raises(fs.ConfigError, match="__arrow_c_stream__"):
        fs.from_arrow([1, 2])
    with pytest.raises(fs.ConfigError, match="no rows"):
        fs.from_arrow(table(0))
    with pytest.raises(fs.ConfigError, match="sample_id"):
        fs.from_arrow(pa.table({"sample_id": [1]}))


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a data set of `datasets` of 90 rows in one file: n, text, label with class names."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    features = datasets.Features(
        {
            "n": datasets.Value("int64"),
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["cat", "dog", "fox"]),
        }
    )

    def rows() -> Any:
        for n in range(90):
            yield {"n": n, "text": f"text {n}", "label": n % 3}

    folder = str(tmp_path_factory.mktemp("hf"))
    return datasets.Dataset.from_generator(rows, features=features, cache_dir=folder)


def expect(dataset: fs.Dataset, numbers: list[int]) -> None:
    """Checks rows and their sequence."""
    with dataset.batch(len(numbers)).epochs(1).loader(output="numpy") as loader:
        (batch,) = loader
        assert batch["n"].tolist() == numbers
        assert batch["text"] == [f"text {n % 90}" for n in numbers]
        assert batch["label"].tolist() == [n % 3 for n in numbers]


def links(dataset: fs.Dataset) -> list[str]:
    """Returns the files that the links of a data set lead to."""
    folder = Path(dataset.uri.removeprefix("file://"))
    return [os.readlink(path) for path in sorted(folder.iterdir())] if folder.is_dir() else []


def test_files_of_hugging_face_are_opened_where_they_are(hf: Any) -> None:
    opened = fs.from_huggingface(hf)
    assert links(opened) == [file["filename"] for file in hf.cache_files]
    assert opened.class_names("label") == ["cat", "dog", "fox"]
    expect(opened, list(range(90)))


@pytest.mark.parametrize(
    ("change", "numbers"),
    [
        (lambda hf: hf.select(range(10, 30)).select(range(5, 9)), range(15, 19)),
        (lambda hf: hf.select([7, 2, 50]), [2, 7, 50]),
        (lambda hf: hf.filter(lambda row: row["n"] % 9 == 0, keep_in_memory=True), range(0, 90, 9)),
        (lambda hf: hf.shuffle(seed=3), range(90)),
        (lambda hf: hf.shard(3, 1), range(30, 60)),
        (lambda hf: hf.with_format("torch"), range(90)),
    ],
    ids=["ranges", "ids", "filter", "shuffle", "shard", "format"],
)
def test_selections_of_hugging_face_are_selections(hf: Any, change: Any, numbers: Any) -> None:
    opened = fs.from_huggingface(change(hf))
    assert links(opened) == [file["filename"] for file in hf.cache_files]
    with opened.batch(len(opened)).loader(output="numpy") as loader:
        assert next(iter(loader))["n"].tolist() == list(numbers)


def test_results_of_map_are_files_too(hf: Any) -> None:
    datasets = pytest.importorskip("datasets")
    shifted = hf.map(lambda row: {"n": row["n"] + 90})
    assert "/cache-" in shifted.cache_files[0]["filename"]
    opened = fs.from_huggingface(shifted)
    assert links(opened) == [shifted.cache_files[0]["filename"]]
    expect(opened, list(range(90, 180)))
    joined = fs.from_huggingface(datasets.concatenate_datasets([hf, shifted]))
    assert len(links(joined)) == 2
    expect(joined, list(range(180)))


def test_saved_data_sets_of_hugging_face(hf: Any, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    hf.save_to_disk(str(tmp_path / "saved"), num_shards=4)
    loaded = datasets.load_from_disk(str(tmp_path / "saved"))
    assert len(links(fs.from_huggingface(loaded))) == 4
    expect(fs.from_huggingface(loaded), list(range(90)))
    expect(fs.from_huggingface(loaded.select(range(20, 60))), list(range(20, 60)))


def test_what_files_do_not_have_is_written(hf: Any) -> None:
    datasets = pytest.importorskip("datasets")
    renamed = hf.rename_column("text", "words").rename_column("n", "text").rename_column("words", "n")
    assert not links(fs.from_huggingface(renamed))
    assert rows_of(fs.from_huggingface(renamed.select(range(2)))) == {
        "text": [0, 1],
        "n": ["text 0", "text 1"],
        "label": [0, 1],
    }
    twice = fs.from_huggingface(hf.select([4, 4, 1]))
    assert not links(twice)
    expect(twice, [4, 4, 1])
    assert twice.class_names("label") == ["cat", "dog", "fox"]
    memory = datasets.Dataset.from_dict({"n": [3, 1], "text": ["a", "b"]})
    assert rows_of(fs.from_huggingface(memory)) == {"n": [3, 1], "text": ["a", "b"]}
    added = hf.add_column("extra", [2 * n for n in range(90)])
    assert rows_of(fs.from_huggingface(added))["extra"] == list(range(0, 180, 2))


def test_columns_of_hugging_face(hf: Any) -> None:
    assert list(rows_of(fs.from_huggingface(hf.remove_columns("text")))) == ["n", "label"]
    assert list(rows_of(fs.from_huggingface(hf.with_format("numpy", columns=["label"])))) == ["label"]
    assert links(fs.from_huggingface(hf.remove_columns("text")))


def test_images_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    Image = pytest.importorskip("PIL.Image")
    pictures = [Image.new("RGB", (8, 6), (40 * label, 0, 0)) for label in range(4)]
    made = datasets.Dataset.from_dict(
        {"image": pictures, "label": list(range(4))},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    made.save_to_disk(str(tmp_path))
    for dataset in (made, datasets.load_from_disk(str(tmp_path)).shuffle(seed=1)):
        pipeline = fs.from_huggingface(dataset).map("image", fs.decode_image(), fs.center_crop(6)).batch(4)
        (batch,) = pipeline.epochs(1).loader(output="numpy")
        assert (batch["image"][:, 0, 0, 0] == 40 * batch["label"]).all()


def test_refused_data_sets_of_hugging_face(hf: Any) -> None:
    datasets = pytest.importorskip("datasets")
    with pytest.raises(fs.ConfigError, match=r"Pipeline\.map_rows"):
        fs.from_huggingface(hf.with_transform(lambda batch: batch))
    with pytest.raises(fs.ConfigError, match="one split; choose one of 'train'"):
        fs.from_huggingface(datasets.DatasetDict({"train": hf}))
    with pytest.raises(fs.ConfigError, match="streaming=True"):
        fs.from_huggingface(hf.to_iterable_dataset())
    with pytest.raises(fs.ConfigError, match="no rows"):
        fs.from_huggingface(hf.select([]))
    with pytest.raises(fs.ConfigError, match=r"datasets\.Dataset; got list"):
        fs.from_huggingface([1])


def test_the_page_runs() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("datasets").disable_progress_bars()
    seen: list[Any] = []
    namespace: dict[str, Any] = {"__name__": "page", "seen": seen}
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)):
        block = block.replace("        ...\n", "        seen.append((image.shape, label.dtype))\n")
        block = block.replace(
            '    batch["text"], batch["stars"] ', '    seen.append(batch["stars"].tolist()) '
        )
        exec(compile(block, f"{PAGE.name} block {number}", "exec"), namespace)
    assert sorted(seen[0]) == [-1, 1, 5]
    assert seen[1:] == [((16, 3, 32, 32), torch.int64)] * 3
