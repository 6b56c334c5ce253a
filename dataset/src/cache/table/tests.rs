//! Compares the table with a map, and interrupts its changes.

use super::super::disk::Disk;
use super::super::slab::Slabs;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;

fn extent(n: u16) -> Extent {
    Extent { slab: u32::from(n) * 3, block: n % 1000, blocks: 1 + n % 256 }
}

/// Spreads small numbers over buckets as hashes are spread.
fn key(n: u16) -> Key {
    (u128::from(n) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835) >> 3
}

fn put(table: &mut Table, key: Key, extent: Extent) {
    if table.growth(key).unwrap().unwrap() > 0 {
        table.grow().unwrap();
    }
    assert!(table.insert(key, extent).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Compares with a map after every step, also through the functions for other processes and after opening again.
    #[test]
    fn it_has_what_a_map_has(steps in proptest::collection::vec((0_u16..900, 0_u8..10), 1..2000)) {
        let dir = tempfile::tempdir().unwrap();
        let (mut table, found) = Table::open(dir.path()).unwrap();
        prop_assert!(found.is_empty());
        let mut model: BTreeMap<Key, Extent> = BTreeMap::new();
        for (n, action) in steps {
            let key = key(n);
            match action {
                0..6 => {
                    if let std::collections::btree_map::Entry::Vacant(free) = model.entry(key) {
                        put(&mut table, key, extent(n));
                        free.insert(extent(n));
                    }
                    record_use(dir.path(), key, u64::from(n)).unwrap();
                    prop_assert_eq!(table.recorded_use(key), Some(u64::from(n)));
                }
                6..9 => {
                    if model.remove(&key).is_some() {
                        match action {
                            6 => erase(dir.path(), key, extent(n)).unwrap(),
                            _ => table.remove(key).unwrap(),
                        }
                    }
                    prop_assert_eq!(table.recorded_use(key), None);
                }
                _ => {
                    let (again, mut found) = Table::open(dir.path()).unwrap();
                    table = again;
                    found.sort_by_key(|(key, _)| *key);
                    let expected: Vec<_> = model.iter().map(|(key, extent)| (*key, *extent)).collect();
                    prop_assert_eq!(found, expected);
                }
            }
            prop_assert_eq!(find(dir.path(), key), model.get(&key).copied());
        }
        let len = dir.path().join(NAME).metadata().map_or(0, |file| file.len());
        prop_assert_eq!(table.bytes(), len);
    }

    /// Any bytes are a table. Damaged slots are free, and the others stay.
    #[test]
    fn damage_loses_only_what_it_hits(
        entries in 1_u16..500,
        hits in proptest::collection::vec((0_usize..1 << 20, 1_u8..=255), 1..20),
        cut in proptest::option::of(0_u64..30_000),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (mut table, _) = Table::open(dir.path()).unwrap();
        (0..entries).for_each(|n| put(&mut table, key(n), extent(n)));
        drop(table);
        let path = dir.path().join(NAME);
        let mut bytes = fs::read(&path).unwrap();
        let len = bytes.len();
        hits.iter().for_each(|(at, flip)| bytes[at % len] ^= flip);
        bytes.truncate(cut.map_or(len, |cut| usize::try_from(cut).unwrap()));
        fs::write(&path, &bytes).unwrap();
        let (mut table, found) = Table::open(dir.path()).unwrap();
        let all: BTreeMap<Key, Extent> = (0..entries).map(|n| (key(n), extent(n))).collect();
        prop_assert!(found.iter().all(|(key, extent)| all.get(key) == Some(extent)));
        if cut.is_none() {
            prop_assert!(found.len() + hits.len() >= all.len());
        }
        let missing = (0..entries).filter(|n| !found.iter().any(|(found, _)| *found == key(*n)));
        missing.for_each(|n| put(&mut table, key(n), extent(n)));
        prop_assert!((0..entries).all(|n| find(dir.path(), key(n)) == Some(extent(n))));
    }
}

/// A process that is killed while it doubles the table loses nothing: at every length of the upper half, and with any
/// number of buckets of the lower half cleared.
#[test]
fn an_interrupted_doubling_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut table, _) = Table::open(dir.path()).unwrap();
    (0..400).for_each(|n| put(&mut table, key(n), extent(n)));
    let buckets = table.buckets;
    assert!(buckets >= 4);
    let path = dir.path().join(NAME);
    let before = fs::read(&path).unwrap();
    table.grow().unwrap();
    let after = fs::read(&path).unwrap();
    assert_eq!(after.len(), 2 * before.len());
    let whole = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let (table, found) = Table::open(dir.path()).unwrap();
        assert_eq!(found.len(), 400);
        assert!((0..400).all(|n| find(dir.path(), key(n)) == Some(extent(n))));
        table.buckets
    };
    for written in before.len()..after.len() {
        if written % 1000 == 0 {
            assert_eq!(whole(&[&before, &after[before.len()..written]].concat()), buckets);
        }
    }
    for cleared in 0..=before.len() / BUCKET_BYTES {
        let cleared = cleared * BUCKET_BYTES;
        assert_eq!(
            whole(&[&after[..cleared], &before[cleared..], &after[before.len()..]].concat()),
            2 * buckets
        );
    }
}

