//! What an op on images has to implement, and how a chain of them is compiled.

use super::convert::Convert;
use super::decode::{DecodeImage, DecodeMode};
use super::fill::{Fill, PaddingMode};
use super::geometry::{Filter, Size};
use super::in_place::{Choice, Group, InPlace, Mirror, PixelOp, Warp, WarpByNearest};
use super::layers::Layers;
use super::sampler::Depth;
use super::stages::{Stage, Stages};
use super::step::{ByNearest, Crop, CropByBoxes, FloatOp, ResizedCrop, Resizing, Step, Turn};
use super::warp::{Interpolation, WarpStyle};
use crate::plan::{Named, at};
use crate::resources::Needs;
use crate::spec::{DType, Layout, TensorSpec};
use feedstock_base::{Error, Result};

/// An op on images.
pub(crate) trait ImageOp {
    /// Checks the parameters, and adds what the op does to the chain.
    ///
    /// # Errors
    /// `BadConfig` with the reason.
    fn compile(&self, compiler: &mut Compiler) -> Result<()>;

    /// Returns the options of the op that decodes; `None` for all others.
    fn decoder(&self) -> Option<&DecodeImage> {
        None
    }

    /// True if the op takes a sample's bytes, so that a chain can start with it.
    fn takes_bytes(&self) -> bool {
        self.decoder().is_some()
    }

    /// Lists what the op refers to.
    fn refer(&self, _: &mut Needs) {}
}

/// The ops before the one that is added.
pub(crate) struct Compiler {
    index: usize,
    stages: Vec<Stage>,
    size: Option<Size>,
    convert: Convert,
    normalized: bool,
    floats: Vec<(usize, Box<dyn FloatOp>)>,
    /// True if an op averages pixels.
    averages: bool,
    /// True if there are no pixels, but boxes or keypoints.
    annotates: bool,
}

impl Compiler {
    fn new(mode: DecodeMode) -> Self {
        Self {
            index: 0,
            stages: Vec::new(),
            size: None,
            convert: Convert::of_mode(mode),
            normalized: false,
            floats: Vec::new(),
            averages: false,
            annotates: false,
        }
    }

    fn push(&mut self, step: Step) -> Result<()> {
        if self.is_f32() {
            let mirror_commutes = matches!(step, Step::InPlace(InPlace::Mirror(_))) && self.floats.is_empty();
            if !mirror_commutes {
                return Err(Error::config("works on bytes; put it before to_f32 and normalize"));
            }
        }
        self.stages.push(Stage { index: self.index, step });
        Ok(())
    }

    /// True if the image is a mask of classes, whose values are no colours.
    fn is_mask(&self) -> bool {
        self.convert.mode == DecodeMode::Indices
    }

    /// True if the image has one channel of grey values.
    pub(crate) fn is_gray(&self) -> bool {
        matches!(self.convert.mode, DecodeMode::Gray | DecodeMode::Gray16)
    }

    /// True if the image has alpha.
    fn has_alpha(&self) -> bool {
        self.convert.mode == DecodeMode::Rgba
    }

    /// The size that every image has here, if it is the same for all.
    pub(crate) fn size(&self) -> Option<Size> {
        self.size
    }

    /// True after the conversion to f32.
    pub(crate) fn is_f32(&self) -> bool {
        self.convert.dtype == DType::F32
    }

    /// Adds a crop, to `size` if all images get the same.
    pub(crate) fn crop(&mut self, size: impl Into<Option<Size>>, crop: impl Crop + 'static) -> Result<()> {
        self.check_fill(crop.padding().1)?;
        if self.annotates && crop.padding().0 != PaddingMode::Constant {
            return Err(Error::config(
                "padding_mode must be \"constant\"; boxes and keypoints do not repeat in padding",
            ));
        }
        self.size = size.into();
        self.push(Step::Crop(Box::new(crop)))
    }

    /// Adds a resize, to `size` if all images get the same.
    pub(crate) fn resize(&mut self, size: Option<Size>, resize: impl Resizing + 'static) -> Result<()> {
        self.size = size;
        self.averages |= resize.filter() != Filter::Nearest;
        let is_mask = self.is_mask();
        self.push(Step::Resize(if is_mask { Box::new(ByNearest(resize)) } else { Box::new(resize) }))
    }

    pub(crate) fn resized_crop(&mut self, crop: impl ResizedCrop + 'static) -> Result<()> {
        self.size = Some(crop.size());
        self.averages |= crop.filter() != Filter::Nearest;
        let is_mask = self.is_mask();
        self.push(Step::ResizedCrop(if is_mask { Box::new(ByNearest(crop)) } else { Box::new(crop) }))
    }

