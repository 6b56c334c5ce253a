//! The working memory of an image chain: goes through its stages as `run.rs` does, with sizes instead of pixels.
//!
//! The region to decode follows from the sample's seed, so for a crop of a large JPEG only the memory of the crop
//! counts. Each buffer counts with the largest image that it holds, and the decoder's own memory is added.

use super::augmenter::MIXING_BYTES;
use super::decode::{Demand, Opened};
use super::geometry::{Filter, Rect, Size};
use super::sampler::Depth;
use super::stages::{Resized, Stage, Stages, shown_of_boxes};
use super::step::{Resizing, Step};
use crate::seed::SampleSeed;
use crate::working::Scope;
use feedstock_base::Result;

/// The weights of a resampling (at most 16 bytes per tap, and 6 taps for each source pixel that the filter reads), and
/// the rows between its passes.
const SIDE_BYTES: u64 = 128;

/// Tables of the baseline decoder, and small buffers.
const FIXED_BYTES: u64 = 2 << 20;

/// Returns the working memory for a sample.
pub(super) fn working_bytes(stages: &Stages, opened: &Opened<'_>, seed: SampleSeed, scope: Scope) -> u64 {
    let taken = Walk::taken(stages, opened, seed, Source::Encoded(scope));
    let layers = if stages.layers.is_some() { 2 * rgb(stages.size) } else { 0 };
    FIXED_BYTES + layers + taken.bytes + taken.augmented + taken.mixed + taken.buffers.iter().sum::<u64>()
}

/// Returns the working memory of several runs, one after the other, of a sample that is decoded once for `demand`.
pub(super) fn shared_working_bytes<'a>(
    opened: &Opened<'_>,
    demand: Demand,
    runs: impl Iterator<Item = (&'a Stages, SampleSeed)>,
) -> u64 {
    let source = Source::Decoded(demand.denominator);
    let most = runs.map(|(stages, seed)| Walk::taken(stages, opened, seed, source)).fold(
        Taken::default(),
        |most, one| Taken {
            buffers: std::array::from_fn(|index| most.buffers[index].max(one.buffers[index])),
            augmented: most.augmented.max(one.augmented),
            mixed: most.mixed.max(one.mixed),
            bytes: most.bytes.max(one.bytes),
        },
    );
    let decoded = opened.working_bytes(demand);
    FIXED_BYTES + decoded + most.bytes + most.augmented + most.mixed + most.buffers.iter().sum::<u64>()
}

/// Where pixels come from.
#[derive(Clone, Copy)]
enum Source {
    /// From the encoded bytes.
    Encoded(Scope),
    /// From what was decoded of them at this denominator, which is counted once for several runs.
    Decoded(u32),
}

/// What one run takes.
#[derive(Clone, Copy, Default)]
struct Taken {
    /// The largest image in each buffer.
    buffers: [u64; 3],
    /// The largest image that an augmentation copies.
    augmented: u64,
    /// The largest sum of images.
    mixed: u64,
    /// Other working memory.
    bytes: u64,
}

/// Where the image would be.
#[derive(Clone, Copy)]
enum At {
    Undecoded(Rect),
    Buffer(usize, Size),
    Out,
}

struct Walk<'a> {
    stages: &'a Stages,
    opened: &'a Opened<'a>,
    seed: SampleSeed,
    source: Source,
    at: At,
    taken: Taken,
}

impl<'a> Walk<'a> {
    fn taken(stages: &'a Stages, opened: &'a Opened<'_>, seed: SampleSeed, source: Source) -> Taken {
        let at = At::Undecoded(Rect::of(opened.size()));
        let mut walk = Walk { stages, opened, seed, source, at, taken: Taken::default() };
        // The chain stops at the same stage, with the same error.
        let _refused = walk.all();
        walk.taken
    }

