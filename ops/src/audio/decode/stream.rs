//! The formats whose frames symphonia finds: FLAC, Ogg, MP4.

use std::io::ErrorKind;

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as Failure;
use symphonia::core::formats::FormatReader;
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::packet::Packet;

use super::decoded::Losses;
use super::flac_format::is_intact;
use super::mono::Mono;
use super::mpeg::Trim;
use super::options::DecodeAudio;
use super::opus;
use crate::audio::format::AudioFormat;
use feedstock_base::{Error, Result};

/// One track of a container, and its known properties.
pub(super) struct Track<'a> {
    pub(super) format: AudioFormat,
    pub(super) sample_rate: u32,
    /// Samples after trimming, if the container states them.
    pub(super) samples: Option<u64>,
    pub(super) trim: Trim,
    /// Whether packets state the positions of their samples, so that gaps are visible.
    pub(super) timed: bool,
    /// Whether a gap, or an end before the stated one, means that packets were lost. Otherwise the times are wrong: from a gap
    /// on they do not count, and the audio clip ends with its last packet.
    pub(super) loses_in_gaps: &'a dyn Fn() -> bool,
    /// Bytes of the audio clip. They limit the number of packets: each packet has at least one byte, or the container names it
    /// with at least one.
    pub(super) bytes: usize,
    /// The steps that finding the packets took, or will take.
    pub(super) steps: u64,
}

/// Bytes that are copied in the time of a step.
pub(super) const COPIED_BYTES_PER_STEP: u64 = 16;

/// Steps for a packet that cannot be decoded, beyond one for each of its bytes: a decoder may fail after all its work. Such a
/// packet may have no duration, so lost samples do not bound the number of such packets.
const STEPS_PER_BAD_PACKET: u64 = 1024;

pub(super) fn source<'a>(media: impl MediaSource + 'a) -> MediaSourceStream<'a> {
    MediaSourceStream::new(Box::new(media), Default::default())
}

/// Returns the first audio track's number and parameters.
pub(super) fn audio_track(reader: &dyn FormatReader) -> Result<(u32, AudioCodecParameters)> {
    let audio = reader.tracks().iter().find_map(|track| match &track.codec_params {
        Some(CodecParameters::Audio(parameters)) => Some((track.id, parameters.clone())),
        _ => None,
    });
    audio.ok_or_else(|| Error::bad_sample("the audio clip has no audio track"))
}

pub(super) fn new_decoder(
    format: AudioFormat,
    parameters: &AudioCodecParameters,
) -> Result<Box<dyn AudioDecoder>> {
    let options = AudioDecoderOptions::default();
    let decoder = opus::decoder(parameters, &options)
        .unwrap_or_else(|| symphonia::default::get_codecs().make_audio_decoder(parameters, &options));
    decoder.map_err(|error| refused(format, &error))
}

pub(super) fn refused(format: AudioFormat, error: &Failure) -> Error {
    match error {
        Failure::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => Error::bad_sample(format!(
            "the {format} audio clip ends early, in its header or before its first frame"
        )),
        error => Error::bad_sample(format!("the {format} audio clip cannot be decoded: {error}")),
    }
}

