//! `log_mel`: log-mel spectrograms, with the parameters of torchaudio, librosa and Whisper.

use serde::{Deserialize, Serialize};

use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::logarithm::Logarithm;
use crate::audio::mel::{MelBands, MelFilters, MelNorm, MelScale};
use crate::audio::mel_spectrogram::{MelSpectrogram, Range};
use crate::audio::parameters::single;
use crate::audio::spectrum::{Frames, PadMode};
use crate::audio::step::{Extractor, FeatureScratch};
use crate::audio::window::Window;
use feedstock_base::{Error, Result};

/// The longest frame: 1.4 s at 48 kHz; a thread's buffers for it take 3 MB.
const MAX_N_FFT: usize = 1 << 16;

/// Limit on the number of filters: eight times what speech models use.
const MAX_MELS: usize = 1024;

/// Spectra below it count as silent: the `amin` of torchaudio and librosa, and Whisper's floor.
const DEFAULT_FLOOR: f64 = 1e-10;

/// Computes the power of `n_mels` triangular filters over each frame's spectrum, and its logarithm.
///
/// The result is f32 `[time, n_mels]` (or `[n_mels, time]` with `feature_major`). With `center`, n samples make 1 + n /
/// hop_length frames, of which `drop_last_frame` leaves n / hop_length; without, 1 + (n − n_fft) / hop_length. An audio
/// clip that makes none is a bad sample. The sample rate must be known, so a `resample` must come before.
///
/// The defaults are those of Whisper's feature extractor (transformers), so that `log_mel:80` (or `log_mel:128`) is
/// what Whisper takes; [`LogMel::torchaudio`] and [`LogMel::librosa`] have those libraries' defaults. Results agree
/// with all three within 1e-4 relative, which `tests/suite/golden_audio.rs` checks. They are finite for every audio
/// clip.
///
/// On one machine, every process and thread gives the same bits. CPUs with and without AVX add in a different order in
/// the FFT, which changes the last bits (1e-6 relative).
///
/// ```
/// use feedstock_ops::{Chain, RaggedRow, SampleSeed, Scratch};
///
/// # fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
/// #     let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
/// #     let (len, head) = (data.len() as u32, [16, 0x0001_0001, rate, 2 * rate, 0x0010_0002].map(u32::to_le_bytes));
/// #     let riff = [b"RIFF", &(36 + len).to_le_bytes()[..], b"WAVEfmt ", head.as_flattened()].concat();
/// #     [&riff, &b"data"[..], &len.to_le_bytes(), &data].concat()
/// # }
/// let chain = Chain::parse("decode_audio,resample:16000,log_mel:80")?;
/// let mut row = RaggedRow::new();
/// let clip = wav(16_000, &[0; 16_000]);
/// chain.apply_ragged(&clip, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(chain.output().shape_at(row.length()), [100, 80]); // 1 s: a frame every 10 ms
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct LogMel {
    /// Filters; default 80.
    pub n_mels: usize,
    /// Samples of a frame's transform; any number from 2, default 400, 25 ms at 16 kHz.
    pub n_fft: usize,
    /// Samples under the window, in the frame's middle; default `n_fft`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub win_length: Option<usize>,
    /// Samples from frame to frame; default 160, 10 ms at 16 kHz.
    pub hop_length: usize,
    /// Where the first filter begins, in Hz; default 0.
    pub f_min: f64,
    /// Where the last filter ends, in Hz; default half the sample rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub f_max: Option<f64>,
    /// What frames are multiplied by; default Hann.
    pub window: Window,
    /// Default Slaney's.
    pub mel_scale: MelScale,
    /// The filters' height; default Slaney's, area 1.
    pub norm: MelNorm,
    /// Frame i has its middle, not its start, at sample i · hop_length; default true.
    pub center: bool,
    /// What is assumed beyond the audio clip's ends, with `center`; default reflect.
    pub pad_mode: PadMode,
    /// 2, the default, takes squared magnitudes, 1 magnitudes.
    pub power: u8,
    /// The logarithm; default Whisper's.
    pub log: Log,
    /// The floor that protects the logarithm; default 1e-10.
    pub floor: f64,
    /// How the floor is applied; default: the greater of both.
    pub floor_by: FloorBy,
    /// Raise everything to this far below the audio clip's greatest value (decibels, with `log` db only); default not
    /// at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_db: Option<f64>,
    /// Leave the last frame out, as Whisper does; default true.
    pub drop_last_frame: bool,
}

