//! Boxes of MP4 (ISO 14496-12).

/// Yields the boxes of `bytes`: name and content. The last one may be cut.
pub(super) fn boxes(mut bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let size = u64::from(be32(bytes, 0)?);
        let name = *bytes.get(4..)?.first_chunk::<4>()?;
        let (start, size) = match size {
            0 => (8, bytes.len() as u64),
            1 => (16, u64::from_be_bytes(*bytes.get(8..)?.first_chunk()?)),
            size => (8, size),
        };
        let end = usize::try_from(size).unwrap_or(usize::MAX).max(start).min(bytes.len());
        let content = bytes.get(start..end)?;
        bytes = &bytes[end..];
        Some((name, content))
    })
}

/// Returns the content of the first box at `path`.
pub(super) fn inside<'a>(bytes: &'a [u8], path: &[&[u8; 4]]) -> Option<&'a [u8]> {
    path.iter().try_fold(bytes, |bytes, wanted| {
        boxes(bytes).find(|(name, _)| name == *wanted).map(|(_, content)| content)
    })
}

/// Returns the contents of all boxes at `path`.
pub(super) fn all<'a>(bytes: &'a [u8], path: &[&[u8; 4]]) -> Vec<&'a [u8]> {
    path.iter().fold(vec![bytes], |found, wanted| {
        let named = |bytes| boxes(bytes).filter(|(name, _)| name == *wanted).map(|(_, content)| content);
        found.into_iter().flat_map(named).collect()
    })
}

/// Returns the big-endian number at `at`.
pub(super) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}
