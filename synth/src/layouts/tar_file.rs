//! Tar members with fixed times and owners, so that equal samples make equal files.

use crate::output::OutFile;
use crate::{Error, Result};
use std::io::{self, Write};
use tar::{EntryType, Header};

/// Returns a plain ustar header of a file.
pub(crate) fn header(name: &str, size: u64, file: &OutFile) -> Result<Header> {
    plain_header(name, size).map_err(|e| Error::write(file.path(), e))
}

fn plain_header(name: &str, size: u64) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    header.set_path(name)?;
    header.set_entry_type(EntryType::Regular);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    Ok(header)
}

/// Appends one member, and returns its size in the tar.
pub(crate) fn append(file: &mut OutFile, name: &str, data: &[u8]) -> Result<u64> {
    write_member(file, name, data).map_err(|e| Error::write(file.path(), e))?;
    Ok(512 + (data.len() as u64).next_multiple_of(512))
}

/// Writes one member to any output.
pub(crate) fn write_member(out: &mut impl Write, name: &str, data: &[u8]) -> io::Result<()> {
    let header = plain_header(name, data.len() as u64)?;
    let padding = data.len().next_multiple_of(512) - data.len();
    let parts: [&[u8]; 3] = [header.as_bytes(), data, &[0; 511][..padding]];
    parts.into_iter().try_for_each(|part| out.write_all(part))
}

/// Writes the two empty records that end a tar, and returns their size.
pub(crate) fn end(file: &mut OutFile) -> Result<u64> {
    file.write_all(&[0; 1024]).map_err(|e| Error::write(file.path(), e))?;
    Ok(1024)
}
