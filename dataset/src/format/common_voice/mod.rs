//! Mozilla Common Voice, in the forms in which it is distributed.
//!
//! ```text
//! clips.rs     <locale>/clips/*.mp3   + <locale>/<split>.tsv                       unpacked
//! archives.rs  the same inside a .tar, or inside a .tar.gz of which archive.rs makes a seekable copy
//! hf.rs        audio/<locale>/<split>/*.tar + transcript/<locale>/<split>.tsv      Hugging Face's scripts
//!                     ╰──▶ places of clips ─╮
//! tsv.rs       rows of TSVs, durations ─────┴─▶ rows.rs ─▶ samples, blocks
//! ```
//! A sample is a row of a TSV. Columns, as far as the TSV has them: `client_id`, `path` (the audio clip's file name, with
//! `.mp3` if the TSV leaves it out), `sentence`, `up_votes` and `down_votes` int64, `age`, `gender`, `accents` (also for
//! the `accent` of releases before 8), `variant`, `locale` (if the TSV has none: the folder's name, if it looks like a
//! language code), `segment`, `sentence_id`, `sentence_domain`, and any other as text. Then `split` (the TSV's name),
//! `duration` float64 in seconds from `clip_durations.tsv` or the older `times.txt` (else from the audio headers, see
//! [`super::durations`]), and the payload `audio`. An empty field is null, but an empty sentence is an empty text.
//!
//! A row whose audio clip is missing stays, with a null payload. The decoder applies the policy, and the error names the
//! TSV, the line and the file. Audio clips that no row names are left out.
//!
//! Cost: TSVs are read whole (about 0.5 GB a million rows, transient) and their columns stay in memory, some 350 bytes a
//! sample. Audio clips are found by one listing and a hash of their names.

pub(super) mod archives;
pub(super) mod clips;
pub(super) mod hf;
mod lists;
mod recognise;
mod rows;
mod tsv;

pub(super) use lists::is_archive;
