//! Ops with the defaults of well-known libraries.

use super::Op;
use super::audio::LogMel;

/// Log-mel spectrograms as those of Whisper's feature extractor: 80 filters. It pads to 30 s first and lays features out
/// first; that is `pad_seconds(30)` with `truncate` before, and `feature_major()` after.
///
/// See [`LogMel`].
pub fn log_mel_whisper() -> Op {
    LogMel::default().into()
}

/// Log-mel spectrograms as those of torchaudio's `MelSpectrogram()` and `AmplitudeToDB(top_db=80)`: 128 filters, in
/// decibels.
///
/// See [`LogMel::torchaudio`].
pub fn log_mel_torchaudio() -> Op {
    LogMel::torchaudio(128).into()
}

/// Log-mel spectrograms as those of librosa's `feature.melspectrogram` and `power_to_db`: 128 filters, in decibels.
///
/// See [`LogMel::librosa`].
pub fn log_mel_librosa() -> Op {
    LogMel::librosa(128).into()
}
