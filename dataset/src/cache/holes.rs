//! The blocks of slabs that no entry has, in which new entries are written.
//!
//! A new entry gets the smallest hole that it fits in. Adjacent holes are joined, and the end of a slab that nothing was
//! written to is a hole like others. With sizes that vary and random evictions, 9 slabs then hold the entries of 8 full ones,
//! and there is a hole for every fifth entry.
//!
//! Memory: about 50 bytes a hole.

use super::entry::{Extent, SLAB_BLOCKS};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct Holes {
    /// (slab, first block) → blocks.
    by_place: BTreeMap<(u32, u16), u16>,
    /// (blocks, slab, first block).
    by_size: BTreeSet<(u16, u32, u16)>,
}

impl Holes {
    /// Adds blocks that are free, and joins them with the holes before and after them.
    pub(super) fn insert(&mut self, hole: Extent) {
        let Extent { slab, mut block, mut blocks } = hole;
        let before =
            self.by_place.range(..(slab, block)).next_back().map(|(place, blocks)| (*place, *blocks));
        if let Some(((of, first), len)) = before
            && of == slab
            && first + len == block
        {
            self.remove(slab, first);
            (block, blocks) = (first, len + blocks);
        }
        if let Some(len) = self.remove(slab, block + blocks) {
            blocks += len;
        }
        self.by_place.insert((slab, block), blocks);
        self.by_size.insert((blocks, slab, block));
    }

    /// Takes `blocks` blocks from the start of the smallest hole that has them.
    pub(super) fn take(&mut self, blocks: u16) -> Option<Extent> {
        let (len, slab, block) = *self.by_size.range((blocks, 0, 0)..).next()?;
        self.remove(slab, block);
        if len > blocks {
            self.by_place.insert((slab, block + blocks), len - blocks);
            self.by_size.insert((len - blocks, slab, block + blocks));
        }
        Some(Extent { slab, block, blocks })
    }

    /// Forgets the holes of a slab that is deleted.
    pub(super) fn forget(&mut self, slab: u32) {
        let of_slab = (slab, 0)..=(slab, SLAB_BLOCKS);
        while let Some((place, _)) = self.by_place.range(of_slab.clone()).next() {
            let (_, block) = *place;
            self.remove(slab, block);
        }
    }

    /// Removes the hole that begins at a block, and returns its length.
    fn remove(&mut self, slab: u32, block: u16) -> Option<u16> {
        let blocks = self.by_place.remove(&(slab, block))?;
        self.by_size.remove(&(blocks, slab, block));
        Some(blocks)
    }
}

/// Returns what is between sorted, disjoint entries of a slab, before the first and after the last.
pub(super) fn gaps(slab: u32, sorted: impl Iterator<Item = Extent>) -> impl Iterator<Item = Extent> {
    let end = Extent { slab, block: SLAB_BLOCKS, blocks: 0 };
    let mut block = 0;
    sorted.chain([end]).filter_map(move |entry| {
        let gap = Extent { slab, block, blocks: entry.block.saturating_sub(block) };
        block = entry.block + entry.blocks;
        (gap.blocks > 0).then_some(gap)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Returns the runs of free blocks.
    fn runs(free: &[bool], slab: u32) -> Vec<((u32, u16), u16)> {
        let mut runs: Vec<((u32, u16), u16)> = Vec::new();
        for (block, _) in (0..).zip(free).filter(|(_, free)| **free) {
            match runs.last_mut() {
                Some(((_, first), len)) if *first + *len == block => *len += 1,
                _ => runs.push(((slab, block), 1)),
            }
        }
        runs
    }

    fn set(model: &mut HashMap<u32, Vec<bool>>, extent: Extent, free: bool) {
        for block in extent.block..extent.block + extent.blocks {
            let bit = &mut model.get_mut(&extent.slab).unwrap()[usize::from(block)];
            assert!(*bit != free, "a block was taken or freed twice");
            *bit = free;
        }
    }

    proptest! {
        /// Compares with a bit for each block.
        #[test]
        fn holes_are_the_runs_of_free_blocks(
            steps in proptest::collection::vec((1_u16..9, any::<prop::sample::Index>(), 0_u8..16), 1..300),
        ) {
            const BLOCKS: u16 = 40;
            let mut holes = Holes::default();
            let mut model: HashMap<u32, Vec<bool>> = HashMap::new();
            let mut taken: Vec<Extent> = Vec::new();
            for slab in 0..3 {
                holes.insert(Extent { slab, block: 0, blocks: BLOCKS });
                model.insert(slab, vec![true; usize::from(BLOCKS)]);
            }
            for (blocks, which, action) in steps {
                match action {
                    0 => {
                        let slab = u32::from(blocks) % 3;
                        holes.forget(slab);
                        taken.retain(|extent| extent.slab != slab);
                        model.insert(slab, vec![true; usize::from(BLOCKS)]);
                        holes.insert(Extent { slab, block: 0, blocks: BLOCKS });
                    }
                    1..10 => {
                        let smallest = model.iter().flat_map(|(slab, free)| runs(free, *slab));
                        let smallest = smallest.map(|(place, len)| (len, place)).filter(|(len, _)| *len >= blocks).min();
                        let found = holes.take(blocks);
                        prop_assert_eq!(found.map(|extent| (extent.slab, extent.block)), smallest.map(|(_, place)| place));
                        if let Some(extent) = found {
                            set(&mut model, extent, false);
                            taken.push(extent);
                        }
                    }
                    _ if taken.is_empty() => {}
                    _ => {
                        let extent = taken.swap_remove(which.index(taken.len()));
                        set(&mut model, extent, true);
                        holes.insert(extent);
                    }
                }
                let mut expected: Vec<_> = model.iter().flat_map(|(slab, free)| runs(free, *slab)).collect();
                expected.sort_unstable();
                prop_assert_eq!(holes.by_place.iter().map(|(place, len)| (*place, *len)).collect::<Vec<_>>(), expected);
                let by_size: BTreeSet<_> = holes.by_place.iter().map(|((slab, block), len)| (*len, *slab, *block)).collect();
                prop_assert_eq!(&holes.by_size, &by_size);
            }
        }
    }

    #[test]
    fn gaps_and_entries_fill_a_slab() {
        let extent = |block, blocks| Extent { slab: 7, block, blocks };
        let between = |entries: &[Extent]| gaps(7, entries.iter().copied()).collect::<Vec<_>>();
        assert_eq!(between(&[]), [extent(0, SLAB_BLOCKS)]);
        assert_eq!(between(&[extent(0, SLAB_BLOCKS)]), []);
        assert_eq!(
            between(&[extent(2, 3), extent(5, 1), extent(9, 1)]),
            [extent(0, 2), extent(6, 3), extent(10, SLAB_BLOCKS - 10)]
        );
    }
}
