//! Names audio clips that a run would certainly fail to decode, before it starts.

use crate::pipeline::Pipeline;
use crate::policy::OnError;
use crate::{Error, Result};
use feedstock_dataset::UnsupportedAudio;
use feedstock_ops::Op;

/// Audio clips that a message names for each codec.
const EXAMPLES: usize = 3;

impl Pipeline {
    /// Checks that the run decodes no audio clip whose header states a codec that is not decoded. With
    /// [`OnError::Skip`], it logs a warning.
    pub(crate) fn check_codecs(&self) -> Result<()> {
        let decoded = |codec: &UnsupportedAudio| {
            self.recipe.maps.iter().any(|map| {
                map.column == codec.column && matches!(map.ops.0.first(), Some(Op::DecodeAudio(_)))
            })
        };
        let found: Vec<String> = self
            .recipe
            .dataset
            .unsupported_audio()
            .iter()
            .filter(|codec| decoded(codec))
            .map(|codec| self.describe(codec))
            .collect();
        if found.is_empty() {
            return Ok(());
        }
        let message = format!(
            "{}: the headers of audio clips state codecs that feedstock does not decode: {}",
            self.recipe.dataset.uri(),
            found.join("; ")
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

    fn describe(&self, codec: &UnsupportedAudio) -> String {
        let catalog = self.recipe.dataset.catalog();
        let named: Vec<String> =
            codec.first.iter().take(EXAMPLES).map(|sample| catalog.describe_sample(*sample)).collect();
        let more = if codec.samples > named.len() as u64 { " …" } else { "" };
        format!("{} ({}{more})", codec.codec, named.join(", "))
    }
}
