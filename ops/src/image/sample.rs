//! One sample on its way from bytes to its row.
//!
//! Between ops a pixel has three bytes. So the chain runs twice for an image with alpha, with the same draws:
//!
//! ```text
//! bytes ─┬─▶ alpha, in three equal channels ─▶ chain ─┬─▶ joined: [.., 4]
//!        └─▶ colours (weighted by alpha)    ─▶ chain ─┘
//! ```

use super::decode::{Layer, Opened};
use super::layers::Layers;
use super::run::{ImageScratch, Run, Source};
use super::stages::Stages;
use super::working::working_bytes;
use crate::scratch::Scratch;
use crate::seed::SampleSeed;
use crate::warning::Warnings;
use crate::working::Scope;
use feedstock_base::Result;

/// Runs one sample through its chain.
pub(super) fn run(
    stages: &Stages,
    encoded: &[u8],
    seed: SampleSeed,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<Warnings> {
    scratch.part::<ImageScratch>().warnings = Warnings::default();
    let opened = Opened::new(encoded, &stages.decode)?;
    let scope = scratch.admit(|scope| working_bytes(stages, &opened, seed, scope))?;
    let scratch = scratch.part::<ImageScratch>();
    match &stages.layers {
        None => Run::new(stages, Source::Encoded(&opened, scope), seed, scratch, out).all()?,
        Some(layers) => run_layers((stages, layers), opened, (seed, scope), scratch, out)?,
    }
    Ok(scratch.warnings)
}

/// Adds what an image needs to what its sample needs; nothing is decoded.
pub(super) fn need(stages: &Stages, encoded: &[u8], seed: SampleSeed, scratch: &mut Scratch) -> Result<()> {
    let opened = Opened::new(encoded, &stages.decode)?;
    scratch.need(|scope| working_bytes(stages, &opened, seed, scope));
    Ok(())
}

fn run_layers(
    (stages, layers): (&Stages, &Layers),
    mut opened: Opened<'_>,
    (seed, scope): (SampleSeed, Scope),
    scratch: &mut ImageScratch,
    out: &mut [u8],
) -> Result<()> {
    let mut buffers = std::mem::take(&mut scratch.layers);
    let bytes = stages.size.rgb_bytes();
    let is_weighted = layers.averages && opened.has_alpha();
    let mut layer = |layer, pixels: &mut [u8]| {
        opened.set_layer(layer);
        Run::new(stages, Source::Encoded(&opened, scope), seed, &mut *scratch, pixels).all()
    };
    let colors = if is_weighted { Layer::Weighted } else { Layer::Colors };
    let result = layer(Layer::Alpha, buffers.alpha.take(bytes))
        .and_then(|()| layer(colors, buffers.colors.take(bytes)));
    if result.is_ok() {
        layers.join(&buffers.colors.bytes()[..bytes], &buffers.alpha.bytes()[..bytes], is_weighted, out);
    }
    scratch.layers = buffers;
    result
}
