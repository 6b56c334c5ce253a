//! Chains of lists of images: one chain of one image, which runs on each image of a sample.
//!
//! ```text
//! image 0 ─▶ decode ─▶ … ─▶ [h, w, 3] ─┐
//! image 1 ─▶ decode ─▶ … ─▶ [h, w, 3] ─┼─▶ a row as long as the list: [n, h, w, 3]
//! …          other draws               ┘
//! ```
//! The images of a sample run one after another on one thread, so its working memory is that of its largest image. If an image
//! needs more than the thread may take, the headers of the images after it are read too: the sample needs the most of all.

use std::ops::Range;
use std::sync::Arc;

use super::{Chain, guarded};
use crate::faults;
use crate::image_list::ImageList;
use crate::limits;
use crate::plan::{Plan, Row};
use crate::ragged::RaggedRow;
use crate::scratch::Scratch;
use crate::seed::SampleSeed;
use crate::spec::TensorSpec;
use crate::warning::Warnings;
use feedstock_base::{Error, Result};

impl Chain {
    /// The default of `max_images`, the most images of one sample: a row of 256 images of 224 × 224 × 3 bytes has 39 MB.
    pub const MAX_IMAGES: u32 = 256;

    /// The most bytes of a sample's images as one tensor. Workers send no longer rows.
    pub const MAX_ROW_BYTES: usize = 1 << 30;

    /// Returns the chain of lists of images, which runs this chain on each image of a sample. The output has one more axis, the
    /// first, which counts images. A sample with more than `max_images` images is bad.
    ///
    /// ```
    /// use feedstock_ops::Chain;
    ///
    /// let image = Chain::parse("decode_image,resize:224x224")?;
    /// let list = image.of_lists(Chain::MAX_IMAGES)?;
    /// assert_eq!((list.output().is_list(), list.output().shape_at(3)), (true, vec![3, 224, 224, 3]));
    ///
    /// let error = Chain::parse("decode_audio,resample:16000")?.of_lists(8).unwrap_err();
    /// assert!(error.message().starts_with("only images can be in lists"));
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if this is not a chain of one image, or `max_images` is 0.
    pub fn of_lists(&self, max_images: u32) -> Result<Self> {
        let image = self.output();
        if image.is_ragged() || self.annotates() || !image.list().is_list() {
            return Err(Error::config("only images can be in lists; start the chain with decode_image"));
        }
        if max_images == 0 {
            return Err(Error::config("max_images must be at least 1; got 0"));
        }
        let plan = ListPlan { output: image.list(), image: self.plan.clone(), max_images };
        Ok(Self { plan: Arc::new(plan), salt: self.salt })
    }

    /// Returns true for a chain of lists of images, which [`apply_list`](Self::apply_list) runs.
    pub fn reads_lists(&self) -> bool {
        self.plan.reads_lists()
    }