/// The logarithm of [`LogMel`] and [`Mfcc`](super::Mfcc).
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Log {
    /// log10, raised to 8 below the audio clip's greatest value, (x + 4) / 4.
    #[default]
    Whisper,
    /// Natural.
    Ln,
    /// Decimal.
    Log10,
    /// Decibels: 10 log10 of powers, 20 log10 of magnitudes.
    Db,
    /// None: the mel spectrogram itself.
    None,
}

/// How `floor` protects the logarithm.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FloorBy {
    /// log(max(x, floor)).
    #[default]
    Max,
    /// log(x + floor).
    Add,
}

impl Default for LogMel {
    fn default() -> Self {
        Self {
            n_mels: 80,
            n_fft: 400,
            win_length: None,
            hop_length: 160,
            f_min: 0.0,
            f_max: None,
            window: Window::Hann,
            mel_scale: MelScale::Slaney,
            norm: MelNorm::Slaney,
            center: true,
            pad_mode: PadMode::Reflect,
            power: 2,
            log: Log::Whisper,
            floor: DEFAULT_FLOOR,
            floor_by: FloorBy::Max,
            top_db: None,
            drop_last_frame: true,
        }
    }
}

impl LogMel {
    /// Uses `n_mels` filters, otherwise as Whisper's feature extractor.
    pub fn new(n_mels: usize) -> Self {
        Self { n_mels, ..Self::default() }
    }

    /// Computes torchaudio's `MelSpectrogram(n_mels=n_mels)` (whose default is 128) and `AmplitudeToDB(top_db=80)`.
    ///
    /// With an odd `n_fft`, torchaudio places the bins as for the even number below it; here, as in librosa, they have
    /// their true frequencies.
    ///
    /// ```
    /// use feedstock_ops::audio::LogMel;
    ///
    /// let (whisper, torchaudio) = (LogMel::new(80), LogMel::torchaudio(80));
    /// assert_eq!((whisper.hop_length, torchaudio.hop_length), (160, 200));
    /// assert_eq!((whisper.drop_last_frame, torchaudio.drop_last_frame), (true, false));
    /// ```
    pub fn torchaudio(n_mels: usize) -> Self {
        Self {
            n_mels,
            hop_length: 200,
            mel_scale: MelScale::Htk,
            norm: MelNorm::None,
            log: Log::Db,
            top_db: Some(80.0),
            drop_last_frame: false,
            ..Self::default()
        }
    }

    /// Computes librosa's `feature.melspectrogram(n_mels=n_mels)` (whose default is 128) and `power_to_db`.
    pub fn librosa(n_mels: usize) -> Self {
        Self {
            n_mels,
            n_fft: 2048,
            hop_length: 512,
            pad_mode: PadMode::Constant,
            log: Log::Db,
            top_db: Some(80.0),
            drop_last_frame: false,
            ..Self::default()
        }
    }

    /// Sets the samples of a frame's transform, under its window, and from frame to frame.
    ///
    /// ```
    /// use feedstock_ops::{ChainSpec, audio::LogMel, decode_audio, resample};
    ///
    /// let features = LogMel::new(40).frames(512, 400, 160).band(20.0, 7_600.0);
    /// let chain = ChainSpec::from([decode_audio(), resample(16_000), features.into()]).compile()?;
    /// assert_eq!(chain.output().shape_at(100), [100, 40]);
    ///
    /// let narrow = LogMel::new(40).band(20.0, 9_000.0).into(); // over half of 16 kHz
    /// assert!(ChainSpec::from([decode_audio(), resample(16_000), narrow]).compile().is_err());
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    #[must_use]
    pub fn frames(self, n_fft: usize, win_length: usize, hop_length: usize) -> Self {
        Self { n_fft, win_length: Some(win_length), hop_length, ..self }
    }

    /// Sets where the first filter begins and the last ends, in Hz.
    #[must_use]
    pub fn band(self, f_min: f64, f_max: f64) -> Self {
        Self { f_min, f_max: Some(f_max), ..self }
    }

    /// Sets the window.
    #[must_use]
    pub fn window(self, window: Window) -> Self {
        Self { window, ..self }
    }

    /// Sets the mel scale and the filters' height.
    #[must_use]
    pub fn mel(self, mel_scale: MelScale, norm: MelNorm) -> Self {
        Self { mel_scale, norm, ..self }
    }

    /// Sets whether frames are centred, and what is then assumed beyond the ends.
    #[must_use]
    pub fn center(self, center: bool, pad_mode: PadMode) -> Self {
        Self { center, pad_mode, ..self }
    }