    /// Adds a crop that the sample's boxes draw. The seed has room for one.
    pub(crate) fn crop_by_boxes(&mut self, crop: impl CropByBoxes + 'static) -> Result<()> {
        if self.stages.iter().any(|stage| matches!(stage.step, Step::CropByBoxes(_))) {
            return Err(Error::config("comes once in a chain"));
        }
        self.size = None;
        self.push(Step::CropByBoxes(Box::new(crop)))
    }

    pub(crate) fn mirror(&mut self, mirror: impl Mirror + 'static) -> Result<()> {
        self.push(Step::InPlace(InPlace::Mirror(Box::new(mirror))))
    }

    /// Adds a warp, which takes the nearest pixels of a mask.
    pub(crate) fn warp(&mut self, warp: impl Warp + 'static) -> Result<()> {
        self.check_style(warp.style())?;
        let warp: Box<dyn Warp> = if self.is_mask() { Box::new(WarpByNearest(warp)) } else { Box::new(warp) };
        self.push(Step::InPlace(InPlace::Warp(warp)))
    }

    /// Adds a turn after which images differ in size. It takes the nearest pixels of a mask.
    pub(crate) fn turn(&mut self, turn: impl Turn + 'static) -> Result<()> {
        self.check_style(turn.style())?;
        self.size = None;
        let is_mask = self.is_mask();
        self.push(Step::Turn(if is_mask { Box::new(ByNearest(turn)) } else { Box::new(turn) }))
    }

    /// # Errors
    /// `BadConfig` for a colour or an interpolation that the image's type does not have.
    fn check_style(&mut self, style: WarpStyle) -> Result<()> {
        self.check_fill(style.fill)?;
        match style.interpolation {
            Interpolation::Nearest => Ok(()),
            _ => {
                self.averages = true;
                self.check_depth()
            }
        }
    }

    /// # Errors
    /// `BadConfig` where values have 16 bits.
    fn check_depth(&self) -> Result<()> {
        match self.convert.mode.depth() {
            Depth::Eight => Ok(()),
            Depth::Sixteen => {
                Err(Error::config("works on 8 bits a channel; with mode=\"gray16\", put it out of the chain"))
            }
        }
    }

    /// # Errors
    /// `BadConfig` for a colour where the image has one channel, and for any but 0 where it has alpha.
    pub(crate) fn check_fill(&self, fill: Fill) -> Result<()> {
        if self.has_alpha() && fill != Fill::from(0) {
            return Err(Error::config(
                "fill must be 0 for an image with alpha (mode=\"rgba\"), whose padding is transparent",
            ));
        }
        if self.has_alpha() || fill.is_gray() || self.convert.mode.is_rgb() || self.annotates {
            return Ok(());
        }
        Err(Error::config("fill must be one number for an image of one channel"))
    }

