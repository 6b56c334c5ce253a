//! Decodes MPEG-1 layer III at half its sample rate, for audio clips that are then resampled to a lower one.
//!
//! ```text
//! frame ─▶ side info ─▶ main data of this and earlier frames ─▶ Huffman codes, up to the highest audible line
//!       ─▶ × scale factors ─▶ mean of the channels ─▶ inverse MDCT ─▶ synthesis of every second sample
//! ```
//! From 48 to 16 kHz, nothing above 8 kHz remains. So 12 of 32 subbands are needed, and every second of their samples has
//! all their information. Resampled, the result equals that of full decoding within −90 dB, the resampling filter's stop
//! band. The difference can be larger within half a filter of the ends (2.7 ms at 16 kHz) if the audio clip begins in
//! mid-sound: the encoder's delay is cut off before the filter instead of after it.
//!
//! It decodes intact audio clips at 32, 44.1 and 48 kHz, with long and short blocks, in mono, stereo and middle/side
//! stereo. It does not check checksums, inaudible lines and the side channel. It rejects everything else, which symphonia
//! then decodes: damaged and cut audio clips, spliced ones whose frames use each other's bytes twice, intensity stereo,
//! mixed blocks, MPEG-2.

mod bits;
mod huffman;
mod hybrid;
mod scale;
mod side_info;
mod synthesis;
mod tables;

use super::mpeg::{Frame, FrameHeader};
use crate::audio::resample::MAX_RATIO;
use bits::{Bits, PADDING};
use hybrid::Hybrid;
use scale::{Rows, SCALE_FACTORS, SUBBAND_LINES, SUBBANDS, ScaleFactors};
use side_info::{Channel, LINES, SideInfo};
use synthesis::{HALF_SAMPLES, Synthesis};

/// Samples per frame and channel.
const FRAME_SAMPLES: u32 = 1152;

/// A frame's samples, one granule after the other.
type Samples = [[f32; HALF_SAMPLES]; 2];

/// One thread's decoder.
pub(super) struct HalfRate {
    /// Main data, from the start of the latest frame's.
    main_data: Vec<u8>,
    /// The number of its bytes that were used.
    used: usize,
    factors: [ScaleFactors; 2],
    hybrid: Hybrid,
    synthesis: Synthesis,
}

impl Default for HalfRate {
    fn default() -> Self {
        let (main_data, factors) = (Vec::new(), [[0; SCALE_FACTORS]; 2]);
        Self { main_data, used: 0, factors, hybrid: Hybrid::default(), synthesis: Synthesis::default() }
    }
}

impl HalfRate {
    /// Whether an audio clip of these frames that is resampled to `to` Hz may be decoded at half its rate. The audible range
    /// must end one subband below the top of the lower half, since aliases of the upper half reach that far. Rates that
    /// cannot be resampled from the full rate stay rejected.
    pub(super) fn suits(first: &FrameHeader, to: u32) -> bool {
        let (from, to) = (u64::from(first.sample_rate), u64::from(to));
        first.samples == FRAME_SAMPLES && to * 32 <= from * 15 && to * u64::from(MAX_RATIO) >= from
    }

    /// Appends the even or odd samples of the decoded audio, from sample `start` on, to `out`, as the mean of the channels.
    /// Returns `false` if this decoder does not support the audio clip.
    pub(super) fn decode(
        &mut self,
        (bytes, frames, first): (&[u8], &[Frame], &FrameHeader),
        to: u32,
        start: u64,
        out: &mut Vec<f32>,
    ) -> bool {
        self.decode_by(Self::frame, (bytes, frames, first), to, start, out)
    }

    fn decode_by(
        &mut self,
        frame_by: impl Fn(&mut Self, &[u8], &Stream) -> Option<Samples>,
        (bytes, frames, first): (&[u8], &[Frame], &FrameHeader),
        to: u32,
        start: u64,
        out: &mut Vec<f32>,
    ) -> bool {
        self.main_data.clear();
        self.used = 0;
        self.hybrid.reset();
        self.synthesis.reset();
        let stream = Stream {
            channels: first.channels as usize,
            rate: match first.sample_rate {
                44_100 => 0,
                48_000 => 1,
                _ => 2,
            },
            subbands: usize::try_from((32 * u64::from(to)).div_ceil(first.sample_rate.into()) + 1)
                .unwrap_or(usize::MAX),
            odd: start % 2 == 1,
        };
        assert!(stream.subbands <= SUBBANDS, "`to` suits the audio clip");
        // Half of a delay of at most 4095 + 529 samples.
        let mut skip = usize::try_from(start / 2).unwrap_or(usize::MAX);
        for frame in frames {
            let Some(samples) = frame_by(self, &bytes[frame.at..frame.at + frame.bytes], &stream) else {
                return false;
            };
            let samples = samples.as_flattened();
            let left = &samples[skip.min(samples.len())..];
            out.extend_from_slice(left);
            skip -= samples.len() - left.len();
        }
        true
    }

