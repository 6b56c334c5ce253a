//! What an object is by its name: a Parquet file, a tar, an image, a table.

use crate::ObjectRef;

/// An object and its name below the root.
pub(super) type Named = (String, ObjectRef);

/// What kind of data an object is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Parquet,
    Tar,
    Ipc,
    Picture,
    Audio,
    Table,
    /// A compressed tar.
    Archive,
}

impl Kind {
    /// Whether a file of this kind has many samples.
    pub(super) fn is_shard(self) -> bool {
        matches!(self, Self::Parquet | Self::Tar | Self::Ipc | Self::Archive)
    }
}

/// Returns a name's extension in lower case: the text after its last dot.
pub(crate) fn extension(name: &str) -> String {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.rsplit_once('.').map_or(String::new(), |(_, ext)| ext.to_ascii_lowercase())
}

/// Whether this is the extension of an image that feedstock reads.
pub(crate) fn is_picture(extension: &str) -> bool {
    matches!(extension, "jpg" | "jpeg" | "png" | "webp")
}

/// Whether this is the extension of audio that feedstock reads.
pub(crate) fn is_audio(extension: &str) -> bool {
    matches!(extension, "mp3" | "flac" | "wav" | "ogg" | "opus" | "m4a" | "aac")
}

/// Whether this is the name of a table that lists other objects: a TSV, a manifest.
pub(crate) fn is_table(name: &str) -> bool {
    kind_of(name) == Some(Kind::Table) || file_name(name) == "times.txt"
}

pub(super) fn kind_of(name: &str) -> Option<Kind> {
    let lower = file_name(name).to_ascii_lowercase();
    if lower.ends_with(".tar.gz") || lower.ends_with(".tgz") {
        return Some(Kind::Archive);
    }
    match extension(name).as_str() {
        "parquet" => Some(Kind::Parquet),
        "tar" => Some(Kind::Tar),
        "arrow" | "ipc" | "feather" => Some(Kind::Ipc),
        "csv" | "tsv" => Some(Kind::Table),
        ext if is_picture(ext) => Some(Kind::Picture),
        ext if is_audio(ext) => Some(Kind::Audio),
        _ => None,
    }
}

pub(super) fn is_hidden(name: &str) -> bool {
    name.is_empty()
        || name.ends_with('/')
        || name.split('/').any(|part| part.starts_with('.') || part == "_feedstock")
}

pub(super) fn file_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

pub(crate) fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
