//! Decodes the images that chains leave to the device: its decoder, the memory of whole images, and the CPU for images that
//! the decoder rejects.
//!
//! ```text
//! slot: | JPEG and its crop | pixels | …        copy stream:      pixels ──▶ rows
//!            │                                  finishing stream: decode ──▶ arena ── crops ──▶ rows ── finishing kernels
//!            └── rejected: chain.apply on this thread ─────────────────────────────────────▶ rows
//! ```
//! All work on the arena is in one stream, so batches use it in turn. It has room for the largest batch's whole images, and a
//! quarter more: 144 MB for 256 photos of 500 × 375. The limit is 192 times the bytes of a batch (see
//! `ops/src/image/deferred.rs`). An image that the decoder and the CPU both reject is a bad sample. If the error policy allows
//! it, the batch is sent again with another row in its place.

use crate::Result;
use crate::batch::Tensor;
use crate::slots::Column;
use feedstock_device::driver::{Decoder, Driver, Jpeg};
use feedstock_device::handles::{Address, HostAddress, StreamId};
use feedstock_device::memory::{DeviceMemory, Event, Locked, LockedPool};
use feedstock_ingest::Map;
use feedstock_ops::{Chain, SampleSeed, Scratch, TensorSpec};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// A mapped column some of whose images the device decodes.
pub(crate) struct Deferred {
    /// The column that is read.
    pub(crate) column: String,
    /// The chain that the CPU runs on them.
    chain: Arc<Chain>,
    /// The tensor of a row of pixels.
    pub(crate) spec: TensorSpec,
}

impl Deferred {
    /// Makes `map` leave the fraction `share` of its JPEGs to the device, if its chain can.
    pub(crate) fn split(share: f64, map: &mut Map, column: &mut Column) -> Option<Self> {
        let deferring =
            Some(share).filter(|share| *share > 0.0).and_then(|share| map.chain.deferring(share).ok())?;
        column.is_deferred = true;
        let spec = std::mem::replace(&mut column.spec, deferring.output().clone());
        let chain = std::mem::replace(&mut map.chain, Arc::new(deferring));
        Some(Self { column: map.column.clone(), chain, spec })
    }
}

/// An image to decode: the place of its bytes, the destination of its pixels, and its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Undecoded {
    /// The column, and the range of its bytes.
    pub(crate) tensor: usize,
    pub(crate) from: usize,
    pub(crate) length: usize,
    /// Width and height from its header.
    pub(crate) size: (u32, u32),
    /// The offset in the arena.
    pub(crate) at: usize,
    pub(crate) pitch: usize,
    pub(crate) row: usize,
    /// The offset of the row's pixels in the buffer.
    pub(crate) offset: usize,
}

/// A decoder that may be in use until the event passes.
struct Turn {
    decoder: SharedDecoder,
    busy_until: Option<Arc<Event>>,
}

type SharedDecoder = Arc<Mutex<Box<dyn Decoder>>>;

/// A run's decoders, and its memory.
pub(crate) struct Decoding {
    driver: Arc<dyn Driver>,
    /// Two decoders in turn: one is reused after its work has finished, and the other works meanwhile.
    turns: VecDeque<Turn>,
    arena: Option<Arc<DeviceMemory>>,
    scratch: Scratch,
    /// Whether a warning about images that the CPU decodes instead was logged.
    told: bool,
}

/// The memory and decoder that must live until a batch's images are decoded and cropped.
pub(crate) type InUse = (Arc<DeviceMemory>, SharedDecoder);

/// Rows that neither the device nor the CPU can decode, and why.
pub(crate) type Bad = Vec<(usize, feedstock_ops::Error)>;

impl Decoding {
    /// `sample_bytes` is the most working memory of a sample that the CPU decodes in place of the device.
    pub(crate) fn new(driver: Arc<dyn Driver>, sample_bytes: u64) -> Result<Self> {
        let turn = || -> Result<Turn> {
            Ok(Turn { decoder: Arc::new(Mutex::new(driver.new_decoder()?)), busy_until: None })
        };
        let turns = [turn()?, turn()?].into();
        let mut scratch = Scratch::new();
        scratch.allow(sample_bytes);
        Ok(Self { driver, turns, arena: None, scratch, told: false })
    }

