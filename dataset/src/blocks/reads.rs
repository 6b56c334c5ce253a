//! The requests and bytes that fetching an extent takes, known without sending any.

use crate::catalog::{Added, Catalog, Content, FoundIn, Parts};
use crate::format::{self, located};
use crate::storage::count_reads;
use crate::{BlockId, Extent};
use feedstock_plan::ExtentReads;

/// Returns what the reader of blocks sends for these `columns` of an extent, without the disk cache, retries and hedges.
pub(crate) fn extent_reads(catalog: &Catalog, columns: &[usize], extent: Extent) -> ExtentReads {
    let (requests, bytes) = match &catalog.content {
        Content::Located(table) => {
            let has_headers = format::of(catalog.layout).has_headers();
            located::count_reads(catalog, table, extent.range(), (columns, has_headers))
        }
        Content::Units { added, parts, .. } => units(catalog, (added.as_ref(), *parts), columns, extent),
        Content::Union(union) => {
            let part = &union.parts()[union.part_of(extent.first.0)];
            let own: Vec<usize> = columns.iter().filter_map(|&column| part.columns[column]).collect();
            let samples = extent.first.0 - part.first_sample..extent.range().end - part.first_sample;
            let block = BlockId(extent.block.0 - part.first_block);
            return extent_reads(&part.stored.catalog, &own, Extent::new(block, samples));
        }
        Content::Derived(derived) => {
            return extent_reads(derived.base(), &derived.of_base(columns), extent);
        }
    };
    ExtentReads { requests: u32::try_from(requests).unwrap_or(u32::MAX), bytes }
}

/// Counts the encoded bytes of all columns, of which a part of a block has its share, in whole pages.
fn units(
    catalog: &Catalog,
    (added, parts): (Option<&Added>, Parts),
    columns: &[usize],
    extent: Extent,
) -> (u64, u64) {
    let is_stored =
        |column: &usize| added.is_none_or(|added| matches!(added.place(*column), FoundIn::File(_)));
    if !columns.iter().any(is_stored) {
        return (0, 0);
    }
    let shares = catalog.in_blocks(extent.range()).map(|(id, samples)| {
        let (block, first) = (catalog.block(id), catalog.block_samples(id).start);
        let samples = match parts {
            Parts::Pages(page) => {
                let (page, start, end) = (u64::from(page.get()), samples.start - first, samples.end - first);
                end.next_multiple_of(page).min(block.samples.into()) - start / page * page
            }
            Parts::None | Parts::Samples => samples.end - samples.start,
        };
        let share = u128::from(block.bytes) * u128::from(samples) / u128::from(block.samples.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    });
    let bytes = shares.fold(0, u64::saturating_add);
    let (requests, bytes) = count_reads(std::slice::from_ref(&(0..bytes)), catalog.is_local());
    (requests.max(1), bytes)
}
