"""The ops' descriptions in Python agree with the native library."""

from __future__ import annotations

import inspect
import json
import pickle

import pytest

import feedstock as fs
from feedstock import _feedstock, ops

CALLS = {
    "decode_image": {},
    "resize": {"size": 32},
    "center_crop": {"size": 32},
    "random_crop": {"size": 32},
    "random_resized_crop": {"size": (32, 48)},
    "pad": {"padding": 4},
    "pad_to": {"size": 64},
    "scale_jitter": {"size": 32},
    "rotate": {"degrees": 30},
    "affine": {"degrees": 30},
    "gaussian_blur": {"kernel_size": 9},
    "adjust_sharpness": {"sharpness_factor": 2.0},
    "solarize": {"threshold": 128},
    "posterize": {"bits": 4},
    "random_apply": {"ops": [fs.invert()]},
    "random_choice": {"ops": [fs.invert(), fs.equalize()]},
    "decode_audio": {},
    "resample": {"sample_rate": 16_000},
    "random_crop_seconds": {"seconds": 1.0},
    "pad_seconds": {"seconds": 2.0, "truncate": True},
    "add_noise": {"noise": "/nowhere"},
    "reverb": {"responses": "/nowhere"},
    "lowpass_biquad": {"cutoff_freq": 3400},
    "highpass_biquad": {"cutoff_freq": 300},
    "bandpass_biquad": {"central_freq": 1000},
    "bandreject_biquad": {"central_freq": 50},
    "allpass_biquad": {"central_freq": 1000},
    "band_biquad": {"central_freq": 1000},
    "equalizer_biquad": {"center_freq": 1000, "gain": 6},
    "bass_biquad": {"gain": 6},
    "treble_biquad": {"gain": 6},
    "global_mvn": {"mean": 0.0, "std": 1.0},
    "tokenize": {"tokenizer": "/nowhere/tokenizer.json"},
    "tokenize_chars": {"vocabulary": ["<blank>", "a", "b"]},
}
BEFORE = {
    ops.image: [fs.decode_image(), fs.resize((48, 64))],
    ops.audio: [fs.decode_audio(), fs.resample(16_000)],
    ops.text: [],
}


def functions():
    for module in BEFORE:
        for name, function in vars(module).items():
            if inspect.isfunction(function) and function.__module__ == module.__name__ and name[0] != "_":
                yield pytest.param(module, name, function, id=name)


@pytest.mark.parametrize(("module", "name", "function"), list(functions()))
def test_every_op_is_known_with_all_its_parameters(module, name, function):
    """The native library rejects unknown ops and parameters, so an error in any name fails here."""
    assert name in fs.__all__
    op = function(**CALLS.get(name, {}))
    before = [] if name.startswith("decode") else list(BEFORE[module])
    if name in ("spec_augment", "feature_major", "global_mvn"):
        before.append(fs.log_mel(80))
    resized = ("decode_image", "random_iou_crop", "random_zoom_out", "scale_jitter")
    after = [fs.resize((8, 8))] if name in resized else []
    ops._op.chain_json([*before, op, *after])


@pytest.mark.parametrize(
    "schema", json.loads(_feedstock.op_schema())["oneOf"], ids=lambda schema: schema["title"]
)
def test_signatures_are_those_of_the_native_table(schema):
    """Names, order and defaults are equal. An optional parameter is None, so that the native default applies."""
    parameters = inspect.signature(getattr(fs, schema["title"])).parameters.values()
    assert {p.name for p in parameters} == set(schema["properties"]) - {"op"}
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == schema["positional"]
    assert {p.name for p in parameters if p.default is p.empty} == set(schema["required"]) - {"op"}
    assert all(p.default in (p.empty, None) for p in parameters)


@pytest.mark.parametrize(
    "op",
    [
        [
            fs.decode_image(
                exif_orientation=True,
                scaled=False,
                max_pixels=10**6,
                max_pixels_per_byte=100,
                max_scans=20,
                max_scan_blocks=10**6,
                max_coefficient_bytes=10**7,
                max_huffman_groups=10,
            ),
            fs.resize((8, 8)),
        ],
        fs.decode_audio(
            max_seconds=9,
            max_samples=10**6,
            max_sample_rate=48_000,
            max_channels=2,
            max_lost_share=0.1,
            max_packets=10**4,
            max_steps=10**6,
            max_codebook_bytes=10**6,
            max_decoded_bytes=10**8,
        ),
        fs.tokenize("/nowhere/tokenizer.json", max_tokens=9, truncate=True, max_text_bytes=10**4),
        fs.tokenize_chars("ab ", unknown=1, lowercase=True),
    ],
)
def test_first_ops_take_their_parameters(op):
    ops._op.chain_json([op])


