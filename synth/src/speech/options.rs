//! The options of Common Voice-like sample data.

use super::cast::Cast;
use super::espeak::is_installed as espeak_is_installed;
use super::length::{LONGEST_MS, SHORTEST_MS};
use super::locale::Locale;
use crate::names::by_name;
use crate::range::in_range;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// Layout of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommonVoiceLayout {
    /// Mozilla's unpacked archive: `<locale>/clips/*.mp3`,
    /// `<locale>/{train,dev,test,validated,invalidated,other}.tsv` and `<locale>/clip_durations.tsv`.
    Mozilla,
    /// Mozilla's archive: `cv-corpus-17.0-2024-03-15-<locale>.tar.gz`, with the files of [`CommonVoiceLayout::Mozilla`].
    MozillaTarGz,
    /// The form that Hugging Face's loading script reads: `audio/<locale>/<split>/<locale>_<split>_<i>.tar`,
    /// `transcript/<locale>/<split>.tsv` and `n_shards.json`.
    HfTars,
    /// Hugging Face Parquet: `data/<split>-00000-of-0000N.parquet` with `audio: struct<bytes, path>`.
    Parquet,
    /// `common-voice-<split>-000000.tar` … with `.mp3`, `.txt` and `.json` members.
    WebDataset,
}

impl CommonVoiceLayout {
    /// All layouts.
    pub const ALL: [Self; 5] =
        [Self::Mozilla, Self::MozillaTarGz, Self::HfTars, Self::Parquet, Self::WebDataset];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mozilla => "mozilla",
            Self::MozillaTarGz => "mozilla-tar-gz",
            Self::HfTars => "hf-tars",
            Self::Parquet => "parquet",
            Self::WebDataset => "webdataset",
        }
    }
}

impl fmt::Display for CommonVoiceLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CommonVoiceLayout {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        by_name("layout", &Self::ALL, Self::name, name)
    }
}

/// The voice that speaks the sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Voice {
    /// espeak-ng if it is installed, else the formant synthesiser.
    #[default]
    Auto,
    /// The program espeak-ng, which is intelligible. Its audio, and so the bytes, depend on the installed version.
    Espeak,
    /// The formant synthesiser of this crate: voiced and unvoiced sounds, pauses and melody, hardly intelligible. The
    /// same options make the same bytes.
    Formant,
}

impl Voice {
    /// All voices.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Espeak, Self::Formant];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Espeak => "espeak",
            Self::Formant => "formant",
        }
    }
}

impl fmt::Display for Voice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Voice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        by_name("voice", &Self::ALL, Self::name, name)
    }
}

/// Options of a Common Voice-like data set; see [`CommonVoiceOptions::default`] for the defaults.
///
/// The same options write the same bytes with any number of threads. With [`Voice::Formant`] this holds per platform,
/// because the encoder and the synthesiser use the platform's mathematical library.
///
/// ```
/// use feedstock_synth::{CommonVoiceOptions, Narrator};
///
/// let options = CommonVoiceOptions { mean_seconds: 30.0, ..CommonVoiceOptions::default() };
/// let error = Narrator::new(&options).err().unwrap();
/// assert_eq!(
///     error.message(),
///     "mean_seconds must be from 1.5 to 9, because audio clips last 1 to 12 s; got 30"
/// );
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CommonVoiceOptions {
    /// Number of audio clips, 1 … 2^32 − 1. Default 2000 (2.8 hours, 80 MB).
    pub samples: u64,
    /// Seed of all random choices. Default 1.
    pub seed: u64,
    /// Layout of the files. Default [`CommonVoiceLayout::Mozilla`].
    pub layout: CommonVoiceLayout,
    /// Languages; successive audio clips cycle through them. Default English.
    pub locales: Vec<Locale>,
    /// The voice. Default [`Voice::Auto`].
    pub voice: Voice,
    /// Mean duration in seconds, 1.5 … 9. Durations are between 1 and 12 s. Default 5, as in Common Voice.
    pub mean_seconds: f64,
    /// Audio clips per shard (hf-tars, Parquet, WebDataset). Default 500 (20 MB).
    pub samples_per_shard: u64,
    /// Rows per Parquet row group. Default 100 (4 MB), as `datasets` writes audio.
    pub rows_per_group: usize,
    /// Number of threads. Default: one per core.
    pub threads: usize,
    /// Replace sample data that is already in the folder. By default, a folder that is not empty is an error. Files
    /// that this crate does not write are never deleted.
    pub overwrite: bool,
}

impl Default for CommonVoiceOptions {
    fn default() -> Self {
        Self {
            samples: 2000,
            seed: 1,
            layout: CommonVoiceLayout::Mozilla,
            locales: vec![Locale::English],
            voice: Voice::Auto,
            mean_seconds: 5.0,
            samples_per_shard: 500,
            rows_per_group: 100,
            threads: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            overwrite: false,
        }
    }
}

impl CommonVoiceOptions {
    /// Returns the voice that [`Voice::Auto`] stands for on this machine.
    ///
    /// # Errors
    /// `BadConfig` if espeak-ng is requested but not installed.
    pub fn voice_used(&self) -> Result<Voice> {
        match self.voice {
            Voice::Formant => Ok(Voice::Formant),
            asked if espeak_is_installed() => Ok(if asked == Voice::Auto { Voice::Espeak } else { asked }),
            Voice::Auto => Ok(Voice::Formant),
            Voice::Espeak => Err(Error::config(
                "espeak-ng is not installed (no such command in PATH); install it, or choose the voice formant",
            )),
        }
    }

    /// Validates every option.
    pub(crate) fn check(&self) -> Result<()> {
        let most = u64::from(u32::MAX);
        in_range("samples", self.samples, 1, most)?;
        in_range("samples_per_shard", self.samples_per_shard, 1, most)?;
        in_range("rows_per_group", self.rows_per_group as u64, 1, most)?;
        in_range("threads", self.threads as u64, 1, 1024)?;
        let (least, longest) = (1.5 * SHORTEST_MS / 1000.0, 0.75 * LONGEST_MS / 1000.0);
        if !(least..=longest).contains(&self.mean_seconds) {
            let message = format!(
                "mean_seconds must be from {least} to {longest}, because audio clips last {} to {} s; got {}",
                SHORTEST_MS / 1000.0,
                LONGEST_MS / 1000.0,
                self.mean_seconds
            );
            return Err(Error::config(message));
        }
        let distinct: BTreeSet<Locale> = self.locales.iter().copied().collect();
        if self.locales.is_empty() || distinct.len() != self.locales.len() {
            return Err(Error::config("locales must name at least one language, and each only once"));
        }
        Ok(())
    }

    pub(crate) fn cast(&self) -> Cast {
        Cast::new(self.seed, self.samples, &self.locales, self.mean_seconds)
    }
}
