"""feedstock streams training data from object storage, decodes and augments it on CPUs, and delivers batches to every
data-parallel rank, in an order that is a pure function of (data set, seed, epoch).

    import feedstock as fs

    pipeline = (
        fs.Dataset("s3://corpus/imagenet/train")
        .filter("label < 100")
        .map("image", fs.decode_image(), fs.random_resized_crop(224), fs.horizontal_flip())
        .shuffle(seed=7)
        .batch(256)                                   # per rank; or global_batch_size=2048
    )
    loader = pipeline.loader(rank=0, world_size=8)
    for batch in loader:
        x, y = batch["image"].torch(), batch["label"].torch()
    state = loader.state_dict()

Adapters: ``feedstock.torch``, ``feedstock.lightning``, ``feedstock.huggingface``, ``feedstock.ray``,
``feedstock.adaptive``.
"""

from typing import TYPE_CHECKING

from feedstock._dataset import Dataset, DatasetOptions
from feedstock._description import Description
from feedstock._device import record_stream
from feedstock._feedstock import Batch, Tensor, __version__
from feedstock._joint import JointColumn, boxes, image, keypoints, mask
from feedstock._loader import Loader
from feedstock._options import LoaderOptions
from feedstock._pipeline import Pipeline
from feedstock._position import SamplePlace
from feedstock._preview import Preview
from feedstock._reports import Ledger, LoaderStats, SkipReport, WarningReport
from feedstock._rows.spec import TensorSpec, tensor
from feedstock._sources.arrow import from_arrow, from_items, from_pandas
from feedstock._sources.hugging_face import from_huggingface
from feedstock._sources.map_style import from_torch
from feedstock._table import Table
from feedstock._views import Views, views
from feedstock._workers import Workers, WorkerSource
from feedstock.errors import (
    ConfigError,
    DeniedError,
    FeedstockError,
    ForkError,
    GoneError,
    InternalError,
    RetryableError,
    SampleError,
)
from feedstock.finish import Finish, MixupCutmix, finish_features, finish_pictures, mix, mixup_cutmix
from feedstock.ops import (
    Op,
    add_noise,
    adjust_sharpness,
    affine,
    allpass_biquad,
    aug_mix,
    auto_augment,
    autocontrast,
    band_biquad,
    bandpass_biquad,
    bandreject_biquad,
    bass_biquad,
    center_crop,
    color_jitter,
    decode_audio,
    decode_image,
    equalize,
    equalizer_biquad,
    feature_major,
    g711,
    gaussian_blur,
    global_mvn,
    grayscale,
    highpass_biquad,
    horizontal_flip,
    invert,
    log_mel,
    log_mel_librosa,
    log_mel_torchaudio,
    log_mel_whisper,
    lowpass_biquad,
    mfcc,
    normalize,
    pad,
    pad_seconds,
    pad_to,
    perspective,
    posterize,
    rand_augment,
    random_apply,
    random_choice,
    random_crop,
    random_crop_seconds,
    random_erasing,
    random_iou_crop,
    random_resized_crop,
    random_zoom_out,
    resample,
    resize,
    reverb,
    rotate,
    scale_jitter,
    solarize,
    spec_augment,
    speed_perturb,
    time_shift,
    timm_rand_augment,
    to_chw,
    to_f32,
    tokenize,
    tokenize_chars,
    treble_biquad,
    trim_silence,
    trivial_augment,
    utterance_mvn,
    vertical_flip,
    volume,
)

__all__ = [
    "Batch",
    "ConfigError",
    "Dataset",
    "DatasetOptions",
    "DeniedError",
    "Description",
    "FeedstockError",
    "Finish",
    "ForkError",
    "GoneError",
    "InternalError",
    "JointColumn",
    "Ledger",
    "Loader",
    "LoaderOptions",
    "LoaderStats",
    "MixupCutmix",
    "Op",
    "Pipeline",
    "Preview",
    "RetryableError",
    "SampleError",
    "SamplePlace",
    "SkipReport",
    "Table",
    "Tensor",
    "TensorSpec",
    "Views",
    "WarningReport",
    "WorkerSource",
    "Workers",
    "__version__",
    "add_noise",
    "adjust_sharpness",
    "affine",
    "allpass_biquad",
    "aug_mix",
    "auto_augment",
    "autocontrast",
    "band_biquad",
    "bandpass_biquad",
    "bandreject_biquad",
    "bass_biquad",
    "boxes",
    "center_crop",
    "color_jitter",
    "decode_audio",
    "decode_image",
    "equalize",
    "equalizer_biquad",
    "feature_major",
    "finish_features",
    "finish_pictures",
    "from_arrow",
    "from_huggingface",
    "from_items",
    "from_pandas",
    "from_torch",
    "g711",
    "gaussian_blur",
    "global_mvn",
    "grayscale",
    "highpass_biquad",
    "horizontal_flip",
    "image",
    "invert",
    "keypoints",
    "log_mel",
    "log_mel_librosa",
    "log_mel_torchaudio",
    "log_mel_whisper",
    "lowpass_biquad",
    "mask",
    "mfcc",
    "mix",
    "mixup_cutmix",
    "normalize",
    "pad",
    "pad_seconds",
    "pad_to",
    "perspective",
    "posterize",
    "rand_augment",
    "random_apply",
    "random_choice",
    "random_crop",
    "random_crop_seconds",
    "random_erasing",
    "random_iou_crop",
    "random_resized_crop",
    "random_zoom_out",
    "record_stream",
    "resample",
    "resize",
    "reverb",
    "rotate",
    "scale_jitter",
    "solarize",
    "spec_augment",
    "speed_perturb",
    "tensor",
    "time_shift",
    "timm_rand_augment",
    "to_chw",
    "to_f32",
    "tokenize",
    "tokenize_chars",
    "treble_biquad",
    "trim_silence",
    "trivial_augment",
    "utterance_mvn",
    "vertical_flip",
    "views",
    "volume",
]

if not TYPE_CHECKING:  # or type checkers would accept any name

    def __getattr__(name):
        if name == "Mix":
            from feedstock import finish

            return finish.Mix  # warns that it was renamed
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
