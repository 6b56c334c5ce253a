"""Computes the golden references of feedstock-ops's speech features and tokens.

    python -m venv /tmp/golden && /tmp/golden/bin/pip install torch==2.11.0 torchaudio==2.11.0 \
        transformers==5.23.0 librosa==0.11.0 tokenizers==0.23.3
    /tmp/golden/bin/python ops/tests/golden/make_audio_references.py

writes to `speech/` in its folder:

- `clip.wav`, 1.5 s at 16 kHz and 16 bits: the input of all cases;
- `five_seconds.mp3`, which `benches/speech_chain.rs` decodes; Debian's `lame` makes it;
- one `NAME.f32` per case: its frames in order, some left out, little-endian;
- `tokenizer.json`;
- `references.json`: each case's chain, the shape of the compared values, the number of frames left out between two that
  are kept, and the library and version that computed it.
"""

import json
import subprocess
import tempfile
import wave
from pathlib import Path

import librosa
import numpy as np
import tokenizers
import torch
import torchaudio
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import Speech2TextFeatureExtractor, Wav2Vec2FeatureExtractor, WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

HERE = Path(__file__).parent / "speech"
RATE = 16_000
VERSIONS = {module.__name__: module.__version__ for module in (librosa, tokenizers, torchaudio, transformers)}


def clip(seconds, rate):
    """Returns a gliding voice with formants and hiss, after 0.1 s of digital silence and with a fade after 1 s."""
    rng = np.random.default_rng(3)
    t = np.arange(int(seconds * rate)) / rate
    pitch = 110 + 40 * np.sin(2 * np.pi * 1.3 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = np.zeros_like(t)
    for harmonic in range(1, 60):
        hz = harmonic * pitch
        gain = sum(a / (1 + ((hz - f) / w) ** 2) for f, w, a in ((600, 90, 1), (1400, 120, 0.5), (3100, 200, 0.25)))
        voice += gain * np.sin(harmonic * phase) * (hz < 7800)
    voice *= (np.sin(2 * np.pi * 2.2 * t) > -0.4) * np.minimum(1, t / 0.02)
    hiss = rng.standard_normal(len(t)) * np.clip(np.sin(2 * np.pi * 0.9 * t), 0, 1)
    samples = 0.25 * voice / np.abs(voice).max() + 0.01 * hiss
    samples[: rate // 10] = 0
    if seconds < 2:
        samples[rate:] *= np.exp(-(t[rate:] - 1) * 60)
    return np.round(samples * 32767).astype("<i2")


def write_wav(path, samples, rate):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, len(samples), "NONE", ""))
        file.writeframes(samples.tobytes())


