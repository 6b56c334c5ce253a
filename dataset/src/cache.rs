//! Disk cache of fetched ranges. (Door; to be filled.)
pub struct DiskCacheOptions {}
pub struct DiskCache {}
