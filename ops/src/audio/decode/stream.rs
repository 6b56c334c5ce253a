//! The formats whose frames symphonia finds: FLAC, Ogg, MP4.

use std::io::ErrorKind;

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as Failure;
use symphonia::core::formats::FormatReader;
use symphonia::core::io::{MediaSource, MediaSourceStream};

use super::mono::Mono;
use super::mpeg::Trim;
use super::{DecodeAudio, Losses};
use crate::audio::header::AudioFormat;
use feedstock_base::{Error, Result};

/// One track of a container, and what is known of it beforehand.
pub(super) struct Track<'a> {
    pub(super) format: AudioFormat,
    pub(super) sample_rate: u32,
    /// Samples after trimming, where the container says so.
    pub(super) samples: Option<u64>,
    pub(super) trim: Trim,
    /// Whether packets say where their samples belong, so that a gap between two shows.
    pub(super) timed: bool,
    /// Whether a gap, or an end before the stated one, means that packets were lost. Else the times are wrong: from a gap on
    /// they do not count, and the clip ends with its last packet.
    pub(super) loses_in_gaps: &'a dyn Fn() -> bool,
    /// Bytes of the clip. There can be as many packets: each has at least a byte, or the container names it in one.
    pub(super) bytes: usize,
    /// Steps that it took, or will take, to find the packets.
    pub(super) steps: u64,
}

/// Bytes that are copied in the time of a step.
pub(super) const COPIED_BYTES_PER_STEP: u64 = 16;

/// Steps for a packet that cannot be decoded, beyond one for each of its bytes: a decoder may find out after its work is done.
/// Such a packet need not have a duration, so that lost samples do not bound how many there are.
const STEPS_PER_BAD_PACKET: u64 = 1024;

pub(super) fn source<'a>(media: impl MediaSource + 'a) -> MediaSourceStream<'a> {
    MediaSourceStream::new(Box::new(media), Default::default())
}

/// The first audio track's number and parameters.
pub(super) fn audio_track(reader: &dyn FormatReader) -> Result<(u32, AudioCodecParameters)> {
    let audio = reader.tracks().iter().find_map(|track| match &track.codec_params {
        Some(CodecParameters::Audio(parameters)) => Some((track.id, parameters.clone())),
        _ => None,
    });
    audio.ok_or_else(|| Error::bad_sample("the clip has no audio track"))
}

pub(super) fn new_decoder(
    format: AudioFormat,
    parameters: &AudioCodecParameters,
) -> Result<Box<dyn AudioDecoder>> {
    let options = AudioDecoderOptions::default();
    #[cfg(feature = "opus")]
    if parameters.codec == symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS {
        use symphonia::core::codecs::registry::RegisterableAudioDecoder;
        return symphonia_adapter_libopus::OpusDecoder::try_registry_new(parameters, &options)
            .map_err(|error| refused(format, &error));
    }
    symphonia::default::get_codecs()
        .make_audio_decoder(parameters, &options)
        .map_err(|error| refused(format, &error))
}

pub(super) fn refused(format: AudioFormat, error: &Failure) -> Error {
    match error {
        Failure::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => Error::bad_sample(format!(
            "the {format} clip ends early, in its header or before its first frame"
        )),
        error => Error::bad_sample(format!("the {format} clip cannot be decoded: {error}")),
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
    // Of the last page, whose count of samples is relative to the page before.
    let mut padding_at_end = 0;
    let (mut packets, mut packet_bytes, mut in_vain) = (0, 0_usize, 0_u64);
    loop {
        let mut packet = match reader.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // A missing end shows by the count of samples, if the container has one.
            Err(Failure::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(Failure::ResetRequired) => {
                return Err(Error::bad_sample(format!(
                    "the {format} clip is a chain of several streams; split it into clips"
                )));
            }
            Err(error) => return Err(refused(format, &error)),
        };
        packets += 1;
        if packets > bytes as u64 {
            return Err(Error::bad_sample(format!("the {format} clip names more packets than it has bytes")));
        }
        op.check_packets(format, packets)?;
        // Packets that lie over each other are copied again and again.
        packet_bytes = packet_bytes.saturating_add(packet.data.len());
        let copied_again = packet_bytes.saturating_sub(bytes) as u64;
        op.check_steps(
            format,
            steps.saturating_add(copied_again / COPIED_BYTES_PER_STEP).saturating_add(in_vain),
        )?;
        if packet.track_id != id {
            continue;
        }
        let at = u64::try_from(packet.pts.get()).unwrap_or(0);
        if format == AudioFormat::Vorbis {
            // The decoder would leave it out, also in the middle of a clip, where a page counts fewer samples than it has.
            let padding = std::mem::take(&mut packet.trim_end).get();
            padding_at_end = if padding > 0 { padding_at_end + padding } else { 0 };
        }
        if timed && !times_are_wrong {
            // A clip begins at 0, so what lies before the first packet is lost too. Where the length is unknown or
            // passed already, the clip may be a cut from a longer one with its times kept.
            let first = if samples.is_some_and(|samples| at < samples) { 0 } else { at };
            let missing = at.saturating_sub(*base.get_or_insert(first)).saturating_sub(mono.position());
            if missing > 0 && !loses_in_gaps() {
                (times_are_wrong, samples) = (true, None);
            } else if missing > 0 {
                lose(&mut losses, op, (format, sample_rate), missing, samples, mono.position())?;
                mono.silence(missing)?;
            }
        }
        // A decoder of FLAC takes what it reads for music; the frame's checksum knows better.
        let intact = format != AudioFormat::Flac || super::flac::is_intact(&packet.data);
        match if intact { decoder.decode(&packet) } else { Err(Failure::DecodeError("checksum")) } {
            Ok(buffer) if buffer.spec().rate() != sample_rate => {
                return Err(Error::bad_sample(format!(
                    "the {format} clip changes from {sample_rate} Hz to {} Hz",
                    buffer.spec().rate()
                )));
            }
            Ok(buffer) => mono.push(&buffer)?,
            Err(Failure::Unsupported(what)) => {
                return Err(Error::bad_sample(format!("the {format} clip cannot be decoded: {what}")));
            }
            Err(_) => {
                in_vain += STEPS_PER_BAD_PACKET + packet.data.len() as u64;
                let missing = packet.dur.get();
                lose(&mut losses, op, (format, sample_rate), missing, samples, mono.position())?;
                mono.silence(missing)?;
            }
        }
    }
    let decoded = mono.position().saturating_sub(trimmed_in_front);
    let mut missing = samples.unwrap_or(0).saturating_sub(decoded);
    if missing > 0 && !loses_in_gaps() {
        missing = 0;
    }
    losses.ended_early = missing > 0;
    losses.lost += missing;
    losses.total = decoded + missing;
    losses.check(op, format, sample_rate)?;
    if times_are_wrong {
        mono.end_at(mono.position().saturating_sub(padding_at_end));
    }
    mono.silence(missing)
}

/// Counts `missing` samples, and stops early where they are too many already.
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
