//! The interface of a compiled chain of any kind: its output, and a function of a sample's bytes.

use std::sync::Arc;

use crate::image_list::ImageList;
use crate::number_list::NumberList;
use crate::ragged::RaggedRow;
use crate::scratch::Scratch;
use crate::seed::{BoxCrop, SampleSeed};
use crate::spec::{DType, TensorSpec};
use crate::warning::Warnings;
use feedstock_base::{Error, Result};

/// A compiled chain of ops of one kind.
pub(crate) trait Plan: Send + Sync {
    fn output(&self) -> &TensorSpec;

    /// Runs one sample.
    ///
    /// # Errors
    /// As [`Chain::apply`](crate::Chain::apply).
    fn apply(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        row: Row<'_>,
    ) -> Result<Warnings>;

    /// Whether the chain decodes JPEGs and shows a part of each, so that an index of their rows is of use.
    fn shows_parts(&self) -> bool {
        false
    }

    /// Reads height and width that an image has after decoding and before any other op; `None` for chains of other data.
    ///
    /// # Errors
    /// As [`Chain::apply`](crate::Chain::apply).
    fn image_size(&self, _encoded: &[u8]) -> Result<Option<[u32; 2]>> {
        Ok(None)
    }

    /// Returns the same chain, leaving `share` of its JPEGs to a GPU.
    ///
    /// # Errors
    /// `BadConfig` if a GPU cannot do what the chain does.
    fn deferring(&self, _share: f64) -> Result<Arc<dyn Plan>> {
        Err(Error::config("only images are decoded by a GPU"))
    }

    /// True for lists of images, for which the next function is.
    fn reads_lists(&self) -> bool {
        false
    }

    /// Adds to what a sample needs, which is given up for lack of memory, what one of its images needs by its header. See
    /// [`Scratch::need`].
    ///
    /// # Errors
    /// `BadSample` for a header that cannot be read, or that is over a limit.
    fn need(&self, _encoded: &[u8], _seed: SampleSeed, _scratch: &mut Scratch) -> Result<()> {
        Ok(())
    }

    /// Runs all images of one sample.
    ///
    /// # Errors
    /// As [`Chain::apply_list`](crate::Chain::apply_list).
    fn apply_list(
        &self,
        _images: &dyn ImageList,
        _seed: SampleSeed,
        _scratch: &mut Scratch,
        _row: &mut RaggedRow,
    ) -> Result<Warnings> {
        Err(Error::bug("a chain of one value is given a list"))
    }

    /// True for boxes, keypoints and matrices, for which the next functions are.
    fn annotates(&self) -> bool {
        false
    }

    /// Moves boxes or keypoints as an image of size `_image`, `[height, width]`.
    ///
    /// # Errors
    /// As [`Chain::annotate`](crate::Chain::annotate).
    fn annotate(
        &self,
        _numbers: NumberList<'_>,
        _image: [u32; 2],
        _seed: SampleSeed,
        _row: &mut RaggedRow,
    ) -> Result<()> {
        Err(Error::bug("a chain of encoded bytes is given numbers"))
    }

    /// Returns the indices of the boxes that are kept.
    ///
    /// # Errors
    /// As [`Chain::annotate`](crate::Chain::annotate).
    fn kept(&self, _boxes: NumberList<'_>, _image: [u32; 2], _seed: SampleSeed) -> Result<Vec<usize>> {
        Err(Error::bug("a chain of encoded bytes is given boxes"))
    }

    /// Writes the matrix of the geometry of an image of size `_image`.
    ///
    /// # Errors
    /// As [`Chain::transform`](crate::Chain::transform).
    fn transform(&self, _image: [u32; 2], _seed: SampleSeed, _out: &mut [u8]) -> Result<()> {
        Err(Error::bug("the chain does not make the matrix of its geometry"))
    }

    /// Returns what boxes draw for the op that crops by them; `None` without such an op.
    ///
    /// # Errors
    /// As [`Chain::draw_crop`](crate::Chain::draw_crop).
    fn box_crop(
        &self,
        _boxes: NumberList<'_>,
        _image: [u32; 2],
        _seed: SampleSeed,
    ) -> Result<Option<BoxCrop>> {
        Err(Error::bug("a chain of encoded bytes is given boxes"))
    }

    /// Returns the chain of a column along the boxes of this one.
    ///
    /// # Errors
    /// `BadConfig` for keypoints.
    fn along(&self, _dtype: DType) -> Result<Arc<dyn Plan>> {
        Err(Error::config("columns are along boxes only"))
    }
}

/// Where a chain's result goes.
pub(crate) enum Row<'a> {
    /// Into a row of the output's fixed size, of any alignment.
    Fixed(&'a mut [u8]),
    /// Into a row that becomes as long as the sample.
    Ragged(&'a mut RaggedRow),
}

impl<'a> Row<'a> {
    /// # Errors
    /// `Bug` for a ragged row.
    pub(crate) fn fixed(self) -> Result<&'a mut [u8]> {
        match self {
            Self::Fixed(row) => Ok(row),
            Self::Ragged(_) => Err(Error::bug("a chain of fixed size is given a ragged row")),
        }
    }

    /// # Errors
    /// `Bug` for a row of fixed size.
    pub(crate) fn ragged(self) -> Result<&'a mut RaggedRow> {
        match self {
            Self::Ragged(row) => Ok(row),
            Self::Fixed(_) => Err(Error::bug("a ragged chain is given a row of fixed size")),
        }
    }
}

/// An op of a chain with its name; `None` for an op of another kind than the chain.
pub(crate) struct Named<'a, T: ?Sized> {
    pub(crate) name: &'static str,
    pub(crate) op: Option<&'a T>,
}

/// Adds the place of an op to its error.
pub(crate) fn at(index: usize, name: &'static str) -> impl FnOnce(Error) -> Error {
    move |error| error.context(format!("op {index} ({name})"))
}
