//! What is unusual about a sample that was decoded.

use std::fmt;

/// Something unusual about a sample that was decoded. It is neither an error nor a known loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Warning {
    /// The container cannot prove where the audio clip ends: Ogg without the end-of-stream flag, MP3 without a count of
    /// its frames, ADTS, or FLAC, WAV or fragmented MP4 whose header states no length. A missing end would go
    /// unnoticed.
    EndUnknown,
    /// The Ogg audio clip is a chain of streams, of which only the first was decoded.
    LaterStreams,
    /// The image is damaged, but its decoder reached the end: some of its pixels may be wrong. libjpeg warned about the
    /// JPEG, or the PNG's image data do not have their checksum or lack the end. Pillow decodes such files silently.
    DamagedData,
}

impl Warning {
    /// Every warning.
    pub const ALL: [Self; 3] = [Self::EndUnknown, Self::LaterStreams, Self::DamagedData];

    /// Returns the warning's name in reports: `end_unknown`, `later_streams` or `damaged_data`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EndUnknown => "end_unknown",
            Self::LaterStreams => "later_streams",
            Self::DamagedData => "damaged_data",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::EndUnknown => 1,
            Self::LaterStreams => 2,
            Self::DamagedData => 4,
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of [`Warning`]s. It needs no allocation.
///
/// ```
/// use feedstock_ops::{Warning, Warnings};
///
/// let mut found: Warnings = [Warning::DamagedData].into_iter().collect();
/// found.add([Warning::EndUnknown].into_iter().collect());
/// let names: Vec<&str> = found.iter().map(Warning::as_str).collect();
/// assert_eq!(names, ["end_unknown", "damaged_data"]);
/// assert_eq!(Warnings::from_bits(found.bits()), Some(found));
/// assert_eq!(Warnings::from_bits(128), None);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Warnings(u8);

impl Warnings {
    /// Returns true if there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether `warning` is one of them.
    pub fn contains(self, warning: Warning) -> bool {
        self.0 & warning.bit() != 0
    }

    /// Lists them in the order of [`Warning::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Warning> {
        Warning::ALL.into_iter().filter(move |warning| self.contains(*warning))
    }

    /// Returns the set as bits, which mean the same to all programs of one [`OPS_VERSION`](crate::OPS_VERSION).
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Returns the set that [`bits`](Self::bits) stands for; `None` where a bit stands for no warning.
    pub fn from_bits(bits: u8) -> Option<Self> {
        let known: Self = Warning::ALL.into_iter().collect();
        (bits & !known.0 == 0).then_some(Self(bits))
    }

    /// Adds the warnings of another set.
    pub fn add(&mut self, others: Self) {
        self.0 |= others.0;
    }
}

impl FromIterator<Warning> for Warnings {
    fn from_iter<T: IntoIterator<Item = Warning>>(warnings: T) -> Self {
        Self(warnings.into_iter().fold(0, |bits, warning| bits | warning.bit()))
    }
}

impl fmt::Debug for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
