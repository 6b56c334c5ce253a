"""Tests that need a GPU: nvJPEG, further streams, captures while the loader runs, and the end of the process."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

import feedstock as fs

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

SIZE = 64


@pytest.fixture(scope="module")
def pictures(imagenet):
    ops = fs.decode_image(), fs.random_resized_crop(SIZE), fs.horizontal_flip(0.5)
    return fs.Dataset(imagenet).map("image", *ops).shuffle(seed=3).batch(10).options(threads=2)


def images(loader):
    with loader:
        return [(batch.sample_ids.tolist(), batch["image"].torch().cpu().clone()) for batch in loader]


def test_without_cuda_the_cpu_decodes_all(pictures):
    plain, asked = images(pictures.loader()), images(pictures.loader(device="cpu", nvjpeg=1.0))
    assert len(plain) == 20
    for (ids, image), (other_ids, other) in zip(plain, asked, strict=True):
        assert ids == other_ids
        assert torch.equal(image, other)


def test_what_nvjpeg_cannot_do_is_told(pictures, imagenet):
    with pytest.raises(fs.ConfigError, match="need a device"):
        pictures.loader(nvjpeg=0.5)
    with pytest.raises(fs.ConfigError, match=r"must be 0\.0 to 1\.0; got 2"):
        next(iter(pictures.loader(device="cpu", nvjpeg=2.0)))
    floats = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.random_resized_crop(8), fs.to_f32())
    with pytest.raises(fs.ConfigError, match="leave the rest to finish_pictures"):
        next(iter(floats.batch(10).loader(device="cpu", nvjpeg=0.5)))


@needs_gpu
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_nvjpeg_makes_nearly_the_cpus_pictures(pictures, share):
    plain, ours = images(pictures.loader()), images(pictures.loader(device="cuda:0", nvjpeg=share))
    assert len(ours) == len(plain) == 20
    for (ids, image), (other_ids, other) in zip(plain, ours, strict=True):
        assert ids == other_ids
        apart = (image.int() - other.int()).abs()
        assert apart.float().mean() < 0.1, "levels"
        assert apart.max() <= 4
    again = images(pictures.loader(device="cuda:0", nvjpeg=share))
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(ours, again, strict=True))


@needs_gpu
def test_damaged_pictures_beside_nvjpeg(tmp_path):
    """Images are cut off within the data, with an end marker. nvJPEG or the CPU detects it, or the rest is grey."""
    command = [sys.executable, "-m", "feedstock", "synth", "imagenet", str(tmp_path / "data")]
    subprocess.run([*command, "--samples", "40", "--seed", "1", "--layout", "folder", "--quiet"], check=True)
    files = sorted((tmp_path / "data").rglob("*.JPEG"))
    for file in files[:3]:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) * 6 // 10] + b"\xff\xd9")
    chain = fs.decode_image(), fs.resize((SIZE, SIZE))
    data = (
        fs.Dataset(tmp_path / "data")
        .map("image", *chain)
        .shuffle(seed=1)
        .on_error("skip", max_fraction=0.2)
        .batch(10)
    )
    with data.loader(device="cuda:0", nvjpeg=1.0) as loader:
        valid = [bool(valid) for batch in loader for valid in batch.valid]
        assert len(valid) == 40
        print(f"{valid.count(False)} of 3 damaged images were detected")
        assert valid.count(False) <= 3
        assert loader.ledger()["exact"]


@needs_gpu
def test_tensors_of_dicts_may_be_used_on_further_streams(pictures):
    expected = [image for _, image in images(pictures.loader())]
    side = torch.cuda.Stream()
    with pictures.loader(device="cuda:0", output="torch", depth=1) as loader:
        kept = []
        for batch in loader:
            fs.record_stream(batch, side)
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)
                kept.append(batch["image"].clone())
            del batch
        torch.cuda.synchronize()
    assert all(torch.equal(ours.cpu(), wanted) for ours, wanted in zip(kept, expected, strict=True))


@needs_gpu
@pytest.mark.parametrize("nvjpeg", [0.0, 0.5, 1.0])
def test_batches_come_while_another_thread_captures(pictures, nvjpeg):
    """The capture uses the mode that forbids every other thread calls that may disturb it."""
    begun, end = threading.Event(), threading.Event()
    failures = []

    def capture():
        try:
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            value = torch.zeros(8, device="cuda")
            with torch.cuda.stream(stream):
                value += 1
                torch.cuda.synchronize()
                graph.capture_begin(capture_error_mode="global")
                value += 1
                begun.set()
                end.wait(60)
                graph.capture_end()
                graph.replay()
                torch.cuda.synchronize()
            assert value.tolist() == [2.0] * 8
        except BaseException as error:
            failures.append(error)
            begun.set()

    with pictures.loader(device="cuda:0", nvjpeg=nvjpeg) as loader:
        batches = iter(loader)
        first = next(batches)["image"].torch().clone()
        thread = threading.Thread(target=capture)
        thread.start()
        assert begun.wait(60)
        count = sum(1 for _ in batches)
        end.set()
        thread.join()
        assert not failures, failures
        assert count == 19
        assert first.is_cuda


@needs_gpu
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("nvjpeg", [0.0, 1.0])
def test_the_process_ends_with_loader_and_batch_alive(imagenet, static, nvjpeg):
    program = f"""
import feedstock as fs, torch
ops = fs.decode_image(), fs.random_resized_crop(32)
loader = fs.Dataset({str(imagenet)!r}).map("image", *ops).batch(10).loader(
    device="cuda:0", static={static}, nvjpeg={nvjpeg})
batches = iter(loader)
batch = next(batches)
image = batch["image"].torch()
print(image.float().mean().item() > 0)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "True\n"
    assert "panick" not in run.stderr
    assert "rror" not in run.stderr
