//! MP3: our own walk over the frames, and symphonia's decoder for each. If half the rate is enough, our own decoder.
//!
//! Lost frames become silence of the same length, so that later samples keep their positions. ffmpeg and mpg123 close the
//! gap instead, which shifts them.

use symphonia::core::audio::{GenericAudioBufferRef, layouts};
use symphonia::core::codecs::audio::well_known::CODEC_ID_MP3;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};
use symphonia::default::codecs::MpaDecoder;

use super::decoded::{Decoded, Losses};
use super::layer3::HalfRate;
use super::mono::Mono;
use super::mpeg::{Frame, Tag, Walk};
use super::options::DecodeAudio;
use crate::audio::format::AudioFormat;
use feedstock_base::{Error, Result};

/// The number of frames whose places are kept between audio clips: 3 MB, for 26 minutes of MP3 at 48 kHz.
const RETAINED_FRAMES: usize = 1 << 16;

/// The decoders and buffers that one thread keeps between audio clips.
#[derive(Default)]
pub(super) struct Mp3Decoder {
    frames: Vec<Frame>,
    half_rate: HalfRate,
}

impl Mp3Decoder {
    pub(super) fn kept_bytes(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>()
    }

    /// Decodes the frames from `start` on into `out`. It decodes only every second sample if that is enough for resampling
    /// to `to` Hz.
    pub(super) fn decode(
        &mut self,
        op: &DecodeAudio,
        bytes: &[u8],
        start: usize,
        to: Option<u32>,
        out: &mut Vec<f32>,
    ) -> Result<Decoded> {
        let decoded = decode(op, bytes, start, to, self, out);
        if self.frames.capacity() > RETAINED_FRAMES {
            self.frames = Vec::new();
        }
        decoded
    }
}

fn decode(
    op: &DecodeAudio,
    bytes: &[u8],
    start: usize,
    to: Option<u32>,
    Mp3Decoder { frames, half_rate }: &mut Mp3Decoder,
    out: &mut Vec<f32>,
) -> Result<Decoded> {
    let walk = Walk::new(op, bytes, start, frames)?;
    let first = walk.first;
    op.check_header(AudioFormat::Mp3, first.sample_rate, first.channels)?;
    let per_frame = u64::from(first.samples);
    let lost_before: u64 = frames.iter().map(|frame| frame.lost_before).sum();
    let total = (frames.len() as u64).saturating_add(lost_before).saturating_add(walk.lost_at_end);
    let trim = walk.tag.as_ref().map(|tag| Tag::trim(tag, first.samples)).unwrap_or_default();
    let samples = trim.left(total.saturating_mul(per_frame));
    op.check_samples(AudioFormat::Mp3, samples, (first.sample_rate, first.channels))?;
    let end_known = walk.tag.is_some_and(|tag| tag.frames.is_some());
    // In the frames that are missing at the end, the encoder's padding does not count as lost.
    let lost_at_end = samples - trim.left((total - walk.lost_at_end) * per_frame);
    let mut losses =
        Losses { lost: lost_before * per_frame + lost_at_end, total: samples, ended_early: lost_at_end > 0 };
    losses.check(op, AudioFormat::Mp3, first.sample_rate)?;

    let is_intact = lost_before == 0 && walk.lost_at_end == 0 && frames.iter().all(|frame| !frame.broken);
    // Frames after the encoder's padding are another audio clip.
    let is_one = trim.end.is_empty() || trim.end.end >= total * per_frame;
    if let Some(to) = to.filter(|to| is_intact && is_one && HalfRate::suits(&first, *to)) {
        out.clear();
        if half_rate.decode((bytes, frames, &first), to, trim.start, out) {
            out.truncate(usize::try_from(samples.div_ceil(2)).unwrap_or(usize::MAX));
            return Ok(Decoded { halved: Some(samples), ..Decoded::whole(first.sample_rate, end_known) });
        }
    }

    let mut decoder = new_decoder(first.sample_rate, first.channels)?;
    let mut mono = Mono::new(op, trim, first.sample_rate, out);
    for frame in frames.iter() {
        if frame.lost_before > 0 {
            mono.silence(frame.lost_before * per_frame)?;
            // The overlap of the frames before the gap must not sound in those after it.
            decoder.reset();
        }
        let data = &bytes[frame.at..frame.at + frame.bytes];
        let decoded = decoder.decode_ref(&PacketRef::new(0, Timestamp::ZERO, Duration::ZERO, data));
        match decoded {
            Ok(GenericAudioBufferRef::F32(buffer)) => mono.push_f32(buffer)?,
            Ok(_) => return Err(Error::bug("the MP3 decoder's samples are no f32")),
            Err(_) => {
                mono.silence(per_frame)?;
                losses.lost += per_frame;
                continue;
            }
        }
        if frame.broken {
            losses.lost += per_frame;
        }
    }
    mono.silence(walk.lost_at_end * per_frame)?;
    losses.check(op, AudioFormat::Mp3, first.sample_rate)?;
    Ok(Decoded::whole(first.sample_rate, end_known))
}

fn new_decoder(sample_rate: u32, channels: u32) -> Result<MpaDecoder> {
    let mut parameters = AudioCodecParameters::new();
    let layout = if channels == 1 { layouts::CHANNEL_LAYOUT_MONO } else { layouts::CHANNEL_LAYOUT_STEREO };
    parameters.for_codec(CODEC_ID_MP3).with_sample_rate(sample_rate).with_channels(layout);
    MpaDecoder::try_new(&parameters, &AudioDecoderOptions::default())
        .map_err(|error| Error::bug("the MP3 decoder cannot start").with_source(error))
}
