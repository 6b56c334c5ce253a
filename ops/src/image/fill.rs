//! What is around an image: a value, or the image's pixels again.

use serde::{Deserialize, Serialize};

/// The value of pixels outside of the image; in JSON one number for every channel, or three for red, green and blue.
///
/// ```
/// use feedstock_ops::image::Fill;
///
/// assert_eq!(serde_json::from_str::<Fill>("7").unwrap(), Fill([7; 3]));
/// assert_eq!(serde_json::to_string(&Fill::from([124, 116, 104])).unwrap(), "[124,116,104]");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "Form", into = "Form")]
pub struct Fill(pub [u8; 3]);

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number from 0 to 255, or three as 124/116/104")]
enum Form {
    One(u8),
    Three([u8; 3]),
}

impl From<Form> for Fill {
    fn from(form: Form) -> Self {
        match form {
            Form::One(value) => value.into(),
            Form::Three(values) => values.into(),
        }
    }
}

impl From<Fill> for Form {
    fn from(fill: Fill) -> Self {
        if fill.is_gray() { Self::One(fill.0[0]) } else { Self::Three(fill.0) }
    }
}

impl From<u8> for Fill {
    fn from(value: u8) -> Self {
        Self([value; 3])
    }
}

impl From<[u8; 3]> for Fill {
    fn from(values: [u8; 3]) -> Self {
        Self(values)
    }
}

impl Fill {
    /// True if all channels have one value.
    pub(crate) fn is_gray(self) -> bool {
        self.0[1] == self.0[0] && self.0[2] == self.0[0]
    }

    /// Writes it to every pixel.
    pub(crate) fn write(self, pixels: &mut [u8]) {
        if self.is_gray() {
            return pixels.fill(self.0[0]);
        }
        pixels.chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&self.0));
    }
}

/// What padding shows; the names are torchvision's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PaddingMode {
    /// One value.
    #[default]
    Constant,
    /// The nearest pixel of the image.
    Edge,
    /// The image mirrored at the centres of its outermost pixels: they are not repeated.
    Reflect,
    /// The image mirrored at its edges: the outermost pixels are repeated.
    Symmetric,
}

impl PaddingMode {
    /// Returns the index within `0 … length − 1` that is shown at `index`; `None` outside of the image for `Constant`.
    pub(crate) fn inside(self, index: i64, length: u32) -> Option<usize> {
        let length = i64::from(length);
        let bounce = |period: i64, overlap: i64| {
            let at = index.rem_euclid(period);
            if at < length { at } else { period - overlap - at }
        };
        let index = match self {
            Self::Constant => index,
            Self::Edge => index.clamp(0, length - 1),
            Self::Reflect if length == 1 => 0,
            Self::Reflect => bounce(2 * length - 2, 0),
            Self::Symmetric => bounce(2 * length, 1),
        };
        usize::try_from(index).ok().filter(|_| index < length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_repeat_as_numpys() {
        // np.pad([0, 1, 2], 7, mode)
        for (mode, expected) in [
            (PaddingMode::Edge, [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 2]),
            (PaddingMode::Reflect, [1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1]),
            (PaddingMode::Symmetric, [0, 0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0, 1, 2, 2]),
        ] {
            let shown: Vec<usize> = (-7..10).map(|index| mode.inside(index, 3).unwrap()).collect();
            assert_eq!(shown, expected, "{mode:?}");
            assert!((-7..10).all(|index| mode.inside(index, 1) == Some(0)), "{mode:?}");
        }
        let constant: Vec<_> = (-1..4).map(|index| PaddingMode::Constant.inside(index, 3)).collect();
        assert_eq!(constant, [None, Some(0), Some(1), Some(2), None]);
    }
}
