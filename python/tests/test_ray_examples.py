"""The examples for Ray Train, on a cluster with two ranks and a fleet. Ranks are killed, and jobs submitted again."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jiwer")
pytest.importorskip("ray")


import ray
import ray.train
import s3
import torch
import torch.distributed.checkpoint as dcp
from preemption import in_a_train_worker
from programs.ray_cluster import RayCluster
from pyarrow.fs import LocalFileSystem
from ray.train import PreemptionInfo
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

import common_voice_ctc
import imagenet_ray
import ray_run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "python"

# Training functions travel as those of a program do, whose module is __main__: by value.
for module in (common_voice_ctc, imagenet_ray, sys.modules[__name__]):
    ray.cloudpickle.register_pickle_by_value(module)


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory, common_voice: Path) -> Iterator[Path]:
    """Serves S3 with Common Voice in the bucket `corpus`; returns the folder that has the buckets."""
    root = tmp_path_factory.mktemp("buckets")
    shutil.copytree(common_voice, root / "corpus" / "cv")
    (root / "runs").mkdir()
    with s3.serve(root):
        yield root


@pytest.fixture(scope="module")
def cluster(buckets: Path) -> Iterator[RayCluster]:
    """Returns a cluster whose processes have S3's credentials and can import the examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
        )
        cluster = RayCluster()
        yield cluster
        cluster.close()


def table(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text())))


def column(rows: list[dict[str, str]], name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def killed(train: Callable[..., None], journal: Path) -> Callable[..., None]:
    """Returns a training function that kills rank 1 after step 5, when the checkpoint of step 3 is registered.

    Rank 0 writes where each attempt starts, and the loss of each step."""

    def loop(config: dict[str, Any]) -> None:
        log, rank = ray_run.Run.log, ray.train.get_context().get_world_rank()

        def logged(run: ray_run.Run, name: str, **metrics: Any) -> None:
            log(run, name, **metrics)
            if rank == 0 and name == "steps":
                with journal.open("a") as file:
                    file.write(json.dumps([run.first_step, run.step, metrics["loss"].item()]) + "\n")
            if [rank, run.step, run.first_step] == [1, 5, 0]:
                while not is_registered(run, 3):
                    time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)

        ray_run.Run.log = logged  # type: ignore[method-assign]
        train(config)

    return loop


def is_registered(run: ray_run.Run, step: int) -> bool:
    path = f"{run.folder}/checkpoint_manager_snapshot.json"
    if not run.storage.get_file_info(path).is_file:
        return False
    with run.storage.open_input_stream(path) as file:
        return json.loads(file.read())["latest_checkpoint_result"]["metrics"]["step"] == step


def assert_resumed_with_the_same_losses(journal: Path, steps: list[dict[str, str]]) -> None:
    """Checks a run of 2 epochs of 5 steps. Steps 4 and 5 were lost with their weights, and were made again."""
    attempts = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [(start, step) for start, step, _ in attempts] == [
        *[(0, step) for step in (1, 2, 3, 4, 5)],
        *[(3, step) for step in (4, 5, 6, 7, 8, 9, 10)],
    ]
    losses = [loss for _, _, loss in attempts]
    assert losses[3:5] == losses[5:7], "a resumed run has other losses"
    assert len(set(losses)) == 10, "steps do not differ"
    assert column(steps, "step") == list(range(1, 11))
    assert column(steps, "epoch") == [0] * 5 + [1] * 5
    assert column(steps, "loss") == losses[:3] + losses[5:]
    assert column(steps, "seconds") == sorted(column(steps, "seconds"))


def checkpoints(run: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the metrics of the best and of the last checkpoint, which are those that are stored."""
    known = json.loads((run / "checkpoint_manager_snapshot.json").read_text())
    best, last = known["checkpoint_results"][-1], known["latest_checkpoint_result"]
    stored = {path.name for path in run.glob("checkpoint_2*")}
    assert stored == {best["checkpoint_dir_name"], last["checkpoint_dir_name"]}
    return best["metrics"], last["metrics"]


def samples_of_workers(output: str) -> int:
    (samples,) = re.findall(r"the fleet's workers made (\d+) samples", output)
    return int(samples)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns a folder with a model as the hub has them: another vocabulary, attention masks, dropout."""
    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        conv_dim=(16,) * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        layerdrop=0.1,
    )
    Wav2Vec2ForCTC(config).save_pretrained(folder)
    return str(folder)


