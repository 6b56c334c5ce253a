//! Concatenations: each sample of each part once an epoch, in the order and with the fingerprint of one data set.

use crate::format_common::*;
use crate::plan_sets::{FILES, Sets, TABLE, identity};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use feedstock_dataset::{
    Block, BlockId, CatalogStore, Dataset, DatasetSpec, Fingerprint, Plan, Position, Rank, SampleId, Shuffle,
    SourceSpec, StepShape, StepSize, Stop, Tail,
};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

fn concat<const N: usize>(parts: [Dataset; N]) -> Dataset {
    Dataset::concat(parts.into()).unwrap()
}

fn fingerprint(dataset: &Dataset) -> Fingerprint {
    dataset.plan(&Shuffle::seeded(1)).unwrap().fingerprint().clone()
}

/// Returns the samples of an epoch in their order.
fn order(plan: &Plan, epoch: u64) -> Vec<SampleId> {
    let mut order = plan.epoch(epoch);
    (0..plan.len()).map(|p| order.sample_at(Position(p)).sample).collect()
}

/// Counts how often an epoch draws each sample, by part and by the identity of the sample in it.
async fn drawn(dataset: &Dataset, plan: &Plan, epoch: u64) -> BTreeMap<(String, String), u64> {
    let reader = dataset.block_reader();
    let mut blocks: BTreeMap<BlockId, Block> = BTreeMap::new();
    let (mut order, mut drawn) = (plan.epoch(epoch), BTreeMap::new());
    for p in 0..plan.len() {
        let at = order.sample_at(Position(p));
        if let Entry::Vacant(place) = blocks.entry(at.block) {
            place.insert(reader.fetch(at.block, 0).await.unwrap());
        }
        *drawn.entry(identity(&blocks[&at.block], at.row as usize)).or_default() += 1;
    }
    drawn
}

#[tokio::test]
async fn an_epoch_has_each_sample_of_each_part_once() {
    let sets = Sets::new();
    let both = concat([sets.table().await, sets.files().await]);
    assert_eq!(both.len(), TABLE + FILES);
    let columns: Vec<&str> = both.catalog().schema().fields().iter().map(|f| f.name().as_str()).collect();
    assert_eq!(columns, ["image_path", "label", "width", "path", "dataset", "image"]);
    assert_eq!(both.uri(), "concatenation of table, files");
    for shuffle in [Shuffle::none(), Shuffle::seeded(5).window(120).lanes(4), Shuffle::full(5)] {
        let plan = both.plan(&shuffle).unwrap();
        assert!(!plan.is_mix(), "the order of one data set");
        for epoch in [0, 3] {
            let drawn = drawn(&both, &plan, epoch).await;
            assert_eq!((drawn.len() as u64, drawn.values().max()), (TABLE + FILES, Some(&1)), "{shuffle:?}");
        }
    }
    let in_sequence: Vec<SampleId> = (0..TABLE + FILES).map(SampleId).collect();
    assert_eq!(order(&both.plan(&Shuffle::none()).unwrap(), 0), in_sequence);
    let shuffled = order(&both.plan(&Shuffle::full(5)).unwrap(), 0);
    let early = shuffled[..200].iter().filter(|sample| sample.0 >= TABLE).count();
    assert!((15..60).contains(&early), "parts are shuffled with each other; {early} of 200 are files");
}

#[tokio::test]
async fn ranks_share_an_epoch_and_a_cursor_goes_on_with_other_ranks() {
    let sets = Sets::new();
    let both = concat([sets.table().await, sets.files().await]);
    let plan = both.plan(&Shuffle::seeded(7).window(100).lanes(4)).unwrap();
    let rows = |world_size: u32, from: u64, to: u64| {
        let mut samples = Vec::new();
        for rank in 0..world_size {
            let shape =
                StepShape { size: StepSize::Rows(24), rank: Rank::new(rank, world_size), tail: Tail::Short };
            let mut order = plan.epoch(2);
            let mut at = from;
            while at < to {
                let step = order.step(Position(at), &shape).unwrap();
                samples.extend(step.rows.iter().map(|row| row.sample.0));
                at = step.next.0;
            }
        }
        samples
    };
    let all: BTreeSet<u64> = (0..TABLE + FILES).collect();
    for world_size in [1, 2, 3, 7] {
        let samples = rows(world_size, 0, plan.len());
        assert_eq!(samples.len() as u64, TABLE + FILES, "{world_size} ranks");
        assert_eq!(BTreeSet::from_iter(samples), all, "{world_size} ranks");
    }
    let mut resumed = rows(2, 0, 240);
    let cursor = plan.cursor(2, Position(240));
    let cursor = serde_json::from_str(&serde_json::to_string(&cursor).unwrap()).unwrap();
    concat([sets.table().await, sets.files().await])
        .plan(&Shuffle::seeded(7).window(100).lanes(4))
        .unwrap()
        .check(&cursor)
        .unwrap();
    resumed.extend(rows(3, cursor.position.0, plan.len()));
    assert_eq!((resumed.len(), BTreeSet::from_iter(resumed)), (all.len(), all));
}

