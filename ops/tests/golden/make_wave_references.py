"""Computes the golden references of ops on waveforms with torchaudio, NumPy and audioop (of Python up to 3.12).

    python3.11 -m venv /tmp/golden && /tmp/golden/bin/pip install numpy torch==2.11.0 torchaudio==2.11.0
    /tmp/golden/bin/python ops/tests/golden/make_wave_references.py

reads `speech/clip.wav`, with the generator of `python/tests/draws.py` for what ops draw, and writes to `speech/`:

- `waves.json`: each case's chain, the sample's id, and the number of samples of its result;
- `waves.f32`: the results in order, little-endian; of the filters in double precision, rounded once;
- `response.f32`: the impulse responses of `reverb`, after `responses` lengths of `waves.json`;
- `g711.json`: the runs of 16-bit samples that have one decoded value, as [first sample, value].
"""

import audioop
import json
import sys
import wave
from pathlib import Path

import numpy as np
import torch
from torchaudio import functional as F

HERE = Path(__file__).parent / "speech"
sys.path.insert(0, str(Path(__file__).parents[3] / "python" / "tests"))
from draws import Draws  # noqa: E402

RATE = 16_000
SEED, EPOCH, OP = 7, 1, 3
FIRST, SAMPLES = 4000, 3000


def biquad_cases(clip):
    for name, options, function, arguments in (
        ("lowpass_biquad", "3400", F.lowpass_biquad, {"cutoff_freq": 3400}),
        ("lowpass_biquad", "300:Q=5", F.lowpass_biquad, {"cutoff_freq": 300, "Q": 5}),
        ("highpass_biquad", "300", F.highpass_biquad, {"cutoff_freq": 300}),
        ("bandpass_biquad", "1000:Q=2", F.bandpass_biquad, {"central_freq": 1000, "Q": 2}),
        ("bandpass_biquad", "1000:Q=2:const_skirt_gain=true", F.bandpass_biquad,
         {"central_freq": 1000, "Q": 2, "const_skirt_gain": True}),
        ("allpass_biquad", "900:Q=2", F.allpass_biquad, {"central_freq": 900, "Q": 2}),
        ("band_biquad", "1000:Q=2", F.band_biquad, {"central_freq": 1000, "Q": 2}),
        ("band_biquad", "400:noise=true", F.band_biquad, {"central_freq": 400, "noise": True}),
        ("bandreject_biquad", "600", F.bandreject_biquad, {"central_freq": 600}),
        ("equalizer_biquad", "600:20", F.equalizer_biquad, {"center_freq": 600, "gain": 20}),
        ("equalizer_biquad", "2500:-9:Q=3", F.equalizer_biquad, {"center_freq": 2500, "gain": -9, "Q": 3}),
        ("bass_biquad", "6", F.bass_biquad, {"gain": 6}),
        ("treble_biquad", "-12:Q=1", F.treble_biquad, {"gain": -12, "Q": 1}),
    ):
        yield f"{name}:{options}", 0, function(torch.from_numpy(clip), RATE, **arguments).numpy()
    # Drawn: the frequency, then the gain.
    for sample in range(2):
        draws = Draws(SEED, EPOCH, sample, OP)
        frequency, gain = draws.uniform(200, 4000), draws.uniform(-9, 9)
        filtered = F.equalizer_biquad(torch.from_numpy(clip), RATE, frequency, gain).numpy()
        yield "equalizer_biquad:200..4000:-9..9", sample, filtered


def shift_cases(clip):
    for options, unit, wrap in (
        ("", len(clip), True),
        (":wrap=false", len(clip), False),
        (":0.1:unit=seconds", RATE, True),
    ):
        for sample in range(2):
            draws = Draws(SEED, EPOCH, sample, OP)
            draws.chance(1.0)
            most = 0.5 if unit != RATE else 0.1
            by = round(draws.uniform(-most, most) * unit)
            shifted = np.roll(clip, by)
            if not wrap:
                shifted[slice(0, by) if by >= 0 else slice(by, None)] = 0
            yield f"time_shift{options}", sample, shifted


def responses():
    """Decaying noise after a delay and a direct sound, shorter and longer than the audio clip."""
    rng = np.random.default_rng(5)
    made = []
    for length, delay in ((700, 31), (5000, 160)):
        response = rng.standard_normal(length) * np.exp(-np.arange(length) / (length / 6)) * 0.3
        response[:delay] = rng.standard_normal(delay) * 0.001
        response[delay] = -1.9
        made.append(response.astype(np.float32))
    return made


def reverb_cases(clip, rooms):
    for sample in range(6):
        draws = Draws(SEED, EPOCH, sample, OP)
        draws.chance(1.0)
        room = rooms[draws.below(len(rooms))].astype(np.float64)
        peak = int(np.abs(room).argmax())
        wet = F.fftconvolve(torch.from_numpy(clip), torch.from_numpy(room)).numpy()[peak : peak + len(clip)]
        yield "reverb:rooms", sample, wet * np.sqrt((clip**2).sum() / (wet**2).sum())


def g711_runs(encode, decode):
    runs = []
    for first in range(-32768, 32768):
        value = int.from_bytes(decode(encode(first.to_bytes(2, "little", signed=True), 2), 2), "little", signed=True)
        if not runs or runs[-1][1] != value:
            runs.append([first, value])
    return runs


def main():
    with wave.open(str(HERE / "clip.wav")) as file:
        whole = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768.0
    clip, rooms = whole[FIRST : FIRST + SAMPLES], responses()
    cases, results = [], []
    for ops, sample, result in (*biquad_cases(clip), *shift_cases(clip), *reverb_cases(clip, rooms)):
        cases.append({"chain": f"decode_audio,resample:{RATE},volume:0,{ops}", "sample": sample})
        results.append(result)
    (HERE / "waves.f32").write_bytes(np.concatenate(results).astype("<f4").tobytes())
    (HERE / "response.f32").write_bytes(np.concatenate(rooms).astype("<f4").tobytes())
    about = {"seed": SEED, "epoch": EPOCH, "first": FIRST, "samples": SAMPLES, "rate": RATE}
    about |= {"responses": [len(room) for room in rooms], "cases": cases}
    (HERE / "waves.json").write_text(json.dumps(about, indent=1) + "\n")
    laws = {
        "mu_law": g711_runs(audioop.lin2ulaw, audioop.ulaw2lin),
        "a_law": g711_runs(audioop.lin2alaw, audioop.alaw2lin),
    }
    (HERE / "g711.json").write_text(json.dumps(laws) + "\n")


if __name__ == "__main__":
    main()
