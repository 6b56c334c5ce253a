//! Several views of one image, which is decoded once: the crops of self-supervised learning.
//!
//! ```text
//! header ─▶ draws: what each view shows ─▶ decode the rectangle around all ─┬▶ view 0 ─▶ row
//!                                          at the finest fraction needed    └▶ view 1 ─▶ row …
//! ```
//! A view is a chain that finds the image decoded in the first buffer. Decoding at full size gives a region the
//! pixels that it has in the whole image, so a view is then bit for bit what its chain makes alone.

use std::sync::Arc;

use super::compile::{self, ImageOp};
use super::decode::{Demand, Opened};
use super::geometry::Rect;
use super::plan::ImagePlan;
use super::run::{ImageScratch, Run, Source};
use super::stages::Stages;
use super::working::shared_working_bytes;
use crate::plan::{Named, Plan, Row};
use crate::scratch::Scratch;
use crate::seed::{Salt, SampleSeed};
use crate::spec::TensorSpec;
use crate::warning::Warnings;
use feedstock_base::{Error, Result};

/// Where the rows of views are written.
pub trait ViewRows {
    /// Returns the row of view `view`, which is as long as its output.
    ///
    /// # Errors
    /// Where there is none: a defect of the caller.
    fn row(&mut self, view: usize) -> Result<&mut [u8]>;
}

/// A compiled view, or several that differ in their draws.
pub(crate) struct CompiledView {
    name: String,
    stages: Arc<Stages>,
    /// One for each image of a row.
    salts: Vec<Salt>,
    output: TensorSpec,
}

impl CompiledView {
    /// Compiles ops that start with `decode_image`. With a `count`, a row has this number of images.
    ///
    /// # Errors
    /// `BadConfig`, naming the op and the reason.
    pub(crate) fn new(name: &str, ops: &[Named<'_, dyn ImageOp>], count: Option<u32>) -> Result<Self> {
        let stages = Arc::new(compile::stages(ops)?);
        if stages.layers.is_some() {
            return Err(Error::config(
                "images with alpha (mode=\"rgba\") have no views; decode with another mode",
            ));
        }
        let salts = (0..count.unwrap_or(1)).map(|number| Salt::of_view(name, number)).collect();
        let TensorSpec { dtype, layout, shape, .. } = &stages.output;
        let images = count.map(|count| count as usize);
        let shape: Vec<usize> = images.into_iter().chain(shape.iter().copied()).collect();
        let output = TensorSpec::new(*dtype, shape, *layout);
        Ok(Self { name: name.to_owned(), stages, salts, output })
    }

    /// Returns the chain of this tensor alone. That of one image is a plain chain, with its salt.
    pub(crate) fn alone(self: &Arc<Self>) -> (Arc<dyn Plan>, Salt) {
        match (self.output == self.stages.output, self.salts.first()) {
            (true, Some(salt)) => (Arc::new(ImagePlan(self.stages.clone())), *salt),
            _ => (Arc::new(ViewPlan(self.clone())), Salt::default()),
        }
    }

    pub(crate) fn output(&self) -> &TensorSpec {
        &self.output
    }

    /// Returns the seed of each image of a sample's row.
    fn seeds(&self, sample: SampleSeed) -> impl Iterator<Item = SampleSeed> {
        self.salts.iter().map(move |salt| sample.salted(*salt))
    }

    /// Adds the name of the view to an error.
    fn about(&self, error: Error) -> Error {
        error.context(format!("view '{}'", self.name))
    }
}

/// Runs one sample through all views, which have the same decoder.
///
/// # Errors
/// As [`Chain::apply`](crate::Chain::apply). What cannot be decoded, or is too small for one view, is bad for all.
pub(crate) fn run_views(
    views: &[Arc<CompiledView>],
    encoded: &[u8],
    sample: SampleSeed,
    scratch: &mut Scratch,
    rows: &mut dyn ViewRows,
) -> Result<Warnings> {
    let Some(first) = views.first() else { return Ok(Warnings::default()) };
    scratch.part::<ImageScratch>().warnings = Warnings::default();
    let opened = Opened::new(encoded, &first.stages.decode)?;
    let (region, denominator) = needed(views, &opened, sample)?;
    let demand = |scope| Demand { region, denominator, scope };
    let scope = scratch.admit(|scope| {
        let runs = views.iter().flat_map(|view| view.seeds(sample).map(move |seed| (&*view.stages, seed)));
        shared_working_bytes(&opened, demand(scope), runs)
    })?;
    let scratch = scratch.part::<ImageScratch>();
    let pixels = scratch.decode(&opened, demand(scope))?;
    let source = Source::Decoded(&opened, demand(scope), pixels);
    for (index, view) in views.iter().enumerate() {
        let images = rows.row(index)?.chunks_exact_mut(view.stages.output.bytes());
        for (seed, out) in view.seeds(sample).zip(images) {
            Run::new(&view.stages, source, seed, scratch, out).all().map_err(|error| view.about(error))?;
        }
    }
    Ok(pixels.warnings)
}

/// Returns the rectangle around what the views need of a sample's image, and the denominator of the finest fraction of its
/// size that one of them needs.
fn needed(views: &[Arc<CompiledView>], opened: &Opened<'_>, sample: SampleSeed) -> Result<(Rect, u32)> {
    let mut needed: Option<(Rect, u32)> = None;
    for view in views {
        for seed in view.seeds(sample) {
            let decoded = view.stages.decoded(opened.size(), seed);
            let (region, target) = decoded.map_err(|error| view.about(error))?;
            let denominator = view.stages.denominator(opened, region.size(), target);
            needed = Some(match needed {
                Some((all, finest)) => (all.around(region), finest.min(denominator)),
                None => (region, denominator),
            });
        }
    }
    needed.ok_or_else(|| Error::bug("an image without views"))
}

/// The chain of one tensor of several views alone.
struct ViewPlan(Arc<CompiledView>);

/// The only row of a chain.
struct OneRow<'a>(&'a mut [u8]);

impl ViewRows for OneRow<'_> {
    fn row(&mut self, _: usize) -> Result<&mut [u8]> {
        Ok(&mut *self.0)
    }
}

impl Plan for ViewPlan {
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
        run_views(std::slice::from_ref(&self.0), encoded, seed, scratch, &mut OneRow(row.fixed()?))
    }

    fn shows_parts(&self) -> bool {
        self.0.stages.shows_parts()
    }

    fn image_size(&self, encoded: &[u8]) -> Result<Option<[u32; 2]>> {
        Ok(Some(Opened::new(encoded, &self.0.stages.decode)?.size().into()))
    }

    fn deferring(&self, _: f64) -> Result<Arc<dyn Plan>> {
        Err(Error::config("a GPU decodes for chains of one image; views are decoded by CPUs"))
    }
}
