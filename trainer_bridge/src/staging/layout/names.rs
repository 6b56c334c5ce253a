//! Names of the columns that feedstock adds on a device.

use crate::Error;

/// The columns that feedstock adds to those of the data set.
pub(crate) const SAMPLE_IDS: &str = "sample_ids";
pub(crate) const VALID: &str = "valid";
pub(crate) const MIX_WEIGHT: &str = "mix_weight";

/// Returns the name of the column of labels that were mixed in.
pub(crate) fn partner_column(labels: &str) -> String {
    format!("{labels}_partner")
}

pub(crate) fn no_labels(labels: &str) -> Error {
    let message = format!("mix: the batch has no column '{labels}' of numbers; name it with mix.labels");
    Error::config(message)
}
