//! Runs a mix of data sets: every draw of the plan is delivered with the right bytes, within a tight budget.

use arrow::array::AsArray;
use arrow::datatypes::UInt64Type;
use feedstock_dataset::{
    CatalogOptions, CatalogStore, Dataset, Lengths, OpenOptions, Position, Rank, Shuffle, StepShape,
    StepSize, Stop, Tail,
};
use feedstock_ingest::{
    Destination, Engine, Error, Finished, Job, Popped, RawBatches, RawOptions, Ready, RowMemory, Sink,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Makes a folder of `samples` files in blocks of eight. Each has 2 KiB, which repeat its name.
async fn folder(root: &Path, name: &str, samples: u64) -> Dataset {
    for sample in 0..samples {
        let bytes = format!("{name} {sample} ").repeat(300).into_bytes();
        std::fs::write(root.join(format!("{sample:05}.jpg")), &bytes[..2048]).unwrap();
    }
    let options = OpenOptions {
        catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
        block_bytes: 16 << 10,
        ..OpenOptions::default()
    };
    Dataset::open_with(root.to_str().unwrap(), options).await.unwrap().named(name)
}

/// Returns the samples of one rank's batches, and checks that each has the right bytes.
fn run(dataset: &Dataset, options: &RawOptions, large: u64) -> Vec<Vec<u64>> {
    RawBatches::start(dataset, options)
        .unwrap()
        .map(|batch| {
            let batch = batch.unwrap();
            let ids =
                batch.column_by_name("sample_id").unwrap().as_primitive::<UInt64Type>().values().to_vec();
            let bytes = batch.column_by_name("image").unwrap().as_binary_view();
            let names = batch.column_by_name("dataset").unwrap().as_string::<i32>();
            for (row, id) in ids.iter().enumerate() {
                let (name, local) = if *id < large { ("large", *id) } else { ("small", id - large) };
                assert_eq!(names.value(row), name);
                assert!(bytes.value(row).starts_with(format!("{name} {local} ").as_bytes()), "sample {id}");
            }
            ids
        })
        .collect()
}

#[test]
fn a_mixed_epoch_is_delivered_draw_by_draw() {
    let (large, small) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dataset = futures::executor::block_on(async {
        let parts = vec![
            (folder(large.path(), "large", 600).await, 0.7),
            (folder(small.path(), "small", 70).await, 0.3),
        ];
        Dataset::mix(parts, Stop::AllExhausted).unwrap()
    });
    for shuffle in [Shuffle::seeded(5).window(120).lanes(4), Shuffle::full(5), Shuffle::none()] {
        let plan = dataset.plan(&shuffle).unwrap();
        for world_size in [1, 3] {
            let mut delivered: BTreeMap<u64, u64> = BTreeMap::new();
            for rank in 0..world_size {
                let options = RawOptions {
                    shuffle: shuffle.clone(),
                    rank: Rank::new(rank, world_size),
                    batch_rows: 32,
                    epoch: 1,
                    budget_bytes: 1 << 20,
                    ..RawOptions::default()
                };
                run(&dataset, &options, 600)
                    .concat()
                    .iter()
                    .for_each(|id| *delivered.entry(*id).or_default() += 1);
            }
            let mut order = plan.epoch(1);
            let mut planned: BTreeMap<u64, u64> = BTreeMap::new();
            for p in 0..plan.len() {
                *planned.entry(order.sample_at(Position(p)).sample.0).or_default() += 1;
            }
            assert_eq!(delivered, planned, "{shuffle:?}, {world_size} ranks");
            assert_eq!(planned.len(), 670);
        }
    }
}

/// A destination and sink without memory: the tests only need counts.
struct Nothing;

impl Destination for Nothing {
    fn begin(&mut self, _rows: usize) -> Result<(), Error> {
        Ok(())
    }

    fn take_row(&mut self, _row: usize) -> RowMemory {
        RowMemory::empty()
    }

    fn give_row(&mut self, _row: usize, _memory: RowMemory) {}
}

#[derive(Default)]
struct Counted(Ready<()>);

impl Sink<Nothing> for Counted {
    fn finished(&self, finished: Finished<Nothing>) {
        self.0.push(finished.index, ());
    }

    fn failed(&self, index: u64, error: Error) {
        self.0.fail(index, error);
    }

    fn ended(&self, steps: u64) {
        self.0.end(steps);
    }
}

fn job(dataset: &Dataset, shuffle: &Shuffle, size: StepSize, budget_bytes: u64) -> Job {
    Job {
        dataset: dataset.clone(),
        plan: dataset.plan(shuffle).unwrap(),
        maps: Vec::new(),
        shape: StepShape { size, rank: Rank::new(0, 1), tail: Tail::Short },
        strands: None,
        seed: 0,
        epoch: 0,
        position: Position(0),
        end_epoch: Some(1),
        budget_bytes,
        prefetch_bytes: budget_bytes,
        sample_bytes: budget_bytes,
    }
}

/// Reading a part again because it repeats does not mean that the budget is too small.
#[test]
fn passes_are_not_counted_as_second_fetches() {
    let (large, small) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dataset = futures::executor::block_on(async {
        let parts = vec![
            (folder(large.path(), "large", 600).await, 0.5),
            (folder(small.path(), "small", 64).await, 0.5),
        ];
        Dataset::mix(parts, Stop::AllExhausted).unwrap()
    });
    // In the catalog's order, a few consecutive steps need a block, then the next pass does.
    let job = job(&dataset, &Shuffle::none(), StepSize::Rows(16), 80 << 10);
    let sink = Arc::new(Counted::default());
    let run = Engine::new(1).unwrap().run(job, sink.clone() as Arc<dyn Sink<Nothing>>).unwrap();
    let offers = run.offers();
    offers.offer(Nothing);
    loop {
        match sink.0.pop(Duration::from_secs(60)) {
            Popped::Item(()) => offers.offer(Nothing),
            Popped::Ended => break,
            other => panic!("{other:?}"),
        }
    }
    let stats = run.stats();
    assert!(stats.fetched > 75 + 8 * 5, "blocks of the small part were read again: {stats:?}");
    assert_eq!(stats.refetched, 0, "{stats:?}");
}

#[test]
fn a_budget_too_small_names_the_rows_of_the_step() {
    let dir = tempfile::tempdir().unwrap();
    let dataset = futures::executor::block_on(folder(dir.path(), "large", 200));
    let mut job = job(&dataset, &Shuffle::none(), StepSize::Rows(1), 40 << 10);
    job.plan = job.plan.with_lengths(&Lengths::new("frames", vec![1.0; 200])).unwrap();
    job.shape.size = StepSize::Total { total: 24.0, max_rows: 5_000, ranks: 1 };
    let sink = Arc::new(Counted::default()) as Arc<dyn Sink<Nothing>>;
    let Err(error) = Engine::new(1).unwrap().run(job.clone(), sink.clone()) else { panic!("it fits") };
    let message = error.to_string();
    assert!(
        message.contains("the blocks of its 24 rows take ") && message.contains(" B of memory"),
        "{error}"
    );
    // The plan's clock must not overflow either.
    job.epoch = u64::MAX - 1;
    job.end_epoch = None;
    let Err(error) = Engine::new(1).unwrap().run(job, sink) else { panic!("it starts") };
    assert!(error.to_string().contains("past the last that can be counted"), "{error}");
}

#[test]
fn an_endless_mix_goes_on_past_its_parts() {
    let (large, small) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dataset = futures::executor::block_on(async {
        let parts = vec![
            (folder(large.path(), "large", 40).await, 0.5),
            (folder(small.path(), "small", 9).await, 0.5),
        ];
        Dataset::mix(parts, Stop::Never).unwrap()
    });
    let shuffle = Shuffle::seeded(1).window(20).lanes(2);
    let mut order = dataset.plan(&shuffle).unwrap().epoch(0);
    let options = RawOptions { shuffle, batch_rows: 16, budget_bytes: 1 << 20, ..RawOptions::default() };
    let batches = RawBatches::start(&dataset, &options).unwrap();
    for (step, batch) in batches.take(50).enumerate() {
        let batch = batch.unwrap();
        let mut ids =
            batch.column_by_name("sample_id").unwrap().as_primitive::<UInt64Type>().values().to_vec();
        let from = step as u64 * 16;
        let mut planned: Vec<u64> =
            (from..from + 16).map(|p| order.sample_at(Position(p)).sample.0).collect();
        ids.sort_unstable();
        planned.sort_unstable();
        assert_eq!(ids, planned, "step {step}");
    }
}
