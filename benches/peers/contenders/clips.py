"""The processing of one audio clip for contenders without decoders, and padding.

Decoding with libsndfile (soundfile), resampling with soxr (HQ), torchaudio's mel spectrogram: the fastest
parts that Python has for these. ``with_torchaudio`` is the reference of all outputs.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from contenders.protocol import FLOOR, HOP, MELS, N_FFT, SAMPLE_RATE, Batch


def number_of(name: str) -> int:
    """Returns the audio clip's number, from its file's name."""
    return int(name.rsplit("_", 1)[1].split(".", 1)[0])


def log_mel() -> Callable[[Any], Any]:
    """Returns a function from a waveform at 16 kHz (f32 [samples]) to [frames, 80]: 25 ms Hann windows every
    10 ms, HTK scale, natural log."""
    import torch
    from torchaudio.transforms import MelSpectrogram

    spectrogram = MelSpectrogram(SAMPLE_RATE, n_fft=N_FFT, hop_length=HOP, n_mels=MELS)

    def run(wave: Any) -> Any:
        return torch.log(torch.clamp(spectrogram(wave), min=FLOOR)).T.contiguous()

    return run


def with_soxr() -> Callable[[bytes], Any]:
    import soundfile
    import soxr
    import torch

    features = log_mel()

    def run(encoded: bytes) -> Any:
        wave, rate = soundfile.read(io.BytesIO(encoded), dtype="float32")
        return features(torch.from_numpy(soxr.resample(wave, rate, SAMPLE_RATE)))

    return run


def with_torchaudio() -> Callable[[bytes], Any]:
    import soundfile
    import torch
    from torchaudio.transforms import Resample

    features = log_mel()
    resamplers: dict[int, Any] = {}

    def run(encoded: bytes) -> Any:
        wave, rate = soundfile.read(io.BytesIO(encoded), dtype="float32")
        if rate not in resamplers:
            resamplers[rate] = Resample(rate, SAMPLE_RATE)
        return features(resamplers[rate](torch.from_numpy(wave)))

    return run


def with_torchcodec() -> Callable[[bytes], Any]:
    """Returns a function that decodes and resamples with FFmpeg."""
    from torchcodec.decoders import AudioDecoder

    features = log_mel()

    def run(encoded: bytes) -> Any:
        return features(
            AudioDecoder(encoded, sample_rate=SAMPLE_RATE, num_channels=1).get_all_samples().data[0]
        )

    return run


def collate(rows: list[tuple[Any, int]]) -> Batch:
    """Collates rows of different lengths and the audio clips' numbers into a padded batch."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    features = [row if isinstance(row, torch.Tensor) else torch.from_numpy(row) for row, _ in rows]
    return Batch(
        pad_sequence(features, batch_first=True),
        torch.tensor([number for _, number in rows]),
        torch.tensor([len(row) for row in features]),
    )