/// Decodes all packets of the track `id`.
pub(super) fn decode(
    op: &DecodeAudio,
    reader: &mut dyn FormatReader,
    decoder: &mut dyn AudioDecoder,
    (id, track): (u32, Track<'_>),
    out: &mut Vec<f32>,
) -> Result<()> {
    let Track { format, sample_rate, mut samples, trim, timed, loses_in_gaps, bytes, steps } = track;
    let trimmed_in_front = trim.start;
    let mut mono = Mono::new(op, trim, sample_rate, out);
    let mut losses = Losses::default();
    let mut base = None;
    let mut times_are_wrong = false;
    // The padding of the last page, whose count of samples is relative to the previous page.
    let mut padding_at_end = 0;
    let mut work = Work { bytes, packets: 0, packet_bytes: 0, steps };
    loop {
        let Some(mut packet) = next_packet(reader, format)? else { break };
        work.add(op, format, packet.data.len())?;
        if packet.track_id != id {
            continue;
        }
        let at = u64::try_from(packet.pts.get()).unwrap_or(0);
        if format == AudioFormat::Vorbis {
            // The decoder would leave it out even in the middle of an audio clip, where a page counts fewer samples than it
            // has.
            let padding = std::mem::take(&mut packet.trim_end).get();
            padding_at_end = if padding > 0 { padding_at_end + padding } else { 0 };
        }
        if timed && !times_are_wrong {
            // An audio clip begins at 0, so samples before the first packet are lost, too. If the length is unknown or already
            // passed, the audio clip may be cut from a longer one whose times were kept.
            let first = if samples.is_some_and(|samples| at < samples) { 0 } else { at };
            let missing = at.saturating_sub(*base.get_or_insert(first)).saturating_sub(mono.position());
            if missing > 0 && !loses_in_gaps() {
                (times_are_wrong, samples) = (true, None);
            } else if missing > 0 {
                lose(&mut losses, op, (format, sample_rate), missing, samples, mono.position())?;
                mono.silence(missing)?;
            }
        }
        // The FLAC decoder accepts any bytes as samples, so the frame's checksum decides.
        let intact = format != AudioFormat::Flac || is_intact(&packet.data);
        match if intact { decoder.decode(&packet) } else { Err(Failure::DecodeError("checksum")) } {
            Ok(buffer) if buffer.spec().rate() != sample_rate => {
                return Err(changes_rate(format, sample_rate, buffer.spec().rate()));
            }
            Ok(buffer) => mono.push(&buffer)?,
            Err(Failure::Unsupported(what)) => {
                return Err(Error::bad_sample(format!("the {format} audio clip cannot be decoded: {what}")));
            }
            Err(_) => {
                work.fail(packet.data.len());
                let missing = packet.dur.get();
                lose(&mut losses, op, (format, sample_rate), missing, samples, mono.position())?;
                mono.silence(missing)?;
            }
        }
    }
    let decoded = mono.position().saturating_sub(trimmed_in_front);
    let missing = samples.unwrap_or(0).saturating_sub(decoded);
    let missing = if missing > 0 && loses_in_gaps() { missing } else { 0 };
    losses.end(decoded, missing);
    losses.check(op, format, sample_rate)?;
    if times_are_wrong {
        mono.end_at(mono.position().saturating_sub(padding_at_end));
    }
    mono.silence(missing)
}

/// Returns the next packet of any track; `None` at the end. The container's count of samples, if any, shows a missing end.
fn next_packet(reader: &mut dyn FormatReader, format: AudioFormat) -> Result<Option<Packet>> {
    match reader.next_packet() {
        Ok(packet) => Ok(packet),
        Err(Failure::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(Failure::ResetRequired) => Err(Error::bad_sample(format!(
            "the {format} audio clip is a chain of several streams; split it into audio clips"
        ))),
        Err(error) => Err(refused(format, &error)),
    }
}

/// Counts packets, and the steps that reading them takes.
struct Work {
    /// Bytes of the audio clip.
    bytes: usize,
    packets: u64,
    packet_bytes: usize,
    /// The steps so far, without those for copies.
    steps: u64,
}

impl Work {
    /// Counts a packet of `length` bytes.
    ///
    /// # Errors
    /// `BadSample` beyond the limits of `op`.
    fn add(&mut self, op: &DecodeAudio, format: AudioFormat, length: usize) -> Result<()> {
        self.packets += 1;
        if self.packets > self.bytes as u64 {
            return Err(Error::bad_sample(format!(
                "the {format} audio clip names more packets than it has bytes"
            )));
        }
        op.check_packets(format, self.packets)?;
        // The bytes of overlapping packets are copied repeatedly.
        self.packet_bytes = self.packet_bytes.saturating_add(length);
        let copied_again = self.packet_bytes.saturating_sub(self.bytes) as u64;
        op.check_steps(format, self.steps.saturating_add(copied_again / COPIED_BYTES_PER_STEP))
    }

    /// Counts a packet of `length` bytes that cannot be decoded.
    fn fail(&mut self, length: usize) {
        self.steps = self.steps.saturating_add(STEPS_PER_BAD_PACKET + length as u64);
    }
}

fn changes_rate(format: AudioFormat, from: u32, to: u32) -> Error {
    Error::bad_sample(format!("the {format} audio clip changes from {from} Hz to {to} Hz"))
}

/// Counts `missing` samples, and stops early if they are already too many.
fn lose(
    losses: &mut Losses,
    op: &DecodeAudio,
    (format, sample_rate): (AudioFormat, u32),
    missing: u64,
    samples: Option<u64>,
    position: u64,
) -> Result<()> {
    losses.lost = losses.lost.saturating_add(missing);
    losses.total = samples.unwrap_or(u64::MAX).max(position.saturating_add(missing));
    losses.check(op, format, sample_rate)
}
