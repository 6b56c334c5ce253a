"""The options of a loader: one description, and every function that makes a loader takes all of them."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pydoc
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from served import worker

import feedstock as fs
from feedstock._options import DEFAULTS, documentation

#: Defaults of the adapters that know the trainer's device.
TRAINERS = {"output": "torch", "device": "auto"}

#: Every function that makes a loader: its module, its name, the options that it lacks, and its own defaults.
FUNCTIONS = [
    ("feedstock", "Loader.__init__", (), {}),
    ("feedstock", "Pipeline.loader", (), {}),
    ("feedstock.torch", "loader", (), {"output": "torch"}),
    ("feedstock.lightning", "FeedstockDataModule.__init__", ("restart",), TRAINERS),
    ("feedstock.huggingface.accelerate", "loader", (), TRAINERS),
    ("feedstock.ray.iterator", "DataIterator.__init__", (), TRAINERS),
    ("feedstock.ray.train", "DataConfig.__init__", ("restart",), TRAINERS),
    ("feedstock.ray.fleet.handle", "FleetHandle.loader", (), {}),
    ("feedstock.adaptdl", "AdaptDLLoader.__init__", ("restart",), {"output": "torch"}),
    ("feedstock.adaptive", "AdaptiveLoader.__init__", ("restart",), {"output": "torch"}),
]


def found(module: str, name: str) -> Callable[..., Any]:
    value: Any = pytest.importorskip(module, exc_type=ImportError)
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(("module", "name", "without", "defaults"), FUNCTIONS)
def test_help_shows_every_option_with_its_default(module, name, without, defaults):
    function = found(module, name)
    parameters = inspect.signature(function).parameters
    owner = found(module, name.removesuffix(".__init__"))
    text = pydoc.render_doc(owner, renderer=pydoc.plaintext)
    for option, default in {**DEFAULTS, **defaults}.items():
        if option in without:
            continue
        assert parameters[option].default == default
        assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"{option}: {DEFAULTS_TYPES[option]!r} = {default!r}" in text
        assert documentation()[option].split("\n")[0] in text
    assert "**options: See" not in text


DEFAULTS_TYPES = {
    name: getattr(kind, "__forward_arg__", kind) for name, kind in fs.LoaderOptions.__annotations__.items()
}


def test_every_option_has_a_default_and_a_documentation():
    assert set(DEFAULTS) == set(fs.LoaderOptions.__annotations__) == set(documentation())
    assert inspect.signature(fs.Loader).parameters.keys() >= set(DEFAULTS)


def test_an_unknown_option_names_the_one_that_was_meant(imagenet):
    pipeline = fs.Dataset(imagenet).batch(2)
    with pytest.raises(
        TypeError, match=r"Pipeline\.loader\(\) got an unexpected keyword argument 'ouput'"
    ) as raised:
        pipeline.loader(ouput="numpy")
    assert "(did you mean 'output'?); it takes rank, world_size, workers, output, restart" in str(
        raised.value
    )
    torch = pytest.importorskip("feedstock.torch")
    with pytest.raises(
        TypeError, match=r"loader\(\) got an unexpected keyword argument 'worker' \(did you mean 'workers'"
    ):
        torch.loader(pipeline, worker="host:1")
    with pytest.raises(TypeError, match="unexpected keyword argument 'quack'; it takes"):
        pipeline.loader(quack=1)


def test_torch_loader_takes_workers(imagenet):
    """A training script with a fleet need not fall back to Pipeline.loader."""
    torch = pytest.importorskip("feedstock.torch")
    pipeline = (
        fs.Dataset(imagenet).map("image", fs.decode_image(), fs.resize((8, 8))).shuffle(seed=3).batch(50)
    )
    served = worker(imagenet)
    local, remote = torch.loader(pipeline), torch.loader(pipeline, workers=served.address)
    for one, other in zip(local, remote, strict=True):
        assert one["sample_ids"].tolist() == other["sample_ids"].tolist()
        assert bytes(one["image"].numpy()) == bytes(other["image"].numpy())
    assert remote.ledger()["exact"]
    served.stop()


class Source:
    """A ``WorkerSource`` that is not one of feedstock's classes."""

    def __init__(self, address: str) -> None:
        self.watched: list[fs.Loader] = []
        self._workers = fs.Workers(address)

    def members(self):
        return self._workers.members()

    def watch(self, loader):
        self.watched.append(loader)