    /// Returns the samples of both granules.
    fn frame(&mut self, frame: &[u8], stream: &Stream) -> Option<Samples> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
        {
            // SAFETY: the processor has these instructions.
            return unsafe { self.frame_avx2(frame, stream) };
        }
        self.frame_with(frame, stream)
    }

    /// As [`frame`](Self::frame): the same operations in the same order give the same bits.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn frame_avx2(&mut self, frame: &[u8], stream: &Stream) -> Option<Samples> {
        self.frame_with(frame, stream)
    }

    #[inline(always)]
    fn frame_with(&mut self, frame: &[u8], stream: &Stream) -> Option<Samples> {
        let &[_, _, _, fourth, ..] = frame else { return None };
        let (mode, extension) = (fourth >> 6, fourth >> 4 & 3);
        let is_joint = mode == 1;
        if is_joint && extension & 1 == 1 {
            return None;
        }
        let middle_side = is_joint && extension & 2 == 2;
        let place = FrameHeader::parse(frame)?.side_info();
        let main_data = frame.get(place.end..)?;
        let side = SideInfo::read(&frame[place], stream.channels, stream.rate)?;
        // A frame's main data begin at or after the end of the previous frame's. Otherwise frames between them are missing.
        let begin =
            self.main_data.len().checked_sub(side.main_data_begin).filter(|begin| *begin >= self.used)?;
        self.main_data.drain(..begin);
        self.main_data.extend_from_slice(main_data);
        let length = self.main_data.len();
        self.main_data.extend_from_slice(&[0; PADDING]);

        let mut samples = [[0.0; HALF_SAMPLES]; 2];
        let mut bits = Bits::new(&self.main_data);
        let mut end = 0;
        for (index, (granule, samples)) in side.granules.iter().zip(&mut samples).enumerate() {
            let mut sums = self.hybrid.begin();
            // As in symphonia, for any kind of joint stereo.
            if let [Some(first), Some(second)] = granule
                && is_joint
                && first.block != second.block
            {
                return None;
            }
            for (at, channel) in granule.iter().enumerate() {
                let Some(channel) = channel else { continue };
                bits.go_to(end);
                end += channel.bits;
                if end > 8 * length {
                    return None;
                }
                // The mean of (M + S) / √2 and (M − S) / √2.
                let share = match (stream.channels, middle_side) {
                    (1, _) => 1.0,
                    (_, false) => 0.5,
                    (_, true) if at == 0 => std::f32::consts::FRAC_1_SQRT_2,
                    (_, true) => continue,
                };
                let shared = if index == 0 { [false; 4] } else { side.shared[at] };
                scale::read(&mut bits, channel, shared, &mut self.factors[at]);
                if bits.at() > end {
                    return None;
                }
                let mut rows = rows(&mut bits, channel, &self.factors[at], (end, share), stream)?;
                self.hybrid.add(channel.block, &mut rows, &mut sums);
            }
            *samples = self.synthesis.run(&sums, stream.subbands, stream.odd);
        }
        self.main_data.truncate(length);
        self.used = end.div_ceil(8);
        Some(samples)
    }
}

/// The common properties of all frames of an audio clip.
struct Stream {
    channels: usize,
    /// The sample rate's index in the header.
    rate: usize,
    /// The number of decoded subbands: one more than the audible ones, since its aliases cancel those of the one below.
    subbands: usize,
    /// Whether the odd samples are made.
    odd: bool,
}

