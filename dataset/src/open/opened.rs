//! An opened data set: a catalog, and the means to read its blocks. It is at one URI, or made of several data sets.

use super::spec::SourceSpec;
use crate::catalog::Catalog;
use crate::stored::Place;
use crate::{DiskCache, Storage};
use datafusion::logical_expr::ScalarUDF;
use std::hash::Hasher;
use std::sync::Arc;

/// An opened data set, before a choice of samples and columns.
pub(crate) struct Opened {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) storage: Storage,
    /// Where the catalog is kept; `None` if in memory only, and for several data sets in one.
    pub(crate) stored_at: Option<Place>,
    /// Whether it is stored there. A full or read-only cache folder costs time and is not an error.
    pub(crate) is_catalog_kept: bool,
    /// The name of its folder where catalogs are published; `None` for several data sets in one.
    pub(crate) published_as: Option<String>,
    pub(crate) cache: Option<DiskCache>,
    pub(crate) functions: Vec<Arc<ScalarUDF>>,
    /// The description with which another process can open the same.
    pub(crate) source: SourceSpec,
    /// A hash of the content and of the place that it is read from.
    pub(crate) place_hash: u64,
}

/// Hashes a catalog's content, its ETags included, and the places that it is read from.
pub(crate) fn place_hash<P: AsRef<[u8]>>(catalog: &Catalog, places: impl IntoIterator<Item = P>) -> u64 {
    let mut hasher = twox_hash::XxHash64::with_seed(0);
    hasher.write_u64(catalog.hashes().identity);
    hasher.write_u64(catalog.hashes().blocks);
    hasher.write_u64(catalog.listing); // changes when a file is rewritten with an equal size
    for place in places {
        let place = place.as_ref();
        hasher.write_u64(place.len() as u64);
        hasher.write(place);
    }
    hasher.finish()
}
