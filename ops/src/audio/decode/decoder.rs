//! Decodes any format into one channel. The container at the start of the bytes selects the decoder.

use super::decoded::Decoded;
use super::mp3::Mp3Decoder;
use super::options::DecodeAudio;
use super::sniff::{Container, sniff};
use super::{adts, flac, mp4, ogg, wav};
use crate::audio::header::read_audio_header;
use crate::warning::Warnings;
use feedstock_base::{Error, Result};

/// The decoders and buffers that one thread keeps between audio clips.
#[derive(Default)]
pub(crate) struct AudioDecoder {
    mp3: Mp3Decoder,
}

impl AudioDecoder {
    pub(crate) fn kept_bytes(&self) -> usize {
        self.mp3.kept_bytes()
    }

    /// Replaces `out` by the audio clip's samples, one channel in −1 … 1. It decodes only every second one if that is cheaper
    /// and enough for resampling to `to` Hz.
    ///
    /// Values of float formats beyond ±1 are kept. After an error the content of `out` is unspecified.
    ///
    /// # Errors
    /// `BadSample` for bytes in another format, and for an audio clip that is over a limit, ends early, loses more than
    /// `max_lost_share`, or decodes to no samples or to some that are not finite.
    pub(crate) fn decode(
        &mut self,
        op: &DecodeAudio,
        encoded: &[u8],
        to: Option<u32>,
        out: &mut Vec<f32>,
    ) -> Result<Decoded> {
        out.clear();
        let (container, start) = sniff(encoded)?;
        let decoded = match container {
            Container::Mpeg => self.mp3.decode(op, encoded, start, to, out)?,
            Container::Wav => wav::decode(op, &encoded[start..], out)?,
            Container::Flac => flac::decode(op, &encoded[start..], out)?,
            Container::Ogg => ogg::decode(op, &encoded[start..], out)?,
            Container::Mp4 => mp4::decode(op, &encoded[start..], out)?,
            Container::Adts => adts::decode(op, &encoded[start..], out)?,
        };
        if out.is_empty() {
            return Err(Error::bad_sample("the audio clip holds no samples"));
        }
        // 0 · x is 0 for every finite number, and NaN otherwise.
        let sum: f32 = out.iter().map(|value| value * 0.0).sum();
        if sum != 0.0 {
            let at = out.iter().position(|value| !value.is_finite()).unwrap_or_default();
            return Err(Error::bad_sample(format!(
                "sample {at} of the audio clip is {}, not a finite number",
                out[at]
            )));
        }
        Ok(decoded)
    }
}

/// Decodes a whole audio clip, and returns its sample rate in Hz and its samples, one channel in −1 … 1.
///
/// ```
/// use feedstock_ops::audio::{DecodeAudio, decode_mono};
///
/// # fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
/// #     let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
/// #     let (len, head) = (data.len() as u32, [16, 0x0001_0001, rate, 2 * rate, 0x0010_0002].map(u32::to_le_bytes));
/// #     let riff = [b"RIFF", &(36 + len).to_le_bytes()[..], b"WAVEfmt ", head.as_flattened()].concat();
/// #     [&riff, &b"data"[..], &len.to_le_bytes(), &data].concat()
/// # }
/// let clip = wav(8_000, &[0, 16_384, -32_768]);
/// assert_eq!(decode_mono(&clip, &DecodeAudio::new())?, (8_000, vec![0.0, 0.5, -1.0]));
///
/// let error = decode_mono(&wav(8_000, &[0; 16_000]), &DecodeAudio::new().max_seconds(1.0)).unwrap_err();
/// assert!(error.message().contains("over max_seconds (1); raise the limit or set on_error=skip"));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
///
/// # Errors
/// `BadSample`, as [`Chain::apply`](crate::Chain::apply).
pub fn decode_mono(bytes: &[u8], op: &DecodeAudio) -> Result<(u32, Vec<f32>)> {
    decode_mono_warned(bytes, op).map(|(rate, samples, _)| (rate, samples))
}

/// As [`decode_mono`], with warnings about unusual properties of the audio clip.
///
/// # Errors
/// `BadSample`, as [`decode_mono`].
pub fn decode_mono_warned(bytes: &[u8], op: &DecodeAudio) -> Result<(u32, Vec<f32>, Warnings)> {
    let mut samples = Vec::new();
    let decoded = AudioDecoder::default().decode(op, bytes, None, &mut samples)?;
    Ok((decoded.sample_rate, samples, decoded.warnings))
}

/// Decodes every channel of a whole audio clip, and returns its sample rate in Hz and one vector of samples in −1 … 1 for
/// each channel.
///
/// Ops work on the mean of the channels; this is for programs that compare decoders. The audio clip is decoded once for
/// each channel.
///
/// # Errors
/// `BadSample`, as [`decode_mono`].
pub fn decode_channels(bytes: &[u8], op: &DecodeAudio) -> Result<(u32, Vec<Vec<f32>>)> {
    let channels = read_audio_header(bytes, bytes.len() as u64)?.channels;
    let mut sample_rate = 0;
    let decoded = (0..channels).map(|channel| {
        let op = op.of_channel(usize::try_from(channel).ok());
        let (rate, samples) = decode_mono(bytes, &op)?;
        sample_rate = rate;
        Ok(samples)
    });
    let decoded: Vec<_> = decoded.collect::<Result<_>>()?;
    Ok((sample_rate, decoded))
}
