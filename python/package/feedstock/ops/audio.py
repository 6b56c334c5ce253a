"""Ops on audio: from encoded bytes to float32 waveforms [samples] and features [frames, features]."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from feedstock import _feedstock
from feedstock.ops._op import Op

if TYPE_CHECKING:
    from typing_extensions import Unpack

Window = Literal["hann", "hamming", "blackman", "povey", "rectangular"]
Log = Literal["whisper", "ln", "log10", "db", "none"]
MelScale = Literal["slaney", "htk"]
MelNorm = Literal["slaney", "none"]
PadMode = Literal["reflect", "constant"]
FloorBy = Literal["max", "add"]
ShiftUnit = Literal["share", "seconds"]
Law = Literal["mu_law", "a_law"]


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
    """Decodes MP3, FLAC, Ogg Vorbis, WAV, AAC or Opus to mono float32 [samples].

    The sample rate is that of the file. Encoder delay and padding are removed. Audio over a limit is a bad sample, and
    the error states the limit, the value and the option. Common files are far below the last four limits, which bound
    time and memory for malicious files.

    Args:
        max_seconds: Duration in seconds, checked before allocation; default 600.
        max_samples: Samples of one channel, checked before allocation; default 57,600,000.
        max_sample_rate: Sample rate in Hz; default 384,000.
        max_channels: Channels; default 8.
        max_lost_share: The share of the audio that may be lost to damaged frames or a missing end; default 0.02.
        max_packets: Packets (frames) of all tracks; default 4,194,304.
        max_steps: Steps of the search for packets beyond one pass over the bytes, of about 1 ns each; default
            268,435,456.
        max_codebook_bytes: Bytes of the unpacked codebooks of Vorbis; default 67,108,864.
        max_decoded_bytes: Bytes of all decoded channels, 4 for each sample of each channel; default 460,800,000, which
            is ``max_samples`` in stereo.
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
    """Resamples audio to ``sample_rate`` Hz. Speech models usually need 16,000."""
    return Op("resample", sample_rate=sample_rate)


def trim_silence(
    top_db: float | None = None,
    *,
    frame_length: int | None = None,
    hop_length: int | None = None,
    silent_seconds: float | None = None,
) -> Op:
    """Removes silence at the beginning and end, as librosa's ``trim``.

    Args:
        top_db: Frames that are this many decibels below the loudest one are silent; default 60.
        frame_length: Samples of a frame; default 2,048.
        hop_length: Samples between two frames; default 512.
        silent_seconds: The duration that completely silent audio keeps, in seconds; default 0.1.
    """
    return Op(
        "trim_silence",
        top_db=top_db,
        frame_length=frame_length,
        hop_length=hop_length,
        silent_seconds=silent_seconds,
    )


def random_crop_seconds(seconds: float) -> Op:
    """Cuts a random part of ``seconds`` out of longer audio."""
    return Op("random_crop_seconds", seconds=seconds)


def pad_seconds(seconds: float, *, value: float | None = None, truncate: bool | None = None) -> Op:
    """Pads shorter audio to ``seconds``.

    Args:
        seconds: The duration in seconds.
        value: The value of the padding; default 0.
        truncate: Whether to cut longer audio; default ``False``.
    """
    return Op("pad_seconds", seconds=seconds, value=value, truncate=truncate)


def speed_perturb(factors: Sequence[float] | None = None) -> Op:
    """Changes the speed by a random one of ``factors`` (Ko et al. 2015); default 0.9, 1.0, 1.1."""
    return Op("speed_perturb", factors=factors)


def volume(gain_db: float | tuple[float, float] | None = None) -> Op:
    """Changes the volume by a random gain in decibels, between two bounds; default (−6, 6)."""
    return Op("volume", gain_db=gain_db)


def time_shift(
    shift: float | tuple[float, float] | None = None,
    *,
    unit: ShiftUnit | None = None,
    wrap: bool | None = None,
    probability: float | None = None,
) -> Op:
    """Moves audio in time by a random shift; later where it is positive. The length stays.

    Args:
        shift: The least and the greatest shift in ``unit``; one number d is (-d, d). Default (-0.5, 0.5).
        unit: ``"share"`` of the audio's length (default) or ``"seconds"``.
        wrap: Whether samples that leave at one end come back at the other, as ``numpy.roll``; default ``True``.
            Otherwise, they become silence.
        probability: The probability; default 1.
    """
    return Op("time_shift", shift=shift, unit=unit, wrap=wrap, probability=probability)


def add_noise(
    noise: str, snr_db: float | tuple[float, float] | None = None, *, probability: float | None = None
) -> Op:
    """Adds noise of a random sample of another data set.

    Args:
        noise: The URI of the data set.
        snr_db: The signal-to-noise ratio in decibels, or its bounds; default (5, 20).
        probability: The probability; default 1.
    """
    return Op("add_noise", noise=noise, snr_db=snr_db, probability=probability)


