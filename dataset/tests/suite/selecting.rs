//! `take`, `skip` and `select`: what they keep, in orders, cursors and descriptions.

use crate::format_common::*;
use crate::plan_sets::{FILES, Sets, TABLE};
use feedstock_dataset::{
    Access, CatalogStore, Cursor, Dataset, DatasetSpec, Plan, PlanInput, Position, Rank, SampleId,
    SelectionStep, Shuffle, StepShape, StepSize, Stop, Tail,
};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::collections::BTreeSet;

fn kept(dataset: &Dataset) -> Vec<u64> {
    let all = 0..dataset.catalog().samples();
    all.filter(|&i| dataset.selection().is_none_or(|kept| kept.contains(SampleId(i)))).collect()
}

fn ids(ids: impl IntoIterator<Item = u64>) -> Vec<SampleId> {
    ids.into_iter().map(SampleId).collect()
}

fn shuffle() -> Shuffle {
    Shuffle::seeded(7).window(100).lanes(4)
}

/// Random steps on a data set, and the samples that they keep by definition.
async fn random_steps(all: &Dataset, rng: &mut Xoshiro256PlusPlus) -> (Dataset, Vec<u64>) {
    let (mut dataset, mut model) = (all.clone(), (0..all.len()).collect::<Vec<u64>>());
    for _ in 0..1 + rng.next_u64() % 4 {
        let n = rng.next_u64() % (model.len() as u64 + 20);
        let next: (_, Vec<u64>) = match rng.next_u64() % 4 {
            0 => (dataset.clone().take(n), model.iter().copied().take(n as usize).collect()),
            1 => (dataset.clone().skip(n), model.iter().copied().skip(n as usize).collect()),
            2 => {
                let (digit, sql) = (n % 10, format!("label <> {}", n % 10));
                let left = model.iter().copied().filter(|id| id % 10 != digit).collect();
                (dataset.clone().filter(&sql).await, left)
            }
            _ => {
                let some: Vec<u64> =
                    model.iter().copied().filter(|_| !rng.next_u64().is_multiple_of(3)).collect();
                (dataset.clone().select(ids(some.iter().rev().copied())), some)
            }
        };
        match next.1.is_empty() {
            true => drop(message(next.0)),
            false => (dataset, model) = (next.0.unwrap(), next.1),
        }
    }
    (dataset, model)
}

/// Returns the samples of each step of an epoch, over all ranks, from a position on.
pub(crate) fn steps(plan: &Plan, world_size: u32, from: u64) -> Vec<BTreeSet<u64>> {
    let mut all: Vec<BTreeSet<u64>> = Vec::new();
    for rank in 0..world_size {
        let shape =
            StepShape { size: StepSize::Rows(24), rank: Rank::new(rank, world_size), tail: Tail::Short };
        let (mut order, mut at) = (plan.epoch(2), from);
        for number in 0.. {
            if at >= plan.len() {
                break;
            }
            let step = order.step(Position(at), &shape).unwrap();
            if number == all.len() {
                all.push(BTreeSet::new());
            }
            for row in &step.rows {
                assert!(all[number].insert(row.sample.0), "sample {} twice in a step", row.sample);
            }
            at = step.next.0;
        }
    }
    all
}

#[tokio::test]
async fn random_sequences_of_steps_keep_what_lists_would_and_deliver_it_once() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(folder.path());
    let all = open(folder.path()).await.unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(26);
    for round in 0..60 {
        let (dataset, model) = random_steps(&all, &mut rng).await;
        assert_eq!(kept(&dataset), model, "{round}: {:?}", dataset.spec());
        assert_eq!(dataset.len(), model.len() as u64);
        let again = reopened(&dataset).await;
        assert_eq!(kept(&again), model, "{round}: {:?}", dataset.spec());

        let shuffle = if round % 2 == 0 { shuffle() } else { Shuffle::full(3) };
        let plan = dataset.plan(&shuffle).unwrap();
        assert_eq!(again.plan(&shuffle).unwrap().fingerprint(), plan.fingerprint());
        let global = steps(&plan, 1, 0);
        let delivered: Vec<u64> = global.iter().flatten().copied().collect();
        assert_eq!(delivered.len(), model.len(), "{round}");
        assert_eq!(BTreeSet::from_iter(delivered), BTreeSet::from_iter(model), "{round}");
        for world_size in [2, 3, 7] {
            assert_eq!(steps(&plan, world_size, 0), global, "{round}: {world_size} ranks");
        }
        let cursor = serde_json::to_string(&plan.cursor(2, Position(24.min(plan.len())))).unwrap();
        let cursor: Cursor = serde_json::from_str(&cursor).unwrap();
        again.plan(&shuffle).unwrap().check(&cursor).unwrap();
        assert_eq!(steps(&again.plan(&shuffle).unwrap(), 3, cursor.position.0), global[1..], "{round}");
        if let Some(sql) = dataset.filter_sql() {
            assert_eq!(kept(&all.clone().filter(&sql).await.unwrap()), kept(&dataset), "{sql}");
        }
    }
}

