//! Catalogs on disk or next to the data: Arrow IPC tables, and a small `catalog.json` written last.
//!
//! The names of the tables contain the hash of their bytes, so that writers of different catalogs never conflict. The JSON
//! holds each table's size and CRC-32: what does not match is rebuilt, never trusted. A replaced catalog is kept for a
//! while ([`kept`]).

mod files;
mod identity;
mod index;
mod kept;
mod load;
mod place;
mod same;
mod save;
mod travel;

pub(crate) use identity::{hashes, identity_of_parts, joined, sequence};
pub(crate) use kept::{Kept, kept_catalogs};
pub(crate) use load::{Found, Stored, load};
pub(crate) use place::Place;
pub use same::SameSamples;
pub(crate) use same::same_samples;
pub(crate) use save::{save, save_compared};
pub(crate) use travel::{Parcel, copy, has};

#[cfg(test)]
mod tests {
    use super::index::INDEX;
    use super::*;
    use crate::catalog::columns::map_columns;
    use crate::catalog::{
        BlockRow, BlockTableBuilder, Catalog, Content, Objects, Parts, Probed, UnitStoreBuilder,
    };
    use crate::{BlockId, IoRuntime, Layout, ObjectRef, Storage, StorageOptions};
    use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
    use feedstock_plan::DataHashes;
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::time::Instant;

    const BLOCKS: u32 = 1_000_000;

    fn million_blocks() -> Catalog {
        let objects: Vec<ObjectRef> = (0..10_000)
            .map(|i| ObjectRef {
                uri: format!("s3://b/train-{i:05}.parquet"),
                size: 1 << 30,
                etag: Some(format!("{i:032x}")),
            })
            .collect();
        let (mut blocks, mut units) = (BlockTableBuilder::default(), UnitStoreBuilder::default());
        for b in 0..BLOCKS {
            let unit = units.push(format!("{b:064}").as_bytes()).unwrap();
            blocks
                .push(BlockRow {
                    shard: b / 100,
                    samples: 1_000,
                    bytes: 4 << 20,
                    memory: 4 << 20,
                    unit,
                    first_row: 0,
                })
                .unwrap();
        }
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("image", DataType::Binary, true)]));
        let mapping = map_columns(&schema, &HashMap::new()).unwrap();
        Catalog {
            uri: "s3://b".into(),
            layout: Layout::HfParquet,
            block_bytes: 4 << 20,
            objects: Objects::new(&objects),
            blocks: blocks.finish(),
            schema: mapping.schema.clone(),
            payload: mapping.payload.clone(),
            content: Content::Units {
                units: units.finish(),
                source_schema: schema,
                mapping: Arc::new(mapping),
                added: None,
                parts: Parts::None,
            },
            audio: Vec::new(),
            notes: Vec::new(),
            listing_notes: None,
            is_resumed: false,
            probed: Probed::Nothing,
            unsupported: Vec::new(),
            null_columns: Vec::new(),
            hashes: DataHashes { identity: 7, blocks: 7, legacy: 7 },
            listing: 1,
        }
    }

    /// `cargo test -p feedstock-dataset million_blocks -- --nocapture` prints how long it takes: less than a second.
    #[test]
    fn a_million_blocks_open_with_mapped_tables_and_one_read_of_a_unit() {
        let folder = tempfile::tempdir().unwrap();
        let io = IoRuntime::new().unwrap();
        let storage = Storage::new(StorageOptions::default(), io.clone()).unwrap();
        let place = Place::new(folder.path().join("0").to_str().unwrap().to_owned(), true);
        let mut built = million_blocks();
        let shared = (storage.clone(), Arc::new(place));
        let (storage, place) = shared.clone();
        io.block_on(async move {
            save(&mut built, &place, &storage).await?;
            assert!(matches!(&built.content, Content::Units { units, .. } if units.bytes().is_none()));
            Ok(())
        })
        .unwrap();
        let index = std::fs::metadata(shared.1.file(INDEX)).unwrap().len();
        let before = shared.0.stats();
        let start = Instant::now();
        let (storage, place) = shared.clone();
        let found = io
            .block_on(async move {
                let Stored::Found(found) = load(&place, &storage).await? else { panic!("not found") };
                let Content::Units { units, .. } = &found.catalog.content else { panic!("no units") };
                assert_eq!(units.read(777_777, &storage).await?, format!("{:064}", 777_777));
                Ok(found)
            })
            .unwrap();
        let took = start.elapsed();
        println!("{BLOCKS} blocks, {} samples: opened in {took:?}", found.catalog.samples());
        assert_eq!(found.catalog.samples(), 1_000_000_000);
        assert_eq!(found.catalog.block_samples(BlockId(999_999)).end, 1_000_000_000);
        // The index, whose size is requested, too; and one of the units, 64 bytes each.
        let after = shared.0.stats();
        let (requests, bytes) = (after.requests - before.requests, after.read_bytes - before.read_bytes);
        assert_eq!((requests, bytes), (3, index + 64));
    }
}