def reverb(responses: str, probability: float | None = None) -> Op:
    """Convolves audio with a random impulse response of a room, as torchaudio's ``fftconvolve``.

    As Kaldi's ``wav-reverberate``, it keeps the length, the energy, and the time of the direct sound, which is the
    greatest magnitude of the response. Channels of a response are averaged; store one channel of a microphone array.

    Args:
        responses: The URI of a data set of impulse responses, such as a folder of WAV files. Responses are resampled to
            the rate of the audio, and are at most 60 s long.
        probability: The probability; default 1.
    """
    return Op("reverb", responses=responses, probability=probability)


def lowpass_biquad(cutoff_freq: float | tuple[float, float], *, Q: float | None = None) -> Op:
    """Keeps frequencies below a cutoff, as torchaudio's ``lowpass_biquad``. The result is limited to -1…1.

    Args:
        cutoff_freq: The frequency in Hz, or its bounds, below half of the sample rate.
        Q: The quality factor; default 0.707.
    """
    return Op("lowpass_biquad", cutoff_freq=cutoff_freq, Q=Q)


def highpass_biquad(cutoff_freq: float | tuple[float, float], *, Q: float | None = None) -> Op:
    """Keeps frequencies above a cutoff, as torchaudio's ``highpass_biquad``. The result is limited to -1…1.

    Args:
        cutoff_freq: The frequency in Hz, or its bounds, below half of the sample rate.
        Q: The quality factor; default 0.707.
    """
    return Op("highpass_biquad", cutoff_freq=cutoff_freq, Q=Q)


def bandpass_biquad(
    central_freq: float | tuple[float, float],
    *,
    Q: float | None = None,
    const_skirt_gain: bool | None = None,
) -> Op:
    """Keeps frequencies around a center, as torchaudio's ``bandpass_biquad``. The result is limited to -1…1.

    Args:
        central_freq: The frequency in Hz, or its bounds, below half of the sample rate.
        Q: The quality factor; default 0.707.
        const_skirt_gain: Whether the gain far from the center is constant, and ``Q`` at the center; default ``False``:
            0 dB at the center.
    """
    return Op("bandpass_biquad", central_freq=central_freq, Q=Q, const_skirt_gain=const_skirt_gain)


def bandreject_biquad(central_freq: float | tuple[float, float], *, Q: float | None = None) -> Op:
    """Removes frequencies around a center, as torchaudio's ``bandreject_biquad``. The result is limited to -1…1.

    Args:
        central_freq: The frequency in Hz, or its bounds, below half of the sample rate.
        Q: The quality factor; default 0.707.
    """
    return Op("bandreject_biquad", central_freq=central_freq, Q=Q)


def allpass_biquad(central_freq: float | tuple[float, float], *, Q: float | None = None) -> Op:
    """Shifts phases around a center, as torchaudio's ``allpass_biquad``. The result is limited to -1…1.

    Args:
        central_freq: The frequency in Hz, or its bounds, below half of the sample rate.
        Q: The quality factor; default 0.707.
    """
    return Op("allpass_biquad", central_freq=central_freq, Q=Q)


def band_biquad(
    central_freq: float | tuple[float, float],
    *,
    Q: float | None = None,
    noise: bool | None = None,
) -> Op:
    """Keeps frequencies around a center, as torchaudio's ``band_biquad``. The result is limited to -1…1.

    Its slope is gentler than that of ``bandpass_biquad``.

    Args:
        central_freq: The frequency in Hz, or its bounds, below half of the sample rate.
        Q: The quality factor, the center divided by the width of the band; default 0.707.
        noise: Whether the gain suits sounds without a pitch, such as noise; default ``False``.
    """
    return Op("band_biquad", central_freq=central_freq, Q=Q, noise=noise)


def equalizer_biquad(
    center_freq: float | tuple[float, float],
    gain: float | tuple[float, float],
    *,
    Q: float | None = None,
) -> Op:
    """Amplifies or attenuates a band, as torchaudio's ``equalizer_biquad``. The result is limited to -1…1.

    Args:
        center_freq: The frequency in Hz, or its bounds, below half of the sample rate.
        gain: The gain in decibels, or its bounds, -100 to 100.
        Q: The quality factor; default 0.707.
    """
    return Op("equalizer_biquad", center_freq=center_freq, gain=gain, Q=Q)


def bass_biquad(
    gain: float | tuple[float, float],
    *,
    central_freq: float | tuple[float, float] | None = None,
    Q: float | None = None,
) -> Op:
    """Amplifies or attenuates low frequencies, as torchaudio's ``bass_biquad``. The result is limited to -1…1.

    Args:
        gain: The gain in decibels, or its bounds, -100 to 100.
        central_freq: The frequency in Hz, or its bounds, below half of the sample rate; default 100.
        Q: The quality factor; default 0.707.
    """
    return Op("bass_biquad", gain=gain, central_freq=central_freq, Q=Q)