def test_common_voice(
    cluster: RayCluster,
    buckets: Path,
    pretrained: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """FSDP2 on two ranks: one is killed, and Ray restarts both. Then one rank without FSDP2 continues the run."""
    command = shlex.split(
        "common_voice_ctc.py --data s3://corpus/cv --runs s3://runs/german --name ctc "
        f"--model {pretrained} --lr 0.01 --global-batch-size 13 --save-every 3 --threads 1"
    )
    monkeypatch.setattr(common_voice_ctc, "train", killed(common_voice_ctc.train, tmp_path / "journal"))
    monkeypatch.setattr(sys, "argv", [*command, "--fsdp", "--workers", "ray"])
    common_voice_ctc.main()

    run = buckets / "runs" / "german" / "ctc"
    before = table(run / "steps.csv")
    assert_resumed_with_the_same_losses(tmp_path / "journal", before)
    assert column(before, "loss")[-1] < 0.75 * column(before, "loss")[0], "it does not learn"
    rates = column(table(run / "dev.csv"), "wer")
    assert len(rates) == 2
    best, last = checkpoints(run)
    assert (best["wer"], last) == (min(rates), {"step": 10, "wer": rates[-1]})
    output = capsys.readouterr().out
    assert samples_of_workers(output) > 0
    assert f"the word error rate of the best model is {min(rates):.3f}" in output

    monkeypatch.undo()
    monkeypatch.setattr(sys, "argv", [*command, "--trainers", "1", "--epochs", "3"])
    common_voice_ctc.main()
    after, dev = table(run / "steps.csv"), table(run / "dev.csv")
    assert after[:10] == before
    assert column(after, "step") == list(range(1, 16))
    assert column(after, "seconds") == sorted(column(after, "seconds"))
    assert max(column(after[10:], "loss")) < max(column(before[:3], "loss")), "it began anew"
    assert column(dev, "step") == [5, 10, 15]
    assert checkpoints(run)[1] == {"step": 15, "wer": column(dev, "wer")[-1]}
    model = Wav2Vec2ForCTC.from_pretrained(run / "model")
    assert model.lm_head.weight.shape == (len(common_voice_ctc.VOCABULARY), 32)
    first = Wav2Vec2ForCTC.from_pretrained(pretrained).state_dict()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, first[name])}
    assert "wav2vec2.encoder.layers.1.attention.q_proj.weight" in moved
    assert not [name for name in moved if "feature_extractor" in name], "the feature encoder is not frozen"


