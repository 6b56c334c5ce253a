//! The TSVs of Common Voice 17: tab separated, no quoting, a line feed at the end of each line.

use crate::output::OutFile;
use crate::speech::Clip;
use crate::{Error, Result};
use std::io::Write;

/// The header of every TSV with audio clips.
pub(crate) const HEADER: &str = "client_id\tpath\tsentence_id\tsentence\tsentence_domain\tup_votes\tdown_votes\tage\t\
                                 gender\taccents\tvariant\tlocale\tsegment\n";
/// The header of `clip_durations.tsv`.
pub(crate) const DURATIONS_HEADER: &str = "clip\tduration[ms]\n";

/// Returns the line of an audio clip.
pub(crate) fn line(clip: &Clip) -> String {
    let Clip { client_id, path, sentence_id, sentence, sentence_domain, age, gender, accents, .. } = clip;
    let (up, down, locale) = (clip.up_votes, clip.down_votes, clip.locale);
    format!(
        "{client_id}\t{path}\t{sentence_id}\t{sentence}\t{sentence_domain}\t{up}\t{down}\t{age}\t{gender}\t{accents}\t\t\
         {locale}\t\n"
    )
}

/// Returns the line of an audio clip in `clip_durations.tsv`.
pub(crate) fn duration_line(clip: &Clip) -> String {
    format!("{}\t{}\n", clip.path, clip.duration_ms)
}

/// Writes text.
pub(crate) fn put(file: &mut OutFile, text: &str) -> Result<()> {
    file.write_all(text.as_bytes()).map_err(|e| Error::write(file.path(), e))
}
