//! Recognises the layout of tars by looking into one of them.

use super::super::common_voice;
use super::super::contract::Seen;
use super::super::kinds::{Kind, file_name, kind_of};
use crate::{Layout, ObjectRef, Result, Storage};

/// Returns the layout of tars, if the data are tars.
pub(in crate::format) async fn recognise_tars(seen: &Seen<'_>, storage: &Storage) -> Result<Option<Layout>> {
    let is_tar = |name: &str| kind_of(name) == Some(Kind::Tar);
    match seen.listed.iter().find(|(name, _)| is_tar(name)).filter(|_| seen.has_only(Kind::Tar)) {
        Some((name, object)) => Ok(Some(layout_of_tar(name, object, storage).await?)),
        None => Ok(None),
    }
}

/// ILSVRC's tars are recognised by name, or by a first member that is a tar itself; Common Voice's by name, or by a first
/// member that is a TSV or in `clips/`.
async fn layout_of_tar(name: &str, object: &ObjectRef, storage: &Storage) -> Result<Layout> {
    let file = file_name(name);
    if file.starts_with("ILSVRC2012_img_train") || file.starts_with("ILSVRC2012_img_val") {
        return Ok(Layout::IlsvrcTar);
    }
    const TAR_HEADER_BYTES: u64 = 512;
    let header = storage.read(object, 0..object.size.min(TAR_HEADER_BYTES)).await?;
    let is_tar = header.get(257..262) == Some(b"ustar");
    let member = header.split(|b| *b == 0).next().filter(|_| is_tar);
    let member = member.and_then(|m| std::str::from_utf8(m).ok());
    Ok(match member {
        Some(member) if member.ends_with(".tar") => Layout::IlsvrcTar,
        _ if common_voice::is_archive(name, member) => Layout::CommonVoiceTar,
        _ => Layout::WebDataset,
    })
}
