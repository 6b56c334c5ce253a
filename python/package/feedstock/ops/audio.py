"""Ops on clips: from encoded bytes to f32 waveforms [samples] and features [frames, features]."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from feedstock import _feedstock
from feedstock.ops._op import Op

Window = Literal["hann", "hamming", "blackman", "povey", "rectangular"]
Log = Literal["whisper", "ln", "log10", "db", "none"]
MelScale = Literal["slaney", "htk"]
MelNorm = Literal["slaney", "none"]
PadMode = Literal["reflect", "constant"]
FloorBy = Literal["max", "add"]


def decode_audio(
    *,
    max_seconds: float | None = None,
    max_samples: int | None = None,
    max_sample_rate: int | None = None,
    max_channels: int | None = None,
    max_lost_share: float | None = None,
    max_packets: int | None = None,
    max_steps: int | None = None,
    max_codebook_bytes: int | None = None,
    max_decoded_bytes: int | None = None,
) -> Op:
    """MP3, FLAC, Ogg Vorbis, WAV, AAC or Opus into one channel of f32, at the clip's own rate, gaplessly trimmed.

    Limits, checked before allocation: ``max_seconds`` default 600, ``max_samples`` 57,600,000, ``max_sample_rate``
    384,000 Hz, ``max_channels`` 8. ``max_lost_share``: the share of a clip that damaged frames or a missing end may
    cost before it counts as a bad sample, default 0.02.

    Four limits bound the time and memory for files that are made to cost much; no common file comes near them.
    ``max_packets``: packets (frames) of all tracks, default 4,194,304. ``max_steps``: steps of looking for packets
    beyond one pass over the bytes, default 268,435,456; a step takes about a nanosecond. ``max_codebook_bytes``: bytes
    of a Vorbis clip's unpacked codebooks, default 67,108,864. ``max_decoded_bytes``: bytes of f32 that all channels
    decode to, 4 for each sample of each channel, default 460,800,000, which is ``max_samples`` in stereo. A clip over a
    limit is a bad sample, and the error states the limit, the value found and the option.
    """
    return Op(
        "decode_audio",
        max_seconds=max_seconds,
        max_samples=max_samples,
        max_sample_rate=max_sample_rate,
        max_channels=max_channels,
        max_lost_share=max_lost_share,
        max_packets=max_packets,
        max_steps=max_steps,
        max_codebook_bytes=max_codebook_bytes,
        max_decoded_bytes=max_decoded_bytes,
    )


def resample(sample_rate: int) -> Op:
    """Another sample rate, in Hz; speech models want 16,000."""
    return Op("resample", sample_rate=sample_rate)


def trim_silence(
    top_db: float | None = None,
    *,
    frame_length: int | None = None,
    hop_length: int | None = None,
    silent_seconds: float | None = None,
) -> Op:
    """Cut off beginnings and ends more than ``top_db`` (default 60) below the loudest frame, as librosa's ``trim``.

    A clip that is silent throughout keeps ``silent_seconds`` (default 0.1).
    """
    return Op(
        "trim_silence",
        top_db=top_db,
        frame_length=frame_length,
        hop_length=hop_length,
        silent_seconds=silent_seconds,
    )


def random_crop_seconds(seconds: float) -> Op:
    """Cut a random stretch of ``seconds`` out of longer clips."""
    return Op("random_crop_seconds", seconds=seconds)


def pad_seconds(seconds: float, *, value: float | None = None, truncate: bool | None = None) -> Op:
    """Make shorter clips ``seconds`` long with ``value`` (default 0); ``truncate=True`` cuts longer ones."""
    return Op("pad_seconds", seconds=seconds, value=value, truncate=truncate)


def speed_perturb(factors: Sequence[float] | None = None) -> Op:
    """Play at one of ``factors`` drawn at random (Ko et al. 2015); default 0.9, 1.0, 1.1."""
    return Op("speed_perturb", factors=factors)


def volume(gain_db: float | tuple[float, float] | None = None) -> Op:
    """A random gain in decibels; default (−6, 6)."""
    return Op("volume", gain_db=gain_db)


def add_noise(
    noise: str, snr_db: float | tuple[float, float] | None = None, *, probability: float | None = None
) -> Op:
    """Mix in noise from the data set at the URI ``noise``, at a signal-to-noise ratio in decibels, default (5, 20)."""
    return Op("add_noise", noise=noise, snr_db=snr_db, probability=probability)


def log_mel(
    n_mels: int | None = None,
    *,
    n_fft: int | None = None,
    win_length: int | None = None,
    hop_length: int | None = None,
    f_min: float | None = None,
    f_max: float | None = None,
    window: Window | None = None,
    mel_scale: MelScale | None = None,
    norm: MelNorm | None = None,
    center: bool | None = None,
    pad_mode: PadMode | None = None,
    power: Literal[1, 2] | None = None,
    log: Log | None = None,
    floor: float | None = None,
    floor_by: FloorBy | None = None,
    top_db: float | None = None,
    drop_last_frame: bool | None = None,
) -> Op:
    """Log-mel spectrograms, f32 [frames, n_mels].

    The defaults are those of Whisper's feature extractor: 80 filters, 25 ms Hann windows (n_fft 400) every 10 ms
    (hop_length 160) at 16 kHz, Slaney's scale and norm, log10 scaled to about −1…1. For torchaudio's and librosa's
    see ``log_mel_torchaudio`` and ``log_mel_librosa``.
    """
    return Op("log_mel", **locals())


def _preset(name: str, changes: dict[str, Any]) -> Op:
    fields = json.loads(_feedstock.preset(name)) | {k: v for k, v in changes.items() if v is not None}
    return Op(fields.pop("op"), **fields)


def log_mel_whisper(n_mels: int | None = None) -> Op:
    """``log_mel`` with Whisper's parameters."""
    return _preset("log_mel_whisper", {"n_mels": n_mels})