def test_workers_is_any_object_with_members_and_watch(imagenet):
    pipeline = fs.Dataset(imagenet).batch(100)
    served = worker(imagenet)
    source = Source(served.address)
    assert isinstance(source, fs.WorkerSource)
    loader = pipeline.loader(workers=source)
    assert source.watched == [loader]
    assert sum(batch.num_rows for batch in loader) == 200
    assert sum(batch.num_rows for batch in pipeline.loader(workers=source.members())) == 200
    served.stop()
    assert isinstance(fs.Workers("host:1"), fs.WorkerSource)


def test_workers_of_another_kind_or_name_are_an_error(imagenet):
    pipeline = fs.Dataset(imagenet).batch(2)
    with pytest.raises(
        fs.ConfigError, match=r"workers must be .*fs\.Workers, or an object with members\(\).*got 7"
    ):
        pipeline.loader(workers=7)
    with pytest.raises(fs.ConfigError, match=r"a registered name \('ray'\); got 'slurm'"):
        pipeline.loader(workers="slurm")


def test_workers_are_found_by_the_name_that_a_package_registers(imagenet, tmp_path, monkeypatch):
    package = tmp_path / "quack-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: quack\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[feedstock.workers]\nquack = quack_workers:found\n")
    code = """
        import feedstock as fs

        def found():
            return fs.Workers("localhost:1")
    """
    (tmp_path / "quack_workers.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    loader = fs.Dataset(imagenet).batch(2).options(deadline=1).loader(workers="quack")
    with pytest.raises(fs.RetryableError, match="localhost:1"):
        next(iter(loader))


def test_slots_and_threads_are_those_of_the_native_pipeline(imagenet):
    pipeline = fs.Dataset(imagenet).batch(2)
    assert (pipeline._native.slots, pipeline._native.threads) == (4, None)
    changed = pipeline.options(slots=7).options(threads=3)
    assert (changed._native.slots, changed._native.threads) == (7, 3)
    loader = changed.map_python(lambda batch: batch, num_threads=2).loader()
    next(iter(loader))
    assert loader.stats()["slots"] == 7 + 3


def test_a_pipeline_pickled_without_names_of_arguments_is_the_same(imagenet):
    """Releases before 0.2 pickled pipelines in this form."""
    chain = f"{fs.decode_image().to_json()}, {fs.resize((8, 8)).to_json()}"
    data = fs.Dataset(imagenet)
    steps = (
        ("map", ("image", "image", f"[{chain}]", 0.0)),
        ("shuffle", ("window", 5, None, None)),
        ("batch", (None, 8, None, None, None, "pad")),
        ("nulls", (None, "list")),
        ("options", (2, 5, None, None)),
    )
    rebuild, _ = data.batch(1).__reduce__()
    old = rebuild(data, steps, ())
    new = (
        data.map("image", fs.decode_image(), fs.resize((8, 8)))
        .shuffle(5)
        .batch(global_batch_size=8, tail="pad")
        .nulls("list")
    )
    new = new.options(threads=2, slots=5)
    assert old.spec() == new.spec()
    assert (old._native.slots, old._native.threads) == (5, 2)
    assert repr(pickle.loads(pickle.dumps(new))) == repr(new)
    assert ".batch(global_batch_size=8, tail='pad')" in repr(new)


def test_ray_data_config_separates_ray_options(imagenet):
    train = pytest.importorskip("feedstock.ray.train", exc_type=ImportError)
    pipeline = fs.Dataset(imagenet).batch(2)
    config = train.DataConfig(
        output="numpy", workers="host:1", depth=3, device="cpu", enable_shard_locality=False
    )
    (shard,) = config.configure({"train": pipeline}, 1, None, None)
    assert shard["train"]._options == {
        **DEFAULTS,
        "output": "numpy",
        "workers": "host:1",
        "depth": 3,
        "device": "cpu",
    }
    again = pickle.loads(pickle.dumps(shard["train"]))
    assert again._options == shard["train"]._options
    with pytest.raises(
        TypeError, match=r"'devise' \(did you mean 'device'\?\); it takes .*enable_shard_locality"
    ):
        train.DataConfig(devise="cuda")


def test_lightning_takes_options_for_all_of_its_loaders(imagenet):
    lightning = pytest.importorskip("feedstock.lightning", exc_type=ImportError)
    pipeline = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.resize((8, 8))).batch(100)
    finish = {"image": fs.finish_pictures("float16")}
    module = lightning.FeedstockDataModule(train=pipeline, val=pipeline, device="cpu", finish=finish)
    train, (val,) = module.train_dataloader(), module.val_dataloader()
    assert (train.restart, val.restart) == (False, True)
    for loader in (train, val):
        assert str(next(iter(loader))["image"].dtype) == "torch.float16"
