//! Boxes and keypoints that follow an image through the geometry of its chain, and the matrix of that geometry.
//!
//! ```text
//! stages of the chain + the image's size + the sample's seed ── motion.rs ──▶ [Scale, Shift, Flip, Warp …]
//! motions ── transform.rs ──▶ one matrix
//! numbers of the sample's list ── boxes.rs, keypoints.rs ──▶ the same list in the result's pixels, a ragged row
//! ```
//! Coordinates are in pixels of the decoded image, from its top left corner; x is to the right, y down. The arithmetic is that of
//! `torchvision.transforms.v2` with its defaults, in double precision. Cost: about 50 ns a box and op.

mod boxes;
mod groups;
mod keypoints;
mod motion;
mod plan;
mod transform;

use serde::{Deserialize, Serialize};

use feedstock_base::Result;

pub use boxes::{BoxFormat, Boxes};
pub use keypoints::Keypoints;
pub(crate) use plan::compile;

/// What follows an image through its chain.
///
/// ```
/// use feedstock_ops::image::{Annotation, BoxFormat, Boxes};
///
/// let boxes = Annotation::Boxes(Boxes::new(BoxFormat::Xywh).min_visibility(0.1));
/// let json = serde_json::to_string(&boxes).unwrap();
/// assert_eq!(serde_json::from_str::<Annotation>(&json).unwrap(), boxes);
/// assert_eq!(serde_json::from_str::<Annotation>(r#"{"kind": "keypoints"}"#).unwrap().name(), "keypoints");
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Annotation {
    /// Bounding boxes.
    Boxes(Boxes),
    /// Points with visibilities.
    Keypoints(Keypoints),
    /// The matrix from places in the decoded image to those in the result. It reads the image's size, and no numbers.
    ///
    /// A row is f32 [3, 3]: the matrix takes (x, y, 1), in pixels from the top left corner, to (a, b, c), and the place in the result
    /// is (a / c, b / c). A box goes where its corners go, before it is cut off at the edges.
    Transform,
}

impl Annotation {
    /// Returns `boxes`, `keypoints` or `transform`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Boxes(_) => "boxes",
            Self::Keypoints(_) => "keypoints",
            Self::Transform => "transform",
        }
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// `BadConfig` with the reason.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Boxes(boxes) => boxes.check(),
            Self::Keypoints(keypoints) => keypoints.check(),
            Self::Transform => Ok(()),
        }
    }
}
