//! What one thread keeps between samples (buffers and codec handles), and the working memory that one sample may take.

use std::any::Any;

use crate::warning::Warnings;
use crate::working::{Scope, is_exceeded};
use feedstock_base::{Error, Result};

/// The default of `decoder_memory`: bytes of working memory that one thread may take for one sample. 64 MiB is a 22-megapixel
/// RGB image, or 17 minutes of speech at 16 kHz.
pub const DECODER_MEMORY: u64 = 64 << 20;

/// Per-thread working memory of [`Chain::apply`](crate::Chain::apply); keep one per thread.
///
/// After any sample, good or bad, it is ready for the next. Buffers grow to the largest sample seen and are never
/// zeroed again. If a sample leaves more than [`DECODER_MEMORY`] (or what [`keep_at_most`](Self::keep_at_most) sets) in all
/// buffers together, they are freed.
pub struct Scratch {
    /// One for each kind of chain that has run.
    parts: Vec<Box<dyn Part>>,
    pub(crate) warnings: Warnings,
    memory: Memory,
    most_kept_bytes: u64,
}

/// What one kind of chain keeps.
pub(crate) trait Part: Any + Send {
    /// Bytes that the buffers hold.
    fn kept_bytes(&self) -> usize;
}

/// What a sample may take.
struct Memory {
    /// `u64::MAX`: only the limits of ops apply.
    most_bytes: u64,
    /// What the current sample takes at most.
    most_of_sample: u64,
    /// What the last sample needs, if it was given up because that is more than `most_bytes`.
    needed: Option<u64>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            warnings: Warnings::default(),
            memory: Memory { most_bytes: u64::MAX, most_of_sample: 0, needed: None },
            most_kept_bytes: DECODER_MEMORY,
        }
    }
}

impl Scratch {
    /// Creates it without allocating buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Frees the buffers after each sample that leaves more than `bytes` in them.
    pub fn keep_at_most(&mut self, bytes: u64) {
        self.most_kept_bytes = bytes;
        self.trim();
    }

    /// Limits the working memory of each further sample, including the buffers that are kept, to `bytes`.
    ///
    /// A chain predicts what a sample takes from its header, before it decodes anything. If that is more, the chain gives
    /// up the sample with an error, and [`take_needed`](Self::take_needed) returns the bytes that it needs. `u64::MAX`, the
    /// default, leaves only the limits of ops.
    ///
    /// ```
    /// use feedstock_ops::{Chain, SampleSeed, Scratch};
    ///
    /// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    /// #     out
    /// # }
    /// let chain = Chain::parse("decode_image,resize:8x8")?;
    /// let (image, mut row) = (encode(64, 64, &[0; 64 * 64 * 3]), vec![0; chain.output().bytes()]);
    /// let mut scratch = Scratch::new();
    /// scratch.allow(1_000);
    /// assert!(chain.apply(&image, SampleSeed::new(7, 0, 0), &mut scratch, &mut row).is_err());
    ///
    /// let needed = scratch.take_needed().unwrap();
    /// assert!(needed > 64 * 64 * 3);
    /// scratch.allow(needed);
    /// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut scratch, &mut row)?;
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    pub fn allow(&mut self, bytes: u64) {
        self.memory.most_bytes = bytes;
    }

    /// Returns and forgets the working memory that the last sample needs, if it was given up for lack of it.
    ///
    /// Even with that much, a chain may then find that the header is wrong or the data are damaged. It then asks once more,
    /// for the most that the limits of ops allow for such a header.
    pub fn take_needed(&mut self) -> Option<u64> {
        self.memory.needed.take()
    }

    /// Decides how much of a sample may be decoded; `working` predicts what it takes.
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

    /// Returns true if `error` gave up the current sample for lack of memory.
    pub(crate) fn is_short(&self, error: &Error) -> bool {
        self.memory.needed.is_some() || is_exceeded(error)
    }

    /// Raises what the sample needs, which is given up for lack of memory, to what another part of it needs: the sample then
    /// runs again once, and not once for each part that needs more than those before. `working` is as in
    /// [`admit`](Self::admit).
    pub(crate) fn need(&mut self, working: impl Fn(Scope) -> u64) {
        let allowed = self.memory.most_bytes;
        if working(Scope::Most) > allowed {
            let bytes = working(Scope::Stated);
            if bytes > allowed {
                self.memory.needed = self.memory.needed.max(Some(bytes));
            }
        }
    }

    /// True where a limit on working memory is set.
    pub(crate) fn is_bounded(&self) -> bool {
        self.memory.most_bytes < u64::MAX
    }

    /// Returns the bytes that the buffers hold.
    pub fn kept_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.kept_bytes() as u64).sum()
    }

    /// Returns what the kind of chain that uses `T` keeps.
    pub(crate) fn part<T: Part + Default>(&mut self) -> &mut T {
        let is_it = |part: &dyn Part| (part as &dyn Any).is::<T>();
        let at = self.parts.iter().position(|part| is_it(&**part)).unwrap_or_else(|| {
            self.parts.push(Box::new(T::default()));
            self.parts.len() - 1
        });
        let part: &mut dyn Any = &mut *self.parts[at];
        part.downcast_mut().unwrap_or_else(|| unreachable!("it was found by its type"))
    }

    /// Gets ready for the next sample after one that ended with `outcome`.
    pub(crate) fn end(&mut self, outcome: &Result<()>) {
        if outcome.as_ref().is_err_and(is_exceeded) {
            self.memory.needed = self.memory.needed.max(Some(self.memory.most_of_sample));
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
        self.parts.clear();
    }

    /// Returns and forgets the warnings about all samples that were decoded since the last call.
    ///
    /// Call it after each sample to know which one they are about. A sample that failed may have left some.
    ///
    /// ```
    /// use feedstock_ops::{Chain, SampleSeed, Scratch, Warning};
    ///
    /// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    /// #     out
    /// # }
    /// let chain = Chain::parse("decode_image,resize:8x8")?;
    /// let mut image = encode(8, 8, &[0; 8 * 8 * 3]);
    /// image.truncate(image.len() - 12); // without its end
    /// let (mut scratch, mut row) = (Scratch::new(), vec![0; chain.output().bytes()]);
    /// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut scratch, &mut row)?;
    /// assert!(scratch.take_warnings().contains(Warning::DamagedData));
    /// assert!(scratch.take_warnings().is_empty());
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    pub fn take_warnings(&mut self) -> Warnings {
        std::mem::take(&mut self.warnings)
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}
