//! Decodes single samples with the limits of a run, and keeps the buffers of one thread.
//!
//! A sample that takes more than `decoder_memory` waits until no other thread decodes such a sample. All threads together
//! therefore take at most threads × `decoder_memory`, and once the working memory of the largest sample.

use crate::run::large::over_limit;
use crate::{Error, Result};
use feedstock_ops::{Chain, DECODER_MEMORY, RaggedRow, SampleSeed, Scratch, Warnings};
use std::sync::{Arc, Mutex, PoisonError};

/// Decodes the whole image: neither scaled nor in part. Resizing it is the usual next op, and its buffers count.
const IMAGE: &str = "decode_image:scaled=false,resize:224x224";
const MASK: &str = "decode_image:mode=indices,resize:224x224";
const AUDIO: &str = "decode_audio";

/// The number of large samples that all threads have decoded so far. A thread that decodes one holds the lock.
pub(super) type LargeSamples = Arc<Mutex<u64>>;

pub(super) struct Decoding {
    image: Chain,
    mask: Chain,
    audio: Chain,
    sample_bytes: u64,
    large: LargeSamples,
    scratch: Scratch,
    pixels: Vec<u8>,
    wave: RaggedRow,
}

impl Decoding {
    /// A sample that takes more than `sample_bytes` of working memory is refused. All threads share `large`.
    pub(super) fn new(sample_bytes: u64, large: LargeSamples) -> Result<Self> {
        let image = Chain::parse(IMAGE)?;
        Ok(Self {
            pixels: vec![0; image.output().bytes()],
            mask: Chain::parse(MASK)?,
            audio: Chain::parse(AUDIO)?,
            image,
            sample_bytes,
            large,
            scratch: Scratch::new(),
            wave: RaggedRow::new(),
        })
    }

    pub(super) fn image(&mut self, bytes: &[u8]) -> Result<Warnings> {
        self.decode(|this| this.image.apply(bytes, seed(), &mut this.scratch, &mut this.pixels))
    }

    /// Decodes an image of classes, which has fewer bytes than one of colours.
    pub(super) fn mask(&mut self, bytes: &[u8]) -> Result<Warnings> {
        self.decode(|this| {
            let pixels = &mut this.pixels[..this.mask.output().bytes()];
            this.mask.apply(bytes, seed(), &mut this.scratch, pixels)
        })
    }

    /// Returns the number of samples of the waveform, too.
    pub(super) fn audio(&mut self, bytes: &[u8]) -> Result<(usize, Warnings)> {
        let mut length = 0;
        let warnings = self.decode(|this| {
            this.audio.apply_ragged(bytes, seed(), &mut this.scratch, &mut this.wave)?;
            length = this.wave.length();
            Ok(())
        })?;
        Ok((length, warnings))
    }

    /// Forgets the sample whose decoding panicked, or that was large: its warnings, and its buffers.
    pub(super) fn forget(&mut self) {
        self.scratch = Scratch::new();
        self.wave = RaggedRow::new();
    }

    /// Decodes a sample, alone if it takes more than `decoder_memory`.
    fn decode(&mut self, mut run: impl FnMut(&mut Self) -> Result<()>) -> Result<Warnings> {
        let (decoded, needed) = self.decode_within(DECODER_MEMORY.min(self.sample_bytes), &mut run);
        let needed = match (decoded, needed) {
            (Err(_), Some(needed)) => needed,
            (decoded, _) => return decoded,
        };
        if needed > self.sample_bytes {
            return Err(Error::bad_sample(over_limit(needed, self.sample_bytes)));
        }
        let large = Arc::clone(&self.large);
        let mut large = large.lock().unwrap_or_else(PoisonError::into_inner); // a count, and decoders may panic
        *large += 1;
        let (decoded, needed) = self.decode_within(self.sample_bytes, &mut run);
        self.forget();
        match (decoded, needed) {
            (Err(_), Some(needed)) => Err(Error::bad_sample(over_limit(needed, self.sample_bytes))),
            (decoded, _) => decoded,
        }
    }

    /// Decodes a sample; returns the memory that it needs, too, if that is more than `bytes`.
    fn decode_within(
        &mut self,
        bytes: u64,
        run: &mut impl FnMut(&mut Self) -> Result<()>,
    ) -> (Result<Warnings>, Option<u64>) {
        self.scratch.allow(bytes);
        let decoded = run(self);
        let warnings = self.scratch.take_warnings();
        (decoded.map(|()| warnings), self.scratch.take_needed())
    }
}

/// The chains draw nothing.
fn seed() -> SampleSeed {
    SampleSeed::new(0, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of silence, mono, at 48 kHz.
    fn silence(seconds: u32) -> Vec<u8> {
        let bytes = seconds * 48_000 * 2;
        let mut file = b"RIFF".to_vec();
        file.extend((36 + bytes).to_le_bytes());
        file.extend(b"WAVEfmt ");
        file.extend(16_u32.to_le_bytes());
        file.extend([1_u16, 1].map(u16::to_le_bytes).concat()); // PCM, one channel
        file.extend([48_000_u32, 96_000].map(u32::to_le_bytes).concat());
        file.extend([2_u16, 16].map(u16::to_le_bytes).concat());
        file.extend(b"data");
        file.extend(bytes.to_le_bytes());
        file.resize(file.len() + bytes as usize, 0);
        file
    }

    #[test]
    fn large_samples_are_decoded_one_at_a_time() {
        let large = LargeSamples::default();
        let mut decoding = Decoding::new(1 << 30, Arc::clone(&large)).unwrap();
        let held = large.lock().unwrap();
        assert_eq!(decoding.audio(&silence(1)).unwrap().0, 48_000); // small ones do not wait
        drop(held);
        let long = silence(600); // 115 MB of numbers
        assert_eq!(decoding.audio(&long).unwrap().0, 600 * 48_000);
        assert_eq!(*large.lock().unwrap(), 1);
        let error = Decoding::new(100 << 20, Arc::clone(&large)).unwrap().audio(&long).unwrap_err();
        assert!(error.to_string().contains("decoder_memory"), "{error}");
        assert_eq!(*large.lock().unwrap(), 1, "refused before it is decoded");
    }
}
