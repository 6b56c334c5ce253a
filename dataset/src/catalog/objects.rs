//! The stored objects of a data set, as Arrow columns: names without their common prefix, sizes, ETags.

use super::etags::Etags;
use crate::{Error, ErrorKind, ObjectRef, Result};
use arrow::array::{Array, ArrayRef, AsArray, LargeStringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use std::sync::Arc;

/// The objects of a data set as the catalog saw them, sorted by URI.
///
/// ```
/// use feedstock_dataset::Dataset;
///
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
/// #     let path = folder.path().join(name);
/// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
/// #     std::fs::write(path, bytes).unwrap();
/// # }
/// # let uri = folder.path().to_str().unwrap();
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = OpenOptions { catalog, ..OpenOptions::default() };
/// # futures::executor::block_on(async {
/// let dataset = Dataset::open_with(uri, options).await?;
/// let objects = dataset.catalog().objects();
/// assert_eq!((objects.len(), objects.total_bytes()), (3, 6));
/// assert_eq!((objects.name(1), objects.size(1)), ("cat/2.jpg", 2));
/// assert_eq!(&dataset.storage().read(&objects.get(1), 0..2).await?[..], b"bb");
/// # Ok::<(), feedstock_dataset::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct Objects {
    base: String,
    names: LargeStringArray,
    sizes: UInt64Array,
    etags: Etags,
}

impl Objects {
    /// Makes columns of `objects`, in the order given; the common folder is stored once.
    pub(crate) fn new(objects: &[ObjectRef]) -> Self {
        let base = common_folder(objects);
        Self {
            names: LargeStringArray::from_iter_values(objects.iter().map(|o| &o.uri[base.len()..])),
            sizes: UInt64Array::from_iter_values(objects.iter().map(|o| o.size)),
            etags: Etags::of(objects),
            base,
        }
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns one object, for reading it from storage.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn get(&self, index: usize) -> ObjectRef {
        let size = self.sizes.value(index);
        let uri = format!("{}{}", self.base, self.names.value(index));
        ObjectRef { uri, size, etag: self.etags.get(index, size) }
    }

    /// Returns an object's name below the folder that all share: `data/train-0042.parquet`.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn name(&self, index: usize) -> &str {
        self.names.value(index)
    }

    /// Returns an object's size in bytes.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn size(&self, index: usize) -> u64 {
        self.sizes.value(index)
    }

    /// Returns the bytes of all objects together.
    pub fn total_bytes(&self) -> u64 {
        self.sizes.values().iter().sum()
    }

    /// Returns the number of objects without an ETag and a time of change; only their size distinguishes versions.
    pub(crate) fn pinned_by_size(&self) -> usize {
        self.etags.null_count()
    }

    /// Returns the folder that all objects share, ending in `/` (or empty).
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn to_batch(&self) -> Result<RecordBatch> {
        let (field, etags) = self.etags.to_column();
        let schema = Schema::new(vec![
            Field::new("name", DataType::LargeUtf8, false),
            Field::new("size", DataType::UInt64, false),
            field,
        ]);
        let columns: Vec<ArrayRef> = vec![Arc::new(self.names.clone()), Arc::new(self.sizes.clone()), etags];
        RecordBatch::try_new(Arc::new(schema), columns)
            .map_err(|e| Error::new(ErrorKind::Bug, "objects do not make a table").with_source(e))
    }

    pub(crate) fn from_batch(base: String, batch: &RecordBatch) -> Result<Self, String> {
        let names = batch.column_by_name("name").ok_or("no column name")?;
        let names = names.as_string_opt::<i64>().ok_or("column name is not text")?.clone();
        let sizes = super::blocks::column::<arrow::datatypes::UInt64Type>(batch, "size")?;
        Ok(Self { base, names, sizes: UInt64Array::new(sizes, None), etags: Etags::from_batch(batch)? })
    }
}

/// Returns the longest prefix ending in `/` that all URIs share, shorter than every URI.
fn common_folder(objects: &[ObjectRef]) -> String {
    let Some(first) = objects.first() else { return String::new() };
    let mut shared = first.uri.rfind('/').map_or(0, |at| at + 1);
    for object in objects {
        while shared > 0 && !object.uri.as_bytes().starts_with(&first.uri.as_bytes()[..shared]) {
            shared = first.uri[..shared - 1].rfind('/').map_or(0, |at| at + 1);
        }
    }
    first.uri[..shared].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(uri: &str) -> ObjectRef {
        ObjectRef { uri: uri.into(), size: 1, etag: None }
    }

    #[test]
    fn names_lose_the_shared_folder_only() {
        let objects = Objects::new(&[object("s3://b/train/a/1.jpg"), object("s3://b/train/ab/1.jpg")]);
        assert_eq!(objects.base(), "s3://b/train/");
        assert_eq!(objects.name(1), "ab/1.jpg");
        assert_eq!(objects.get(1).uri, "s3://b/train/ab/1.jpg");
        let apart = Objects::new(&[object("s3://b/x"), object("gs://b/x")]);
        assert_eq!(apart.get(1).uri, "gs://b/x");
        assert_eq!(Objects::new(&[object("file:///x.tar")]).name(0), "x.tar");
    }
}