/// The table follows the number of entries down to a bucket. Those that are left are found, also after opening again.
#[test]
fn a_table_with_few_entries_shrinks() {
    let dir = tempfile::tempdir().unwrap();
    let (mut table, _) = Table::open(dir.path()).unwrap();
    (0..4000).for_each(|n| put(&mut table, key(n), extent(n)));
    let largest = table.buckets;
    assert!(largest >= 64);
    for n in 0..3999 {
        table.remove(key(n)).unwrap();
        assert!(table.buckets == 1 || table.entries * MIN_FILLED_TO_STAY >= table.buckets * SLOTS as u64);
        if n % 97 == 0 {
            assert!((n + 1..4000).all(|n| find(dir.path(), key(n)) == Some(extent(n))), "{n}");
            assert_eq!(dir.path().join(NAME).metadata().unwrap().len(), table.bytes());
            let (again, found) = Table::open(dir.path()).unwrap();
            assert_eq!((again.buckets, found.len()), (table.buckets, 3999 - usize::from(n)));
        }
    }
    assert_eq!((table.buckets, table.entries), (1, 1));
    (0..3999).for_each(|n| put(&mut table, key(n), extent(n)));
    assert!((0..4000).all(|n| find(dir.path(), key(n)) == Some(extent(n))));
    assert_eq!(table.buckets, largest);
}

/// A process that is killed while it halves the table loses nothing: with any number of buckets merged, and the file cut
/// or not. Copies that an interrupted halving left do not come back.
#[test]
fn an_interrupted_halving_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let (mut table, _) = Table::open(dir.path()).unwrap();
    (0..700).for_each(|n| put(&mut table, key(n), extent(n)));
    (200..700).for_each(|n| table.remove(key(n)).unwrap());
    let buckets = table.buckets;
    assert!(buckets >= 4);
    let before = fs::read(&path).unwrap();
    assert!(halve(table.file.as_ref().unwrap(), buckets).unwrap());
    let after = fs::read(&path).unwrap();
    assert_eq!(2 * after.len(), before.len());
    for merged in 0..=after.len() / BUCKET_BYTES {
        let merged = merged * BUCKET_BYTES;
        fs::write(&path, [&after[..merged], &before[merged..]].concat()).unwrap();
        let (mut table, found) = Table::open(dir.path()).unwrap();
        assert_eq!((table.buckets, found.len()), (buckets, 200));
        assert!((0..200).all(|n| find(dir.path(), key(n)) == Some(extent(n))));
        (0..100).for_each(|n| table.remove(key(n)).unwrap());
        while table.buckets > 1 {
            assert!(halve(table.file.as_ref().unwrap(), table.buckets).unwrap());
            table.buckets /= 2;
            assert!((0..200).all(|n| find(dir.path(), key(n)) == (n >= 100).then(|| extent(n))));
        }
    }
    fs::write(&path, &after).unwrap();
    let (_, found) = Table::open(dir.path()).unwrap();
    assert_eq!(found.len(), 200);
}