@pytest.mark.parametrize(
    "op",
    [
        fs.resize((32, 48), filter="bicubic"),
        fs.random_crop(32, padding=4, pad_if_needed=True),
        fs.random_resized_crop(32, scale=(0.2, 1.0), ratio=(1.0, 1.0), filter="lanczos"),
        fs.color_jitter(0.4, 0.4, 0.4, 0.1),
        fs.vertical_flip(0.3),
        fs.pad((1, 2, 3, 4), fill=(1, 2, 3), padding_mode="symmetric"),
        fs.resize(32, max_size=48),
        fs.pad_to((64, 96), fill=(1, 2, 3)),
        fs.rotate((-10, 20), interpolation="bilinear", center=(3, 4.5), fill=9),
        fs.affine(
            10, translate=(0.1, 0.2), scale=(0.8, 1.2), shear=(-5, 5, 0, 2), interpolation="bilinear", fill=9,
            center=(3, 4),
        ),
        fs.perspective(0.3, 0.2, interpolation="nearest", fill=(1, 2, 3)),
        fs.grayscale(0.2),
        fs.gaussian_blur(23, (0.1, 2.0)),
        fs.gaussian_blur(23, 1.5),
        fs.adjust_sharpness(2.0, 0.3),
        fs.solarize(128, 0.2),
        fs.posterize(4, 0.2),
        fs.auto_augment("cifar10", interpolation="bilinear", fill=(1, 2, 3)),
        fs.random_apply(fs.color_jitter(0.4), 0.8),
        fs.random_apply([fs.invert(), [fs.rotate(3), fs.random_apply([fs.equalize()])]]),
        fs.random_choice([fs.solarize(128), fs.equalize()], probabilities=[0.25, 0.75]),
        fs.rand_augment(1, 5, num_magnitude_bins=10, interpolation="bilinear", fill=(1, 2, 3)),
        fs.trivial_augment(num_magnitude_bins=10, interpolation="bilinear", fill=[1, 2, 3]),
        fs.timm_rand_augment(
            7, magnitude_std=1, num_layers=3, increasing=False, probability=0.8, translate_pct=0.3,
            interpolation="bicubic", fill=9,
        ),
        fs.aug_mix(
            5, mixture_width=2, chain_depth=3, alpha=0.5, all_ops=False, interpolation="nearest", fill=(1, 2, 3)
        ),
        fs.random_erasing(1.0, scale=(0.1, 0.2), ratio=(1.0, 1.0), value="random"),
        fs.random_erasing(1.0, value=[1.0, 2.0, 3.0]),
        fs.normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)),
        fs.to_chw(),
    ],
)  # fmt: skip
def test_image_ops_take_their_parameters(op):
    ops._op.chain_json([fs.decode_image(), fs.resize((48, 64)), op])


def test_image_ops_of_random_sizes_take_their_parameters():
    zoomed = fs.random_zoom_out(0.3, side_range=(1.0, 2.0), fill=(1, 2, 3))
    jittered = fs.scale_jitter((32, 48), scale_range=(0.5, 1.0), filter="bicubic")
    turned = fs.rotate((-10, 20), interpolation="bilinear", fill=9, expand=True)
    cropped = fs.random_iou_crop(
        min_scale=0.4,
        max_scale=0.9,
        min_aspect_ratio=0.6,
        max_aspect_ratio=1.5,
        sampler_options=(0.2, 0.5, 1),
        trials=20,
    )
    ops._op.chain_json([fs.decode_image(), zoomed, turned, cropped, jittered, fs.pad_to(99)])