def treble_biquad(
    gain: float | tuple[float, float],
    *,
    central_freq: float | tuple[float, float] | None = None,
    Q: float | None = None,
) -> Op:
    """Amplifies or attenuates high frequencies, as torchaudio's ``treble_biquad``. The result is limited to -1…1.

    Args:
        gain: The gain in decibels, or its bounds, -100 to 100.
        central_freq: The frequency in Hz, or its bounds, below half of the sample rate; default 3,000.
        Q: The quality factor; default 0.707.
    """
    return Op("treble_biquad", gain=gain, central_freq=central_freq, Q=Q)


def g711(law: Law | None = None, *, probability: float | None = None) -> Op:
    """Encodes audio to 8 bits a sample as a telephone (ITU-T G.711), and decodes it again.

    These are the steps of the standard, and not the continuous formula of torchaudio's ``mu_law_encoding``. A telephone
    has 8 kHz: ``fs.resample(8_000), fs.g711(), fs.resample(16_000)``.

    Args:
        law: ``"mu_law"`` (default; North America and Japan) or ``"a_law"``.
        probability: The probability; default 1.
    """
    return Op("g711", law=law, probability=probability)


class LogMelParameters(TypedDict, total=False):
    """Keywords of ``log_mel``, for the presets that change some of them."""

    n_fft: int | None
    win_length: int | None
    hop_length: int | None
    f_min: float | None
    f_max: float | None
    window: Window | None
    mel_scale: MelScale | None
    norm: MelNorm | None
    center: bool | None
    pad_mode: PadMode | None
    power: Literal[1, 2] | None
    log: Log | None
    floor: float | None
    floor_by: FloorBy | None
    top_db: float | None
    drop_last_frame: bool | None


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
    """Computes log-mel spectrograms, float32 [frames, n_mels].

    The defaults are those of Whisper's feature extractor: 80 filters, 25 ms Hann windows (n_fft 400) every 10 ms
    (hop_length 160) at 16 kHz, Slaney's scale and norm, log10 scaled to about −1…1. For those of torchaudio and librosa
    see ``log_mel_torchaudio`` and ``log_mel_librosa``.
    """
    return Op("log_mel", **locals())


def _preset(name: str, changes: dict[str, Any]) -> Op:
    fields = json.loads(_feedstock.preset(name)) | {k: v for k, v in changes.items() if v is not None}
    return Op(fields.pop("op"), **fields)


def log_mel_whisper(n_mels: int | None = None) -> Op:
    """Returns ``log_mel`` with Whisper's parameters."""
    return _preset("log_mel_whisper", {"n_mels": n_mels})


def log_mel_torchaudio(n_mels: int | None = None, **parameters: Unpack[LogMelParameters]) -> Op:
    """Returns ``log_mel`` with the parameters of torchaudio's ``MelSpectrogram`` and ``AmplitudeToDB(top_db=80)``.

    Args:
        n_mels: The number of filters.
        **parameters: Other parameters of ``log_mel``.
    """
    return _preset("log_mel_torchaudio", {"n_mels": n_mels, **parameters})


def log_mel_librosa(n_mels: int | None = None, **parameters: Unpack[LogMelParameters]) -> Op:
    """Returns ``log_mel`` with the parameters of librosa's ``melspectrogram`` and ``power_to_db``.

    Args:
        n_mels: The number of filters.
        **parameters: Other parameters of ``log_mel``.
    """
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
    """Computes mel-frequency cepstral coefficients, float32 [frames, n_mfcc]. Defaults: torchaudio's ``MFCC``."""
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
    """Masks bands of features and ranges of frames (SpecAugment, Park et al. 2019).

    Args:
        freq_masks: Masks of features; default 2.
        freq_width: The most features of a mask; default 27.
        time_masks: Masks of frames; default 2.
        time_width: The most frames of a mask; default 100.
        time_share: The largest share of the frames that a mask covers, 0 to 1; default 1.
        value: The value of masked elements; default ``"mean"``, the mean of the sample.
    """
    return Op("spec_augment", **locals())


def utterance_mvn(*, normalize_vars: bool | None = None, epsilon: float | None = None) -> Op:
    """Normalizes each waveform, or each feature over the frames, to mean 0 and variance 1.

    Args:
        normalize_vars: Whether to normalize the variance, too; default ``True``.
        epsilon: Added to the variance, so that silence stays finite; default 1e-7.
    """
    return Op("utterance_mvn", normalize_vars=normalize_vars, epsilon=epsilon)


def global_mvn(mean: float | Sequence[float], std: float | Sequence[float]) -> Op:
    """Subtracts ``mean`` from features and divides by ``std``; each is one number, or one for each feature."""
    return Op("global_mvn", mean=mean, std=std)


def feature_major() -> Op:
    """Transposes [frames, features] to [features, frames], the layout of Whisper."""
    return Op("feature_major")
