"""Batches for a device. Without a GPU, they are finished in host memory; with one, the tests at the end also run."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import feedstock as fs
from feedstock import _device

HAS_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU here")
without_gpu = pytest.mark.skipif(HAS_GPU, reason="about machines without a GPU")

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture(scope="module")
def bytes_only(imagenet):
    ops = fs.decode_image(), fs.random_resized_crop(24)
    return fs.Dataset(imagenet).map("image", *ops).shuffle(seed=3).batch(10).options(threads=2)


@pytest.fixture(scope="module")
def on_cpu(imagenet):
    """Returns the same pipeline, finished by the chain's ops."""
    ops = (
        fs.decode_image(),
        fs.random_resized_crop(24),
        fs.horizontal_flip(0.5),
        fs.normalize(MEAN, STD),
        fs.to_chw(),
    )
    return fs.Dataset(imagenet).map("image", *ops).shuffle(seed=3).batch(10).options(threads=2)


def finish(dtype="float32", **options):
    return {"image": fs.finish_pictures(dtype, normalize=fs.normalize(MEAN, STD), flip=0.5, **options)}


def tensors(loader):
    with loader:
        return [{name: value.cpu().clone() for name, value in batch.items()} for batch in numbers(loader)]


def numbers(loader):
    for batch in loader:
        yield {name: value.torch() for name, value in batch.items() if isinstance(value, fs.Tensor)}


