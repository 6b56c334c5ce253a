//! `metadata.csv` in a folder of files, as in Hugging Face's ImageFolder and AudioFolder.
//!
//! The table has a column `file_name`, relative to the table's folder, and columns of metadata. A folder with such a table
//! at its top level is read as a manifest: the samples are the table's rows, in their order, with the table's columns.
//! Folder names are not classes then; `datasets` also drops labels if it finds a table.

use crate::{ErrorKind, ObjectRef, Result, Storage};

/// The column that names the files.
pub(crate) const FILE_NAME: &str = "file_name";
/// The only table that is read.
const CSV: &str = "metadata.csv";
/// The other table that `datasets` reads without Parquet. A Parquet file next to images is a separate error: two layouts.
const JSON_LINES: &str = "metadata.jsonl";
/// Fits a header of 4,096 columns of 16 letters.
const MAX_HEADER_BYTES: u64 = 64 << 10;

/// Whether the object of this name or URI is named like such a table.
pub(crate) fn is_named(name: &str) -> bool {
    file_name(name) == CSV
}

/// Whether an object of this name, below the URI's folder, describes that folder.
pub(super) fn is_top(name: &str) -> bool {
    name == CSV
}

/// Whether a folder that was not listed has a table that describes it. Takes one request, and another one if there is a
/// table.
pub(crate) async fn is_in(uri: &str, storage: &Storage) -> Result<bool> {
    match storage.find(&format!("{}/{CSV}", uri.trim_end_matches('/'))).await {
        Ok(Some(table)) => names_files(&table, storage).await,
        Ok(None) => Ok(false),
        // Stores answer like this about a missing object to a caller who may not list.
        Err(error) if error.kind() == ErrorKind::Denied => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the table that describes a folder's `objects`, given with their names below `root`. Other tables are noted.
pub(crate) async fn find<'a>(
    objects: &'a [(String, ObjectRef)],
    root: &str,
    storage: &Storage,
    notes: &mut Vec<String>,
) -> Result<Option<&'a (String, ObjectRef)>> {
    if let Some(found) = objects.iter().find(|(name, _)| name == CSV)
        && names_files(&found.1, storage).await?
    {
        return Ok(Some(found));
    }
    for (name, _) in objects {
        match file_name(name) {
            CSV => notes.push(format!(
                "the columns of {name} are not read; to read the files that it names, with its columns, open {root}{name}"
            )),
            JSON_LINES => notes.push(format!(
                "the columns of {name} are not read; to read them, write the table as {CSV}"
            )),
            _ => {}
        }
    }
    Ok(None)
}

/// Whether the table's header has the column of file names.
async fn names_files(table: &ObjectRef, storage: &Storage) -> Result<bool> {
    let bytes = storage.read(table, 0..table.size.min(MAX_HEADER_BYTES)).await?;
    let header = bytes.split(|byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default();
    let header = String::from_utf8_lossy(header.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(header));
    Ok(header.split(',').any(|column| column.trim().trim_matches('"') == FILE_NAME))
}

fn file_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}
