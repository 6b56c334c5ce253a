//! The units of columnar files and the blocks that they are cut into, found by cataloguing a Parquet or an IPC file.

use crate::Result;
use crate::catalog::{BlockRow, BlockTable, BlockTableBuilder, UnitStore, UnitStoreBuilder};

/// A row group or a record batch.
pub(super) struct CutUnit {
    /// What the catalog keeps of it.
    pub(super) description: Vec<u8>,
    pub(super) blocks: Vec<CutBlock>,
}

/// A block of a unit.
pub(super) struct CutBlock {
    pub(super) first_row: u64,
    pub(super) rows: u32,
    pub(super) bytes: u64,
    pub(super) memory: u64,
}

/// Returns the catalog's tables of all files, each given as its units.
pub(super) fn tables(files: impl Iterator<Item = Vec<CutUnit>>) -> Result<(BlockTable, UnitStore)> {
    let (mut blocks, mut units) = (BlockTableBuilder::default(), UnitStoreBuilder::default());
    for (shard, file) in (0u32..).zip(files) {
        for CutUnit { description, blocks: cut } in file {
            let unit = units.push(&description)?;
            for CutBlock { first_row, rows: samples, bytes, memory } in cut {
                blocks.push(BlockRow { shard, samples, bytes, memory, unit, first_row })?;
            }
        }
    }
    Ok((blocks.finish(), units.finish()))
}
