"""Makes `audio/`: small audio clips in every format, ffmpeg's decoding of them, and soxr's resampling of a signal.

    python -m venv v && v/bin/pip install numpy==2.4.* soxr==1.1.* && v/bin/python make_audio_decode_references.py

needs ffmpeg (5.1 made the files here), mpg123, lame, flac, vorbis-tools and opus-tools. The signals are synthetic:
voiced buzz with moving formants, noise bursts and a chirp, so that a shift of one sample shows everywhere.

`audio/references.json` has, for each audio clip, the sample rate, the number of samples and the place of its samples in
`audio/references.f32`: every STRIDE-th, mixed down to one channel by the mean. mpg123's result is compared here, not stored.

`audio/soxr.f32` has every 7th sample of soxr HQ's result for `tones`, for each of RATIOS.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import soxr

HERE = Path(__file__).parent / "audio"
STRIDE = 29
RATIOS = [(48000, 16000), (44100, 16000), (16000, 48000), (22050, 16000), (8000, 16000), (48000, 44100)]


def signal(seconds: float, rate: int, channels: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    n = int(seconds * rate)
    t = np.arange(n) / rate
    pitch = 110 + 40 * np.sin(2 * np.pi * 1.7 * t + seed)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = sum(np.sin(k * phase) / k ** 1.2 for k in range(1, 25) if k * 150 < rate / 2)
    voice *= 0.5 + 0.5 * np.sin(2 * np.pi * 3.1 * t)
    chirp = np.sin(2 * np.pi * (200 * t + (rate * 0.2) * t**2 / seconds))
    noise = random.standard_normal(n) * (np.sin(2 * np.pi * 2.3 * t) > 0.6)
    out = [0.12 * voice + 0.1 * chirp + 0.05 * noise]
    for _ in range(channels - 1):
        out.append(0.5 * out[0] + 0.04 * random.standard_normal(n))
    return np.stack(out, 1).astype(np.float32)


def run(*command: object, data: bytes | None = None) -> bytes:
    done = subprocess.run([str(part) for part in command], input=data, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{command}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def pcm(seconds: float, rate: int, channels: int, seed: int) -> Path:
    """Writes a 16-bit WAV to encode from."""
    path = Path("/tmp/golden_source.wav")
    samples = signal(seconds, rate, channels, seed)
    run("ffmpeg", "-v", "error", "-y", "-f", "f32le", "-ar", rate, "-ac", channels, "-i", "-",
        "-c:a", "pcm_s16le", path, data=samples.tobytes())
    return path


def ffmpeg_wav(name: str, codec: str, rate: int, channels: int, seed: int, seconds: float = 0.12) -> None:
    samples = signal(seconds, rate, channels, seed)
    run("ffmpeg", "-v", "error", "-y", "-f", "f32le", "-ar", rate, "-ac", channels, "-i", "-",
        "-bitexact", "-c:a", codec, HERE / name, data=samples.tobytes())


def decode(data: bytes) -> tuple[int, np.ndarray]:
    path = Path("/tmp/golden_clip")
    path.write_bytes(data)
    found = run("ffprobe", "-v", "error", "-select_streams", "a:0", "-show_entries", "stream=sample_rate,channels",
                "-of", "csv=p=0", path).decode().strip().split(",")
    rate, channels = int(found[0]), int(found[1])
    # ffmpeg's Opus decoder makes other noise than the reference decoder.
    if data[28:36] == b"OpusHead":
        run("opusdec", "--quiet", "--float", "--no-dither", "--rate", rate, path, "/tmp/golden_clip.wav")
        path = "/tmp/golden_clip.wav"
    raw = run("ffmpeg", "-v", "quiet", "-i", path, "-f", "f32le", "-c:a", "pcm_f32le", "-")
    samples = np.frombuffer(raw, np.float32).reshape(-1, channels)
    return rate, samples.mean(1, dtype=np.float64).astype(np.float32)


def against_mpg123(name: str, data: bytes, ours: np.ndarray) -> None:
    path = Path("/tmp/golden_clip.mp3")
    path.write_bytes(data)
    raw = run("mpg123", "-q", "--no-resync", "-e", "f32", "-s", path)
    channels = 2 if "stereo" in name else 1
    theirs = np.frombuffer(raw, np.float32).reshape(-1, channels).mean(1)
    n = min(len(theirs), len(ours))
    error = 10 * np.log10(np.mean((theirs[:n] - ours[:n]) ** 2) / np.mean(ours[:n] ** 2) + 1e-30)
    print(f"{name}: ffmpeg {len(ours)} samples, mpg123 {len(theirs)}, difference {error:.1f} dB")


def vbri(data: bytes) -> bytes:
    """Returns `data`, an MP3 without a tag, after a frame with Fraunhofer's tag: 26 bytes that count the frames."""
    frame = bytearray(144 * 64000 // 48000)
    frame[:4] = data[:4]
    frame[36:40] = b"VBRI"
    frames = len(data) // len(frame)
    frame[40:62] = (1).to_bytes(2, "big") + bytes(4) + len(data).to_bytes(4, "big") + frames.to_bytes(4, "big") + bytes(8)
    return bytes(frame) + data


def tones(rate: int, band: float) -> np.ndarray:
    """Returns 0.3 s of 40 tones up to 0.8 of `band`, faded in and out. The test computes the same."""
    n = np.arange(int(0.3 * rate))
    t = n / rate
    x = sum(np.sin(2 * np.pi * (band * 0.8 * k / 40) * t + k * k) for k in range(1, 41)) / 40
    return (x * np.sin(np.pi * n / len(n)) ** 2).astype(np.float32)


def resampled() -> None:
    kept = []
    for source, target in RATIOS:
        out = soxr.resample(tones(source, min(source, target) / 2), source, target, quality="HQ")
        print(f"soxr HQ {source} to {target}: {len(out)} samples")
        kept.append(out[::7])
    np.concatenate(kept).astype("<f4").tofile(HERE / "soxr.f32")
    # soxr's band from 48 to 16 kHz, to compare with the one stated in src/audio/resample/mod.rs.
    n = np.arange(48000)
    for hz in (6000, 7000, 7200, 7400, 7500, 7800, 8010, 8100, 8500, 9000, 12000, 20000):
        out = soxr.resample(np.sin(2 * np.pi * hz * n / 48000), 48000, 16000, quality="HQ")[4000:12000]
        print(f"  {hz} Hz: {10 * np.log10(2 * np.mean(out**2) + 1e-30):.2f} dB")


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for old in HERE.iterdir():
        old.unlink()
    lame = ["lame", "--quiet"]
    run(*lame, "-b", 64, "-m", "m", pcm(1.2, 48000, 1, 1), HERE / "48k_mono_64.mp3")
    run(*lame, "-V", 4, "-m", "j", pcm(1.0, 44100, 2, 2), HERE / "44k_stereo_vbr.mp3")
    run(*lame, "-b", 32, "-m", "m", pcm(1.0, 16000, 1, 3), HERE / "16k_mono_32.mp3")
    run(*lame, "-t", "-b", 64, "-m", "m", pcm(1.0, 48000, 1, 4), HERE / "48k_mono_untagged.mp3")
    run(*lame, "--abr", 24, "--resample", 8, "-m", "m", pcm(1.0, 8000, 1, 5), HERE / "8k_mono_abr.mp3")
    run(*lame, "-p", "-b", 96, "-m", "s", "--id3v2-only", "--tt", "title", pcm(0.7, 32000, 2, 6),
        HERE / "32k_stereo_crc_id3.mp3")
    run("ffmpeg", "-v", "error", "-y", "-i", pcm(0.8, 22050, 1, 7), "-c:a", "libmp3lame", "-b:a", "48k",
        HERE / "22k_mono_lavf.mp3")
    (HERE / "48k_mono_vbri.mp3").write_bytes(vbri((HERE / "48k_mono_untagged.mp3").read_bytes()))

    run("flac", "-s", "-f", "-8", "--no-padding", "-o", HERE / "44k_stereo.flac", pcm(0.1, 44100, 2, 8))
    run("ffmpeg", "-v", "error", "-y", "-i", pcm(0.3, 16000, 1, 9), "-c:a", "flac", "-sample_fmt", "s32",
        "-frame_size", 576, HERE / "16k_mono_24bit.flac")
    run("ffmpeg", "-v", "error", "-y", "-i", pcm(0.3, 16000, 1, 10), "-c:a", "flac", "-bitexact", HERE / "16k_mono.oga")
    run("oggenc", "-Q", "-q", 3, "--serial", 1, "-o", HERE / "48k_mono.ogg", pcm(1.0, 48000, 1, 11))
    run("oggenc", "-Q", "-q", 2, "--serial", 1, "-o", HERE / "44k_stereo.ogg", pcm(0.9, 44100, 2, 12))
    run("opusenc", "--quiet", "--bitrate", 32, "--serial", 1, pcm(1.0, 48000, 1, 13), HERE / "48k_mono.opus")
    run("ffmpeg", "-v", "error", "-y", "-i", pcm(0.8, 44100, 2, 14), "-c:a", "aac", "-b:a", "64k",
        "-movflags", "+faststart", HERE / "44k_stereo.m4a")
    run("ffmpeg", "-v", "error", "-y", "-i", pcm(0.8, 48000, 1, 15), "-c:a", "aac", "-b:a", "48k", HERE / "48k_mono.m4a")
    run("ffmpeg", "-v", "error", "-y", "-i", pcm(0.8, 16000, 1, 16), "-c:a", "aac", "-b:a", "24k", HERE / "16k_mono.aac")
    for name, codec, channels in [
        ("u8", "pcm_u8", 1), ("s16", "pcm_s16le", 2), ("s24", "pcm_s24le", 1), ("s32", "pcm_s32le", 2),
        ("f32", "pcm_f32le", 1), ("f64", "pcm_f64le", 1), ("alaw", "pcm_alaw", 1), ("mulaw", "pcm_mulaw", 2),
        ("s16_six", "pcm_s16le", 6),
    ]:
        ffmpeg_wav(f"8k_{name}.wav", codec, 8000, channels, 20 + channels)

    clips = {path.name: path.read_bytes() for path in sorted(HERE.iterdir())}
    resampled()
    references, values = {}, []
    at = 0
    for name, data in clips.items():
        rate, samples = decode(data)
        if name.endswith(".mp3"):
            against_mpg123(name, data, samples)
        kept = samples[::STRIDE]
        references[name] = {"sample_rate": rate, "samples": len(samples), "at": at}
        values.append(kept)
        at += len(kept)
    np.concatenate(values).astype("<f4").tofile(HERE / "references.f32")
    (HERE / "references.json").write_text(json.dumps({"stride": STRIDE, "clips": references}, indent=1) + "\n")
    print(sum(path.stat().st_size for path in HERE.iterdir()), "bytes")


if __name__ == "__main__":
    main()
