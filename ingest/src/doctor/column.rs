//! One column of encoded samples: what is refused, what there is, what is unusual.

use super::decoding::Decoding;
use super::spread::{Spread, Tally};
use crate::value::value;
use feedstock_dataset::{Block, Catalog};
use feedstock_ops::Warnings;
use feedstock_ops::audio::{read_audio_header, unsupported_codec};
use feedstock_ops::image::{read_header, read_mode};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

/// Shorter sides below this, in pixels, are unusual: smaller than any usual crop.
const SMALL_SIDE: u32 = 32;
/// Images over this many pixels are unusual: they take more than ten times as long as a photograph of ImageNet.
const LARGE_PIXELS: u64 = 16_000_000;
/// Longer sides over this multiple of the shorter one are unusual: crops see little of such an image.
const LONG_ASPECT: u32 = 4;
/// Audio clips below this many seconds are unusual: less than one analysis window of a spectrogram.
const SHORT_SECONDS: f64 = 0.1;
/// Audio clips over this many seconds are unusual: longer than speech models take.
const LONG_SECONDS: f64 = 30.0;
/// Examples named for each kind of unusual sample.
const EXAMPLES: usize = 3;

/// What the encoded bytes of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Medium {
    Image,
    Mask,
    Audio,
}

impl Medium {
    pub(super) fn of(catalog: &Catalog, column: &str, masks: &[String]) -> Self {
        match catalog.audio_columns().iter().any(|audio| audio == column) {
            true => Self::Audio,
            false if masks.iter().any(|mask| mask == column) => Self::Mask,
            false => Self::Image,
        }
    }
}

/// A sample that cannot be decoded.
#[derive(Debug, Clone, Serialize)]
pub struct Refusal {
    /// Its id.
    pub sample: u64,
    /// Its file, member or row.
    pub name: String,
    /// The error.
    pub reason: String,
}

/// Samples of one kind that a person should know of.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Unusual {
    /// How many.
    pub samples: u64,
    /// Up to three of them, by file, member or row.
    pub examples: Vec<String>,
}

/// What was found in one column.
#[derive(Debug, Clone, Serialize)]
pub struct ColumnReport {
    /// The column's name.
    pub column: String,
    medium: Medium,
    /// Samples that were decoded or refused.
    pub examined: u64,
    /// Samples that cannot be decoded: `on_error="raise"` ends at the first, `"skip"` replaces them.
    pub refused: u64,
    /// The first of the refused samples.
    pub refusals: Vec<Refusal>,
    /// Refused audio clips whose codec is recognised and not decoded, by its name: `ALAC`.
    pub unsupported: BTreeMap<String, Unusual>,
    /// Number of samples per file format.
    pub formats: BTreeMap<String, u64>,
    /// Number of images per stored colour mode, named as in Pillow: `RGB`, `L`, `CMYK`, `P` …
    pub modes: BTreeMap<String, u64>,
    /// Number of audio clips per sample rate in Hz and channel count, as `"16000 Hz, 1 channel(s)"`.
    pub rates: BTreeMap<String, u64>,
    /// Widths of the images, in pixels, as stored.
    #[serde(serialize_with = "spread")]
    width: Tally,
    /// Heights of the images, in pixels, as stored.
    #[serde(serialize_with = "spread")]
    height: Tally,
    /// Durations of the audio clips, in seconds.
    #[serde(serialize_with = "spread")]
    seconds: Tally,
    /// Samples that decode and that decoders warn about, by kind: see [`Warning`](feedstock_ops::Warning).
    pub warnings: BTreeMap<String, Unusual>,
    /// Samples that decode and are unusual, by what is unusual about them.
    pub unusual: BTreeMap<String, Unusual>,
}

fn spread<S: Serializer>(tally: &Tally, serializer: S) -> Result<S::Ok, S::Error> {
    tally.spread().serialize(serializer)
}

impl ColumnReport {
    pub(super) fn new(column: &str, medium: Medium) -> Self {
        Self {
            column: column.to_owned(),
            medium,
            examined: 0,
            refused: 0,
            refusals: Vec::new(),
            unsupported: BTreeMap::new(),
            formats: BTreeMap::new(),
            modes: BTreeMap::new(),
            rates: BTreeMap::new(),
            warnings: BTreeMap::new(),
            width: Tally::new(1.0),
            height: Tally::new(1.0),
            seconds: Tally::new(100.0),
            unusual: BTreeMap::new(),
        }
    }

    /// Returns the widths of the images, in pixels; `None` for audio.
    pub fn width(&self) -> Option<Spread> {
        self.width.spread()
    }

    /// Returns the heights of the images, in pixels; `None` for audio.
    pub fn height(&self) -> Option<Spread> {
        self.height.spread()
    }

    /// Returns the durations of the audio clips, in seconds; `None` for images.
    pub fn seconds(&self) -> Option<Spread> {
        self.seconds.spread()
    }

    /// Decodes one row.
    pub(super) fn examine(
        &mut self,
        decoding: &mut Decoding,
        (catalog, block, row): (&Catalog, &Block, usize),
        listed: usize,
    ) {
        self.examined += 1;
        let name = || catalog.describe_sample(block.sample(row));
        let value = value(&block.rows, &self.column, row);
        let decoded = match value {
            // A panic is a defect, which the report names like any other refusal.
            Ok(bytes) => std::panic::catch_unwind(AssertUnwindSafe(|| self.medium.decode(decoding, bytes)))
                .unwrap_or_else(|_| {
                    decoding.forget();
                    Err("decoding panicked: a defect in feedstock; please report it".to_owned())
                }),
            Err(problem) => Err(problem.to_owned()),
        };
        match decoded {
            Ok((facts, warnings)) => {
                self.add(facts, &name);
                warnings.iter().for_each(|warning| count(&mut self.warnings, warning.as_str(), &name));
            }
            Err(reason) => {
                self.refused += 1;
                if let Some(codec) = value.ok().and_then(|bytes| self.medium.unsupported(bytes)) {
                    count(&mut self.unsupported, codec, &name);
                }
                if self.refusals.len() < listed {
                    self.refusals.push(Refusal { sample: block.sample(row).0, name: name(), reason });
                }
            }
        }
    }