#[tokio::test]
async fn nested_concatenations_are_their_parts_in_sequence() {
    let sets = Sets::new();
    let third = async || sets.table().await.columns(&["width", "image"]).unwrap().named("third");
    let flat = concat([sets.table().await, sets.files().await, third().await]);
    let left = concat([concat([sets.table().await, sets.files().await]), third().await]);
    let right = concat([sets.table().await, concat([sets.files().await, third().await])]);
    for nested in [&left, &right] {
        assert_eq!(fingerprint(nested), fingerprint(&flat));
        assert_eq!(nested.spec(), flat.spec());
        assert_eq!(nested.catalog().schema(), flat.catalog().schema());
        let shuffle = Shuffle::seeded(3).window(64);
        assert_eq!(order(&nested.plan(&shuffle).unwrap(), 1), order(&flat.plan(&shuffle).unwrap(), 1));
        assert_eq!(all_rows(nested).await, all_rows(&flat).await);
        assert!(nested.catalog().describe_sample(SampleId(TABLE)).starts_with("files: a/000.jpg"));
    }

    // The inner one's name applies to all its samples; its choice of columns applies to its parts.
    let inner = concat([sets.table().await, sets.files().await]).columns(&["image"]).unwrap().named("inner");
    let outer = concat([inner, third().await]);
    let columns: Vec<&str> = outer.catalog().schema().fields().iter().map(|f| f.name().as_str()).collect();
    assert_eq!(columns, ["width", "dataset", "image"]);
    assert!(outer.catalog().describe_sample(SampleId(TABLE)).starts_with("inner: a/000.jpg"));
    let counts = outer
        .sql("select dataset, count(*), count(width) from catalog group by dataset order by dataset")
        .await
        .unwrap();
    let names: Vec<&str> = counts[0].column(0).as_string::<i32>().iter().flatten().collect();
    let count = |column: usize| counts[0].column(column).as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(names, ["inner", "third"]);
    assert_eq!((count(1), count(2)), (vec![540, 450], vec![0, 450]));
}

#[tokio::test]
async fn a_concatenation_in_a_mix_has_one_weight() {
    let sets = Sets::new();
    let half = async |filter: &str, name: &str| sets.table().await.filter(filter).await.unwrap().named(name);
    let inner = concat([half("width < 200", "low").await, half("width >= 200", "high").await]);
    let files = sets.files().await;
    let mixed = Dataset::mix(vec![(inner.clone(), 1.0), (files.clone(), 1.0)], Stop::AllExhausted).unwrap();
    let plan = mixed.plan(&Shuffle::seeded(2)).unwrap();
    let samples = order(&plan, 0);
    let from_files = samples.iter().filter(|sample| sample.0 >= 2 * TABLE).count() as u64;
    // Shares are exact over a cycle of 1,024 positions; the epoch ends within one.
    assert!(from_files.abs_diff(TABLE) <= 5, "{from_files} of {} are files", samples.len());
    let mut table = BTreeMap::<u64, u64>::new();
    samples.iter().filter(|s| s.0 < 2 * TABLE).for_each(|s| *table.entry(s.0).or_default() += 1);
    let kept: Vec<u64> = (0..200).chain(TABLE + 200..2 * TABLE).collect();
    assert_eq!((table.keys().copied().collect(), table.values().max()), (kept, Some(&1)));

    let names = async |dataset: &Dataset| {
        let rows = dataset.sql("select distinct dataset from catalog order by 1").await.unwrap();
        let names = rows[0].column(0).as_string::<i32>();
        names.iter().flatten().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&mixed).await, ["files", "high", "low"]);
    let named = Dataset::mix(vec![(inner.clone().named("table"), 1.0), (files, 1.0)], Stop::Never).unwrap();
    assert_eq!(names(&named).await, ["files", "table"]);

    let part = Dataset::mix(vec![(sets.files().await, 1.0)], Stop::Never).unwrap().named("blend");
    let refused = Dataset::concat(vec![inner, part]).unwrap_err().to_string();
    assert!(refused.contains("blend: a mix draws samples by weight"), "{refused}");
}