    fn all(&mut self) -> Result<()> {
        let mut next = 0;
        while let Some(Stage { index, step }) = self.stages.list.get(next) {
            next += match step {
                Step::Resize(op) => self.resize(&**op, next)?,
                Step::Crop(op) => {
                    let (padded, _) = op.padded(self.size(), &mut self.seed.op(*index))?;
                    self.pad(padded);
                    self.narrow(op.rect(padded, &mut self.seed.op(*index)));
                    1
                }
                Step::ResizedCrop(op) => {
                    self.narrow(op.draw(self.size(), &mut self.seed.op(*index)));
                    self.resample(op.size(), op.filter(), next + 1 == self.stages.geometry_end);
                    1
                }
                Step::CropByBoxes(_) => {
                    self.narrow(shown_of_boxes(self.size(), self.seed)?);
                    1
                }
                Step::Turn(op) => {
                    let (_, to) = op.draw(self.size(), &mut self.seed.op(*index))?;
                    self.dense(next);
                    if let At::Buffer(buffer, _) = self.at {
                        self.holds(after(buffer), to);
                    }
                    1
                }
                Step::InPlace(step) if step.is_idle(*index, self.seed) => 1,
                Step::InPlace(step) => {
                    self.dense(next);
                    if step.copies_image() {
                        self.taken.augmented = self.taken.augmented.max(rgb(self.size()));
                    }
                    if step.mixes_images() {
                        self.taken.mixed = self.taken.mixed.max(MIXING_BYTES * rgb(self.size()));
                    }
                    1
                }
            };
        }
        self.dense(usize::MAX);
        Ok(())
    }

    fn size(&self) -> Size {
        match self.at {
            At::Undecoded(rect) => rect.size(),
            At::Buffer(_, size) => size,
            At::Out => self.stages.size,
        }
    }

    fn narrow(&mut self, inner: Rect) {
        match &mut self.at {
            At::Undecoded(rect) => *rect = rect.narrow(inner),
            At::Buffer(_, size) => *size = inner.size(),
            At::Out => {}
        }
    }

    fn holds(&mut self, buffer: usize, size: Size) {
        self.taken.buffers[buffer] = self.taken.buffers[buffer].max(rgb(size));
        self.at = At::Buffer(buffer, size);
    }

    /// Counts the decoder's memory with its pixels.
    fn decode(&mut self, target: Option<Size>) {
        if let At::Undecoded(region) = self.at {
            let denominator = match self.source {
                Source::Encoded(scope) => {
                    let denominator = self.stages.denominator(self.opened, region.size(), target);
                    self.taken.bytes += self.opened.working_bytes(Demand { region, denominator, scope });
                    denominator
                }
                Source::Decoded(denominator) => denominator,
            };
            self.at = At::Buffer(0, self.opened.shown(region, denominator));
        }
    }

    fn resize(&mut self, op: &dyn Resizing, at: usize) -> Result<usize> {
        let Resized { to, part, stages, .. } = self.stages.resized((op, at), self.size(), self.seed)?;
        self.narrow(part);
        self.resample(to, op.filter(), at + stages == self.stages.geometry_end);
        Ok(stages)
    }

    fn resample(&mut self, to: Size, filter: Filter, last: bool) {
        self.decode(Some(to));
        let At::Buffer(index, from) = self.at else { return };
        let sides = [from.width, from.height, to.width, to.height].map(u64::from);
        self.taken.bytes += SIDE_BYTES * sides.iter().sum::<u64>();
        let is_wide = self.stages.decode.mode.depth() == Depth::Sixteen;
        if matches!(filter, Filter::Bicubic | Filter::Lanczos) || (is_wide && filter == Filter::Bilinear) {
            // One pass, then the other, in either order.
            let across = Size { height: from.height, width: to.width };
            let down = Size { height: to.height, width: from.width };
            self.taken.bytes += rgb(across).max(rgb(down));
        }
        match last && self.stages.convert.is_identity() {
            true => self.at = At::Out,
            false => self.holds(after(index), to),
        }
    }

    fn pad(&mut self, size: Size) {
        if self.size() == size || size.check().is_err() {
            return;
        }
        self.decode(None);
        if let At::Buffer(index, _) = self.at {
            self.holds(after(index), size);
        }
    }

    /// Counts the copy of an image that is a part of the decoded one.
    fn dense(&mut self, stage: usize) {
        self.decode(None);
        let At::Buffer(index, size) = self.at else { return };
        match stage >= self.stages.geometry_end && self.stages.convert.is_identity() {
            true => self.at = At::Out,
            false => self.holds(after(index), size),
        }
    }
}

fn rgb(size: Size) -> u64 {
    size.rgb_bytes() as u64
}

/// Returns the buffer that an image in the buffer `index` is written to next.
fn after(index: usize) -> usize {
    if index == 1 { 2 } else { 1 }
}