def write_mp3(path):
    """Writes the benchmark's audio clip, in the form of Common Voice. LAME 3.100."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        write_wav(file.name, clip(5, 48_000), 48_000)
        subprocess.run(["lame", "--quiet", "-m", "m", "-b", "64", file.name, str(path)], check=True)


CASES = []


def case(name, chain, values, library, keep=1, features=None):
    values = np.ascontiguousarray(np.asarray(values, dtype="<f4")[::keep])
    (HERE / f"{name}.f32").write_bytes(values.tobytes())
    version = f"{library} {VERSIONS[library]}"
    CASES.append({"name": name, "chain": chain, "shape": list(values.shape), "keep": keep, "by": version})


def features(x):
    for n_mels, seconds, keep in ((80, 2, 2), (128, 1, 3)):
        extractor = WhisperFeatureExtractor(feature_size=n_mels, chunk_length=seconds)
        mel = extractor(x, sampling_rate=RATE, return_tensors="np")["input_features"][0]
        chain = f"pad_seconds:{seconds}:truncate=true,log_mel:{n_mels}"
        case(f"whisper_{n_mels}", chain, mel.T, "transformers", keep)
    filters = mel_filter_bank(201, 80, 0, 8000, RATE, norm="slaney", mel_scale="slaney")
    short = spectrogram(
        x[4000:4100].astype(np.float64), window_function(400, "hann"), 400, 160, power=2.0, mel_filters=filters,
        log_mel="log10", pad_mode="reflect",
    )
    case("short", "log_mel:80:log=log10:drop_last_frame=false", short.T, "transformers")

    tensor = torch.from_numpy(x)
    to_db = torchaudio.transforms.AmplitudeToDB("power", top_db=80)
    mel = to_db(torchaudio.transforms.MelSpectrogram(RATE)(tensor))
    torch_mel = "log_mel:128:hop_length=200:mel_scale=htk:norm=none:log=db:top_db=80:drop_last_frame=false"
    case("torchaudio", torch_mel, mel.T, "torchaudio", 3)
    mel = torchaudio.transforms.MelSpectrogram(
        RATE, n_fft=512, win_length=400, hop_length=160, f_min=20, f_max=7600, n_mels=40, norm="slaney",
        window_fn=torch.hamming_window, center=False, power=1,
    )(tensor)
    ln = (
        "log_mel:40:n_fft=512:win_length=400:f_min=20:f_max=7600:window=hamming:mel_scale=htk:center=false:power=1"
        ":log=ln:floor=1e-6:floor_by=add:drop_last_frame=false"
    )
    mel = torch.log(mel + 1e-6).T
    case("torchaudio_ln", ln, mel, "torchaudio", 2)
    cmvn = Speech2TextFeatureExtractor.utterance_cmvn(mel.numpy(), len(mel))
    case("cmvn", ln + ",utterance_mvn", cmvn, "transformers", 5)
    # For an odd n_fft, torchaudio uses the bins of the even one below; librosa is right.
    power = librosa.feature.melspectrogram(
        y=x, sr=RATE, n_fft=401, hop_length=100, n_mels=20, window="blackman", pad_mode="reflect", htk=True, norm=None,
    )
    chain = "log_mel:20:n_fft=401:hop_length=100:window=blackman:mel_scale=htk:norm=none:log=none:drop_last_frame=false"
    case("power", chain, power.T, "librosa", 4)
    case("mfcc", "mfcc:40", torchaudio.transforms.MFCC(RATE)(tensor).T, "torchaudio", 3)
    mfcc = torchaudio.transforms.MFCC(RATE, 13, log_mels=True, melkwargs={"n_mels": 64, "n_fft": 400, "hop_length": 160})
    chain = "mfcc:13:n_mels=64:hop_length=160:log=ln:floor=1e-6:floor_by=add"
    case("mfcc_ln", chain, mfcc(tensor).T, "torchaudio", 2)

    mel = librosa.power_to_db(librosa.feature.melspectrogram(y=x, sr=RATE))
    chain = "log_mel:128:n_fft=2048:hop_length=512:pad_mode=constant:log=db:top_db=80:drop_last_frame=false"
    case("librosa", chain, mel.T, "librosa")
    normalised = Wav2Vec2FeatureExtractor(do_normalize=True)(x, sampling_rate=RATE, return_tensors="np")
    case("wav2vec2", "utterance_mvn", normalised["input_values"][0], "transformers", 7)


def trims(x):
    """Returns the [start, end] that librosa keeps."""
    cases = []
    for options in ({}, {"top_db": 20}, {"top_db": 30, "frame_length": 400, "hop_length": 100},
                    {"top_db": 25, "frame_length": 1000, "hop_length": 333}):
        _, kept = librosa.effects.trim(x, **options)
        cases.append({"options": options, "kept": [int(i) for i in kept]})
    return cases


SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Das Wetter wird morgen besser, sagt man.",
    "Où est la bibliothèque ?",
    "streaming data ingest pipelines read data in place",
    "an utterance of many utterances, uttered",
]
UNSEEN = ["", " ", "A fox reads the data.", "Übermorgen: 3.14 € — naïve 日本 🦊", "don't stop\nnow", "the " * 40]


def tokens():
    """Writes a small byte-level BPE with special tokens, as in language models."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.enable_padding(length=64)  # to be left out by the reader
    tokenizer.save(str(HERE / "tokenizer.json"), pretty=False)
    tokenizer.no_padding()
    cases = []
    for text in SENTENCES[:2] + UNSEEN:
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        special = tokenizer.encode(text).ids
        tokenizer.enable_truncation(5)
        cases.append({"text": text, "plain": plain, "special": special, "cut_to_5": tokenizer.encode(text).ids})
        tokenizer.no_truncation()
    return cases


def main():
    HERE.mkdir(exist_ok=True)
    samples = clip(1.5, RATE)
    write_wav(HERE / "clip.wav", samples, RATE)
    write_mp3(HERE / "five_seconds.mp3")
    x = samples.astype(np.float32) / 32768
    features(x)
    references = {"versions": VERSIONS, "cases": CASES, "trims": trims(x), "tokens": tokens()}
    (HERE / "references.json").write_text(json.dumps(references, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(VERSIONS), sum(file.stat().st_size for file in HERE.iterdir()))


main()
