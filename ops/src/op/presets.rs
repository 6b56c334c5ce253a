//! Ops with the defaults of well-known libraries.

use super::Op;
use super::audio::LogMel;

/// Log-mel spectrograms like those of Whisper's feature extractor: 80 filters. Whisper also pads to 30 s before, and puts
/// features before time: add `pad_seconds(30)` with `truncate` before this op, and `feature_major()` after it.
///
/// See [`LogMel`].
///
/// ```
/// use feedstock_ops::{ChainSpec, audio::{PadSeconds, feature_major}, decode_audio, log_mel_whisper, resample};
///
/// let pad = PadSeconds::new(30.0).truncate(true).into();
/// let chain = ChainSpec::from([decode_audio(), resample(16_000), pad, log_mel_whisper(), feature_major()]).compile()?;
/// assert_eq!(chain.output().shape, [80, 3000]); // Whisper's input
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
pub fn log_mel_whisper() -> Op {
    LogMel::default().into()
}

/// Log-mel spectrograms like those of torchaudio's `MelSpectrogram()` and `AmplitudeToDB(top_db=80)`: 128 filters, in
/// decibels.
///
/// See [`LogMel::torchaudio`].
///
/// ```
/// use feedstock_ops::{ChainSpec, decode_audio, log_mel_torchaudio, resample};
///
/// let chain = ChainSpec::from([decode_audio(), resample(16_000), log_mel_torchaudio()]).compile()?;
/// assert_eq!(chain.output().shape_at(81), [81, 128]); // 1 s: 1 + 16,000 / 200 frames
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
pub fn log_mel_torchaudio() -> Op {
    LogMel::torchaudio(128).into()
}

/// Log-mel spectrograms like those of librosa's `feature.melspectrogram` and `power_to_db`: 128 filters, in decibels.
///
/// See [`LogMel::librosa`].
///
/// ```
/// use feedstock_ops::{audio::LogMel, log_mel_librosa};
///
/// assert_eq!(log_mel_librosa(), LogMel::librosa(128).into());
/// assert_eq!((LogMel::librosa(128).n_fft, LogMel::librosa(128).hop_length), (2048, 512));
/// ```
pub fn log_mel_librosa() -> Op {
    LogMel::librosa(128).into()
}
