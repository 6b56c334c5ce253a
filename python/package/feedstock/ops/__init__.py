"""Ops: transforms of each sample's encoded bytes or text, in Rust, on the pipeline's threads.

An op is a small description. Parameters that are not given have the native library's defaults. ``Pipeline.map`` checks
the chain. Random ops draw from a generator that is seeded by (seed, epoch, sample, op), so their results do not depend
on threads, ranks or restarts.
"""

from feedstock.ops._op import Op
from feedstock.ops.audio import (
    add_noise,
    decode_audio,
    feature_major,
    global_mvn,
    log_mel,
    log_mel_librosa,
    log_mel_torchaudio,
    log_mel_whisper,
    mfcc,
    pad_seconds,
    random_crop_seconds,
    resample,
    spec_augment,
    speed_perturb,
    trim_silence,
    utterance_mvn,
    volume,
)
from feedstock.ops.image import (
    center_crop,
    color_jitter,
    decode_image,
    horizontal_flip,
    normalize,
    rand_augment,
    random_crop,
    random_erasing,
    random_resized_crop,
    resize,
    to_chw,
    to_f32,
    trivial_augment,
)
from feedstock.ops.text import tokenize, tokenize_chars

__all__ = [
    "Op",
    "add_noise",
    "center_crop",
    "color_jitter",
    "decode_audio",
    "decode_image",
    "feature_major",
    "global_mvn",
    "horizontal_flip",
    "log_mel",
    "log_mel_librosa",
    "log_mel_torchaudio",
    "log_mel_whisper",
    "mfcc",
    "normalize",
    "pad_seconds",
    "rand_augment",
    "random_crop",
    "random_crop_seconds",
    "random_erasing",
    "random_resized_crop",
    "resample",
    "resize",
    "spec_augment",
    "speed_perturb",
    "to_chw",
    "to_f32",
    "tokenize",
    "tokenize_chars",
    "trim_silence",
    "trivial_augment",
    "utterance_mvn",
    "volume",
]
