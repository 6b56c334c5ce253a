//! Shards that cannot be catalogued: an error, or left out.
//!
//! ```text
//! objects ─▶ read, several at a time ─▶ damaged ones taken out ─▶ those of another schema taken out ─▶ shards
//! ```
//! What was read of all shards is held until the last one is read: footers and messages, which the catalog holds anyway.

use super::bad_shards::BadShards;
use super::cataloguing::Cataloguing;
use super::guard::guarding;
use super::listing::Sources;
use crate::catalog::columns::same_schema;
use crate::{Error, ObjectRef, Result};
use arrow::datatypes::{DataType, SchemaRef};
use futures::{StreamExt, stream};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

impl Cataloguing<'_> {
    /// Reads each object of `sources` with `read` and returns the results in their order. Takes damaged objects out of
    /// `sources` if the data set is opened without them.
    pub(super) async fn read_shards<T, F>(
        &self,
        sources: &mut Sources,
        stage: &'static str,
        read: impl Fn(ObjectRef) -> F,
    ) -> Result<Vec<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let total = sources.objects.len();
        let mut reads = stream::iter(sources.objects.clone())
            .map(|object| {
                let work = read(object.clone());
                async move { guarding(&object, work).await }
            })
            .buffered(self.reads_at_once());
        let (mut shards, mut bad) = (Vec::with_capacity(total), BTreeMap::new());
        for index in 0..total {
            match reads.next().await {
                Some(Ok(shard)) => shards.push(shard),
                Some(Err(error)) if self.skips(&error) && bad.len() + 1 < total => {
                    bad.insert(index, error);
                }
                Some(Err(error)) => return Err(error),
                None => break,
            }
            self.options.report(stage, index as u64 + 1, Some(total as u64));
        }
        drop(reads);
        leave_out(bad, sources);
        Ok(shards)
    }

    /// Returns the shards that have one schema. If damaged shards are left out, that is the schema of most shards, and the
    /// others are taken out of `sources`. Otherwise a shard whose schema differs from that of the first is an error.
    pub(super) fn of_one_schema<T>(
        &self,
        shards: Vec<T>,
        schema: impl Fn(&T) -> &SchemaRef,
        sources: &mut Sources,
    ) -> Result<Vec<T>> {
        let chosen = match self.bad_shards {
            BadShards::Raise => 0,
            BadShards::Skip => most_frequent(shards.iter().map(&schema)),
        };
        let Some(first) = shards.get(chosen).map(|shard| schema(shard).clone()) else { return Ok(shards) };
        let (mut kept, mut bad) = (Vec::with_capacity(shards.len()), BTreeMap::new());
        for (index, shard) in shards.into_iter().enumerate() {
            let names = &sources.names;
            match same_schema(&first, schema(&shard), &names[index], &names[chosen]) {
                Ok(()) => kept.push(shard),
                Err(error) if self.bad_shards == BadShards::Raise => return Err(error),
                Err(error) => {
                    bad.insert(index, error);
                }
            }
        }
        leave_out(bad, sources);
        Ok(kept)
    }

    /// Whether the data set is opened without the object whose error this is.
    pub(super) fn skips(&self, error: &Error) -> bool {
        self.bad_shards == BadShards::Skip && error.is_damage()
    }
}

/// Name, type and nullability of a schema's columns: what files of one data set have in common.
type Columns<'a> = Vec<(&'a str, &'a DataType, bool)>;

/// Returns the index of the first of the most frequent schemas; 0 if there is none.
fn most_frequent<'a>(schemas: impl Iterator<Item = &'a SchemaRef>) -> usize {
    let mut counts: HashMap<Columns<'a>, (usize, usize)> = HashMap::new();
    for (index, schema) in schemas.enumerate() {
        let columns = schema.fields().iter().map(|f| (f.name().as_str(), f.data_type(), f.is_nullable()));
        counts.entry(columns.collect()).or_insert((0, index)).0 += 1;
    }
    counts.into_values().max_by_key(|(count, first)| (*count, Reverse(*first))).map_or(0, |(_, first)| first)
}

/// Takes the objects with these indices out of `sources`.
fn leave_out(bad: BTreeMap<usize, Error>, sources: &mut Sources) {
    for (index, error) in &bad {
        let name = &sources.names[*index];
        tracing::warn!(uri = sources.uri, "shard {name} is left out (bad_shards=skip): {error}");
        sources.notes.push(format!("shard {name} is left out, because it cannot be catalogued: {error}"));
    }
    let is_kept = |index: usize| !bad.contains_key(&index);
    sources.objects = kept(std::mem::take(&mut sources.objects), is_kept);
    sources.names = kept(std::mem::take(&mut sources.names), is_kept);
}

fn kept<T>(all: Vec<T>, is_kept: impl Fn(usize) -> bool) -> Vec<T> {
    all.into_iter().enumerate().filter(|(index, _)| is_kept(*index)).map(|(_, one)| one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::CatalogOptions;
    use crate::format::TarHeaders;
    use crate::{IoRuntime, Layout, Storage, StorageOptions};

    fn sources(objects: usize) -> Sources {
        let names: Vec<String> = (0..objects).map(|i| format!("{i}.tar")).collect();
        let objects = names.iter().map(|name| ObjectRef { uri: name.clone(), size: 1, etag: None }).collect();
        let (uri, root) = (String::new(), String::new());
        Sources {
            uri,
            layout: Layout::WebDataset,
            root,
            objects,
            names,
            notes: Vec::new(),
            indexes: None,
            is_resumed: false,
        }
    }

    /// Reads `objects` shards whose results are those of `read`, and returns what is left.
    async fn left(objects: usize, read: fn(&str) -> Result<u32>) -> Result<(Vec<u32>, Sources)> {
        let storage = Storage::new(StorageOptions::default(), IoRuntime::shared()?)?;
        let options = CatalogOptions::default();
        let pair = std::collections::BTreeMap::new();
        let with = Cataloguing {
            storage: &storage,
            options: &options,
            block_bytes: 1 << 20,
            bad_shards: BadShards::Skip,
            tar_headers: TarHeaders::default(),
            archives: None,
            split: None,
            pair: &pair,
            finished: None,
        };
        let mut sources = sources(objects);
        let shards = with.read_shards(&mut sources, "reading", |object| async move { read(&object.uri) });
        Ok((shards.await?, sources))
    }

    #[tokio::test]
    async fn only_damage_is_left_out() {
        let read = |name: &str| match name {
            "1.tar" => Err(Error::damage("1.tar: cut off")),
            "3.tar" => panic!("an assertion of a library"),
            _ => Ok(name.len() as u32),
        };
        let (shards, sources) = left(5, read).await.unwrap();
        assert_eq!((shards.len(), sources.names), (3, vec!["0.tar".into(), "2.tar".into(), "4.tar".into()]));
        assert_eq!(sources.objects.len(), 3);
        assert!(sources.notes[1].contains("an assertion of a library"), "{:?}", sources.notes);
        // as for HTTP 505: the shard may be healthy
        let error =
            left(2, |name| if name == "1.tar" { Err(Error::config("1.tar: HTTP 505")) } else { Ok(1) });
        assert!(error.await.unwrap_err().message().contains("HTTP 505"));
    }

    #[tokio::test]
    async fn a_data_set_of_damaged_shards_is_an_error() {
        for shards in [1, 4] {
            let error =
                left(shards, |name| Err(Error::damage(format!("{name}: cut off")))).await.unwrap_err();
            assert!(error.message().contains(&format!("{}.tar", shards - 1)), "{error}");
        }
    }
}