def log_mel_torchaudio(n_mels: int | None = None, **parameters: Any) -> Op:
    """``log_mel`` as torchaudio's ``MelSpectrogram`` and ``AmplitudeToDB(top_db=80)``; other parameters as given."""
    return _preset("log_mel_torchaudio", {"n_mels": n_mels, **parameters})


def log_mel_librosa(n_mels: int | None = None, **parameters: Any) -> Op:
    """``log_mel`` with the parameters of librosa's ``melspectrogram`` and ``power_to_db``; others as given."""
    return _preset("log_mel_librosa", {"n_mels": n_mels, **parameters})


def mfcc(
    n_mfcc: int | None = None,
    *,
    n_mels: int | None = None,
    n_fft: int | None = None,
    win_length: int | None = None,
    hop_length: int | None = None,
    f_min: float | None = None,
    f_max: float | None = None,
    window: Window | None = None,
    mel_scale: MelScale | None = None,
    norm: MelNorm | None = None,
    center: bool | None = None,
    pad_mode: PadMode | None = None,
    log: Log | None = None,
    floor: float | None = None,
    floor_by: FloorBy | None = None,
    top_db: float | None = None,
) -> Op:
    """Mel-frequency cepstral coefficients, f32 [frames, n_mfcc]; the defaults are torchaudio's ``MFCC``."""
    return Op("mfcc", **locals())


def spec_augment(
    *,
    freq_masks: int | None = None,
    freq_width: int | None = None,
    time_masks: int | None = None,
    time_width: int | None = None,
    time_share: float | None = None,
    value: float | Literal["mean"] | None = None,
) -> Op:
    """Mask bands of features and stretches of frames (Park et al. 2019): default two of each, at most 27 features and
    100 frames wide, filled with the clip's mean."""
    return Op("spec_augment", **locals())


def utterance_mvn(*, normalize_vars: bool | None = None, epsilon: float | None = None) -> Op:
    """Each clip to mean 0 and variance 1 (``epsilon`` 1e-7 keeps silence finite)."""
    return Op("utterance_mvn", normalize_vars=normalize_vars, epsilon=epsilon)


def global_mvn(mean: float | Sequence[float], std: float | Sequence[float]) -> Op:
    """Features minus ``mean`` over ``std``: one number, or one a feature."""
    return Op("global_mvn", mean=mean, std=std)


def feature_major() -> Op:
    """[frames, features] to [features, frames], as Whisper takes them."""
    return Op("feature_major")
