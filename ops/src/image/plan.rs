//! A compiled chain of image ops: the implementation of the crate's `Plan` trait.

use std::sync::Arc;

use super::compile::{self, ImageOp};
use super::decode::Opened;
use super::deferred::Deferring;
use super::sample::{need, run};
use super::stages::Stages;
use crate::plan::{Named, Plan, Row};
use crate::resources::Resources;
use crate::scratch::Scratch;
use crate::seed::SampleSeed;
use crate::spec::TensorSpec;
use crate::warning::Warnings;
use feedstock_base::Result;

/// Compiles a chain that starts with `decode_image`.
///
/// # Errors
/// `BadConfig`, naming the op and the reason.
pub(crate) fn compile(ops: &[Named<'_, dyn ImageOp>], _: &Resources) -> Result<Arc<dyn Plan>> {
    Ok(Arc::new(ImagePlan(Arc::new(compile::stages(ops)?))))
}

/// The chain of one image.
pub(super) struct ImagePlan(pub(super) Arc<Stages>);

impl Plan for ImagePlan {
    fn output(&self) -> &TensorSpec {
        &self.0.output
    }

    fn apply(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        row: Row<'_>,
    ) -> Result<Warnings> {
        run(&self.0, encoded, seed, scratch, row.fixed()?)
    }

    fn need(&self, encoded: &[u8], seed: SampleSeed, scratch: &mut Scratch) -> Result<()> {
        need(&self.0, encoded, seed, scratch)
    }

    fn shows_parts(&self) -> bool {
        self.0.shows_parts()
    }

    fn image_size(&self, encoded: &[u8]) -> Result<Option<[u32; 2]>> {
        Ok(Some(Opened::new(encoded, &self.0.decode)?.size().into()))
    }

    fn deferring(&self, share: f64) -> Result<Arc<dyn Plan>> {
        Ok(Arc::new(Deferring::new(&self.0, share)?))
    }
}