    /// Runs the chain on all images of one sample. `out` becomes as long as the list. Image `number` draws from
    /// [`SampleSeed::image`], so the images of a sample have independent draws.
    ///
    /// ```
    /// use feedstock_ops::{Chain, RaggedRow, SampleSeed, Scratch};
    ///
    /// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    /// #     out
    /// # }
    /// let chain = Chain::parse("decode_image,center_crop:1x1")?.of_lists(Chain::MAX_IMAGES)?;
    /// let (red, blue) = (encode(1, 1, &[255, 0, 0]), encode(1, 3, &[0, 0, 255, 0, 0, 255, 0, 0, 255]));
    /// let (mut scratch, mut row) = (Scratch::new(), RaggedRow::new());
    /// let images = vec![&red[..], &blue[..]];
    /// chain.apply_list(&images, SampleSeed::new(7, 0, 0), &mut scratch, &mut row)?;
    /// assert_eq!((row.length(), row.bytes()), (2, &[255, 0, 0, 0, 0, 255][..]));
    ///
    /// let images = vec![&red[..], b"not an image"];
    /// let error = chain.apply_list(&images, SampleSeed::new(7, 0, 0), &mut scratch, &mut row).unwrap_err();
    /// assert!(error.message().starts_with("image 1 of the list: "));
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadSample`, with the number of the image (from 0), for what [`apply`](Self::apply) refuses; for more images than
    /// `max_images`, and for a row of over 1 GiB. The content of `out` is then unspecified, and `scratch` is ready for the next
    /// sample.
    ///
    /// # Panics
    /// Where the chain is not one of lists: that is a defect of the caller.
    pub fn apply_list(
        &self,
        images: &dyn ImageList,
        seed: SampleSeed,
        scratch: &mut Scratch,
        out: &mut RaggedRow,
    ) -> Result<()> {
        assert!(self.reads_lists(), "the chain is not one of lists");
        let seed = self.seed(seed);
        guarded(scratch, |scratch| {
            let warnings = self.plan.apply_list(images, seed, scratch, out)?;
            scratch.warnings.add(warnings);
            Ok(())
        })
    }
}

/// The chain of all images of a sample.
struct ListPlan {
    /// The chain of one of them.
    image: Arc<dyn Plan>,
    output: TensorSpec,
    max_images: u32,
}

impl ListPlan {
    /// Returns the number of images and the bytes of their row.
    fn size(&self, images: &dyn ImageList) -> Result<(u32, usize)> {
        let count = images.count();
        let within = u32::try_from(count).ok().filter(|count| *count <= self.max_images);
        let within = within.ok_or_else(|| {
            limits::over(format!("the list has {count} images"), "max_images", self.max_images)
        })?;
        match self.output.bytes_at(count).filter(|bytes| *bytes <= Chain::MAX_ROW_BYTES) {
            Some(bytes) => Ok((within, bytes)),
            None => Err(Error::bad_sample(format!(
                "the {count} images of the list have {:?} as one tensor, over {} bytes; make them smaller or set \
                 on_error=skip",
                self.output.shape_at(count),
                Chain::MAX_ROW_BYTES
            ))),
        }
    }

    /// Adds what the images `numbers` need to what the sample needs. It ends at the first image that has no header: the sample is
    /// bad, and runs no further than to that image.
    fn need_of(&self, images: &dyn ImageList, numbers: Range<u32>, seed: SampleSeed, scratch: &mut Scratch) {
        for number in numbers {
            let encoded = images.image(number as usize);
            if encoded.and_then(|bytes| self.image.need(bytes, seed.image(number), scratch)).is_err() {
                break;
            }
        }
    }
}

impl Plan for ListPlan {
    fn output(&self) -> &TensorSpec {
        &self.output
    }

    fn apply(&self, _: &[u8], _: SampleSeed, _: &mut Scratch, _: Row<'_>) -> Result<Warnings> {
        Err(Error::bug("a chain of lists is given one image"))
    }

    fn deferring(&self, _: f64) -> Result<Arc<dyn Plan>> {
        Err(Error::config("a GPU decodes for chains of one image; lists of images are decoded by CPUs"))
    }

    fn reads_lists(&self) -> bool {
        true
    }

    fn apply_list(
        &self,
        images: &dyn ImageList,
        seed: SampleSeed,
        scratch: &mut Scratch,
        row: &mut RaggedRow,
    ) -> Result<Warnings> {
        let (count, bytes) = self.size(images)?;
        let (mut warnings, image_bytes) = (Warnings::default(), self.image.output().bytes());
        let rows = row.raw(count as usize, bytes).chunks_exact_mut(image_bytes.max(1));
        for (number, out) in (0..count).zip(rows) {
            let about = |error: Error| error.context(format!("image {number} of the list"));
            let encoded = images.image(number as usize).map_err(about)?;
            faults::meet(encoded);
            let found = self.image.apply(encoded, seed.image(number), scratch, Row::Fixed(out));
            match found {
                Ok(found) => warnings.add(found),
                Err(error) => {
                    if scratch.is_short(&error) {
                        self.need_of(images, number + 1..count, seed, scratch);
                    }
                    return Err(about(error));
                }
            }
        }
        Ok(warnings)
    }
}