    /// Sets the logarithm, and the floor that protects it.
    #[must_use]
    pub fn log(self, log: Log, floor: f64, floor_by: FloorBy) -> Self {
        Self { log, floor, floor_by, top_db: None, ..self }
    }

    /// Sets whether the last frame is left out.
    #[must_use]
    pub fn drop_last_frame(self, drop_last_frame: bool) -> Self {
        Self { drop_last_frame, ..self }
    }

    /// Returns the spectra of audio clips of this rate.
    ///
    /// # Errors
    /// `BadConfig` for parameters out of bounds.
    pub(crate) fn spectrogram(&self, sample_rate: u32) -> Result<MelSpectrogram> {
        self.check(sample_rate)?;
        let win_length = self.win_length.unwrap_or(self.n_fft);
        let f_max = self.f_max.unwrap_or(f64::from(sample_rate) / 2.0);
        let bands = MelBands {
            n_mels: self.n_mels,
            range_hz: [self.f_min, f_max],
            scale: self.mel_scale,
            norm: self.norm,
        };
        let db = if self.power == 1 { 20.0 } else { 10.0 };
        let scale = match self.log {
            Log::None => None,
            Log::Ln => Some(1.0),
            Log::Whisper | Log::Log10 => Some(std::f64::consts::LOG10_E),
            Log::Db => Some(db * std::f64::consts::LOG10_E),
        };
        let floor = single(self.floor);
        Ok(MelSpectrogram {
            frames: Frames::new(
                (self.n_fft, win_length, self.hop_length),
                self.window,
                self.center,
                self.pad_mode,
            ),
            filters: MelFilters::new(bands, sample_rate, self.n_fft),
            n_mels: self.n_mels,
            magnitude: self.power == 1,
            drop_last_frame: self.drop_last_frame,
            log: scale.map(Logarithm::new),
            floor: match self.floor_by {
                FloorBy::Max => (0.0, floor),
                FloorBy::Add => (floor, f32::MIN_POSITIVE),
            },
            range: match (self.log, self.top_db) {
                (Log::Whisper, _) => Range::Whisper,
                (_, Some(top_db)) => Range::Below(single(top_db)),
                _ => Range::All,
            },
        })
    }

    fn check(&self, sample_rate: u32) -> Result<()> {
        let win_length = self.win_length.unwrap_or(self.n_fft);
        let nyquist = f64::from(sample_rate) / 2.0;
        let f_max = self.f_max.unwrap_or(nyquist);
        let fault = if !(2..=MAX_N_FFT).contains(&self.n_fft) {
            format!("n_fft must be 2 … {MAX_N_FFT}; got {}", self.n_fft)
        } else if !(1..=self.n_fft).contains(&win_length) {
            format!("win_length must be 1 … n_fft ({}); got {win_length}", self.n_fft)
        } else if !(1..=MAX_N_FFT).contains(&self.hop_length) {
            format!("hop_length must be 1 … {MAX_N_FFT}; got {}", self.hop_length)
        } else if !(1..=MAX_MELS).contains(&self.n_mels) {
            format!("n_mels must be 1 … {MAX_MELS}; got {}", self.n_mels)
        } else if !(self.f_min >= 0.0 && self.f_min < f_max && f_max <= nyquist) {
            let f_min = self.f_min;
            format!(
                "f_min and f_max must ascend within 0 … {nyquist} Hz, half the sample rate; got {f_min} and {f_max}"
            )
        } else if !(1..=2).contains(&self.power) {
            format!("power must be 2 (powers) or 1 (magnitudes); got {}", self.power)
        } else if !(self.floor >= 1e-30 && self.floor <= 1e30) {
            format!("floor must be 1e-30 … 1e30; got {:e}", self.floor)
        } else if let Some(top_db) = self.top_db.filter(|top_db| !(*top_db > 0.0 && top_db.is_finite())) {
            format!("top_db must be above 0; got {top_db}")
        } else if self.top_db.is_some() && self.log != Log::Db {
            "top_db needs log=db".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::config(fault))
    }
}

impl AudioOp for LogMel {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        compiler.extract(|rate| self.spectrogram(rate))
    }
}

impl Extractor for MelSpectrogram {
    fn width(&self) -> usize {
        self.n_mels
    }

    fn count(&self, samples: usize) -> usize {
        self.count(samples)
    }

    fn least_samples(&self) -> usize {
        self.least_samples()
    }