@pytest.mark.parametrize(
    "op",
    [
        fs.trim_silence(40, frame_length=1024, hop_length=256, silent_seconds=0.2),
        fs.pad_seconds(2.0, value=0.5, truncate=True),
        fs.speed_perturb([0.9, 1.1]),
        fs.volume((-3, 3)),
        fs.volume(3),
        fs.add_noise("/nowhere", (5, 10), probability=0.5),
        fs.time_shift((-0.1, 0.2), unit="seconds", wrap=False, probability=0.5),
        fs.time_shift(0.2),
        fs.reverb("/nowhere", 0.5),
        fs.lowpass_biquad((2000, 3400), Q=1),
        fs.highpass_biquad(300, Q=1),
        fs.bandpass_biquad(1000, Q=2, const_skirt_gain=True),
        fs.bandreject_biquad(50, Q=9),
        fs.allpass_biquad((300, 3000), Q=2),
        fs.band_biquad(1000, Q=2, noise=True),
        fs.equalizer_biquad((300, 3000), (-6, 6), Q=2),
        fs.bass_biquad((-6, 6), central_freq=200, Q=1),
        fs.treble_biquad(-6, central_freq=(2000, 4000), Q=1),
        fs.g711("a_law", probability=0.5),
        fs.log_mel(
            40, n_fft=512, win_length=400, hop_length=200, f_min=20, f_max=7600, window="hamming",
            mel_scale="htk", norm="none", center=False, pad_mode="constant", power=1, log="db", floor=1e-6,
            floor_by="add", top_db=80, drop_last_frame=False,
        ),
        fs.log_mel_torchaudio(64, n_fft=512),
        fs.log_mel_librosa(64, hop_length=256),
        fs.log_mel_whisper(128),
        fs.mfcc(
            20, n_mels=40, n_fft=512, win_length=400, hop_length=200, f_min=20, f_max=7600, window="hann",
            mel_scale="slaney", norm="slaney", center=True, pad_mode="reflect", log="db", floor=1e-6,
            floor_by="max", top_db=60,
        ),
        fs.utterance_mvn(normalize_vars=False, epsilon=1e-5),
    ],
)  # fmt: skip
def test_audio_ops_take_their_parameters(op):
    ops._op.chain_json([fs.decode_audio(), fs.resample(16_000), op])


def test_feature_ops_take_their_parameters():
    features = [fs.decode_audio(), fs.resample(16_000), fs.log_mel(80)]
    mask = fs.spec_augment(
        freq_masks=1, freq_width=10, time_masks=1, time_width=20, time_share=0.5, value="mean"
    )
    ops._op.chain_json([features, mask, fs.global_mvn([0.0] * 80, [1.0] * 80), fs.feature_major()])


def test_a_preset_is_the_native_one_with_changes():
    fields = json.loads(fs.log_mel_torchaudio(64).to_json())
    assert fields["n_mels"] == 64
    assert fields["mel_scale"] == "htk"


def test_a_chain_of_simclr_is_described():
    chain = [
        fs.decode_image(),
        fs.random_resized_crop(224),
        fs.horizontal_flip(),
        fs.random_apply([fs.color_jitter(0.8, 0.8, 0.8, 0.2)], 0.8),
        fs.grayscale(0.2),
        fs.random_apply([fs.gaussian_blur(23)]),
    ]
    inner = json.loads(chain[3].to_json())["ops"]
    assert inner == [
        {"op": "color_jitter", "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
    ]
    ops._op.chain_json(chain)


def test_ops_within_ops_are_checked():
    decoded = [fs.decode_image(), fs.resize((48, 64))]
    with pytest.raises(
        fs.ConfigError, match=r"op 2 \(random_apply\): op 1 \(resize\): changes the image's size"
    ):
        ops._op.chain_json([*decoded, fs.random_apply([fs.invert(), fs.resize(8)])])
    with pytest.raises(fs.ConfigError, match="must have at least one op"):
        ops._op.chain_json([*decoded, fs.random_apply([])])
    with pytest.raises(fs.ConfigError, match="probabilities must be 1 finite numbers"):
        ops._op.chain_json([*decoded, fs.random_choice([fs.invert()], probabilities=[1, 2])])
    with pytest.raises(TypeError, match=r"fs.random_apply\(ops, 1.0\) is several ops"):
        fs.random_choice([[fs.invert(), fs.equalize()], fs.solarize(3)])
    with pytest.raises(TypeError, match="map_python"):
        fs.random_apply([lambda x: x])


def test_bad_parameters_are_refused_when_a_chain_is_described():
    with pytest.raises(fs.ConfigError, match="resample"):
        ops._op.chain_json([fs.decode_audio(), fs.resample(0)])
    with pytest.raises(fs.ConfigError, match="no_such"):
        ops._op.chain_json([fs.decode_image(), fs.Op("resize", size=3, no_such=1)])
    with pytest.raises(TypeError, match="map_python"):
        ops._op.chain_json([lambda x: x])


def test_ops_are_values():
    op = fs.random_resized_crop(224, scale=(0.2, 1.0))
    assert op == fs.random_resized_crop((224, 224), scale=(0.2, 1.0))
    assert hash(op) == hash(pickle.loads(pickle.dumps(op)))
    assert repr(op) == "random_resized_crop(size=[224, 224], scale=[0.2, 1.0])"
    assert op != fs.random_resized_crop(224)
