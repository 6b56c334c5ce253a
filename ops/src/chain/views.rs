//! Views: several chains of one image, which is decoded once.

use std::sync::Arc;

use super::{Chain, ChainSpec, guarded};
use crate::faults;
use crate::image::{CompiledView, ViewRows, run_views};
use crate::op::{Op, compile_view};
use crate::scratch::Scratch;
use crate::seed::SampleSeed;
use crate::spec::TensorSpec;
use feedstock_base::{Error, Result};

/// The most images of one name: a row of 1,024 crops of 96 × 96 pixels has 28 MB.
const MOST_IMAGES: u32 = 1024;

/// The description of one view of an image, or of several that differ in their random draws.
///
/// ```
/// use feedstock_ops::image::View;
/// use feedstock_ops::{horizontal_flip, random_resized_crop};
///
/// let large = View::new("global", [random_resized_crop(224), horizontal_flip(0.5)]); // [224, 224, 3]
/// let small = View::new("local", [random_resized_crop(96)]).count(8); // [8, 96, 96, 3]
/// assert_eq!((large.count, small.count), (None, Some(8)));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct View {
    /// The name of the tensor.
    pub name: String,
    /// The number of images, 1 … 1,024, which is the first axis of a row; `None`: one image, without that axis.
    pub count: Option<u32>,
    /// The ops after the decoder.
    pub ops: ChainSpec,
}

impl View {
    /// Creates one view. `ops` are those after the decoder.
    pub fn new(name: &str, ops: impl Into<ChainSpec>) -> Self {
        Self { name: name.to_owned(), count: None, ops: ops.into() }
    }

    /// Makes `count` views of it, 1 … 1,024, each with other random draws.
    #[must_use]
    pub fn count(self, count: u32) -> Self {
        Self { count: Some(count), ..self }
    }
}

/// Compiled views of one image.
///
/// The image is decoded once for all views: the rectangle around what they need, at the finest fraction of its size that
/// one of them needs. View `number` (from 0) of the name `name` draws with [`Salt::of_view`](crate::Salt::of_view), whatever
/// other views there are. If the decoder has `scaled=false`, a view is bit for bit what a chain of the decoder and its ops
/// makes with that salt.
#[derive(Clone)]
pub struct Views(Arc<[Arc<CompiledView>]>);

impl Views {
    /// Compiles views of what `decode`, a `decode_image`, makes.
    ///
    /// ```
    /// use feedstock_ops::image::{View, Views};
    /// use feedstock_ops::{decode_image, horizontal_flip, random_resized_crop};
    ///
    /// let local = View::new("local", [random_resized_crop(96)]).count(8);
    /// let views = Views::compile(&decode_image(), &[View::new("global", [random_resized_crop(224)]), local])?;
    /// let shapes: Vec<_> = views.outputs().map(|output| output.shape.clone()).collect();
    /// assert_eq!(shapes, [vec![224, 224, 3], vec![8, 96, 96, 3]]);
    ///
    /// let error = Views::compile(&decode_image(), &[View::new("whole", [horizontal_flip(0.5)])]).err().unwrap();
    /// assert!(error.message().starts_with("view 'whole': the chain has no fixed output size"));
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for no views, a name that is empty or given twice, a number of images out of range, and a chain that does
    /// not compile.
    pub fn compile(decode: &Op, views: &[View]) -> Result<Self> {
        if views.is_empty() {
            return Err(Error::config("views must have at least one view"));
        }
        let compile = |(index, view): (usize, &View)| {
            let View { name, count, ops } = view;
            if name.is_empty() || views[..index].iter().any(|other| other.name == *name) {
                return Err(Error::config(format!(
                    "each view must have a name, and another one than the other views; got '{name}'"
                )));
            }
            let about = |error: Error| error.context(format!("view '{name}'"));
            if let Some(count) = count.filter(|count| !(1..=MOST_IMAGES).contains(count)) {
                let message = format!("the number of images must be 1 … {MOST_IMAGES}; got {count}");
                return Err(about(Error::config(message)));
            }
            let chain: Vec<Op> = std::iter::once(decode).chain(&ops.0).cloned().collect();
            compile_view(name, &chain, *count).map(Arc::new).map_err(about)
        };
        Ok(Self(views.iter().enumerate().map(compile).collect::<Result<_>>()?))
    }

    /// Returns the tensor of each view, in the order in which they were given.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = &TensorSpec> {
        self.0.iter().map(|view| view.output())
    }

    /// Returns the chain that makes the tensor of view `view` alone. If images are decoded at a fraction of their size, it may
    /// make other pixels than [`apply`](Self::apply).
    ///
    /// # Panics
    /// If there is no such view.
    pub fn chain(&self, view: usize) -> Chain {
        let (plan, salt) = self.0[view].alone();
        Chain { plan, salt }
    }

    /// Decodes one sample's `encoded` bytes, and writes all its views into `rows`.
    ///
    /// ```
    /// use feedstock_ops::image::{View, ViewRows, Views};
    /// use feedstock_ops::{Result, SampleSeed, Scratch, center_crop, decode_image, horizontal_flip, resize};
    ///
    /// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    /// #     out
    /// # }
    /// struct Rows([Vec<u8>; 2]);
    ///
    /// impl ViewRows for Rows {
    ///     fn row(&mut self, view: usize) -> Result<&mut [u8]> {
    ///         Ok(&mut self.0[view])
    ///     }
    /// }
    ///
    /// let mirrored = View::new("mirrored", [resize([1, 2]), horizontal_flip(1.0)]);
    /// let views = Views::compile(&decode_image(), &[mirrored, View::new("middle", [center_crop([1, 2])])])?;
    /// let image = encode(2, 1, &[255, 0, 0, 0, 0, 255]); // a PNG: red, blue
    /// let mut rows = Rows([vec![0; 6], vec![0; 6]]);
    /// views.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut rows)?;
    /// assert_eq!(rows.0, [[0, 0, 255, 255, 0, 0], [255, 0, 0, 0, 0, 255]]);
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Chain::apply`]. What is bad for one view is bad for all; the content of `rows` is then unspecified.
    ///
    /// # Panics
    /// If a row is not exactly as long as its output: that is a defect of the caller.
    pub fn apply(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        rows: &mut dyn ViewRows,
    ) -> Result<()> {
        for (index, output) in self.outputs().enumerate() {
            assert_eq!(rows.row(index)?.len(), output.bytes(), "a row must be exactly as long as its view");
        }
        guarded(scratch, |scratch| {
            faults::meet(encoded);
            let warnings = run_views(&self.0, encoded, seed, scratch, rows)?;
            scratch.warnings.add(warnings);
            Ok(())
        })
    }
}

impl std::fmt::Debug for Views {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.outputs()).finish()
    }
}
