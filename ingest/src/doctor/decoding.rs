//! Decodes single samples with the limits of a run, and keeps the buffers of one thread.

use crate::run::large::over_limit;
use crate::{Error, Result};
use feedstock_ops::{Chain, RaggedRow, SampleSeed, Scratch, Warnings};

/// Decodes the whole image: neither scaled nor in part. Resizing it is the usual next op, and its buffers count.
const IMAGE: &str = "decode_image:scaled=false,resize:224x224";
const AUDIO: &str = "decode_audio";

pub(super) struct Decoding {
    image: Chain,
    audio: Chain,
    sample_bytes: u64,
    scratch: Scratch,
    pixels: Vec<u8>,
    wave: RaggedRow,
}

impl Decoding {
    /// A sample that takes more than `sample_bytes` of working memory is refused.
    pub(super) fn new(sample_bytes: u64) -> Result<Self> {
        let image = Chain::parse(IMAGE)?;
        Ok(Self {
            pixels: vec![0; image.output().bytes()],
            audio: Chain::parse(AUDIO)?,
            image,
            sample_bytes,
            scratch: scratch(sample_bytes),
            wave: RaggedRow::new(),
        })
    }

    pub(super) fn image(&mut self, bytes: &[u8]) -> Result<Warnings> {
        let decoded = self.image.apply(bytes, seed(), &mut self.scratch, &mut self.pixels);
        self.end(decoded)
    }

    /// Returns the number of samples of the waveform, too.
    pub(super) fn audio(&mut self, bytes: &[u8]) -> Result<(usize, Warnings)> {
        let decoded = self.audio.apply_ragged(bytes, seed(), &mut self.scratch, &mut self.wave);
        let warnings = self.end(decoded)?;
        Ok((self.wave.length(), warnings))
    }

    /// Forgets the sample whose decoding panicked: its warnings, and buffers that are half written.
    pub(super) fn forget(&mut self) {
        self.scratch = scratch(self.sample_bytes);
    }

    fn end(&mut self, decoded: Result<()>) -> Result<Warnings> {
        let warnings = self.scratch.take_warnings();
        match (self.scratch.take_needed(), decoded) {
            (Some(needed), Err(_)) => Err(Error::bad_sample(over_limit(needed, self.sample_bytes))),
            (_, decoded) => decoded.map(|()| warnings),
        }
    }
}

fn scratch(sample_bytes: u64) -> Scratch {
    let mut scratch = Scratch::new();
    scratch.allow(sample_bytes);
    scratch
}

/// The chains draw nothing.
fn seed() -> SampleSeed {
    SampleSeed::new(0, 0, 0)
}