def test_imagenet_with_accuracy_against_time_and_money(
    cluster: RayCluster,
    imagenet: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = shlex.split(
        f"imagenet_ray.py --data {imagenet} --validation train --runs {tmp_path} --name resnet --workers ray "
        "--price-per-hour 36 --global-batch-size 40 --save-every 3 --threads 1"
    )
    monkeypatch.setattr(imagenet_ray, "train", killed(imagenet_ray.train, tmp_path / "journal"))
    monkeypatch.setattr(sys, "argv", command)
    imagenet_ray.main()

    run = tmp_path / "resnet"
    assert_resumed_with_the_same_losses(tmp_path / "journal", table(run / "steps.csv"))
    accuracy = table(run / "accuracy.csv")
    assert column(accuracy, "step") == [5, 10]
    for row in accuracy:
        assert 0 <= float(row["top1"]) <= float(row["top5"]) <= 1
        assert float(row["top5"]) * 200 == pytest.approx(round(float(row["top5"]) * 200)), "not of 200 images"
        assert float(row["dollars"]) == pytest.approx(float(row["seconds"]) * 36 / 3600, rel=0.01)
    lines = ElementTree.parse(run / "accuracy.svg").iter("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 2]
    best, last = checkpoints(run)
    assert (best["top1"], last["step"]) == (max(column(accuracy, "top1")), 10)
    output = capsys.readouterr().out
    assert samples_of_workers(output) > 0
    assert f"the top-1 accuracy of the best model is {best['top1']:.3f}" in output


def test_the_best_model_is_exported_to_a_folder(pretrained: str, tmp_path: Path) -> None:
    trained = common_voice_ctc.speech_model(pretrained)
    torch.nn.init.normal_(trained.lm_head.weight)
    dcp.save(
        {"run": {"model": trained.state_dict(), "step": 3}}, checkpoint_id=tmp_path / "best", no_dist=True
    )
    best = {("wer", "min"): ray.train.Checkpoint.from_directory(str(tmp_path / "best"))}
    run = SimpleNamespace(
        get_best_checkpoint=lambda *score: best[score],
        path=str(tmp_path / "run"),
        filesystem=LocalFileSystem(),
    )
    for _ in range(2):  # the second time a former one is there
        common_voice_ctc.export(run, pretrained)
    exported = Wav2Vec2ForCTC.from_pretrained(tmp_path / "run" / "model").state_dict()
    assert exported.keys() == trained.state_dict().keys()
    assert all(torch.equal(exported[name], value) for name, value in trained.state_dict().items())


class Rows:
    """A loader of one batch."""

    def __init__(self, **columns: Any) -> None:
        self.batch = columns

    def iter_torch_batches(self) -> list[dict[str, Any]]:
        return [self.batch]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets functions of a rank run in this process."""
    for module in (common_voice_ctc, imagenet_ray):
        monkeypatch.setattr(module, "get_device", lambda: torch.device("cpu"))
        monkeypatch.setattr(module, "summed", lambda value: value)
    context = SimpleNamespace(get_world_size=lambda: 1, get_world_rank=lambda: 0)
    monkeypatch.setattr(ray.train, "get_context", lambda: context)


def padded(rows: list[list[int]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def test_word_error_rate(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated characters are one, blanks separate equal ones, and frames after a row's end and padding rows are not
    counted."""
    token = {character: place for place, character in enumerate(common_voice_ctc.VOCABULARY)} | {"_": 0}
    #        said, heard frame by frame, frames, valid: of 7 words 1 is replaced, 1 missing and 1 too many
    rows = [
        ("alle da", "aal_lee  daxx", 11, True),
        ("ein haus steht", "ein maus", 8, True),
        ("so ja", "so ja ja", 8, True),
        ("nein", "ja", 2, False),
    ]
    best = padded([[token[character] for character in heard] for _, heard, _, _ in rows])
    said = [[token[character] for character in text] for text, _, _, _ in rows]
    scores = torch.nn.functional.one_hot(best, len(common_voice_ctc.VOCABULARY)).float()
    frames = torch.tensor([frames for _, _, frames, _ in rows])
    monkeypatch.setattr(common_voice_ctc, "log_probabilities", lambda model, batch: (scores, frames))
    loader = Rows(
        tokens=padded(said),
        tokens_length=torch.tensor([len(text) for text in said]),
        valid=torch.tensor([valid for _, _, _, valid in rows]),
    )
    assert common_voice_ctc.word_error_rate(torch.nn.Identity(), loader) == 3 / 7


def test_top_1_and_top_5(alone: None) -> None:
    scores = torch.arange(10.0).repeat(4, 1)  # the guesses are 9, 8, 7, 6, 5
    loader = Rows(
        image=scores, label=torch.tensor([9, 6, 4, 9]), valid=torch.tensor([True, True, True, False])
    )
    assert imagenet_ray.accuracy(torch.nn.Identity(), loader) == (1 / 3, 2 / 3)


def test_a_node_that_leaves_leads_to_one_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    notices: dict[int, Any] = {}
    run = ray_run.Run.__new__(ray_run.Run)
    run.save_every, run.notice = 25, in_a_train_worker(monkeypatch, lambda: notices.get(run.step))
    notices.update({step: PreemptionInfo(None, {"node": [0]}) for step in range(28, 60)})
    saved = []
    for run.step in range(1, 60):
        if run.due():
            saved.append(run.step)
    assert saved == [25, 30, 50]


def test_seconds_count_lost_work_of_this_job_and_kept_work_of_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_run, "get_state_dict", lambda model, optimizer: ({}, {}))
    monkeypatch.setattr(ray_run, "set_state_dict", lambda *args, **kwargs: None)
    now = 1000.0
    monkeypatch.setattr(ray_run.time, "time", lambda: now)

    def rank(started: float, state: dict[str, Any] | None) -> ray_run.Run:
        run = ray_run.Run.__new__(ray_run.Run)
        run.model = run.optimizer = None
        run.loader = SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
        run.step, run.started, run.seconds_before = 0, started, 0.0
        if state is not None:
            run.load_state_dict(state)
        return run

    first = rank(started=900.0, state=None)
    assert first.seconds == 100
    saved = first.state_dict()
    now = 1040.0  # 40 s after the checkpoint Ray restarts the ranks
    assert rank(started=900.0, state=saved).seconds == 140
    now = 5010.0  # 10 s after another job was submitted
    again = rank(started=5000.0, state=saved)
    assert again.seconds == 110
    saved, now = again.state_dict(), 5030.0
    assert rank(started=5000.0, state=saved).seconds == 130
