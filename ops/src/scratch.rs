//! What one thread keeps between samples: buffers and codec handles, and the working memory that it may take for one.

use crate::warning::Warnings;
#[cfg(any(feature = "audio", feature = "image", feature = "text"))]
use crate::working::Scope;
use crate::working::is_exceeded;
#[cfg(any(feature = "audio", feature = "image", feature = "text"))]
use feedstock_base::Error;
use feedstock_base::Result;

/// The default of `decoder_memory`: bytes of working memory that one thread may take for one sample. 64 MiB is a 22-megapixel
/// RGB image, or 17 minutes of speech at 16 kHz.
pub const DECODER_MEMORY: u64 = 64 << 20;

/// Per-thread working memory of [`Chain::apply`](crate::Chain::apply); keep one per thread.
///
/// After any sample, good or bad, it is ready for the next. Buffers grow to the largest sample seen and are never
/// zeroed again. If a sample leaves more than [`DECODER_MEMORY`] (or what [`keep_at_most`](Self::keep_at_most) sets) in all
/// buffers together, they are freed.
pub struct Scratch {
    #[cfg(feature = "image")]
    pub(crate) image: crate::image::ImageScratch,
    #[cfg(feature = "audio")]
    pub(crate) audio: crate::audio::AudioScratch,
    #[cfg(feature = "text")]
    pub(crate) text: crate::text::TextScratch,
    pub(crate) warnings: Warnings,
    memory: Memory,
    most_kept_bytes: u64,
}

/// What a sample may take.
#[cfg_attr(
    not(any(feature = "audio", feature = "image", feature = "text")),
    allow(dead_code, reason = "no op needs it")
)]
struct Memory {
    /// `u64::MAX`: only the limits of ops apply.
    most_bytes: u64,
    /// What the sample at hand takes at most.
    most_of_sample: u64,
    /// What the last sample needs, if it was given up because that is more than `most_bytes`.
    needed: Option<u64>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            #[cfg(feature = "image")]
            image: Default::default(),
            #[cfg(feature = "audio")]
            audio: Default::default(),
            #[cfg(feature = "text")]
            text: Default::default(),
            warnings: Warnings::default(),
            memory: Memory { most_bytes: u64::MAX, most_of_sample: 0, needed: None },
            most_kept_bytes: DECODER_MEMORY,
        }
    }
}

impl Scratch {
    /// Nothing allocated yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Frees the buffers after each sample that leaves more than `bytes` in them.
    pub fn keep_at_most(&mut self, bytes: u64) {
        self.most_kept_bytes = bytes;
        self.trim();
    }

    /// Sets the working memory of each of the next samples: with the buffers that are kept, at most `bytes`.
    ///
    /// A chain predicts what a sample takes from its header, before it decodes anything. If that is more, the chain gives
    /// up the sample with an error, and [`take_needed`](Self::take_needed) returns the bytes that it needs. `u64::MAX`, the
    /// default, leaves only the limits of ops.
    pub fn allow(&mut self, bytes: u64) {
        self.memory.most_bytes = bytes;
    }

    /// Returns and forgets the working memory that the last sample needs, if it was given up for lack of it.
    ///
    /// With that much a chain may get further and find that the header is not true or the data are damaged; then it needs more
    /// once more, which is the most that the limits of ops allow for such a header.
    pub fn take_needed(&mut self) -> Option<u64> {
        self.memory.needed.take()
    }

    /// Decides how much of a sample may be decoded; `working` predicts what it takes.
    #[cfg(any(feature = "audio", feature = "image", feature = "text"))]
    pub(crate) fn admit(&mut self, working: impl Fn(Scope) -> u64) -> Result<Scope> {
        let allowed = self.memory.most_bytes;
        if allowed == u64::MAX {
            return Ok(Scope::Most);
        }
        let most = working(Scope::Most);
        let (scope, bytes) = match most <= allowed {
            true => (Scope::Most, most),
            false => (Scope::Stated, working(Scope::Stated)),
        };
        if bytes > allowed {
            self.memory.needed = Some(bytes);
            return Err(Error::bad_sample(format!(
                "decoding the sample takes up to {bytes} bytes of working memory, over {allowed}"
            )));
        }
        if self.kept_bytes().saturating_add(bytes) > allowed {
            self.free();
        }
        self.memory.most_of_sample = most;
        Ok(scope)
    }

    /// True where a limit on working memory is set.
    #[cfg(feature = "audio")]
    pub(crate) fn is_bounded(&self) -> bool {
        self.memory.most_bytes < u64::MAX
    }

    /// Bytes that the buffers hold.
    pub fn kept_bytes(&self) -> u64 {
        #[allow(unused_mut, reason = "without ops there are no buffers")]
        let mut bytes = 0;
        #[cfg(feature = "image")]
        {
            bytes += self.image.kept_bytes();
        }
        #[cfg(feature = "audio")]
        {
            bytes += self.audio.kept_bytes();
        }
        #[cfg(feature = "text")]
        {
            bytes += self.text.kept_bytes();
        }
        bytes as u64
    }

    /// Gets ready for the next sample after one that ended with `outcome`.
    pub(crate) fn end(&mut self, outcome: &Result<()>) {
        if outcome.as_ref().is_err_and(is_exceeded) {
            self.memory.needed = Some(self.memory.most_of_sample);
        }
        self.trim();
    }

    /// Frees the buffers if they hold too much.
    fn trim(&mut self) {
        if self.kept_bytes() > self.most_kept_bytes {
            self.free();
        }
    }

    /// Frees the buffers.
    pub(crate) fn free(&mut self) {
        #[cfg(feature = "image")]
        {
            self.image = Default::default();
        }
        #[cfg(feature = "audio")]
        {
            self.audio = Default::default();
        }
        #[cfg(feature = "text")]
        {
            self.text = Default::default();
        }
    }

    /// Returns and forgets the warnings about all samples that were decoded since the last call.
    ///
    /// Call it after each sample to know which one they are about. A sample that failed may have left some.
    pub fn take_warnings(&mut self) -> Warnings {
        std::mem::take(&mut self.warnings)
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}