/// A reader may miss an entry while the table grows or shrinks, but it finds none that is wrong, and most of them.
#[test]
fn readers_find_entries_while_the_table_grows_and_shrinks() {
    let dir = tempfile::tempdir().unwrap();
    let (mut table, _) = Table::open(dir.path()).unwrap();
    (0..20).for_each(|n| put(&mut table, key(n), extent(n)));
    let (mut found, mut missed) = (0_u64, 0_u64);
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            for _ in 0..30 {
                (20..600).for_each(|n| put(&mut table, key(n), extent(n)));
                assert!(table.buckets >= 8);
                (20..600).for_each(|n| table.remove(key(n)).unwrap());
                assert!(table.buckets <= 2);
            }
        });
        while !owner.is_finished() {
            for n in 0..20 {
                match find(dir.path(), key(n)) {
                    Some(at) => {
                        assert_eq!(at, extent(n));
                        found += 1;
                    }
                    None => missed += 1,
                }
            }
        }
        owner.join().unwrap();
    });
    assert!(found > 9 * missed, "{found} found, {missed} missed");
}

#[test]
fn keys_that_all_belong_to_one_bucket_do_not_grow_it_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let (mut table, _) = Table::open(dir.path()).unwrap();
    let admitted = (1..1000_u128).take_while(|n| {
        let key = n << 64;
        loop {
            match table.growth(key).unwrap() {
                None => return false,
                Some(0) => return table.insert(key, extent(1)).unwrap(),
                Some(_) => table.grow().unwrap(),
            }
        }
    });
    assert_eq!(admitted.count(), SLOTS);
    assert_eq!(table.buckets, 2 * MIN_FILLED_TO_GROW);
    table.remove(1 << 64).unwrap();
    assert_eq!(table.buckets, MIN_FILLED_TO_GROW, "112 entries: less than 1/16 of 16 buckets");
}

/// Another process had found a slot, and writes its use after the table was halved more than once.
#[test]
fn a_late_write_after_the_end_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (mut table, _) = Table::open(dir.path()).unwrap();
    (0..800).for_each(|n| put(&mut table, key(n), extent(n)));
    let buckets = table.buckets;
    assert!(buckets >= 8);
    let file = File::options().read(true).write(true).open(dir.path().join(NAME)).unwrap();
    let of_last = (0..800).map(key).find(|key| bucket_of(*key, buckets) == buckets - 1).unwrap();
    let late = find_in(&file, buckets, of_last).unwrap().unwrap().at + USE_AT as u64;
    (20..800).for_each(|n| table.remove(key(n)).unwrap());
    assert!(table.buckets <= buckets / 4);
    let all = |to| (0..to).all(|n| find(dir.path(), key(n)) == Some(extent(n)));
    for by_inserting in [false, true] {
        file.write_all_at(&[1; 8], late).unwrap();
        assert!(!all(18), "the length is wrong");
        if by_inserting {
            put(&mut table, key(19), extent(19));
        } else {
            (18..20).for_each(|n| table.remove(key(n)).unwrap());
        }
        assert!(all(18));
        assert_eq!(file.metadata().unwrap().len(), table.bytes());
    }
    assert!(find(dir.path(), key(19)).is_some());
}

#[test]
fn a_table_whose_halves_do_not_fit_into_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (mut table, _) = Table::open(dir.path()).unwrap();
    (0..6).for_each(|_| table.grow().unwrap());
    let keys: Vec<Key> = (1..=100).flat_map(|n| [n << 64, (n << 64) + 16]).collect();
    assert!(keys.iter().all(|key| table.insert(*key, extent(1)).unwrap()));
    table.remove(keys[0]).unwrap();
    assert!((table.buckets, table.stays) == (32, true));
    let (mut table, found) = Table::open(dir.path()).unwrap();
    assert_eq!((table.buckets, found.len()), (32, 199));
    assert!(keys[1..].iter().all(|key| find(dir.path(), *key) == Some(extent(1))));
    assert!(keys[1..90].iter().all(|key| table.remove(*key).is_ok()));
    table.grow().unwrap();
    for buckets in [32, 16] {
        table.remove(keys[106 - buckets / 2]).unwrap();
        assert_eq!(table.buckets, buckets as u64);
    }
    assert!(keys[99..].iter().all(|key| find(dir.path(), *key) == Some(extent(1))));
}

/// A write that comes after two halvings could give the table a length of twice its buckets.
#[test]
fn a_change_halves_the_table_at_most_once() {
    let dir = tempfile::tempdir().unwrap();
    let (mut table, _) = Table::open(dir.path()).unwrap();
    (0..6).for_each(|_| table.grow().unwrap());
    (0..10).for_each(|n| put(&mut table, key(n), extent(n)));
    for (n, buckets) in [(0, 16), (1, 8)] {
        table.remove(key(n)).unwrap();
        assert_eq!(table.buckets, buckets);
    }
    let (table, found) = Table::open(dir.path()).unwrap();
    assert_eq!((table.buckets, found.len()), (4, 8));
    assert!((2..10).all(|n| find(dir.path(), key(n)) == Some(extent(n))));
}

