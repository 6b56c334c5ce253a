//! The limits of an audio clip's cost: the defaults of the options with the same names.

/// Ten minutes: the longest utterances of speech corpora are below one, and at 48 kHz it is 115 MB of f32.
pub(crate) const MAX_SECONDS: f64 = 600.0;

/// [`MAX_SECONDS`] at 96 kHz: 230 MB of f32.
pub(crate) const MAX_SAMPLES: u64 = 57_600_000;

/// Bytes of f32 that all channels of an audio clip decode to: [`MAX_SAMPLES`] in stereo. It is also two hours of one
/// channel at 16 kHz, for which `max_seconds` and `max_samples` must be raised, and 5 minutes of 8 channels at 48 kHz.
pub(crate) const MAX_DECODED_BYTES: u64 = MAX_SAMPLES * 2 * 4;

/// The highest rate that recording hardware makes.
pub(crate) const MAX_SAMPLE_RATE: u32 = 384_000;

/// 7.1 surround.
pub(crate) const MAX_CHANNELS: u32 = 8;

/// A tenth of a second in 5 s, four frames of a 48 kHz MP3: what a transcript survives.
pub(crate) const MAX_LOST_SHARE: f64 = 0.02;

/// Packets of an audio clip: [`MAX_SAMPLES`] in FLAC's smallest blocks of 16 samples are 3.6 million.
pub(crate) const MAX_PACKETS: u64 = 1 << 22;

/// Steps of looking for an audio clip's packets beyond one pass over its bytes, about a nanosecond each. Known files need at
/// most 0.4 % of them, except an MP4 of ten minutes that states the duration of each packet: 40 %.
pub(crate) const MAX_STEPS: u64 = 1 << 28;

/// Bytes of a Vorbis audio clip's codebooks, once unpacked. libvorbis' largest are below 3 MB.
pub(crate) const MAX_CODEBOOK_BYTES: u64 = 64 << 20;
