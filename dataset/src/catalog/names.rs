//! Names of the catalog's columns and of their metadata.

/// Key of the field metadata that holds a label column's class names, as a JSON array of strings.
pub(crate) const CLASS_NAMES_KEY: &str = "feedstock.class_names";

/// The column that numbers samples in queries.
pub(crate) const SAMPLE_ID: &str = "sample_id";

/// The column that holds the durations of audio clips in seconds.
pub(crate) const DURATION: &str = "duration";
