//! `weights` and `balanced`: how often samples are drawn, what is refused, and what other processes draw.

use crate::format_common::*;
use crate::plan_sets::Sets;
use feedstock_dataset::{Dataset, Plan, Position, Shuffle, Stop};
use std::collections::BTreeMap;

fn shuffle() -> Shuffle {
    Shuffle::seeded(7).window(100).lanes(4)
}

/// Counts the draws of each sample in an epoch.
fn draws(plan: &Plan) -> BTreeMap<u64, u64> {
    let mut order = plan.epoch(1);
    let mut draws = BTreeMap::new();
    for position in 0..plan.len() {
        *draws.entry(order.sample_at(Position(position)).sample.0).or_default() += 1;
    }
    draws
}

fn drawn(dataset: &Dataset) -> BTreeMap<u64, u64> {
    let plan = dataset.plan(&shuffle()).unwrap();
    assert_eq!(dataset.len(), plan.len());
    draws(&plan)
}

#[tokio::test]
async fn samples_are_drawn_by_their_share_or_once_more() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(folder.path()); // label = id mod 10
    let all = open(folder.path()).await.unwrap();
    for (samples, kept) in [(None, 450), (Some(1), 450), (Some(1_000), 450), (Some(12_345), 450)] {
        let weighted = all.clone().weights("label", samples).await.unwrap();
        let draws = drawn(&weighted);
        let total = samples.unwrap_or(kept);
        assert_eq!(draws.values().sum::<u64>(), total);
        let sum: u64 = (0..450).map(|id| id % 10).sum();
        for id in 0..450 {
            let (found, share) = (draws.get(&id).copied().unwrap_or(0), total * (id % 10) / sum);
            assert!(found == share || found == share + 1 && id % 10 > 0, "{id}: {found}, share {share}");
        }
        let again = reopened(&weighted).await;
        assert_eq!(drawn(&again), draws);
        let cursor = weighted.plan(&shuffle()).unwrap().cursor(0, Position(1));
        again.plan(&shuffle()).unwrap().check(&cursor).unwrap();
    }
    // After other steps, and over all parts of a concatenation.
    let some = all
        .clone()
        .filter("label < 3")
        .await
        .unwrap()
        .take(60)
        .unwrap()
        .weights("label + 1", Some(600))
        .await;
    let draws = drawn(&some.unwrap());
    assert_eq!(draws.len(), 60);
    let by_label = |label: u64| draws.iter().filter(|(id, _)| *id % 10 == label).map(|(_, n)| n).sum::<u64>();
    assert_eq!([by_label(0), by_label(1), by_label(2)], [100, 200, 300]);
    let parts = vec![all.clone().take(100).unwrap().named("a"), all.skip(400).unwrap().named("b")];
    let both = Dataset::concat(parts).unwrap();
    let weighted = both.weights("case dataset when 'a' then 1 else 4 end", Some(900)).await.unwrap();
    let draws = drawn(&weighted);
    assert_eq!((draws[&0], draws[&(450 + 449)], draws.len()), (3, 12, 150));
    assert_eq!(drawn(&reopened(&weighted).await), draws);
}

#[tokio::test]
async fn classes_are_drawn_as_often_as_the_largest() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(folder.path());
    let all = open(folder.path()).await.unwrap();
    let skewed = all.filter("label < 4 and width < 45 * (4 - label)").await.unwrap(); // 18, 14, 9, 5 samples
    let balanced = skewed.clone().balanced("label").await.unwrap();
    let draws = drawn(&balanced);
    let mut by_label: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (id, n) in &draws {
        let of_label = by_label.entry(id % 10).or_default();
        *of_label = (of_label.0 + 1, of_label.1 + n);
    }
    let samples: Vec<u64> = by_label.values().map(|(samples, _)| *samples).collect();
    assert_eq!(samples.iter().sum::<u64>(), skewed.len(), "each sample is drawn");
    let largest = *samples.iter().max().unwrap();
    assert!(samples.iter().any(|samples| *samples < largest / 2), "{samples:?}");
    assert!(by_label.values().all(|(_, drawn)| *drawn == largest), "{by_label:?}");
    for (id, n) in &draws {
        let share = largest / by_label[&(id % 10)].0;
        assert!(*n == share || *n == share + 1, "{id}: {n} of {share}");
    }
    let texts = skewed.balanced("cast(label as varchar)").await.unwrap();
    assert_eq!(drawn(&texts), draws);
    assert_eq!(drawn(&reopened(&balanced).await), draws);
}