/// Returns a channel's scaled lines in the decoded subbands.
#[inline(always)]
fn rows(
    bits: &mut Bits<'_>,
    channel: &Channel,
    factors: &ScaleFactors,
    (end, share): (usize, f32),
    stream: &Stream,
) -> Option<Rows> {
    let limit = stream.subbands * SUBBAND_LINES;
    let mut lines = [0.0; LINES];
    huffman::lines(bits, channel, (end, scale::read_limit(channel, stream.rate, limit)), &mut lines)?;
    let mut rows = Rows::default();
    scale::place(channel, factors, (stream.rate, share), &lines, limit, &mut rows);
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::super::mpeg::{Frame, Walk};
    use super::super::{AudioDecoder, DecodeAudio};
    use super::HalfRate;
    use crate::audio::id3::id3_bytes;
    use crate::audio::resample::{Resampler, resampled_length};

    /// Returns an audio clip at `to` Hz, decoded at its full rate and at half its rate.
    fn both(clip: &[u8], to: u32) -> (Vec<f32>, Option<Vec<f32>>) {
        let op = DecodeAudio::new();
        let (mut decoder, mut resampler, mut wave) =
            (AudioDecoder::default(), Resampler::default(), Vec::new());
        let whole = decoder.decode(&op, clip, None, &mut wave).unwrap();
        assert_eq!(whole.halved, None);
        let (samples, mut expected) = (wave.len() as u64, Vec::new());
        resampler.run(&wave, whole.sample_rate, to, &mut expected).unwrap();

        let decoded = decoder.decode(&op, clip, Some(to), &mut wave).unwrap();
        assert_eq!(decoded.sample_rate, whole.sample_rate);
        let Some(halved) = decoded.halved else { return (expected, None) };
        assert_eq!((halved, wave.len() as u64), (samples, samples.div_ceil(2)));
        let mut got = Vec::new();
        resampler.run(&wave, whole.sample_rate / 2, to, &mut got).unwrap();
        got.truncate(resampled_length(halved, whole.sample_rate, to) as usize);
        (expected, Some(got))
    }

    fn decibels(error: &[f32], signal: &[f32]) -> f64 {
        let power = |wave: &[f32]| wave.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        10.0 * (power(error) / power(signal)).log10()
    }

    /// Returns all MP3s, by name.
    fn clips() -> Vec<(String, Vec<u8>)> {
        let files =
            std::fs::read_dir(crate::golden::path("audio")).unwrap().map(|entry| entry.unwrap().path());
        let mp3s = files.filter(|file| file.extension().is_some_and(|end| end == "mp3"));
        let mut clips: Vec<_> = mp3s
            .map(|file| {
                (file.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(file).unwrap())
            })
            .collect();
        clips.sort();
        clips
    }

    /// Covers middle/side and left/right stereo, blocks of all four kinds, shared scale factors and checksums, with and
    /// without the encoder's delay, odd and even.
    #[test]
    fn the_result_is_the_whole_clips() {
        let mut halved = Vec::new();
        for (name, clip) in clips() {
            for to in [8_000, 16_000, 22_050] {
                let (expected, got) = both(&clip, to);
                let Some(got) = got else { continue };
                assert_eq!(got.len(), expected.len());
                let error: Vec<f32> = got.iter().zip(&expected).map(|(a, b)| a - b).collect();
                // Half of the resampling filter: the cut at the ends reaches that far.
                let middle = 43..error.len() - 43;
                let inside = decibels(&error[middle.clone()], &expected[middle]);
                let with_ends = decibels(&error, &expected);
                println!("{name} to {to} Hz: {inside:.1} dB, {with_ends:.1} dB with the ends");
                assert!(inside < -90.0, "{name} to {to} Hz: {inside:.1} dB");
                assert!(with_ends < -60.0, "{name} to {to} Hz: {with_ends:.1} dB with the ends");
                halved.push(format!("{name} {to}"));
            }
        }
        let expected = [
            "32k_stereo_crc_id3.mp3 8000",
            "44k_stereo_vbr.mp3 8000",
            "44k_stereo_vbr.mp3 16000",
            "48k_mono_64.mp3 8000",
            "48k_mono_64.mp3 16000",
            "48k_mono_64.mp3 22050",
            "48k_mono_untagged.mp3 8000",
            "48k_mono_untagged.mp3 16000",
            "48k_mono_untagged.mp3 22050",
            "48k_mono_vbri.mp3 8000",
            "48k_mono_vbri.mp3 16000",
            "48k_mono_vbri.mp3 22050",
        ];
        assert_eq!(halved, expected);
    }

    fn clip(name: &str) -> Vec<u8> {
        clips().into_iter().find(|clip| clip.0 == name).unwrap().1
    }

    /// Returns the frames of an audio clip.
    fn walk(clip: &[u8]) -> (Walk, Vec<Frame>) {
        let mut frames = Vec::new();
        (Walk::new(&DecodeAudio::new(), clip, id3_bytes(clip) as usize, &mut frames).unwrap(), frames)
    }

    #[test]
    fn every_implementation_gives_the_same_bits() {
        // One decoder for all, with damaged audio clips in between: earlier ones must not matter.
        let (mut fast, mut portable) = (HalfRate::default(), HalfRate::default());
        let damaged = clip("44k_stereo_vbr.mp3").split_at(9000).0.to_vec();
        let mut clips_done = 0;
        for (name, clip) in clips() {
            let (walk, frames) = walk(&clip);
            for (to, start) in [(8_000, 0), (8_000, 1), (walk.first.sample_rate * 15 / 32, 1105)] {
                if !HalfRate::suits(&walk.first, to) {
                    continue;
                }
                let source = (&clip[..], &frames[..], &walk.first);
                let (mut ours, mut plain) = (Vec::new(), Vec::new());
                assert!(fast.decode(source, to, start, &mut ours), "{name}");
                assert!(portable.decode_by(HalfRate::frame_with, source, to, start, &mut plain), "{name}");
                let bits = |samples: Vec<f32>| samples.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                assert_eq!(bits(ours), bits(plain), "{name} to {to}");
                let (other, mut others) = self::walk(&damaged);
                others[5].at += 1;
                assert!(!fast.decode((&damaged, &others, &other.first), 16_000, 0, &mut Vec::new()));
                clips_done += 1;
            }
        }
        assert_eq!(clips_done, 15);
    }

    #[test]
    fn what_is_wrong_is_symphonias() {
        let op = DecodeAudio::new().max_lost_share(1.0);
        let mut decoder = AudioDecoder::default();
        let mut decode = |clip: &[u8], to| {
            let mut out = Vec::new();
            let decoded = decoder.decode(&op, clip, to, &mut out).unwrap();
            (decoded.halved.is_some(), out)
        };
        let tagged = clip("48k_mono_64.mp3");
        assert!(decode(&tagged, Some(16_000)).0);
        let at = tagged.len() / 2;
        let mut garbled = tagged.clone();
        garbled[at..at + 1000].fill(0xFF);
        // Nothing counts these frames. The walk finds no error, but the bytes that they share are wrong.
        let untagged = clip("48k_mono_untagged.mp3");
        let spliced =
            |without: usize| [&untagged[..192 * without], &untagged[192 * (without + 1)..]].concat();
        let begins = |frame: &[u8]| usize::from(frame[4]) << 1 | usize::from(frame[5] >> 7);
        let without = (5..30).find(|&frame| begins(&untagged[192 * (frame + 1)..]) > 150).unwrap();
        let stereo = clip("44k_stereo_vbr.mp3");
        let (_, frames) = walk(&stereo);
        let joint = frames.iter().rev().find(|frame| stereo[frame.at + 3] >> 6 == 1).unwrap().at;
        let mut intensity = stereo.clone();
        intensity[joint + 3] |= 1 << 4;
        // The bit after window_switching and block_type of the first granule: 5 + 4 scfsi bits, 9 before them.
        let mono = 4 * 8 + 9 + 5 + 4;
        let is_short = |clip: &[u8], at: usize| bits(clip, 8 * at + mono + 33, 3) == 0b110;
        let (_, frames) = walk(&tagged);
        let short = frames.iter().find(|frame| is_short(&tagged, frame.at)).unwrap().at;
        let mut mixed = tagged.clone();
        let bit = 8 * short + mono + 36;
        mixed[bit / 8] |= 0x80 >> (bit % 8);
        for (what, clip) in [
            ("cut off", tagged[..at].to_vec()),
            ("a gap", [&tagged[..at], &tagged[at + 700..]].concat()),
            ("two files", [&tagged[..], &tagged[..]].concat()),
            ("garbled", garbled),
            ("no frame before the first", untagged[192..].to_vec()),
            ("a frame missing", spliced(without)),
            ("intensity stereo", intensity),
            ("mixed blocks", mixed),
        ] {
            let (halved, got) = decode(&clip, Some(16_000));
            assert!(!halved, "{what}");
            assert!(got == decode(&clip, None).1, "{what}");
        }
    }

    fn bits(bytes: &[u8], at: usize, count: usize) -> u32 {
        (at..at + count).fold(0, |number, bit| number << 1 | u32::from(bytes[bit / 8] >> (7 - bit % 8) & 1))
    }

    /// An audio clip with these headers and any bits is decoded to its length or rejected.
    #[test]
    fn damage_is_refused_or_decoded() {
        let clip = clip("44k_stereo_vbr.mp3");
        let (walk, frames) = walk(&clip);
        let (mut decoder, mut refused) = (HalfRate::default(), 0);
        let mut state = 1_u32;
        for _ in 0..200 {
            let mut damaged = clip.clone();
            for _ in 0..3 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let frame = frames[(state >> 4) as usize % frames.len()];
                // Headers stay, since the walk is over.
                let at = frame.at + 4 + (state >> 8) as usize % (frame.bytes - 4);
                damaged[at] = (state >> 24) as u8;
            }
            let mut out = Vec::new();
            let decoded = decoder.decode((&damaged, &frames, &walk.first), 16_000, 0, &mut out);
            refused += usize::from(!decoded);
            assert!(!decoded || out.len() == frames.len() * 576);
        }
        assert!((20..180).contains(&refused), "{refused} of 200 were rejected");
    }
}