#[tokio::test]
async fn filters_hold_on_parts_and_on_the_whole() {
    let sets = Sets::new();
    let (wide, first) = ("width >= 50", "path like 'a/%'");
    let table = sets.table().await.filter(wide).await.unwrap();
    let files = sets.files().await.filter(first).await.unwrap();
    let parts = concat([table.clone(), files]);
    assert_eq!(parts.len(), 400 + 30);
    let drawn = drawn(&parts, &parts.plan(&Shuffle::seeded(5)).unwrap(), 0).await;
    assert_eq!((drawn.len(), drawn.values().max()), (430, Some(&1)));
    let fewer = parts.clone().filter("width < 60 or dataset = 'files'").await.unwrap();
    assert_eq!(fewer.len(), 10 + 30);

    // One filter on every part, or on the whole: the same samples with the same fingerprint.
    let labels = async |name: &str| sets.table().await.named(name);
    let kept = async |name: &str| labels(name).await.filter("label < 3").await.unwrap();
    let whole = concat([labels("a").await, labels("b").await]).filter("label < 3").await.unwrap();
    let each = concat([kept("a").await, kept("b").await]);
    assert_eq!(fingerprint(&whole), fingerprint(&each));
    let inner = concat([concat([labels("a").await]).filter("label < 3").await.unwrap(), kept("b").await]);
    assert_eq!(fingerprint(&inner), fingerprint(&each));

    let all = concat([sets.table().await, sets.files().await]);
    for other in [&parts, &concat([table, sets.files().await])] {
        let cursor = all.plan(&Shuffle::seeded(1)).unwrap().cursor(0, Position(0));
        let refused = other.plan(&Shuffle::seeded(1)).unwrap().check(&cursor).unwrap_err().to_string();
        assert!(refused.contains("its filter is"), "{refused}");
    }
    let nothing = all.filter("width < 0").await.unwrap_err().to_string();
    assert!(nothing.contains("concatenation of table, files"), "{nothing}");
}

#[tokio::test]
async fn parts_in_another_sequence_are_another_data_set() {
    let sets = Sets::new();
    let (table, files) = (sets.table().await, sets.files().await);
    let here = concat([table.clone(), files.clone()]);
    let again = concat([table.clone().named("x"), files.clone().columns(&["image"]).unwrap()]);
    assert_eq!(fingerprint(&here), fingerprint(&again), "names and columns do not change the order");
    let cursor = here.plan(&Shuffle::seeded(1)).unwrap().cursor(0, Position(9));
    let turned = concat([files.clone(), table.clone()]);
    let alone = concat([table.clone()]);
    for other in [turned, alone, concat([table.clone(), table.named("again")])] {
        let refused = other.plan(&Shuffle::seeded(1)).unwrap().check(&cursor).unwrap_err().to_string();
        assert!(refused.contains("its catalog is"), "{refused}");
    }
    // The keys of what workers share also depend on what the rows hold.
    assert_ne!(here.place_hash(), again.place_hash());
}

#[tokio::test]
async fn parts_that_cannot_be_joined_are_named() {
    let sets = Sets::new();
    let table = sets.table().await;
    let refused = |parts: Vec<Dataset>| Dataset::concat(parts).unwrap_err().to_string();
    assert!(refused(Vec::new()).contains("at least 1 data set"));
    let twice = refused(vec![table.clone(), table.clone()]);
    assert!(twice.contains("two parts of the concatenation have the name table") && twice.contains("named"));
    let labelled = open(sets.files.path()).await.unwrap().named("files");
    let message = refused(vec![table.clone(), labelled]);
    for name in ["column label", "table", "files"] {
        assert!(message.contains(name), "{message}");
    }
    let inner = concat([table.clone(), sets.files().await]);
    let message = refused(vec![inner.clone(), table.named("files")]);
    assert!(message.contains("the name files"), "{message}");
    let own = Dataset::concat(vec![inner.clone(), inner.named("again")]).unwrap();
    assert_eq!(own.len(), 2 * (TABLE + FILES), "a part may appear again under another name");
}

#[tokio::test]
async fn another_process_opens_the_same_from_its_description() {
    let sets = Sets::new();
    let table = sets.table().await.filter("label < 7").await.unwrap();
    let inner = concat([table, sets.files().await]).filter("sample_id % 2 = 0").await.unwrap();
    let outer = concat([inner.named("inner"), sets.table().await]).columns(&["dataset", "image"]).unwrap();
    let mixed = Dataset::mix(vec![(outer.clone(), 0.5), (sets.files().await.named("f"), 0.5)], Stop::Never);
    for dataset in [outer, mixed.unwrap()] {
        let text = serde_json::to_string(&dataset.spec()).unwrap();
        let spec: DatasetSpec = serde_json::from_str(&text).unwrap();
        let again = spec.open(&|| options(CatalogStore::Nowhere)).await.unwrap();
        assert_eq!(fingerprint(&again), fingerprint(&dataset));
        assert_eq!((again.spec(), again.place_hash()), (dataset.spec(), dataset.place_hash()));
        assert_eq!(all_rows(&again).await, all_rows(&dataset).await);
    }
    // One that grows part by part has a description of one level.
    let mut grown = concat([sets.table().await]);
    for i in 0..40 {
        grown = concat([grown, sets.files().await.named(&format!("{i}"))]);
    }
    let SourceSpec::Concat { parts } = grown.spec().source else { panic!("{:?}", grown.spec()) };
    assert_eq!(parts.len(), 41);
    assert!(grown.spec().uris().len() == 41 && parts.iter().all(|part| part.uris().len() == 1));
}