    /// Adds a group of ops that keep the image's size and type, of which `choice` runs some.
    pub(crate) fn group(
        &mut self,
        ops: &[Named<'_, dyn ImageOp>],
        choice: impl Choice + 'static,
    ) -> Result<()> {
        if ops.is_empty() {
            return Err(Error::config("ops must have at least one op"));
        }
        let (outer, before) = (self.index, (self.convert, self.floats.len()));
        let (stages, mut steps) = (std::mem::take(&mut self.stages), Vec::new());
        for (index, Named { name, op }) in ops.iter().enumerate() {
            self.index = index;
            self.add(*op).map_err(at(index, name))?;
            let mut keeps_image = (self.convert, self.floats.len()) == before;
            for Stage { index, step } in self.stages.drain(..) {
                match step {
                    Step::InPlace(step) => steps.push((index, step)),
                    _ => keeps_image = false,
                }
            }
            if !keeps_image {
                let error = "changes the image's size or type; ops that run at random must keep both";
                return Err(at(index, name)(Error::config(error)));
            }
        }
        (self.index, self.stages) = (outer, stages);
        self.push(Step::InPlace(InPlace::Group(Group { choice: Box::new(choice), steps })))
    }

    fn add(&mut self, op: Option<&dyn ImageOp>) -> Result<()> {
        op.map_or_else(|| Err(Error::config("does not work on images")), |op| op.compile(self))
    }

    /// Adds an op on colours, which leaves masks unchanged.
    pub(crate) fn pixels(&mut self, op: impl PixelOp + 'static) -> Result<()> {
        if self.is_mask() && op.moves_pixels() {
            return Err(Error::config(
                "moves pixels of the image, which masks, boxes and keypoints cannot follow",
            ));
        }
        if self.is_mask() {
            return Ok(());
        }
        self.check_opaque()?;
        self.check_depth()?;
        self.push(Step::InPlace(InPlace::Pixels(Box::new(op))))
    }

    /// # Errors
    /// `BadConfig` where the image has alpha.
    fn check_opaque(&self) -> Result<()> {
        match self.has_alpha() {
            true => Err(Error::config(
                "works on colours without alpha; decode with mode=\"rgb\", or leave it out",
            )),
            false => Ok(()),
        }
    }

    /// Adds an op on the converted image, of three channels.
    pub(crate) fn floats(&mut self, op: impl FloatOp + 'static) -> Result<()> {
        self.check_opaque()?;
        if self.is_gray() {
            return Err(Error::config("works on one channel only before to_f32 and normalize"));
        }
        self.floats.push((self.index, Box::new(op)));
        Ok(())
    }

    /// Converts to f32 in 0 … 1.
    pub(crate) fn convert_to_f32(&mut self) -> Result<()> {
        if self.is_f32() {
            return Err(Error::config("the image is f32 already"));
        }
        if self.is_mask() {
            return Ok(());
        }
        self.convert.unit();
        Ok(())
    }

    /// Converts to f32: value · scale + bias for each channel.
    pub(crate) fn normalize(&mut self, scale_and_bias: ([f32; 3], [f32; 3])) -> Result<()> {
        if self.normalized || !self.floats.is_empty() {
            return Err(Error::config("comes once, and before random_erasing of f32"));
        }
        self.normalized = true;
        let of_channel = |channel: usize| (scale_and_bias.0[channel], scale_and_bias.1[channel]);
        match self.convert.mode {
            DecodeMode::Indices => return Ok(()),
            DecodeMode::Rgba => {
                return Err(Error::config(
                    "has the mean and std of three channels, and the image has alpha (mode=\"rgba\"); to_f32 converts all four to 0 … 1",
                ));
            }
            DecodeMode::Gray | DecodeMode::Gray16
                if of_channel(1) != of_channel(0) || of_channel(2) != of_channel(0) =>
            {
                return Err(Error::config(
                    "the image has one channel (mode=\"gray\" or \"gray16\"); give mean and std three times the same number",
                ));
            }
            DecodeMode::Gray | DecodeMode::Gray16 | DecodeMode::Rgb => {}
        }
        self.convert.normalize(scale_and_bias);
        Ok(())
    }

    /// Lays the result out with channels first.
    pub(crate) fn channels_first(&mut self) {
        if !self.is_mask() {
            self.convert.layout = Layout::Chw;
        }
    }

    fn finish(self, decode: DecodeImage) -> Result<Stages> {
        let Self { stages, size, convert, floats, averages, .. } = self;
        let size = size.ok_or_else(|| {
            Error::config(
                "the chain has no fixed output size, so its rows cannot form a batch; add random_resized_crop:224, \
                 center_crop:224, or resize:224x224",
            )
        })?;
        let (h, w) = (size.height as usize, size.width as usize);
        let shape = match (convert.layout, convert.channels()) {
            (Layout::Hw, _) => vec![h, w],
            (Layout::Chw, channels) => vec![channels, h, w],
            (_, channels) => vec![h, w, channels],
        };
        let output = TensorSpec::new(convert.dtype, shape, convert.layout);
        let (convert, layers) = match convert.mode {
            DecodeMode::Rgba => {
                (Convert::of_mode(DecodeMode::Rgb), Some(Layers { joined: convert, averages }))
            }
            _ => (convert, None),
        };
        let flips = if convert.is_identity() {
            0
        } else {
            stages.iter().rev().take_while(|stage| stage.is_flip()).count()
        };
        let flips_in_convert = stages.len() - flips;
        let geometry_end = stages.iter().rposition(|stage| stage.step.is_geometry()).map_or(0, |i| i + 1);
        Ok(Stages {
            decode,
            list: stages,
            geometry_end,
            flips_in_convert,
            convert,
            layers,
            floats,
            size,
            output,
        })
    }
}

/// Compiles a chain that starts with `decode_image`.
pub(super) fn stages(ops: &[Named<'_, dyn ImageOp>]) -> Result<Stages> {
    let Some((decode, rest)) = ops.split_first().and_then(|(first, rest)| Some((first.op?.decoder()?, rest)))
    else {
        return Err(Error::bug("a chain of images is compiled from its decode_image on"));
    };
    decode.check().map_err(at(0, ops[0].name))?;
    compiled(Compiler::new(decode.mode), decode.clone(), rest)
}

/// Compiles the ops after an image's decoder for boxes or keypoints. As for a mask, only geometry is left of them.
pub(super) fn annotation_stages(ops: &[Named<'_, dyn ImageOp>]) -> Result<Stages> {
    let mode = DecodeMode::Indices;
    compiled(Compiler { annotates: true, ..Compiler::new(mode) }, DecodeImage::new().mode(mode), ops)
}

fn compiled(mut compiler: Compiler, decode: DecodeImage, ops: &[Named<'_, dyn ImageOp>]) -> Result<Stages> {
    for (index, Named { name, op }) in (1..).zip(ops) {
        compiler.index = index;
        compiler.add(*op).map_err(at(index, name))?;
    }
    compiler.finish(decode)
}