    fn add(&mut self, facts: Facts, name: &dyn Fn() -> String) {
        match facts {
            Facts::Image { format, mode, width, height } => {
                *self.formats.entry(format).or_default() += 1;
                *self.modes.entry(mode.to_owned()).or_default() += 1;
                self.width.add(width.into());
                self.height.add(height.into());
                let (short, long) = (width.min(height), width.max(height));
                self.note(short < SMALL_SIDE, &format!("a side below {SMALL_SIDE} px"), name);
                self.note(
                    u64::from(width) * u64::from(height) > LARGE_PIXELS,
                    &format!("over {} megapixels", LARGE_PIXELS / 1_000_000),
                    name,
                );
                self.note(
                    long > short.saturating_mul(LONG_ASPECT),
                    &format!("sides of a ratio over {LONG_ASPECT}:1"),
                    name,
                );
            }
            Facts::Audio { format, sample_rate, channels, seconds } => {
                *self.formats.entry(format).or_default() += 1;
                *self.rates.entry(format!("{sample_rate} Hz, {channels} channel(s)")).or_default() += 1;
                self.seconds.add(hundredths(seconds));
                self.note(seconds < SHORT_SECONDS, &format!("shorter than {SHORT_SECONDS} s"), name);
                self.note(seconds > LONG_SECONDS, &format!("longer than {LONG_SECONDS} s"), name);
            }
        }
    }

    fn note(&mut self, found: bool, what: &str, name: &dyn Fn() -> String) {
        if found {
            count(&mut self.unusual, what, name);
        }
    }

    pub(super) fn merge(&mut self, other: Self, listed: usize) {
        self.examined += other.examined;
        self.refused += other.refused;
        self.refusals.extend(other.refusals);
        // Threads take chunks in any order; a report does not depend on it as far as the lists are complete.
        self.refusals.sort_by_key(|refusal| refusal.sample);
        self.refusals.truncate(listed);
        let counts = [
            (&mut self.formats, other.formats),
            (&mut self.modes, other.modes),
            (&mut self.rates, other.rates),
        ];
        for (mine, theirs) in counts {
            for (what, count) in theirs {
                *mine.entry(what).or_default() += count;
            }
        }
        self.width.merge(other.width);
        self.height.merge(other.height);
        self.seconds.merge(other.seconds);
        let kinds = [
            (&mut self.unsupported, other.unsupported),
            (&mut self.warnings, other.warnings),
            (&mut self.unusual, other.unusual),
        ];
        for (mine, theirs) in kinds {
            for (what, theirs) in theirs {
                let mine = mine.entry(what).or_default();
                mine.samples += theirs.samples;
                mine.examples.extend(theirs.examples);
                mine.examples.sort();
                mine.examples.truncate(EXAMPLES);
            }
        }
    }
}

fn count(kinds: &mut BTreeMap<String, Unusual>, what: &str, name: &dyn Fn() -> String) {
    let kind = kinds.entry(what.to_owned()).or_default();
    kind.samples += 1;
    if kind.examples.len() < EXAMPLES {
        kind.examples.push(name());
    }
}

/// What a decoded sample is.
enum Facts {
    Image { format: String, mode: &'static str, width: u32, height: u32 },
    Audio { format: String, sample_rate: u32, channels: u32, seconds: f64 },
}

impl Medium {
    fn unsupported(self, bytes: &[u8]) -> Option<&'static str> {
        match self {
            Self::Image | Self::Mask => None,
            Self::Audio => unsupported_codec(bytes),
        }
    }

    fn decode(self, decoding: &mut Decoding, bytes: &[u8]) -> Result<(Facts, Warnings), String> {
        let decoded = match self {
            Self::Image => image(bytes, |bytes| decoding.image(bytes)),
            Self::Mask => image(bytes, |bytes| decoding.mask(bytes)),
            Self::Audio => audio(decoding, bytes),
        };
        decoded.map_err(|error| error.to_string())
    }
}

fn image(
    bytes: &[u8],
    decode: impl FnOnce(&[u8]) -> feedstock_ops::Result<Warnings>,
) -> feedstock_ops::Result<(Facts, Warnings)> {
    let (header, mode) = (read_header(bytes)?, read_mode(bytes)?);
    let warnings = decode(bytes)?;
    let format = header.format.to_string();
    Ok((Facts::Image { format, mode, width: header.width, height: header.height }, warnings))
}

fn audio(decoding: &mut Decoding, bytes: &[u8]) -> feedstock_ops::Result<(Facts, Warnings)> {
    let header = read_audio_header(bytes, bytes.len() as u64)?;
    let (samples, warnings) = decoding.audio(bytes)?;
    let seconds = samples as f64 / f64::from(header.sample_rate.max(1));
    let (format, sample_rate, channels) = (header.format.to_string(), header.sample_rate, header.channels);
    Ok((Facts::Audio { format, sample_rate, channels, seconds }, warnings))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float to int saturates")]
fn hundredths(seconds: f64) -> u64 {
    (seconds * 100.0).round() as u64
}