/// Between reading the table's length and writing a slot, another process holds the lock.
#[test]
fn a_table_is_not_halved_while_another_process_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut table, _) = Table::open(dir.path()).unwrap();
    (0..6).for_each(|_| table.grow().unwrap());
    (0..20).for_each(|n| put(&mut table, key(n), extent(n)));
    let of_last = (0..20).map(key).max_by_key(|key| bucket_of(*key, 32)).unwrap();
    change(dir.path(), of_last, |file, slot| {
        (0..10).map(key).filter(|key| *key != of_last).for_each(|key| table.remove(key).unwrap());
        assert_eq!(table.buckets, 32);
        file.write_all_at(&8_u64.to_le_bytes(), slot.at + USE_AT as u64)
    })
    .unwrap();
    assert_eq!(table.recorded_use(of_last), Some(7));
    table.remove(key(10)).unwrap();
    assert_eq!((table.buckets, dir.path().join(NAME).metadata().unwrap().len()), (16, table.bytes()));
    assert!((11..20).all(|n| find(dir.path(), key(n)) == Some(extent(n))));
}

#[test]
fn other_processes_do_not_write_while_the_table_is_halved() {
    let dir = tempfile::tempdir().unwrap();
    let (mut table, _) = Table::open(dir.path()).unwrap();
    (0..2).for_each(|n| put(&mut table, key(n), extent(n)));
    let owner = table.file.as_ref().unwrap();
    owner.try_lock().unwrap();
    record_use(dir.path(), key(0), 7).unwrap();
    erase(dir.path(), key(1), extent(1)).unwrap();
    assert_eq!((table.recorded_use(key(0)), find(dir.path(), key(1))), (None, Some(extent(1))));
    owner.unlock().unwrap();
    record_use(dir.path(), key(0), 7).unwrap();
    erase(dir.path(), key(1), extent(1)).unwrap();
    assert_eq!((table.recorded_use(key(0)), find(dir.path(), key(1))), (Some(7), None));
}

/// Other processes had found slots, and erase them after the table has doubled.
#[test]
fn a_late_erasure_after_doubling_hits_no_other_slot() {
    let dir = tempfile::tempdir().unwrap();
    let (mut table, _) = Table::open(dir.path()).unwrap();
    (0..100).for_each(|n| put(&mut table, key(n), extent(n)));
    let file = File::options().read(true).write(true).open(dir.path().join(NAME)).unwrap();
    let before = table.buckets;
    let position = |n, buckets| find_in(&file, buckets, key(n)).unwrap().unwrap().at;
    let found: Vec<u64> = (0..100).map(|n| position(n, before)).collect();
    table.grow().unwrap();
    for n in 0..100 {
        file.write_all_at(&EMPTY, found[usize::from(n)]).unwrap();
        let left = (n + 1..100).filter(|n| find(dir.path(), key(*n)).is_some()).count();
        assert_eq!(left, usize::from(99 - n), "erasing {n} hit another entry");
    }
}

/// The number of entries follows those whose slots other processes erased, and those that were never kept.
#[test]
fn entries_are_counted_without_their_slots() {
    let dir = tempfile::tempdir().unwrap();
    let (table, _) = Table::open(dir.path()).unwrap();
    let mut slabs = Slabs::new(dir.path(), Disk::REAL, true, table);
    let kept: Vec<Extent> = (0..20)
        .map(|n| {
            let (extent, file) = slabs.allocate(key(n), DISK_BLOCK_BYTES).unwrap();
            assert!(slabs.keep(key(n), extent, &file).unwrap());
            extent
        })
        .collect();
    let (extent, _) = slabs.allocate(key(20), DISK_BLOCK_BYTES).unwrap();
    let unused = slabs.give_up(key(20), extent).unwrap();
    slabs.free_now(unused).unwrap();
    assert_eq!(slabs.table.entries, 20);
    for (n, extent) in (0..).zip(&kept[..19]) {
        erase(dir.path(), key(n), *extent).unwrap();
        let unused = slabs.take_out(key(n), *extent).unwrap();
        slabs.free_now(unused).unwrap();
    }
    assert_eq!(slabs.table.entries, 1);
}
