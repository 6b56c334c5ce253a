//! Ops with the defaults of well-known libraries.

use super::Op;
use super::audio::LogMel;

/// Log-mel spectrograms like those of Whisper's feature extractor: 80 filters. Whisper also pads to 30 s before, and puts
/// features before time: add `pad_seconds(30)` with `truncate` before this op, and `feature_major()` after it.
///
/// See [`LogMel`].
pub fn log_mel_whisper() -> Op {
    LogMel::default().into()
}

/// Log-mel spectrograms like those of torchaudio's `MelSpectrogram()` and `AmplitudeToDB(top_db=80)`: 128 filters, in
/// decibels.
///
/// See [`LogMel::torchaudio`].
pub fn log_mel_torchaudio() -> Op {
    LogMel::torchaudio(128).into()
}

/// Log-mel spectrograms like those of librosa's `feature.melspectrogram` and `power_to_db`: 128 filters, in decibels.
///
/// See [`LogMel::librosa`].
pub fn log_mel_librosa() -> Op {
    LogMel::librosa(128).into()
}