#[tokio::test]
async fn calls_apply_in_their_sequence() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0); // ids 0 to 29 are of class a, 30 to 59 of b, 60 to 89 of c
    let all = open(root.path()).await.unwrap();
    let first_b = all.clone().filter("class = 'b'").await.unwrap().take(5).unwrap();
    assert_eq!(kept(&first_b), [30, 31, 32, 33, 34]);
    let b_of_first = all.clone().take(35).unwrap().filter("class = 'b'").await.unwrap();
    assert_eq!(kept(&b_of_first), [30, 31, 32, 33, 34]);
    assert_eq!(
        message(all.clone().take(5).unwrap().filter("class = 'b'").await),
        format!("the filter `class = 'b'` keeps none of the 5 samples of {}", all.uri())
    );
    assert_eq!(kept(&all.clone().take(10).unwrap().skip(8).unwrap()), [8, 9]);
    assert_eq!(kept(&all.clone().skip(8).unwrap().take(2).unwrap()), [8, 9]);
    assert_eq!(all.clone().take(u64::MAX).unwrap().len(), 90, "all of them");
    assert_eq!(all.clone().skip(0).unwrap().spec(), all.spec(), "no step");
    // The same samples, by other calls: another selection, as another filter that keeps the same is.
    let cursor = first_b.plan(&shuffle()).unwrap().cursor(0, Position(2));
    let refused = b_of_first.plan(&shuffle()).unwrap().check(&cursor).unwrap_err().to_string();
    assert!(
        refused.contains("its selection is filter.take(5), this pipeline's is take(35).filter; "),
        "{refused}"
    );
}

#[tokio::test]
async fn bad_numbers_and_ids_are_named() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0);
    let all = open(root.path()).await.unwrap();
    let is = |result, expected: &str| {
        let error = message(result);
        assert!(error.starts_with(expected), "{error}\nmust begin with: {expected}");
    };
    is(all.clone().take(0), "take: the number of samples must be at least 1; got 0");
    is(all.clone().skip(90), "skip(90) keeps none of the 90 samples of ");
    is(all.clone().take(5).unwrap().skip(6), "skip(6) keeps none of the 5 samples of ");
    is(all.clone().select([]), "select: there must be at least 1 id; got none");
    is(all.clone().select(ids([3, 1, 3])), "select: sample 3 is listed twice");
    is(all.clone().select(ids([3, 90, 95])), "select: there is no sample 90; the ids are 0 to 89 in ");
    is(all.clone().skip(3).unwrap().select(ids([3, 2])), "select: sample 2 is left out by an earlier step");
    let one = all.clone().filter("class = 'b'").await.unwrap().select(ids([31])).unwrap();
    assert_eq!(
        (kept(&one), one.filter_sql().unwrap()),
        (vec![31], "(class = 'b') AND (sample_id in (31))".into())
    );
}

#[tokio::test]
async fn cursors_of_other_selections_are_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0);
    let all = open(root.path()).await.unwrap();
    let half = all.clone().take(45).unwrap();
    let plan = |dataset: &Dataset| dataset.plan(&shuffle()).unwrap();
    let cursor = plan(&half).cursor(1, Position(20));
    plan(&half).check(&cursor).unwrap();
    for (other, is) in [
        (all.clone(), "all samples"),
        (all.clone().filter("class = 'b'").await.unwrap(), "filter"),
        (all.clone().take(44).unwrap(), "take(44)"),
        (all.clone().skip(45).unwrap(), "skip(45)"),
        (all.clone().filter("label < 2").await.unwrap().take(45).unwrap(), "filter.take(45)"),
        (all.clone().select(ids(0..45)).unwrap(), "select(45:"),
    ] {
        let refused = plan(&other).check(&cursor).unwrap_err().to_string();
        let expected = format!("another order: its selection is take(45), this pipeline's is {is}");
        assert!(refused.contains(&expected), "{refused}");
        let backwards = plan(&half).check(&plan(&other).cursor(1, Position(20))).unwrap_err().to_string();
        assert!(backwards.contains(&format!("its selection is {is}")), "{backwards}");
    }
    let refused = plan(&all.clone().select(ids([1, 2, 3])).unwrap())
        .check(&plan(&all.clone().select(ids([1, 2, 4])).unwrap()).cursor(0, Position(0)))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("its selection is select(3:"), "{refused}");
    let sequence = plan(&all.clone().select(ids([3, 1, 2])).unwrap()).cursor(0, Position(0));
    plan(&all.clone().select(ids([1, 2, 3])).unwrap()).check(&sequence).unwrap();
}

