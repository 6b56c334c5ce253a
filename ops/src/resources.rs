//! What ops need besides their parameters: bytes that the caller loads, because ops do no I/O.

use std::collections::HashMap;
use std::sync::Arc;

/// Named things that a chain's ops refer to by the URI in their description.
///
/// [`ChainSpec::needs`](crate::ChainSpec::needs) lists what to load; a chain that lacks one does not compile.
///
/// ```
/// use feedstock_ops::{Need, Resources, tokenize};
/// use feedstock_ops::ChainSpec;
///
/// let spec = ChainSpec::from([tokenize("s3://b/tokenizer.json")]);
/// let mut resources = Resources::new();
/// for need in spec.needs() {
///     let Need::File(uri) = need else { continue };
///     resources = resources.with_file(&uri, &b"{}"[..]); // read from storage
/// }
/// assert!(resources.file("s3://b/tokenizer.json").is_some());
/// assert!(resources.noise("s3://b/noise").is_none());
/// ```
#[derive(Clone, Default)]
pub struct Resources {
    files: HashMap<String, Arc<[u8]>>,
    noise: HashMap<String, Arc<Noise>>,
    impulse_responses: HashMap<String, Arc<Noise>>,
}

/// Something that an op refers to by its URI.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Need {
    /// The bytes of one file: a tokenizer.
    File(String),
    /// The audio clips of a data set, decoded to mono at this rate in Hz: noise to mix in.
    Noise {
        /// The data set.
        uri: String,
        /// Samples per second of the decoded audio clips.
        sample_rate: u32,
    },
    /// The audio clips of a data set, decoded to mono at this rate in Hz: impulse responses to convolve with.
    ImpulseResponses {
        /// The data set.
        uri: String,
        /// Samples per second of the decoded audio clips.
        sample_rate: u32,
    },
}

impl Need {
    /// Returns its URI.
    pub fn uri(&self) -> &str {
        match self {
            Self::File(uri) | Self::Noise { uri, .. } | Self::ImpulseResponses { uri, .. } => uri,
        }
    }
}

/// Collects what the ops of a chain refer to.
#[derive(Default)]
pub(crate) struct Needs {
    list: Vec<Need>,
    /// The rate that audio clips have after the ops so far, if it is known.
    sample_rate: Option<u32>,
}

impl Needs {
    /// Each need once, sorted.
    pub(crate) fn list(mut self) -> Vec<Need> {
        self.list.sort_unstable();
        self.list.dedup();
        self.list
    }

    pub(crate) fn file(&mut self, uri: &str) {
        self.list.push(Need::File(uri.to_owned()));
    }

    /// A data set of noise, at the rate that audio clips have here. Without a rate the chain does not compile, and the
    /// error states why.
    pub(crate) fn noise(&mut self, uri: &str) {
        let need = |sample_rate| Need::Noise { uri: uri.to_owned(), sample_rate };
        self.list.extend(self.sample_rate.map(need));
    }

    /// A data set of impulse responses, at the rate that audio clips have here, as for [`noise`](Self::noise).
    pub(crate) fn impulse_responses(&mut self, uri: &str) {
        let need = |sample_rate| Need::ImpulseResponses { uri: uri.to_owned(), sample_rate };
        self.list.extend(self.sample_rate.map(need));
    }

    /// All audio clips have this rate from here on.
    pub(crate) fn set_sample_rate(&mut self, sample_rate: u32) {
        self.sample_rate = Some(sample_rate);
    }
}

/// Decoded audio clips, mono: noise or impulse responses.
#[derive(Debug, Clone, Default)]
pub struct Noise {
    /// Samples per second.
    pub sample_rate: u32,
    /// One waveform per audio clip, none of them empty.
    pub clips: Vec<Vec<f32>>,
}

impl Resources {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the bytes of the file that ops call `uri`.
    #[must_use]
    pub fn with_file(mut self, uri: &str, bytes: impl Into<Arc<[u8]>>) -> Self {
        self.files.insert(uri.to_owned(), bytes.into());
        self
    }

    /// Adds the noise that ops call `uri`.
    #[must_use]
    pub fn with_noise(mut self, uri: &str, noise: Noise) -> Self {
        self.noise.insert(uri.to_owned(), Arc::new(noise));
        self
    }

    /// Adds the impulse responses that ops call `uri`.
    #[must_use]
    pub fn with_impulse_responses(mut self, uri: &str, responses: Noise) -> Self {
        self.impulse_responses.insert(uri.to_owned(), Arc::new(responses));
        self
    }

    /// Returns the bytes of the file that ops call `uri`.
    pub fn file(&self, uri: &str) -> Option<&Arc<[u8]>> {
        self.files.get(uri)
    }

    /// Returns the noise that ops call `uri`.
    pub fn noise(&self, uri: &str) -> Option<&Arc<Noise>> {
        self.noise.get(uri)
    }

    /// Returns the impulse responses that ops call `uri`.
    pub fn impulse_responses(&self, uri: &str) -> Option<&Arc<Noise>> {
        self.impulse_responses.get(uri)
    }
}

impl std::fmt::Debug for Resources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resources")
            .field("files", &self.files.keys())
            .field("noise", &self.noise.keys())
            .field("impulse_responses", &self.impulse_responses.keys())
            .finish()
    }
}
