//! Audio clips and rows for the tests of speech ops.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::PathBuf;

use feedstock_ops::{Chain, RaggedRow, Result, SampleSeed, Scratch};

/// Returns a file among the references that `golden/make_audio_references.py` computed.
pub(crate) fn golden(name: &str) -> Vec<u8> {
    let path: PathBuf = ["tests", "golden", "speech", name].iter().collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
}

/// Returns a WAV of 32-bit floats, one channel.
pub(crate) fn wav(sample_rate: u32, samples: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|x| x.to_le_bytes()).collect();
    let size = u32::try_from(data.len()).unwrap();
    let mut out = Vec::from(*b"RIFF");
    out.extend((36 + size).to_le_bytes());
    out.extend(*b"WAVEfmt \x10\0\0\0\x03\0\x01\0");
    out.extend(sample_rate.to_le_bytes());
    out.extend((sample_rate * 4).to_le_bytes());
    out.extend(*b"\x04\0\x20\0data");
    out.extend(size.to_le_bytes());
    out.extend(data);
    out
}

/// Returns a tone of `hz` and `amplitude`.
pub(crate) fn tone(sample_rate: u32, samples: usize, hz: f64, amplitude: f64) -> Vec<f32> {
    let step = std::f64::consts::TAU * hz / f64::from(sample_rate);
    (0..samples).map(|i| (amplitude * (step * i as f64).sin()) as f32).collect()
}

/// Returns the row of a chain, ragged or fixed: its length along time and its elements.
pub(crate) fn run(
    chain: &Chain,
    bytes: &[u8],
    seed: SampleSeed,
    scratch: &mut Scratch,
) -> Result<(usize, Vec<f32>)> {
    if chain.output().is_ragged() {
        let mut row = RaggedRow::new();
        chain.apply_ragged(bytes, seed, scratch, &mut row)?;
        return Ok((row.length(), f32s(row.bytes())));
    }
    let mut row = vec![0xAA; chain.output().bytes()];
    chain.apply(bytes, seed, scratch, &mut row)?;
    Ok((chain.output().shape[0], f32s(&row)))
}
