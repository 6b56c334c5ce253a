//! Names audio clips that a run would certainly fail to decode, before it starts.

use crate::pipeline::Pipeline;
use crate::policy::OnError;
use crate::{Error, Result};
use feedstock_dataset::UnsupportedAudio;
use feedstock_ops::Op;

impl Pipeline {
    /// Checks that the run decodes no audio clip whose header states a codec that is not decoded. With
    /// [`OnError::Skip`], it logs a warning.
    pub(crate) fn check_codecs(&self) -> Result<()> {
        let decoded = |codec: &UnsupportedAudio| {
            self.recipe.maps.iter().any(|map| {
                map.column == codec.column && matches!(map.ops.0.first(), Some(Op::DecodeAudio(_)))
            })
        };
        let dataset = &self.recipe.dataset;
        let mut found = dataset.unsupported_audio();
        found.retain(decoded);
        if found.is_empty() {
            return Ok(());
        }
        let named =
            |codec: &UnsupportedAudio| format!("{} ({})", codec.codec, codec.examples(dataset.catalog()));
        let message = format!(
            "{}: the headers of audio clips state codecs that feedstock does not decode: {}",
            dataset.uri(),
            found.iter().map(named).collect::<Vec<_>>().join("; ")
        );
        match self.on_error {
            OnError::Raise => Err(Error::config(format!(
                "{message}; convert these files, leave them out with a filter, or set on_error=skip"
            ))),
            OnError::Skip { .. } => {
                tracing::warn!("{message}; these samples are skipped");
                Ok(())
            }
        }
    }
}
