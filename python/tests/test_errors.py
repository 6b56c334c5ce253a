"""Errors: raised before anything runs, with Python's spellings and the sample that they concern."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import synth
from test_flight import worker

import feedstock as fs

OPS = (fs.decode_image(), fs.resize((8, 8)))


@pytest.mark.parametrize(
    ("name", "misspelt"),
    [
        ("imge", lambda data: data.map("imge", *OPS).batch(10)),
        ("image", lambda data: data.columns(["label"]).map("image", *OPS).batch(10)),
        ("label", lambda data: data.map("label", *OPS).batch(10)),
        ("widht", lambda data: data.map("image", *OPS).bucket_by("widht").batch(10)),
        ("widht", lambda data: data.map("image", *OPS).lengths_from("widht").batch(total=100)),
        ("imge", lambda data: data.columns(["imge"]).batch(10)),
        ("labl", lambda data: data.filter("labl = 0").batch(10)),
        ("labl", lambda data: data.batch(10).nulls({"labl": -1})),
        ("imge", lambda data: fs.Dataset.mix([(data, 1.0)]).map("imge", *OPS).batch(10)),
        ("imge", lambda data: fs.Dataset.concat([data.named("a"), data.named("b")]).map("imge", *OPS)),
        ("labl", lambda data: fs.Dataset.concat([data.named("a"), data.named("b")]).columns(["labl"])),
        ("labl", lambda data: fs.Dataset.concat([data.named("a"), data.named("b")]).filter("labl = 0")),
    ],
)
def test_names_are_checked_before_anything_runs(
    imagenet: Path, name: str, misspelt: Callable[[fs.Dataset], fs.Pipeline]
) -> None:
    with pytest.raises(fs.ConfigError, match=name) as raised:
        misspelt(fs.Dataset(imagenet)).loader()
    assert "::" not in str(raised.value)


def test_a_misspelt_finish_is_found_by_the_loader(imagenet: Path) -> None:
    pipeline = fs.Dataset(imagenet).map("image", *OPS).batch(10)
    with pytest.raises(fs.ConfigError, match="imge"):
        pipeline.loader(device="cpu", finish={"imge": fs.finish_pictures("float32")})


@pytest.mark.parametrize("labels", ["labl", "image_path"])
def test_labels_to_be_mixed_are_found_by_the_loader(imagenet: Path, labels: str) -> None:
    finish = fs.finish_pictures("float32", mix=fs.mixup_cutmix(labels=labels))
    pipeline = fs.Dataset(imagenet).map("image", *OPS).batch(10)
    with pytest.raises(fs.ConfigError, match=labels):
        pipeline.loader(device="cpu", finish={"image": finish})


def test_a_result_takes_no_other_columns_place(imagenet: Path) -> None:
    """Its values would be missing in every batch."""
    data = fs.Dataset(imagenet)
    with pytest.raises(fs.ConfigError, match=r"'label', which already exists.*map\(\.\.\., output=\.\.\.\)"):
        data.map("image", *OPS, output="label").batch(10).loader()
    batch = next(iter(data.columns(["image"]).map("image", *OPS, output="label").batch(10).loader()))
    assert batch["label"].shape == (10, 8, 8, 3)


def _batch(**options: Any) -> Callable[[fs.Dataset], Any]:
    return lambda data: data.batch(**options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_batch(batch_size=1.5), "batch_size must be an integer >= 1; got 1.5"),
        (_batch(batch_size="8"), "batch_size must be an integer >= 1; got '8'"),
        (_batch(batch_size=0), "batch_size must be an integer >= 1; got 0"),
        (_batch(batch_size=2**63), f"batch_size must be an integer >= 1 and < 2**63; got {2**63}"),
        (_batch(batch_size=8, tail="keep"), "tail must be 'drop' or 'pad'; got 'keep'"),
        (lambda data: data.batch(8).on_error("ignore"), "on_error must be 'raise' or 'skip'; got 'ignore'"),
        (
            lambda data: data.batch(8).loader(output="pt"),
            "output must be 'batch', 'numpy' or 'torch'; got 'pt'",
        ),
        (lambda data: data.batch(8).loader(5, 2), "rank must be below world_size=2; got 5"),
        (lambda data: fs.Dataset(data.uri, durations="no"), "durations must be 'auto' or 'never'; got 'no'"),
        (lambda data: data.batch(8).options(slots=1), "slots must be an integer >= 2; got 1"),
        (lambda data: data.batch(8).loader(device="gpu"), "device must be .*; got 'gpu'"),
        (
            lambda data: data.batch(8).on_error("skip", max_fraction=2.0).loader(),
            "max_fraction must be 0.0 to 1.0; got 2.0",
        ),
        (_batch(total="long"), "total must be a finite number > 0; got 'long'"),
        (_batch(total=-1), "total must be a finite number > 0; got -1"),
        (lambda data: data.columns("image"), "columns must be a list of names; got 'image'"),
        (lambda data: data.filter(5), "sql must be a string; got 5"),
        (lambda data: data.map(1, *OPS), "column must be a string; got 1"),
        (lambda data: data.map("image", *OPS, pad_value="x"), "pad_value must be a number; got 'x'"),
        (lambda data: fs.Dataset.mix([(data, "x")]), "a weight must be a number; got 'x'"),
        (lambda data: fs.Dataset.mix([data]), "parts must be pairs of a data set and its weight; got .*"),
        (
            lambda data: data.batch(8).options(deadline=-1),
            "deadline must be a number of seconds >= 0 and < 2**63; got -1",
        ),
        (
            lambda data: fs.Dataset(data.uri, storage={"deadline": "soon"}),
            "deadline must be a number of seconds >= 0; got 'soon'",
        ),
        (
            lambda data: fs.Dataset(data.uri, storage={"hedge": "no"}),
            "hedge must be True or False; got 'no'",
        ),
        (
            lambda data: fs.Dataset(data.uri, disk_cache="cache"),
            "disk_cache must be a pair of a folder and its bytes; got 'cache'",
        ),
        (
            lambda data: data.shuffle(seed=1, full=True, window=9),
            "window has no effect with full=True; leave out one of them",
        ),
        (
            lambda data: data.batch(8).loader(device="cpu", finish=["image"]),
            r"finish must be a dict of columns and how they are finished; got \['image'\]",
        ),
        (
            lambda data: data.batch(8).loader().load_state_dict(5),
            "state_dict must have version 1, which this release reads; got version 5",
        ),
        (
            lambda data: data.map("image", fs.decode_image(), fs.random_resized_crop("a")),
            r"op 1 \(random_resized_crop\): `size` must be .*; got .*",
        ),
        (
            lambda data: data.map("image", fs.decode_image(), fs.resize(8), fs.horizontal_flip(2)),
            r"op 2 \(horizontal_flip\): probability must be 0 … 1; got 2",
        ),
        (
            lambda _: fs.random_resized_crop(8, scale=(float("nan"), 1.0)),
            "the parameters of random_resized_crop must be finite; got .*",
        ),
    ],
)
def test_arguments_must_be_this_and_were_that(
    imagenet: Path, wrong: Callable[[fs.Dataset], Any], message: str
) -> None:
    with pytest.raises(fs.ConfigError, match=f"^{message.replace('*', '[*]').replace('.[*]', '.*')}$"):
        wrong(fs.Dataset(imagenet))


def test_messages_have_pythons_names(imagenet: Path) -> None:
    data = fs.Dataset(imagenet)
    with pytest.raises(fs.ConfigError, match=r"Dataset\.named"):
        fs.Dataset.mix([(data, 1.0), (data, 1.0)])
    with pytest.raises(fs.ConfigError, match=r"map\(\.\.\., output=\.\.\.\)"):
        data.map("image", *OPS).map("image", *OPS).batch(8).loader()


@pytest.fixture(scope="module")
def one_broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a folder of 40 images, one of which is cut off, and the path of that one."""
    folder = tmp_path_factory.mktemp("broken")
    synth("imagenet", folder, "--samples", 40, "--seed", 1, "--layout", "folder")
    victim = sorted(folder.rglob("*.JPEG"))[17]
    victim.write_bytes(victim.read_bytes()[:40])
    return folder, victim