#[tokio::test]
async fn bad_weights_are_named() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0);
    let all = open(root.path()).await.unwrap();
    for (weight, samples, expected) in [
        ("label - 1", None, "the weight of a/000.jpg is -1; weights must be finite numbers >= 0"),
        ("nullif(label, 1)", None, "the weight of b/001.jpg is null or NaN"),
        (
            "case label when 2 then cast('NaN' as double) else 1 end",
            None,
            "the weight of c/002.jpg is null or NaN",
        ),
        ("case label when 2 then cast('inf' as double) else 1 end", None, "the weight of c/002.jpg is inf"),
        ("label * 0", None, "weights: all 90 weights are 0"),
        ("path", None, "the weight `path`: it is Utf8; weights are numbers"),
        ("labl", None, "there is no column `labl`"),
        ("random()", None, "other values at other times"),
        ("label", Some(0), "samples must be 1 to 2^53; got 0"),
        ("label", Some(u64::MAX), "samples must be 1 to 2^53; got 18446744073709551615"),
    ] {
        let error = message(all.clone().weights(weight, samples).await);
        assert!(error.contains(expected), "{error}\nmust contain: {expected}");
    }
    let error = message(all.clone().balanced("nullif(class, 'b')").await);
    assert!(error.contains("balanced: the class of b/001.jpg is null"), "{error}");
    let error = message(all.clone().balanced("label / 2.0").await);
    assert!(error.contains("classes are texts, integers or flags"), "{error}");
    // What is filtered out needs no weight.
    let some =
        all.clone().filter("label <> 1").await.unwrap().weights("nullif(label, 1)", None).await.unwrap();
    assert_eq!(some.len(), 60);
}

#[tokio::test]
async fn weights_come_last_and_belong_to_the_fingerprint() {
    let sets = Sets::new();
    let (table, files) = (sets.table().await, sets.files().await);
    let weighted = table.clone().weights("label", Some(500)).await.unwrap();
    for error in [
        message(weighted.clone().filter("label > 2").await),
        message(weighted.clone().take(3)),
        message(weighted.clone().skip(3)),
        message(weighted.clone().select([feedstock_dataset::SampleId(3)])),
        message(weighted.clone().weights("label", None).await),
        message(weighted.clone().balanced("label").await),
    ] {
        assert!(error.contains("weights are the last step of a selection"), "{error}");
    }
    let error = message(Dataset::concat(vec![weighted.clone(), files.clone()]));
    assert!(error.starts_with("table: a data set with weights cannot be part of a concatenation"), "{error}");
    let mix = |part| Dataset::mix(vec![(part, 1.0), (files.clone(), 1.0)], Stop::AllExhausted);
    message(mix(weighted.clone()));
    let error = message(mix(table.clone()).unwrap().weights("label", None).await);
    assert!(error.starts_with("weights: a mix draws samples by the weights of its parts"), "{error}");

    let cursor = weighted.plan(&shuffle()).unwrap().cursor(1, Position(20));
    for (other, is) in [
        (table.clone(), "all samples"),
        (table.clone().weights("label", Some(501)).await.unwrap(), "weights(label, 501)"),
        (table.clone().weights("label", None).await.unwrap(), "weights(label)"),
        (table.clone().weights("label + 0", Some(500)).await.unwrap(), "weights(label + 0, 500)"),
        (table.clone().balanced("label").await.unwrap(), "balanced(label)"),
    ] {
        let refused = other.plan(&shuffle()).unwrap().check(&cursor).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("its selection is weights(label, 500), this pipeline's is {is}")),
            "{refused}"
        );
    }
}