/// Descriptions, fingerprints and cursors of filters alone have the form that earlier releases write and read.
#[tokio::test]
async fn filters_alone_are_described_as_before() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0);
    let all = open(root.path()).await.unwrap();
    let some = all.clone().filter("class <> 'a'").await.unwrap().filter("label < 2").await.unwrap();
    let spec = serde_json::to_value(some.spec()).unwrap();
    assert_eq!(spec["filter"], "(class <> 'a') AND (label < 2)");
    assert_eq!(spec.as_object().unwrap().len(), 4, "{spec}");
    let cursor = serde_json::to_value(some.plan(&shuffle()).unwrap().cursor(0, Position(3))).unwrap();
    assert!(cursor["fingerprint"].get("selection").is_none(), "{cursor}");
    let old: DatasetSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(old, some.spec());

    let spec = some.take(3).unwrap().spec();
    assert_eq!(spec.filter, None);
    assert_eq!(
        spec.steps,
        [SelectionStep::Filter("(class <> 'a') AND (label < 2)".into()), SelectionStep::Take(3)]
    );
}

#[tokio::test]
async fn concatenations_and_mixes_of_selections() {
    let sets = Sets::new();
    let (table, files) = (sets.table().await, sets.files().await);
    let both = Dataset::concat(vec![table.clone().skip(440).unwrap(), files.clone()]).unwrap();
    assert_eq!(both.len(), 10 + FILES);
    let few = both.clone().take(12).unwrap();
    assert_eq!(kept(&few), (440..450).chain([TABLE, TABLE + 1]).collect::<Vec<_>>());
    let again = reopened(&few).await;
    assert_eq!((kept(&again), again.spec()), (kept(&few), few.spec()));
    let plan = few.plan(&shuffle()).unwrap();
    assert_eq!(plan.fingerprint().selection.as_deref(), Some("[skip(440), -].take(12)"));
    again.plan(&shuffle()).unwrap().check(&plan.cursor(0, Position(5))).unwrap();
    // A concatenation that selects nothing is described by its parts, so a worker opens another nesting.
    let inner = Dataset::concat(vec![table.clone().skip(1).unwrap(), files.clone()]).unwrap();
    let nested = Dataset::concat(vec![inner, table.clone().named("third")]).unwrap();
    let there = reopened(&nested).await.plan(&shuffle()).unwrap();
    assert_eq!(there.fingerprint(), nested.plan(&shuffle()).unwrap().fingerprint());
    there.check(&nested.plan(&shuffle()).unwrap().cursor(0, Position(5))).unwrap();
    // A filter on every part is that filter on the whole, also after other steps.
    let of_parts = async |filter: &str| {
        let parts = [table.clone().skip(1).unwrap(), files.clone()].map(|part| part.filter(filter));
        Dataset::concat(futures::future::try_join_all(parts).await.unwrap()).unwrap()
    };
    let whole = Dataset::concat(vec![table.clone().skip(1).unwrap(), files.clone()]).unwrap();
    let whole = whole.filter("sample_id % 2 = 0 or true").await.unwrap();
    let parts = of_parts("sample_id % 2 = 0 or true").await;
    parts.plan(&shuffle()).unwrap().check(&whole.plan(&shuffle()).unwrap().cursor(0, Position(5))).unwrap();
    // Of a part that is a concatenation itself, too.
    let nested = Dataset::concat(vec![few.clone(), table.clone().take(3).unwrap().named("third")]).unwrap();
    assert_eq!(nested.len(), 15);
    assert_eq!(
        reopened(&nested).await.plan(&shuffle()).unwrap().fingerprint(),
        nested.plan(&shuffle()).unwrap().fingerprint()
    );

    let mixed =
        |part: Dataset| Dataset::mix(vec![(part, 1.0), (files.clone(), 1.0)], Stop::AllExhausted).unwrap();
    let mix = mixed(table.clone().take(20).unwrap());
    assert_eq!(mix.len(), 20 + FILES);
    let error = message(mix.clone().take(5));
    assert_eq!(
        error,
        "take: a mix draws its samples by weight, so it has no first ones; call take on its parts"
    );
    message(mix.clone().skip(5));
    let chosen = mix.clone().select(ids([0, 7, TABLE, TABLE + 3])).unwrap();
    assert_eq!(
        reopened(&chosen).await.plan(&shuffle()).unwrap().fingerprint(),
        chosen.plan(&shuffle()).unwrap().fingerprint()
    );
    let cursor = mix.plan(&shuffle()).unwrap().cursor(0, Position(5));
    mixed(table.clone().take(20).unwrap()).plan(&shuffle()).unwrap().check(&cursor).unwrap();
    let refused =
        mixed(table.clone().take(21).unwrap()).plan(&shuffle()).unwrap().check(&cursor).unwrap_err();
    assert!(refused.to_string().contains("[take(20), -], this pipeline's is [take(21), -]"), "{refused}");
}

