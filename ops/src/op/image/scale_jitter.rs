//! `scale_jitter`: resizes by a random factor (Ghiasi et al., arXiv 2012.07177).

use serde::{Deserialize, Serialize};

use crate::check::check_range;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::geometry::{Filter, MAX_SIDE, Size};
use crate::image::step::Resizing;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Resizes to a random share of the size at which the image just fits into `size`, and keeps its aspect ratio; as torchvision's
/// `ScaleJitter`. Images differ in size after it, so a crop or `pad_to` has to follow.
///
/// ```
/// use feedstock_ops::image::RandomCrop;
/// use feedstock_ops::{ChainSpec, decode_image, scale_jitter};
///
/// let crop = RandomCrop::new(512).pad_if_needed(true);
/// let chain = ChainSpec::from([decode_image(), scale_jitter(512), crop.into()]);
/// assert_eq!("decode_image,scale_jitter:512,random_crop:512:pad_if_needed=true".parse::<ChainSpec>()?, chain);
/// assert_eq!(chain.compile()?.output().shape, [512, 512, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ScaleJitter {
    /// Height and width into which the image fits at scale 1.
    pub size: Size,
    /// Least and greatest scale, above 0; default 0.1 … 2.
    #[serde(default = "default_scale")]
    pub scale_range: [f64; 2],
    /// The resampling filter; default bilinear.
    #[serde(default)]
    pub filter: Filter,
}

fn default_scale() -> [f64; 2] {
    [0.1, 2.0]
}

impl ScaleJitter {
    /// Scales around `size`: a side, or `[height, width]`.
    pub fn new(size: impl Into<Size>) -> Self {
        Self { size: size.into(), scale_range: default_scale(), filter: Filter::default() }
    }

    /// The scale, `[least, greatest]`.
    #[must_use]
    pub fn scale_range(self, scale_range: [f64; 2]) -> Self {
        Self { scale_range, ..self }
    }

    /// The resampling filter.
    #[must_use]
    pub fn filter(self, filter: Filter) -> Self {
        Self { filter, ..self }
    }
}

impl ImageOp for ScaleJitter {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.size.check()?;
        check_range("scale_range", self.scale_range, 1e-3, 1e3)?;
        compiler.resize(None, self.clone())
    }
}

impl Resizing for ScaleJitter {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "compared with a u32")]
    fn target(&self, image: Size, generator: &mut Generator) -> Result<Size> {
        let scale = generator.uniform(self.scale_range[0], self.scale_range[1]);
        let fit = |to: u32, side: u32| f64::from(to) / f64::from(side);
        let factor = fit(self.size.height, image.height).min(fit(self.size.width, image.width)) * scale;
        let sides = [image.height, image.width].map(|side| (f64::from(side) * factor).max(1.0));
        if let Some(side) = sides.into_iter().find(|side| *side > f64::from(MAX_SIDE)) {
            return Err(Error::bad_sample(format!(
                "scale_jitter: the image would become {side:.0} px long, over {MAX_SIDE}; lower scale_range"
            )));
        }
        Ok(sides.map(|side| side as u32).into())
    }

    fn filter(&self) -> Filter {
        self.filter
    }
}