    fn run(&self, wave: &[f32], out: &mut [f32], scratch: &mut FeatureScratch) -> Result<()> {
        self.run(wave, out, &mut scratch.spectrum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audio::spectrum::{LANES, SpectrumScratch};

    fn run(op: &LogMel, wave: &[f32]) -> Vec<f32> {
        let mel = op.spectrogram(16_000).unwrap();
        let mut out = vec![f32::NAN; mel.count(wave.len()) * op.n_mels];
        mel.run(wave, &mut out, &mut SpectrumScratch::default()).unwrap();
        out
    }

    #[test]
    fn silence_and_excess_are_finite() {
        let waves =
            [vec![0.0; 3200], vec![1e38; 3200], vec![f32::MAX; 500], vec![-1e-30; 400], vec![0.3; 161]];
        for wave in waves {
            for log in [Log::Whisper, Log::Ln, Log::Log10, Log::Db] {
                for floor_by in [FloorBy::Max, FloorBy::Add] {
                    let out = run(&LogMel::new(80).log(log, 1e-10, floor_by), &wave);
                    assert!(!out.is_empty() && out.iter().all(|x| x.is_finite()), "{log:?} {floor_by:?}");
                }
            }
            assert!(run(&LogMel::torchaudio(64), &wave).iter().all(|x| x.is_finite()));
        }
    }

    #[test]
    fn frames_do_not_depend_on_those_beside_them() {
        let wave: Vec<f32> = (0..5000_u16).map(|i| (f32::from(i) * f32::from(i) * 1e-4).sin()).collect();
        let op = LogMel::new(40).log(Log::Ln, 1e-10, FloorBy::Max);
        let all = run(&op, &wave);
        // Frame 4 is the fifth lane of the first block here, and the first frame there.
        let later = run(&op, &wave[4 * 160 - 320..]);
        assert_eq!(all[4 * 40..25 * 40], later[2 * 40..23 * 40]);
    }

    /// Wider registers must not change a bit; only the transform before them may.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn avx2_gives_the_same_bits() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            return;
        }
        for op in [LogMel::new(80), LogMel::torchaudio(23).frames(512, 400, 160)] {
            let mel = op.spectrogram(16_000).unwrap();
            let wave: Vec<f32> = (0..4000_u16).map(|i| (f32::from(i) * f32::from(i) * 1e-4).sin()).collect();
            let mut scratch = SpectrumScratch::default();
            scratch.mels.resize(op.n_mels, [0.0; LANES]);
            mel.frames.power(&wave, (3, LANES), false, &mut scratch).unwrap();
            let mut rows = [vec![0.0; op.n_mels * LANES], vec![1.0; op.n_mels * LANES]];
            mel.mel_and_log_portable(&mut scratch, &mut rows[0]);
            // SAFETY: the CPU has AVX2.
            unsafe { mel.mel_and_log_avx2(&mut scratch, &mut rows[1]) };
            let bits = rows.map(|row| row.into_iter().map(f32::to_bits).collect::<Vec<_>>());
            assert_eq!(bits[0], bits[1]);
        }
    }

    #[test]
    fn least_samples_are_the_least_that_make_a_frame() {
        for op in [
            LogMel::new(8),
            LogMel::new(8).drop_last_frame(false),
            LogMel::new(8).center(false, PadMode::Reflect),
            LogMel::new(8).frames(401, 401, 7),
            LogMel::new(8).frames(401, 401, 7).center(false, PadMode::Constant).drop_last_frame(false),
        ] {
            let mel = op.spectrogram(16_000).unwrap();
            let least = mel.least_samples();
            assert_eq!((mel.count(least - 1), mel.count(least)), (0, 1), "{op:?}");
        }
    }

    #[test]
    fn parameters_out_of_bounds_are_refused() {
        let good = LogMel::default();
        for op in [
            LogMel { n_fft: 1, ..good.clone() },
            LogMel { win_length: Some(401), ..good.clone() },
            LogMel { hop_length: 0, ..good.clone() },
            LogMel { n_mels: 0, ..good.clone() },
            LogMel { f_max: Some(8001.0), ..good.clone() },
            LogMel { f_min: 8000.0, ..good.clone() },
            LogMel { power: 3, ..good.clone() },
            LogMel { floor: 0.0, ..good.clone() },
            LogMel { top_db: Some(80.0), ..good.clone() },
        ] {
            assert!(op.spectrogram(16_000).is_err(), "{op:?}");
        }
    }
}
