//! Reduces decoded channels to one, their mean or one of them, trimmed and bounded.

use std::ops::Range;

use symphonia::core::audio::conv::IntoSample;
use symphonia::core::audio::sample::Sample;
use symphonia::core::audio::{Audio, AudioBuffer, GenericAudioBufferRef};

use super::mpeg::Trim;
use super::options::DecodeAudio;
use feedstock_base::Result;

/// The destination of decoded audio: the mean of its channels, or the channel that [`DecodeAudio`] names, without the
/// encoder's delay and padding.
pub(super) struct Mono<'a> {
    op: &'a DecodeAudio,
    trim: Trim,
    sample_rate: u32,
    /// The samples decoded so far, including trimmed ones.
    position: u64,
    /// Samples of all channels so far.
    values: u64,
    out: &'a mut Vec<f32>,
}

impl<'a> Mono<'a> {
    pub(super) fn new(op: &'a DecodeAudio, trim: Trim, sample_rate: u32, out: &'a mut Vec<f32>) -> Self {
        out.clear();
        Self { op, trim, sample_rate, position: 0, values: 0, out }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Removes the samples after position `end`.
    pub(super) fn end_at(&mut self, end: u64) {
        let padding = &self.trim.end;
        let reached = if padding.is_empty() { self.position } else { self.position.min(padding.start) };
        let extra = usize::try_from(reached.saturating_sub(end)).unwrap_or(usize::MAX);
        self.out.truncate(self.out.len().saturating_sub(extra));
    }

    /// Returns the parts to keep of the next `samples` samples of each of the `channels`.
    fn keep(&mut self, samples: u64, channels: usize) -> Result<[Range<usize>; 2]> {
        self.values = self.values.saturating_add(samples.saturating_mul(channels as u64));
        self.op.check_values(self.values)?;
        let (from, to) = (self.position, self.position.saturating_add(samples));
        self.position = to;
        let Trim { start, end } = &self.trim;
        let part = |low: u64, high: u64| {
            let (low, high) = (low.clamp(from, to) - from, high.clamp(from, to) - from);
            // Offsets into a decoded buffer, or below max_samples.
            let [low, high] = [low, high.max(low)].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
            low..high
        };
        let parts = if end.is_empty() {
            [part(*start, u64::MAX), 0..0]
        } else {
            [part(*start, end.start), part(end.end.max(*start), u64::MAX)]
        };
        let more: usize = parts.iter().map(|part| part.len()).fold(0, usize::saturating_add);
        let kept = self.out.len().saturating_add(more) as u64;
        self.op.check_decoded(kept, self.sample_rate)?;
        self.op.check_cut_off(to.saturating_sub(kept))?;
        Ok(parts)
    }

    pub(super) fn silence(&mut self, samples: u64) -> Result<()> {
        for part in self.keep(samples, 1)? {
            self.out.resize(self.out.len() + part.len(), 0.0);
        }
        Ok(())
    }

    pub(super) fn push_f32(&mut self, buffer: &AudioBuffer<f32>) -> Result<()> {
        let parts = self.keep(buffer.frames() as u64, buffer.num_planes())?;
        if let Some(channel) = self.op.channel {
            self.take_channel(buffer, channel, parts);
            return Ok(());
        }
        match (buffer.num_planes(), buffer.plane(0), buffer.plane(1)) {
            (1, Some(only), _) => {
                for part in parts {
                    self.out.extend_from_slice(&only[part]);
                }
            }
            (2, Some(left), Some(right)) => {
                for part in parts {
                    let both = left[part.clone()].iter().zip(&right[part]);
                    self.out.extend(both.map(|(left, right)| (left + right) * 0.5));
                }
            }
            _ => self.mix(buffer, parts),
        }
        Ok(())
    }

    pub(super) fn push(&mut self, buffer: &GenericAudioBufferRef<'_>) -> Result<()> {
        use GenericAudioBufferRef as Buffer;
        match buffer {
            Buffer::U8(buffer) => self.push_as(buffer),
            Buffer::U16(buffer) => self.push_as(buffer),
            Buffer::U24(buffer) => self.push_as(buffer),
            Buffer::U32(buffer) => self.push_as(buffer),
            Buffer::S8(buffer) => self.push_as(buffer),
            Buffer::S16(buffer) => self.push_as(buffer),
            Buffer::S24(buffer) => self.push_as(buffer),
            Buffer::S32(buffer) => self.push_as(buffer),
            Buffer::F32(buffer) => self.push_f32(buffer),
            Buffer::F64(buffer) => self.push_as(buffer),
        }
    }

    fn push_as<S: Sample + IntoSample<f32>>(&mut self, buffer: &AudioBuffer<S>) -> Result<()> {
        let parts = self.keep(buffer.frames() as u64, buffer.num_planes())?;
        match self.op.channel {
            Some(channel) => self.take_channel(buffer, channel, parts),
            None => self.mix(buffer, parts),
        }
        Ok(())
    }

    /// Takes one channel, or the last one if the buffer has fewer. So a mono frame in a stereo audio clip is in both
    /// channels.
    fn take_channel<S: Sample + IntoSample<f32>>(
        &mut self,
        buffer: &AudioBuffer<S>,
        channel: usize,
        parts: [Range<usize>; 2],
    ) {
        let Some(plane) = buffer.plane(channel.min(buffer.num_planes().saturating_sub(1))) else { return };
        for part in parts {
            self.out.extend(plane[part].iter().map(|value| IntoSample::<f32>::into_sample(*value)));
        }
    }

    /// Takes the mean of any number of channels.
    fn mix<S: Sample + IntoSample<f32>>(&mut self, buffer: &AudioBuffer<S>, parts: [Range<usize>; 2]) {
        #[expect(clippy::cast_precision_loss, reason = "a handful of channels")]
        let share = 1.0 / buffer.num_planes().max(1) as f32;
        for part in parts {
            let start = self.out.len();
            for (index, plane) in buffer.iter_planes().enumerate() {
                let values = plane[part.clone()].iter().map(|value| IntoSample::<f32>::into_sample(*value));
                if index == 0 {
                    self.out.extend(values);
                } else {
                    self.out[start..].iter_mut().zip(values).for_each(|(out, value)| *out += value);
                }
            }
            if buffer.num_planes() > 1 {
                self.out[start..].iter_mut().for_each(|out| *out *= share);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decoded_and_cut_off_is_limited_too() {
        let op = DecodeAudio::new().max_samples(1000);
        let mut out = Vec::new();
        let mut mono = Mono::new(&op, Trim { start: 5000, end: 0..0 }, 16_000, &mut out);
        mono.silence(1000).unwrap();
        let error = mono.silence(1).unwrap_err();
        assert!(error.message().starts_with("at least 1001 samples before and after"), "{error}");
        // Also after the audio clip's end.
        let mut mono = Mono::new(&op, Trim { start: 0, end: 10..u64::MAX }, 16_000, &mut out);
        mono.silence(1010).unwrap();
        assert!(mono.silence(1).is_err());
        assert_eq!(out.len(), 10);
    }

    #[test]
    fn channels_count_each() {
        let op = DecodeAudio::new().max_decoded_bytes(4 * 1000);
        let mut out = Vec::new();
        let mut mono = Mono::new(&op, Trim::default(), 16_000, &mut out);
        mono.keep(100, 8).unwrap();
        mono.silence(200).unwrap();
        let error = mono.keep(1, 2).unwrap_err();
        assert!(
            error.message().contains("decode to at least 4008 bytes, over max_decoded_bytes (4000)"),
            "{error}"
        );
    }
}
