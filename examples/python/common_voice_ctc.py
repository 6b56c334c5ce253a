"""Fine-tunes a pretrained speech model on Common Voice with Ray Train: CTC, evaluated by word error rate.

    python common_voice_ctc.py                                   # small: an untrained model, synthesised speech
    ray job submit --working-dir examples/python -- python common_voice_ctc.py --gpu --trainers 8 \\
        --model facebook/wav2vec2-xls-r-300m --data s3://corpus/cv-corpus-17.0/de --runs s3://runs/german --name ctc-1
    … --workers ray --max-workers 16                             # a fleet on other nodes decodes the audio clips
    … --fsdp                                                     # FSDP2 instead of DDP

The run's folder, s3://runs/german/ctc-1, gets the loss of every step (steps.csv), the word error rate on ``dev`` after
each epoch (dev.csv), the best and the last checkpoint, and the best model in the form of transformers (model/). Ranks
and workers may fail. A run under a name that was used before continues from its last checkpoint, with the losses that
an unbroken run has. The number of ranks and DDP or FSDP2 may change.

Credentials and region come from the environment of all nodes, for the data and for the run: ``AWS_ACCESS_KEY_ID``,
``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, and ``AWS_ENDPOINT_URL`` for stores other than Amazon's.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import jiwer
import pyarrow.fs
import ray.train
import torch
import torch.distributed.checkpoint as dcp
from ray.train.torch import get_device, prepare_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCTC, PreTrainedModel, Wav2Vec2Config, set_seed

import feedstock as fs
from ray_run import Run, fit, parser, sample_data, summed

# Token 0 is CTC's blank; characters that are not listed are written as a space.
VOCABULARY = ["<blank>", " ", *"abcdefghijklmnopqrstuvwxyzäöüß'"]


def pipeline(options: argparse.Namespace, split: str) -> fs.Pipeline:
    """Returns waveforms at 16 kHz, and the characters of what is said, without punctuation. Global batches are the same
    for any number of ranks."""
    return (
        fs.Dataset(options.data, split=split)
        .filter("duration > 0.5 AND duration < 20")
        .map("audio", fs.decode_audio(), fs.resample(16_000), fs.utterance_mvn())
        .map("sentence", fs.tokenize_chars(VOCABULARY, unknown=1, lowercase=True), output="tokens")
        .shuffle(seed=options.seed)
        .bucket_by("duration")  # audio clips of similar length in a batch
        .batch(global_batch_size=options.global_batch_size, tail="pad")
        .on_error("skip")  # Common Voice has audio clips that no decoder can read
        .options(threads=options.threads)
    )


def speech_model(name: str | None) -> PreTrainedModel:
    """Returns the pretrained model of a name or folder with a new output layer, or a small untrained model."""
    # Without layerdrop, which would drop other layers on other ranks.
    ours = {"vocab_size": len(VOCABULARY), "pad_token_id": 0, "layerdrop": 0.0}
    if name is None:
        small = {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
        }
        front = {"conv_dim": (32,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
        return AutoModelForCTC.from_config(Wav2Vec2Config(**small, **front, **ours))
    model = AutoModelForCTC.from_pretrained(name, **ours, ignore_mismatched_sizes=True)
    model.freeze_feature_encoder()
    return model


def distributed(model: PreTrainedModel, fsdp: bool) -> nn.Module:
    """Returns the model on this rank's device, with DDP or FSDP2. Each layer is a separate unit of FSDP2."""
    if not fsdp:
        return prepare_model(model)
    mesh = init_device_mesh(get_device().type, (ray.train.get_context().get_world_size(),))
    model.to(get_device())
    for layer in model.base_model.encoder.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def log_probabilities(model: nn.Module, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns log-probabilities, f32 [rows, frames of 20 ms, characters], and each row's number of frames."""
    audio, samples = batch["audio"], batch["audio_length"]
    plain = getattr(model, "module", model)  # without DDP
    heard = (torch.arange(audio.shape[1], device=audio.device) < samples[:, None]).long()
    # Models with a group norm were pretrained without a mask.
    mask = heard if plain.config.feat_extract_norm == "layer" else None
    with torch.autocast(audio.device.type, torch.bfloat16, enabled=audio.is_cuda):
        logits = model(audio, attention_mask=mask).logits
    return logits.float().log_softmax(-1), plain._get_feat_extract_output_lengths(samples)


def ctc_loss(model: nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Returns this rank's part of the mean over the valid rows of the global batch, times the number of ranks, because
    DDP and FSDP average gradients over ranks. Each row's loss is divided by its number of characters."""
    log_probs, frames = log_probabilities(model, batch)
    characters, valid = batch["tokens_length"], batch["valid"]
    losses = nn.functional.ctc_loss(
        log_probs.transpose(0, 1),
        batch["tokens"],
        frames,
        characters,
        reduction="none",
        zero_infinity=True,  # a sentence with more characters than frames cannot be written
    )
    rows = summed(valid.sum()).clamp(min=1)
    ranks = ray.train.get_context().get_world_size()
    return (losses / characters.clamp(min=1))[valid].sum() * ranks / rows


@torch.inference_mode()
def word_error_rate(model: nn.Module, loader: Any) -> float:
    """Returns the word error rate of the most likely characters, over all ranks. Each audio clip is counted once."""
    model.eval()
    said, heard = [], []
    for batch in loader.iter_torch_batches():
        log_probs, frames = log_probabilities(model, batch)
        columns = log_probs.argmax(-1), frames, batch["tokens"], batch["tokens_length"], batch["valid"]
        for best, steps, tokens, length, valid in zip(*(column.tolist() for column in columns), strict=True):
            if valid:
                said.append(text(tokens[:length]))
                heard.append(text(token for token, _ in groupby(best[:steps])))
    model.train()
    words = jiwer.process_words(said, heard)
    errors = words.substitutions + words.deletions + words.insertions
    spoken = words.substitutions + words.deletions + words.hits
    errors, spoken = summed(torch.tensor([errors, spoken], device=get_device())).tolist()
    return errors / max(spoken, 1)


def text(tokens: Any) -> str:
    return "".join(VOCABULARY[token] for token in tokens if token != 0)


def train(config: dict[str, Any]) -> None:
    """Runs in each rank."""
    context = ray.train.get_context()
    loader, dev = ray.train.get_dataset_shard("train"), ray.train.get_dataset_shard("evaluation")
    set_seed(config["seed"])
    model = distributed(speech_model(config["model"]), config["fsdp"])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    run = Run(config, model, optimizer, loader)
    steps = config["epochs"] * len(loader)
    model.train()

    while (epoch := loader.epoch) < config["epochs"]:
        # On this rank's device: page-locked slots are copied to a GPU while the model computes.
        for batch in loader.iter_torch_batches():
            # Dropout and SpecAugment depend on step and rank only, so that a resumed run repeats them.
            set_seed(config["seed"] + run.step * context.get_world_size() + context.get_world_rank())
            progress = (run.step + 1) / (steps + 1)
            rate = config["lr"] * min(progress / 0.1, (1 - progress) / 0.9)  # warms up, then falls to 0
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = ctc_loss(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            run.step += 1
            run.log("steps", epoch=epoch, loss=summed(loss) / context.get_world_size(), rate=rate)
            if run.due():
                run.save(wer=math.inf)  # not evaluated
        wer = word_error_rate(model, dev)
        run.log("dev", epoch=epoch, wer=wer)
        run.save(wer=wer)


def export(result: ray.train.Result, name: str | None) -> None:
    """Writes the best checkpoint to the run's folder in the form of transformers."""
    model = speech_model(name)
    with result.get_best_checkpoint("wer", "min").as_directory() as folder:
        dcp.load({"run": {"model": model.state_dict()}}, checkpoint_id=folder, no_dist=True)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        result.filesystem.create_dir(f"{result.path}/model")
        pyarrow.fs.copy_files(folder, f"{result.path}/model", destination_filesystem=result.filesystem)


def arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    add = options.add_argument
    add(
        "--model",
        help="a wav2vec2-like model: its name on the hub, or a folder; default: small and untrained",
    )
    add("--fsdp", action="store_true", help="FSDP2 instead of DDP")
    add("--epochs", type=int, default=2)
    add("--global-batch-size", type=int, default=16)
    add("--lr", type=float, default=1e-3, help="the highest learning rate; 1e-4 for pretrained models")
    add("--seed", type=int, default=7)
    return options.parse_args()


def main() -> None:
    options = arguments()
    options.data = options.data or sample_data("common-voice", "mozilla", 96)
    data = {"train": pipeline(options, "train"), "evaluation": pipeline(options, "dev")}
    print(f"{len(data['train'].dataset)} audio clips to train, {len(data['evaluation'].dataset)} to evaluate")
    result = fit(train, options, data, ("wer", "min"))
    export(result, options.model)
    best = min(metrics["wer"] for _, metrics in result.best_checkpoints)
    print(f"{result.path}: the word error rate of the best model is {best:.3f}")


if __name__ == "__main__":
    main()