@pytest.mark.parametrize("layout", ["planes", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_finished_pictures_are_the_chains_own(bytes_only, on_cpu, dtype, layout):
    expected = tensors(on_cpu.loader())
    got = tensors(bytes_only.loader(device="cpu", finish=finish(dtype, layout=layout)))
    assert len(got) == len(expected) == 20
    for ours, theirs in zip(got, expected, strict=True):
        image = ours["image"]
        assert image.dtype == getattr(torch, dtype)
        assert image.shape == (10, 3, 24, 24)
        form = torch.channels_last if layout == "channels_last" else torch.contiguous_format
        assert image.is_contiguous(memory_format=form)
        assert torch.equal(image, theirs["image"].to(image.dtype)), "one rounding, from what the chain makes"
        assert torch.equal(ours["label"], theirs["label"])


def test_finished_speech_is_the_chains_own(common_voice):
    data = fs.Dataset(common_voice, split="train")
    mel = fs.decode_audio(), fs.resample(16_000), fs.log_mel(80)
    normal, masks = fs.utterance_mvn(), fs.spec_augment()
    chain = data.map("audio", *mel, normal, masks).shuffle(seed=1).batch(4).options(threads=2)
    bare = data.map("audio", *mel).shuffle(seed=1).batch(4).options(threads=2)
    how = {"audio": fs.finish_features(normalize=normal, spec_augment=masks)}
    expected = tensors(chain.loader())
    for ours, theirs in zip(tensors(bare.loader(device="cpu", finish=how)), expected, strict=True):
        assert torch.equal(ours["audio_length"], theirs["audio_length"])
        # Doubles are added in another order: a mask's mean is 0 here, and 4e-10 if it is summed up.
        apart = (ours["audio"] - theirs["audio"]).abs()
        assert apart.max() < 1e-5
        assert (apart > 1e-7).float().mean() < 0.01


def test_mixed_rows_come_with_both_labels(bytes_only):
    plain = tensors(bytes_only.loader(device="cpu", finish=finish()))
    mixup = finish(mix=fs.mixup_cutmix(mixup_alpha=0.4, cutmix_alpha=0))
    cutmix = finish(mix=fs.mixup_cutmix(mixup_alpha=0, cutmix_alpha=1.0))
    for bare, mixed, cut in zip(
        plain,
        tensors(bytes_only.loader(device="cpu", finish=mixup)),
        tensors(bytes_only.loader(device="cpu", finish=cutmix)),
        strict=True,
    ):
        other = bare["image"].roll(1, 0)
        for batch in mixed, cut:
            assert torch.equal(batch["label_partner"], bare["label"].roll(1, 0))
            assert batch["mix_weight"].shape == (10,)
            assert batch["mix_weight"].unique().numel() == 1
        weight = mixed["mix_weight"][0]
        assert torch.allclose(mixed["image"], bare["image"] * weight + other * (1 - weight), atol=1e-6)
        is_own = (cut["image"] == bare["image"]).all(dim=1)
        assert torch.equal(torch.where(is_own[:, None], bare["image"], other), cut["image"])
        assert is_own.float().mean() >= cut["mix_weight"][0] - 1e-6
    weights = {
        float(batch["mix_weight"][0]) for batch in tensors(bytes_only.loader(device="cpu", finish=mixup))
    }
    assert len(weights) == 20, "one per batch"


def test_only_what_was_handed_out_counts(bytes_only):
    options = {"device": "cpu", "finish": finish(), "depth": 4}
    with bytes_only.loader() as plain, bytes_only.loader(**options) as loader:
        for _, batch in zip(range(7), loader, strict=False):
            del batch
        for _, batch in zip(range(7), plain, strict=False):
            del batch
        state, place = loader.state_dict(), plain.state_dict()
        assert (state["epoch"], state["position"]) == (place["epoch"], place["position"])
        assert json.loads(state["cursor"])["ops"] != json.loads(place["cursor"])["ops"], (
            "finish is among them"
        )
        ids = [batch.sample_ids.tolist() for batch in plain]
    with bytes_only.loader(**options) as loader:
        loader.load_state_dict(state)
        assert [batch.sample_ids.tolist() for batch in loader] == ids
        assert loader.ledger()["exact"]


def test_a_static_batch_is_where_the_last_one_was(bytes_only):
    expected = tensors(bytes_only.loader(device="cpu", finish=finish()))
    with bytes_only.loader(device="cpu", finish=finish(), static=True) as loader:
        places = set()
        for batch, wanted in zip(loader, expected, strict=True):
            image = batch["image"].torch()
            places.add((image.data_ptr(), batch["label"].torch().data_ptr()))
            assert torch.equal(image, wanted["image"])
        assert len(places) == 1
    with pytest.raises(fs.ConfigError, match="map_python"):
        bytes_only.map_python(len).loader(device="cpu", static=True)


def test_static_addresses_stay_wherever_the_loader_goes(bytes_only):
    expected = tensors(bytes_only.loader(device="cpu", finish=finish()))
    with bytes_only.loader(device="cpu", finish=finish(), static=True) as loader:
        kept = []  # so that no other memory is allocated there

        def taken(step):
            batch = next(iter(loader))
            kept.append(batch["image"].torch())
            assert torch.equal(kept[-1], expected[step]["image"])
            return kept[-1].data_ptr(), batch["label"].torch().data_ptr()

        place = taken(0)
        state = loader.state_dict()
        loader.seek(7)
        assert taken(7) == place
        loader.load_state_dict(state)
        assert taken(1) == place
        loader.close()
        assert taken(2) == place
        loader.set_epoch(3)
        next(iter(loader))
        loader.reconfigure(batch_size=5)
        assert next(iter(loader))["image"].torch().data_ptr() != place[0], "batches of another shape"


def test_static_batches_are_of_one_shape(common_voice):
    mel = fs.decode_audio(), fs.resample(16_000), fs.log_mel(80)
    pipeline = fs.Dataset(common_voice, split="train").map("audio", *mel).batch(2).options(threads=2)
    with pipeline.loader(device="cpu", static=True) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(fs.ConfigError, match="one shape.*'audio'"):
            for _ in range(5):
                next(batches)
        assert loader.position % 2 == 0, "the batch that did not fit was not delivered"


def test_a_batch_for_a_device_is_a_mapping_still(bytes_only):
    with bytes_only.loader(device="cpu", finish=finish()) as loader:
        batch = next(iter(loader))
        assert list(batch) == ["image", "label", "width", "height", "image_path"]
        assert len(batch) == 5
        image = batch["image"]
        assert (image.device, image.dtype, image.shape) == ("cpu", "float32", (10, 3, 24, 24))
        assert image.strides == (3 * 24 * 24, 24 * 24, 24, 1)
        assert isinstance(batch["image_path"], list)
        torches = batch.torch(ids=True)
        assert torches["sample_ids"].tolist() == batch.sample_ids.tolist()
        assert torches["valid"].tolist() == [True] * 10
        batch.record_stream(1)
        with pytest.raises(fs.ConfigError, match="host memory"):
            batch.__arrow_c_array__()
    with bytes_only.loader(device="cpu", finish=finish("bfloat16")) as loader:
        image = next(iter(loader))["image"]
        with pytest.raises(fs.ConfigError, match=r"torch\(\)\.float\(\)"):
            image.numpy()
        assert image.torch().dtype == torch.bfloat16


def test_padding_is_marked_on_the_device_too(imagenet):
    pipeline = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.resize((8, 8))).batch(64, tail="pad")
    with pipeline.loader(device="cpu", finish={"image": fs.finish_pictures()}, output="torch") as loader:
        *_, last = [batch["valid"].clone() for batch in loader]
        assert last.sum() == 200 - 3 * 64


def test_functions_on_batches_get_device_batches(bytes_only):
    seen = bytes_only.map_python(lambda batch: batch["image"].torch().mean().item(), num_threads=2)
    with seen.loader(device="cpu", finish=finish(), depth=1) as loader:
        assert len(list(loader)) == 20


def test_functions_work_on_the_callers_stream(bytes_only, monkeypatch):
    """The pool's threads would use their own current streams."""
    entered, here = [], threading.current_thread()

    class Stream:
        def __init__(self):
            self.waited = []

        def wait_stream(self, other):
            self.waited.append(other)

    streams = {"now": Stream()}

    def consumer_stream(ordinal):
        assert threading.current_thread() is here, "queried on the caller's thread"
        return streams["now"]

    @contextlib.contextmanager
    def on_stream(stream):
        assert threading.current_thread() is not here
        entered.append(stream)
        yield

    monkeypatch.setattr(_device, "consumer_stream", consumer_stream)
    monkeypatch.setattr(_device, "on_stream", on_stream)
    used = []
    monkeypatch.setattr(_device, "record_stream", lambda result, stream: used.append((result, stream)))
    first = streams["now"]
    second_began = threading.Event()

    def position(batch):
        """The first batch waits for the second: both have started when ``next`` returns."""
        if batch.position > 0:
            second_began.set()
        assert second_began.wait(60)
        return batch.position

    with bytes_only.map_python(position, num_threads=2).loader(device="cpu") as loader:
        results = iter(loader)
        assert next(results) == 0
        assert first in entered
        assert not first.waited
        assert not used
        other = streams["now"] = Stream()
        second = next(results)  # it started before the caller changed to another stream
        assert other.waited == [first], "the new stream waits for work that started for the old one"
        assert used == [(second, other)], "and the memory is not used again before the new stream has passed"
        for _ in range(5):
            next(results)
        assert set(entered) == {first, other}
        assert set(other.waited) == {first}


def test_a_dict_of_tensors_names_further_streams(bytes_only):
    options = {"device": "cpu", "finish": finish(), "output": "torch"}
    for static in False, True:
        with bytes_only.loader(**options, static=static) as loader:
            batch = next(iter(loader))
            fs.record_stream(batch, 7)
            fs.record_stream([batch["image"][3:], {"and": batch["label"]}], 7)
            with pytest.raises(fs.ConfigError, match="per-thread default"):
                fs.record_stream(batch["image"][5:], 2)
            fs.record_stream({"image": batch["image"].clone()}, 2)  # belongs to torch alone
    with bytes_only.loader(device="cpu", finish=finish()) as loader:
        batch = next(iter(loader))
        fs.record_stream(batch, 7)
        fs.record_stream(batch["image"], 7)
        for refuse in fs.record_stream, fs.Batch.record_stream:
            with pytest.raises(fs.ConfigError, match="per-thread default"):
                refuse(batch, 2)

    class Elsewhere:
        """A tensor of torch on a GPU."""

        is_cuda, device, streams = True, "cuda:0", ()

        def data_ptr(self):
            return 0

        def record_stream(self, stream):
            self.streams += (stream.cuda_stream,)

    class Side:
        cuda_stream = 7

    stranger = Elsewhere()
    fs.record_stream([batch["image"], stranger], Side())
    assert stranger.streams == (7,), "torch records it, too"


def test_without_a_finish_batches_stay_in_their_slots(bytes_only):
    """The columns are the same as on a GPU, and nothing is copied."""
    plain = tensors(bytes_only.loader())
    with bytes_only.loader(device="cpu") as loader:
        for batch, wanted in zip(loader, plain, strict=True):
            assert list(batch) == ["image", "label", "width", "height", "image_path"]
            image = batch["image"].torch()
            assert image.data_ptr() % 4096 == 0, "the slot's own page"
            assert torch.equal(image, wanted["image"])
            ids = batch.torch(ids=True)["sample_ids"]
            assert ids.tolist() == batch.sample_ids.tolist()
            with pytest.raises(fs.ConfigError, match="the batch is on a device"):
                batch.__arrow_c_array__()


def test_a_forked_child_is_told(imagenet):
    program = f"""
import os, sys
import feedstock as fs
data = fs.Dataset({str(imagenet)!r}).map("image", fs.decode_image(), fs.resize((8, 8))).batch(50)
loader = data.loader(device="cpu", finish={{"image": fs.finish_pictures()}})
batch = next(iter(loader))
image = batch["image"]
child = os.fork()
if child == 0:
    uses = lambda: batch["image"], lambda: batch.record_stream(7), image.numpy, lambda: next(iter(loader))
    for use in uses:
        try:
            use()
        except fs.ForkError as error:
            assert "after fork()" in str(error), error
        else:
            os._exit(1)
    del batch, image, loader, use, uses
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert image.numpy().shape == (50, 3, 8, 8)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


def test_misfits_are_named_before_anything_runs(bytes_only, on_cpu, common_voice):
    def refused(match, pipeline=bytes_only, **options):
        with pytest.raises(fs.ConfigError, match=match):
            pipeline.loader(**options)

    refused("got 'tpu'", device="tpu")
    refused("got True", device=True)
    refused("got -1", device=-1)
    refused("need a device", finish=finish())
    refused("need a device", static=True)
    refused("no such mapped column", device="cpu", finish={"picture": fs.finish_pictures()})
    refused("leave the ops that finish does", on_cpu, device="cpu", finish=finish())
    refused("depth", device="cpu", depth=0)
    refused("1 to 64", device="cpu", depth=65)
    refused("flip must be 0 … 1; got 1.5", device="cpu", finish={"image": fs.finish_pictures(flip=1.5)})
    refused("both 0", device="cpu", finish=finish(mix=fs.mixup_cutmix(mixup_alpha=0, cutmix_alpha=0)))
    refused("features", device="cpu", finish={"image": fs.finish_features()})
    mixed = finish(mix=fs.mixup_cutmix(labels="image_path"))
    refused("no column 'image_path' of numbers", device="cpu", finish=mixed)
    refused("numpy has no bfloat16", device="cpu", finish=finish("bfloat16"), output="numpy")
    with pytest.raises(fs.ConfigError, match="float99"):
        fs.finish_pictures("float99")
    with pytest.raises(fs.ConfigError, match=r"normalize must be made by fs.normalize\(\)"):
        fs.finish_pictures(normalize=fs.to_f32())
    with pytest.raises(fs.ConfigError, match="finish"):
        fs.finish_features(normalize=fs.normalize())


def test_descriptions_are_values():
    one, other = (
        fs.finish_pictures("bfloat16", mix=fs.mixup_cutmix()),
        fs.finish_pictures("bfloat16", mix=fs.mixup_cutmix()),
    )
    assert one == other == pickle.loads(pickle.dumps(one))
    assert len({one, other, fs.finish_pictures()}) == 2
    assert json.loads(one.to_json())["dtype"] == "bfloat16"
    assert "bfloat16" in repr(one)


def test_cuda_alone_is_the_processs_own_device(monkeypatch):
    class Cuda:
        initialized, current, count = False, 0, 8

        @classmethod
        def is_initialized(cls):
            return cls.initialized

        @classmethod
        def current_device(cls):
            return cls.current

        @classmethod
        def device_count(cls):
            return cls.count

    class Torch:
        cuda = Cuda
        __spec__ = None

    monkeypatch.setitem(sys.modules, "torch", Torch)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert [_device.ordinal_of(name) for name in ("cuda", "cuda:3", 2, "cpu")] == [0, 3, 2, None]
    assert _device.ordinal_of(torch.device("cuda", 1)) == 1
    monkeypatch.setenv("LOCAL_RANK", "5")
    assert _device.ordinal_of("cuda") == _device.ordinal_of(torch.device("cuda")) == 5
    Cuda.count = 1
    assert _device.ordinal_of("cuda") == 0, "the launcher shows this process only its device"
    Cuda.initialized, Cuda.count = True, 8
    assert _device.ordinal_of("cuda") == 5, "torch's current device is still the first"
    Cuda.count = 1
    assert _device.ordinal_of("cuda") == 0, "the launcher shows this process only its device"
    Cuda.count, Cuda.current = 8, 3
    assert _device.ordinal_of("cuda") == 3, "torch.cuda.set_device"
    Cuda.initialized = False
    monkeypatch.setenv("LOCAL_RANK", "x")
    with pytest.raises(fs.ConfigError, match="LOCAL_RANK"):
        _device.ordinal_of("cuda")


def test_a_compiler_that_is_named_is_not_passed_over(tmp_path, monkeypatch):
    from feedstock import _feedstock

    monkeypatch.setenv("FEEDSTOCK_NVRTC", str(tmp_path / "libnvrtc.so.12"))
    with pytest.raises(fs.ConfigError, match="FEEDSTOCK_NVRTC names .*cannot be used"):
        _feedstock.compile_kernels(80)


@without_gpu
def test_without_cuda_batches_stay_here_and_it_is_said_once(imagenet):
    program = f"""
import logging, torch
import feedstock as fs
logging.basicConfig(format="%(levelname)s %(message)s")
data = fs.Dataset({str(imagenet)!r}).map("image", fs.decode_image(), fs.resize((8, 8))).batch(50)
for finish in None, {{"image": fs.finish_pictures("float16")}}:
    for _ in range(2):
        with data.loader(device="cuda:0", finish=finish, output="torch") as loader:
            for batch in loader:
                assert batch["image"].device.type == "cpu" and batch["label"].device.type == "cpu"
                assert batch["image"].dtype == (torch.uint8 if finish is None else torch.float16)
"""
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # hides a GPU, if there is one
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=hidden
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("WARNING") == 1
    assert re.search(r"no cuda:0 here \(.*\): batches stay in host memory", run.stderr), run.stderr


def test_kernels_compile_for_gpus_that_are_not_here(tmp_path):
    """NVIDIA's compiler, which comes with torch, needs no GPU."""
    _device.find_libraries()
    program = f"""
import os
os.environ["FEEDSTOCK_CACHE"] = {str(tmp_path)!r}
from feedstock import _device, _feedstock
_device.find_libraries()
try:
    print([_feedstock.compile_kernels(capability) for capability in (80, 90)])
except Exception as error:
    assert "libnvrtc was not found" in str(error), error
    print("SKIPPED")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    if "SKIPPED" in run.stdout:
        pytest.skip("no libnvrtc here")
    assert all(size > 10_000 for size in json.loads(run.stdout))
    kept = sorted((tmp_path / "kernels").glob("*.cubin"))
    assert len(kept) == 2
    assert all(file.read_bytes().startswith(b"\x7fELF") for file in kept)


# ---- with a GPU ----


@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gpu_results_are_the_chains_own(bytes_only, on_cpu, dtype):
    expected = tensors(on_cpu.loader())
    with bytes_only.loader(device="cuda:0", finish=finish(dtype)) as loader:
        for batch, wanted in zip(loader, expected, strict=True):
            assert batch["image"].__dlpack_device__() == (2, 0)
            image = batch["image"].torch()
            assert image.is_cuda
            assert torch.equal(image.cpu(), wanted["image"].to(image.dtype))
            assert torch.equal(batch["label"].torch().cpu(), wanted["label"])


@needs_gpu
def test_gpu_mixing_and_speech_equal_host_memory(bytes_only, common_voice):
    mixed = finish("float16", mix=fs.mixup_cutmix())
    for ours, theirs in zip(
        tensors(bytes_only.loader(device="cuda:0", finish=mixed)),
        tensors(bytes_only.loader(device="cpu", finish=mixed)),
        strict=True,
    ):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    mel = fs.decode_audio(), fs.resample(16_000), fs.log_mel(80)
    speech = fs.Dataset(common_voice, split="train").map("audio", *mel).batch(4)
    how = {"audio": fs.finish_features(normalize=fs.utterance_mvn(), spec_augment=fs.spec_augment())}
    for ours, theirs in zip(
        tensors(speech.loader(device="cuda:0", finish=how)),
        tensors(speech.loader(device="cpu", finish=how)),
        strict=True,
    ):
        assert torch.allclose(ours["audio"], theirs["audio"], rtol=0, atol=1e-6)


@needs_gpu
def test_gpu_memory_waits_for_every_stream(bytes_only):
    """A slow reader on a separate stream reads the whole batch, although its tensors were dropped long before."""
    expected = [batch["image"] for batch in tensors(bytes_only.loader(device="cpu", finish=finish()))]
    side = torch.cuda.Stream()
    with bytes_only.loader(device="cuda:0", finish=finish(), depth=1) as loader:
        kept = []
        for batch in loader:
            with torch.cuda.stream(side):
                image = batch["image"].torch()
                torch.cuda._sleep(50_000_000)
                kept.append(image.clone())
            batch.record_stream(torch.cuda.current_stream())
            del image, batch
        torch.cuda.synchronize()
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(kept, expected, strict=True))


@needs_gpu
def test_gpu_static_batches_feed_a_graph(bytes_only):
    expected = [
        batch["image"].sum().item() for batch in tensors(bytes_only.loader(device="cpu", finish=finish()))
    ]
    with bytes_only.loader(device="cuda:0", finish=finish(), static=True) as loader:
        start = loader.state_dict()
        batches = iter(loader)
        image = next(batches)["image"].torch()
        (image * 1).sum()  # a first run, outside of the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total = image.sum()
        sums = []
        graph.replay()
        sums.append(total.item())
        for batch in batches:
            assert batch["image"].torch().data_ptr() == image.data_ptr()
            graph.replay()
            sums.append(total.item())
        loader.load_state_dict(start)  # the graph is valid for every run of the loader
        next(iter(loader))
        graph.replay()
        assert total.item() == sums[0]
    assert np.allclose(sums, expected, rtol=1e-4, atol=1e-1)


@needs_gpu
def test_gpu_functions_work_on_the_callers_stream(bytes_only):
    expected = [batch["image"].sum() for batch in tensors(bytes_only.loader(device="cpu", finish=finish()))]
    side, seen = torch.cuda.Stream(), set()

    def total(batch):
        seen.add(torch.cuda.current_stream().cuda_stream)
        return batch["image"].sum()

    with (
        torch.cuda.stream(side),
        bytes_only.map_python(total, num_threads=2).loader(
            device="cuda:0", finish=finish(), output="torch"
        ) as loader,
    ):
        sums = [value.clone() for value in loader]
        side.synchronize()
    assert seen == {side.cuda_stream}
    assert np.allclose([value.item() for value in sums], expected, rtol=1e-4, atol=1e-1)


@needs_gpu
def test_gpu_misuse_is_told(bytes_only):
    with bytes_only.loader(device="cuda:0") as loader:
        batch = next(iter(loader))
        with pytest.raises(fs.ConfigError, match="numpy takes host memory only"):
            batch["image"].numpy()
        with pytest.raises(BufferError, match="-1"):
            batch["image"].__dlpack__(stream=-1)
        with pytest.raises(BufferError, match="ambiguous"):
            batch["image"].__dlpack__(stream=0)
        with pytest.raises(fs.ConfigError, match="per-thread default"):
            batch["image"].__dlpack__(stream=2)
        with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(fs.ConfigError, match="captured"):
            batch["image"].torch()
    far = torch.cuda.device_count()
    with pytest.raises(fs.ConfigError, match=f"no cuda:{far}"):
        bytes_only.loader(device=far)
    with pytest.raises(fs.ConfigError, match="host memory only"):
        bytes_only.loader(device="cuda:0", output="numpy")


def test_mix_is_a_deprecated_name_of_mixup_cutmix():
    """``Dataset.mix`` mixes data sets."""
    with pytest.warns(DeprecationWarning, match=r"fs\.mix was renamed to fs\.mixup_cutmix") as warned:
        former = fs.mix(mixup_alpha=0.4, labels="class")
    assert warned[0].filename == __file__
    assert former == fs.mixup_cutmix(mixup_alpha=0.4, labels="class")
    with pytest.warns(DeprecationWarning, match=r"fs\.Mix was renamed to fs\.MixupCutmix"):
        assert fs.Mix is fs.MixupCutmix
    with pytest.warns(DeprecationWarning, match=r"fs\.MixupCutmix"):
        assert fs.finish.Mix is fs.MixupCutmix  # the name in pickles of earlier releases
    with pytest.raises(AttributeError, match="Mox"):
        _ = fs.Mox