def test_a_sample_error_names_the_sample(one_broken: tuple[Path, Path]) -> None:
    folder, victim = one_broken
    loader = fs.Dataset(folder).map("image", *OPS, output="pixels").batch(10).loader()
    with pytest.raises(fs.SampleError) as raised:
        list(loader)
    error = raised.value
    assert error.column == "image"
    assert error.uri is not None
    assert error.uri.endswith(victim.name)
    assert error.uri == str(victim)
    assert f"(sample {error.sample_id})" in str(error)
    assert 'on_error="skip"' in str(error) or "on_error" not in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.sample_id, again.uri, again.column) == (error.sample_id, error.uri, error.column)


def test_a_sample_error_of_many_names_none(one_broken: tuple[Path, Path]) -> None:
    loader = (
        fs.Dataset(one_broken[0]).map("image", *OPS).batch(10).on_error("skip", max_fraction=0.0).loader()
    )
    with pytest.raises(fs.SampleError, match='on_error="skip"') as raised:
        list(loader)
    assert (raised.value.sample_id, raised.value.uri, raised.value.column) == (None, None, None)


def test_a_sample_error_of_workers_names_the_sample(one_broken: tuple[Path, Path]) -> None:
    folder, victim = one_broken
    serving = worker(folder)
    pipeline = fs.Dataset(folder).map("image", *OPS).batch(10)
    with pipeline.loader(workers=serving.address) as loader, pytest.raises(fs.SampleError) as raised:
        list(loader)
    serving.stop()
    assert raised.value.column == "image"
    assert str(raised.value.uri).endswith(victim.name)
    assert f"(sample {raised.value.sample_id})" in str(raised.value)