    /// Waits for the decoder whose turn it is, and returns it with memory for whole images. Earlier batches use that memory,
    /// too, in the order of the finishing stream.
    pub(crate) fn begin(&mut self, bytes: usize) -> Result<InUse> {
        self.turns.rotate_left(1);
        let turn = &mut self.turns[0];
        if let Some(event) = turn.busy_until.take() {
            event.synchronize()?;
        }
        let decoder = turn.decoder.clone();
        let arena = match self.arena.take().filter(|arena| arena.size() >= bytes) {
            Some(arena) => arena,
            None => {
                // The smaller arena is freed after the last batch that uses it. A quarter more, since batches differ.
                let made = DeviceMemory::new(&self.driver, bytes.saturating_add(bytes / 4));
                Arc::new(made.or_else(|_| DeviceMemory::new(&self.driver, bytes))?)
            }
        };
        self.arena = Some(arena.clone());
        Ok((arena, decoder))
    }

    /// Notes that the decoder's work has finished once `event` passes.
    pub(crate) fn end(&mut self, event: &Arc<Event>) {
        self.turns[0].busy_until = Some(event.clone());
    }

    /// Decodes into the arena, and returns the images that the decoder rejects.
    ///
    /// # Safety
    /// Until `stream` has run this work, the columns' memory, the arena and the decoder live, and are written only in the order
    /// of `stream`.
    pub(crate) unsafe fn decode<'a>(
        &self,
        pictures: &'a [Undecoded],
        tensors: &[Tensor],
        arena: Address,
        stream: StreamId,
    ) -> Result<Vec<&'a Undecoded>> {
        let jpeg = |picture: &Undecoded| Jpeg {
            // SAFETY: the range is within the column.
            bytes: HostAddress(unsafe { tensors[picture.tensor].as_ptr().add(picture.from) }),
            length: picture.length,
            size: picture.size,
            to: arena.at(picture.at),
            pitch: picture.pitch,
        };
        let jpegs: Vec<Jpeg> = pictures.iter().map(jpeg).collect();
        let mut decoder = self.turns[0].decoder.lock().unwrap_or_else(PoisonError::into_inner); // one thread uses it
        // SAFETY: the caller's contract.
        let refused = unsafe { decoder.decode(&jpegs, stream)? };
        Ok(refused.into_iter().filter_map(|index| pictures.get(index)).collect())
    }

    /// Makes the rows of rejected images on the CPU, and copies them over those in the buffer at `base`. `staging` keeps the
    /// sources of these copies until `stream` has run them.
    ///
    /// # Safety
    /// The buffer is the batch's, and its content in these rows is not needed.
    pub(crate) unsafe fn repair(
        &mut self,
        refused: &[&Undecoded],
        (tensors, columns, seeds): (&[Tensor], &[Option<Deferred>], &[SampleSeed]),
        (base, pool, stream): (Address, &Arc<LockedPool>, StreamId),
        staging: &mut Vec<Locked>,
    ) -> Result<Bad> {
        let mut bad = Bad::new();
        for picture in refused {
            let Some(Deferred { chain, spec, .. }) = &columns[picture.tensor] else { continue };
            if !std::mem::replace(&mut self.told, true) {
                tracing::warn!(
                    row = picture.row,
                    "nvJPEG rejects an image, and perhaps more: the CPU decodes them one after the other"
                );
            }
            let encoded = &tensors[picture.tensor].bytes()[picture.from..picture.from + picture.length];
            let mut pixels = vec![0; spec.bytes()];
            if let Err(error) = chain.apply(encoded, seeds[picture.row], &mut self.scratch, &mut pixels) {
                bad.push((picture.row, error));
                continue;
            }
            let block = pool.take(pixels.len())?;
            let source = HostAddress(block.start());
            // SAFETY: the block has at least `pixels.len()` bytes, and nothing else uses it.
            unsafe { std::ptr::copy_nonoverlapping(pixels.as_ptr(), source.0.as_ptr(), pixels.len()) };
            staging.push(block);
            // SAFETY: the row is in the batch's buffer. The caller keeps `staging`.
            unsafe { self.driver.copy_in(base.at(picture.offset), source, pixels.len(), stream)? };
        }
        Ok(bad)
    }
}