#[tokio::test]
async fn an_epoch_that_began_with_other_data_had_the_same_steps() {
    let (data, catalogs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_folder(data.path(), 0);
    let open = async || {
        let all =
            Dataset::open_with(path(data.path()), options(CatalogStore::Cache(catalogs.path().into()))).await;
        all.unwrap().filter("class <> 'a'").await.unwrap().skip(5).unwrap().take(10).unwrap()
    };
    let before = open().await;
    let saved = before.plan(&shuffle()).unwrap().cursor(1, Position(4));
    std::fs::write(data.path().join("b/000.jpg"), picture(5_000, 2_000)).unwrap();
    let now = open().await;
    assert_ne!(now.plan(&shuffle()).unwrap().fingerprint().catalog, saved.fingerprint.catalog);
    let then = now.as_of(&saved.fingerprint).await.unwrap();
    then.plan(&shuffle()).unwrap().check(&saved).unwrap();
    assert_eq!(kept(&then), kept(&before));
}

/// The texts that fingerprints of filters hash are those of earlier releases, whose cursors must go on.
#[tokio::test]
async fn fingerprints_of_filters_are_those_of_earlier_releases() {
    let sets = Sets::new();
    let (table, files) = (sets.table().await, sets.files().await);
    let hashed = |dataset: &Dataset, text: &str| {
        let input = PlanInput {
            block_starts: dataset.catalog().block_starts().into(),
            selection: dataset.selection().cloned(),
            data: dataset.catalog().hashes(),
            filter: Some(text.to_owned()),
            encoded_bytes: 1,
            access: Access::Blocks,
        };
        Plan::new(input, &shuffle()).unwrap().fingerprint().filter
    };
    let filter = |dataset: &Dataset| dataset.plan(&shuffle()).unwrap().fingerprint().filter;
    let some = table.clone().filter("label < 5").await.unwrap().filter("width > 9").await.unwrap();
    assert_eq!(filter(&some), hashed(&some, "(label < 5) AND (width > 9)"));
    let both = Dataset::concat(vec![some.clone(), files.clone()]).unwrap();
    assert_eq!(filter(&both), hashed(&both, r#"["(label < 5) AND (width > 9)",null]"#));
    let fewer = both.clone().filter("sample_id > 3").await.unwrap();
    assert_eq!(
        filter(&fewer),
        hashed(&fewer, r#"["((label < 5) AND (width > 9)) AND (sample_id > 3)","sample_id > 3"]"#)
    );
    // Of a mix, the texts of the parts; that of a concatenation is one of them.
    let mix = Dataset::mix(vec![(fewer.clone(), 1.0)], Stop::AllExhausted).unwrap();
    let filtered = mix.clone().filter("sample_id > 7").await.unwrap();
    let text =
        r#"(["((label < 5) AND (width > 9)) AND (sample_id > 3)","sample_id > 3"]) AND (sample_id > 7)"#;
    let part = PlanInput {
        block_starts: fewer.catalog().block_starts().into(),
        selection: filtered.selection().cloned(),
        data: fewer.catalog().hashes(),
        filter: Some(text.to_owned()),
        encoded_bytes: 1,
        access: Access::Blocks,
    };
    let expected =
        Plan::mixed(vec![(part, 1.0)], Stop::AllExhausted, &shuffle()).unwrap().fingerprint().filter;
    assert_eq!(filter(&filtered), expected);
}
