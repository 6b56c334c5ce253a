//! Functions that workers run on rows. An executor in Rust stands for an interpreter; `python/tests/test_map_rows_workers.py` has
//! those in Python.

use crate::common::{block_on, open, pipeline, synth};
use crate::fleet::{batches, options, worker};
use arrow::array::AsArray;
use arrow::datatypes::{Int32Type, Int64Type};
use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions, Rank, Shuffle};
use feedstock_ingest::{
    Error, FunctionKind, FunctionOutput, FunctionStep, FunctionsSpec, Result, ResultColumn, RowExecutor,
    RowFunctions, RowLane, RowResults, RowStep, Token, Worker, WorkerOptions,
};
use feedstock_trainer_bridge::{
    BatchSize, Dataset, ErrorKind, Local, NullValue, Nulls, OnError, Pipeline, Workers,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SAMPLES: u64 = 203;

/// The sum of a row's pixels, its label and its sample. Samples that 50 divides have none.
#[derive(Clone)]
struct Sums {
    runs: Arc<AtomicUsize>,
    stops: Arc<AtomicUsize>,
}

impl RowLane for Sums {
    fn run(&self, step: &RowStep<'_>) -> Result<RowResults> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let [image] = step.tensors else { panic!("{step:?}") };
        assert_eq!((image.name, image.rows.len(), image.lengths.len()), ("image", step.ids.len(), 0));
        let labels = step.columns.column_by_name("label").unwrap().as_primitive::<Int64Type>();
        let (mut results, mut failures) = (Vec::new(), Vec::new());
        for (row, id) in step.ids.iter().enumerate() {
            let sum: u64 = image.rows[row].iter().map(|&byte| u64::from(byte)).sum();
            results.extend([sum, labels.value(row) as u64, id.0].map(u64::to_le_bytes).as_flattened());
            if id.0 % 50 == 0 {
                failures.push((row, "sums(x) raised on it".to_owned()));
            }
        }
        let columns = vec![ResultColumn { bytes: results, lengths: Vec::new() }];
        Ok(RowResults { columns, failures })
    }

    fn give_up(&self) {}
}

impl RowFunctions for Sums {
    fn lane(&self) -> Result<Arc<dyn RowLane>> {
        Ok(Arc::new(self.clone()))
    }

    fn stop(&self) {
        self.stops.fetch_add(1, Ordering::Relaxed);
    }
}

/// Functions whose rows do not end until they are given up.
#[derive(Clone, Default)]
struct Stuck {
    runs: Arc<AtomicUsize>,
    given_up: Arc<AtomicUsize>,
}

impl RowExecutor for Stuck {
    fn load(&self, _: &FunctionsSpec, _: u64, _: usize) -> Result<Arc<dyn RowFunctions>> {
        Ok(Arc::new(self.clone()))
    }
}

impl RowFunctions for Stuck {
    fn lane(&self) -> Result<Arc<dyn RowLane>> {
        Ok(Arc::new(self.clone()))
    }

    fn stop(&self) {}
}

impl RowLane for Stuck {
    fn run(&self, _: &RowStep<'_>) -> Result<RowResults> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        reaches(&self.given_up, 1);
        Err(Error::new(ErrorKind::Retryable, "given up"))
    }

    fn give_up(&self) {
        self.given_up.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until there are as many; at most 10 s.
fn reaches(count: &AtomicUsize, wanted: usize) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while count.load(Ordering::Relaxed) < wanted && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    count.load(Ordering::Relaxed) >= wanted
}

#[derive(Default)]
struct Executor {
    runs: Arc<AtomicUsize>,
    stops: Arc<AtomicUsize>,
}

impl RowExecutor for Executor {
    fn load(&self, functions: &FunctionsSpec, seed: u64, threads: usize) -> Result<Arc<dyn RowFunctions>> {
        assert_eq!((functions.steps[0].code.as_str(), seed, threads > 0), ("AAAA", 7, true));
        Ok(Arc::new(Sums { runs: self.runs.clone(), stops: self.stops.clone() }))
    }
}

fn spec() -> FunctionsSpec {
    let output = FunctionOutput {
        name: "sums".into(),
        dtype: "uint64".into(),
        shape: vec![3],
        bytes: Some(24),
        ..FunctionOutput::default()
    };
    let step = FunctionStep {
        name: "sums".into(),
        outputs: vec![output],
        code: "AAAA".into(),
        ..FunctionStep::default()
    };
    FunctionsSpec { interpreter: "none".into(), steps: vec![step], ..FunctionsSpec::default() }
}

fn with_functions(data: &Path) -> Pipeline {
    with_functions_by(data, Arc::new(Executor::default()))
}

/// `executor` is the rank's.
fn with_functions_by(data: &Path, executor: Arc<dyn RowExecutor>) -> Pipeline {
    let skip = OnError::Skip { max_fraction: 0.1 };
    let pipeline = pipeline(open(data), 16).on_error(skip).epochs(2);
    pipeline.functions(spec(), executor)
}

fn running(data: &Path, executor: Arc<dyn RowExecutor>) -> Worker {
    Worker::start(WorkerOptions { code: Some(executor), token: Some(token()), ..options(data) }).unwrap()
}

fn token() -> Token {
    Token::new("0123456789abcdef0123").unwrap()
}

fn at<'a>(workers: impl IntoIterator<Item = &'a Worker>) -> Workers {
    crate::fleet::at(workers).token(token())
}

#[test]
fn results_of_functions_are_those_of_each_row() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let (pipeline, executor) = (with_functions(dir.path()), Arc::new(Executor::default()));
    let fleet = [running(dir.path(), executor.clone()), running(dir.path(), executor.clone())];
    let remote = pipeline.clone().workers(at(&fleet));
    let mut bad = 0;
    for batch in remote.rank(Rank::new(0, 1)).start().unwrap() {
        let batch = batch.unwrap();
        let sums = batch.column("map_rows:sums").unwrap().as_fixed_size_binary();
        let labels = batch.column("label").unwrap().as_primitive::<Int64Type>();
        let image = batch["image"].as_u8().unwrap();
        for row in 0..batch.len() {
            let (sum, rest) = sums.value(row).split_first_chunk().unwrap();
            let (label, id) = rest.split_first_chunk().unwrap();
            let pixels = &image[row * image.len() / batch.len()..][..image.len() / batch.len()];
            assert_eq!(u64::from_le_bytes(*sum), pixels.iter().map(|&byte| u64::from(byte)).sum::<u64>());
            assert_eq!(i64::from_le_bytes(*label), labels.value(row));
            let is_bad = batch.sample_ids()[row].0 % 50 == 0;
            assert_eq!(
                id == batch.sample_ids()[row].0.to_le_bytes(),
                !is_bad,
                "a substitute is another sample"
            );
            assert_eq!(batch.valid()[row], !is_bad);
            bad += usize::from(is_bad);
        }
    }
    assert!(bad > 0);
    let expected = batches(&remote, 1);
    assert_eq!(batches(&pipeline.clone().workers(at(&fleet).local(Local::Share)), 1), expected);
    assert!(executor.runs.load(Ordering::Relaxed) > 10);
    let of_rank = Arc::new(Executor::default());
    let absent = Workers::at("127.0.0.1:9").unwrap().local(Local::Fallback);
    let alone = with_functions_by(dir.path(), of_rank.clone()).workers(absent);
    assert_eq!(batches(&alone, 1), expected);
    assert!(of_rank.runs.load(Ordering::Relaxed) > 10);
    drop(fleet);
    reaches(&executor.stops, 2); // connections end in the background
    assert_eq!(executor.stops.load(Ordering::Relaxed), 2, "one recipe of each worker");
}

#[test]
fn a_stream_that_ends_gives_up_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 100);
    let stuck = Stuck::default();
    let fleet = [running(dir.path(), Arc::new(stuck.clone()))];
    let batches = with_functions(dir.path()).workers(at(&fleet)).rank(Rank::new(0, 1)).start().unwrap();
    assert!(reaches(&stuck.runs, 1));
    assert_eq!(stuck.given_up.load(Ordering::Relaxed), 0);
    drop(batches);
    assert!(reaches(&stuck.given_up, 1));
}

#[test]
fn results_that_do_not_fit_are_refused_before_a_row_runs() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 100);
    let stuck = Stuck::default();
    let fleet = [running(dir.path(), Arc::new(stuck.clone()))];
    let mut large = spec();
    large.steps[0].outputs[0].bytes = Some(1 << 30);
    let pipeline =
        pipeline(open(dir.path()), 16).functions(large, Arc::new(stuck.clone())).workers(at(&fleet));
    let error = pipeline.rank(Rank::new(0, 1)).start().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.message().contains("whose results of map_rows(sums) take"), "{error}");
    assert!(error.message().contains("workers send at most 268435456 bytes: use a smaller batch"), "{error}");
    assert_eq!(stuck.runs.load(Ordering::Relaxed), 0);
}

#[test]
fn functions_that_fail_name_the_sample() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 100);
    let executor = Arc::new(Executor::default());
    let fleet = [running(dir.path(), executor.clone())];
    let raising = with_functions(dir.path()).on_error(OnError::Raise).workers(at(&fleet));
    let error = raising.rank(Rank::new(0, 1)).start().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert!(error.message().contains("of epoch 0: sums(x) raised on it"), "{error}");
    assert_eq!(error.sample_context().unwrap().sample.0 % 50, 0);
}

#[test]
fn workers_without_an_interpreter_refuse_functions() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let (pipeline, executor) = (with_functions(dir.path()), Arc::new(Executor::default()));
    let alone = [worker(dir.path())];
    let refused = pipeline.clone().workers(at(&alone));
    let error = refused.rank(Rank::new(0, 1)).start().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.message().contains("map_rows(sums)"), "{error}");
    assert!(error.message().contains("python -m feedstock worker --allow-code"), "{error}");
    let [first] = alone;
    let both = [first, running(dir.path(), executor.clone())];
    let (some, one) = (pipeline.clone().workers(at(&both)), pipeline.clone().workers(at(&both[1..])));
    assert_eq!(batches(&some, 1), batches(&one, 1));
    let error = pipeline.rank(Rank::new(0, 1)).start().err().unwrap();
    assert!(error.message().contains("needs Pipeline::workers"), "{error}");
    let valued = pipeline.nulls_of("label", Nulls::Value(NullValue::Whole(0))).workers(at(&both));
    let error = valued.rank(Rank::new(0, 1)).start().err().unwrap();
    assert!(error.message().contains("leave out nulls= with a value or \"mask\" for 'label'"), "{error}");
}

/// Items take the place of the indexes; an item is its index, as text.
struct Items;

impl RowExecutor for Items {
    fn load(&self, functions: &FunctionsSpec, _: u64, _: usize) -> Result<Arc<dyn RowFunctions>> {
        assert_eq!(functions.to_string(), "from_torch(Texts)");
        Ok(Arc::new(Self))
    }
}

impl RowFunctions for Items {
    fn lane(&self) -> Result<Arc<dyn RowLane>> {
        Ok(Arc::new(Self))
    }

    fn stop(&self) {}
}

impl RowLane for Items {
    fn run(&self, step: &RowStep<'_>) -> Result<RowResults> {
        assert!(step.tensors.is_empty());
        let indexes = step.columns.column_by_name("index").unwrap().as_primitive::<Int32Type>();
        let texts: Vec<String> = indexes.values().iter().map(|index| format!("item {index}")).collect();
        let (bytes, lengths) = (texts.concat().into_bytes(), texts.iter().map(String::len).collect());
        let failures = step.ids.iter().enumerate().filter(|(_, id)| id.0 % 50 == 0);
        let failures = failures.map(|(row, _)| (row, "from_torch(Texts) raised".to_owned())).collect();
        Ok(RowResults { columns: vec![ResultColumn { bytes, lengths }], failures })
    }

    fn give_up(&self) {}
}

fn items() -> Pipeline {
    let uri = "indexes://203/items-5e.arrow";
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions { catalog, ..OpenOptions::default() };
    let dataset = block_on(Dataset::open_with(uri, options)).unwrap();
    let skip = OnError::Skip { max_fraction: 0.1 };
    dataset.shuffle(Shuffle::seeded(7)).batch(BatchSize::per_rank(7)).on_error(skip).epochs(2)
}

fn texts() -> FunctionsSpec {
    let output = FunctionOutput { name: "text".into(), dtype: "str".into(), ..FunctionOutput::default() };
    let (kind, name, outputs) = (FunctionKind::FromTorch, "Texts".into(), vec![output]);
    let step = FunctionStep { kind, name, outputs, ..FunctionStep::default() };
    FunctionsSpec { interpreter: "none".into(), steps: vec![step], ..FunctionsSpec::default() }
}

#[test]
fn workers_make_the_items_of_indexes_that_nothing_stores() {
    let elsewhere = tempfile::tempdir().unwrap();
    let pipeline = items().functions(texts(), Arc::new(Items));
    let fleet = [running(elsewhere.path(), Arc::new(Items)), running(elsewhere.path(), Arc::new(Items))];
    let remote = pipeline.clone().workers(at(&fleet));
    let mut seen = Vec::new();
    for batch in remote.rank(Rank::new(0, 1)).start().unwrap().take(29) {
        let batch = batch.unwrap();
        let texts = batch.column("map_rows:text").unwrap().as_binary::<i64>();
        for (row, id) in batch.sample_ids().iter().enumerate() {
            assert_eq!(batch.valid()[row], id.0 % 50 != 0);
            assert_eq!(texts.value(row) == format!("item {id}").as_bytes(), batch.valid()[row], "{id}");
            seen.push(id.0);
        }
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..203));
    let expected = batches(&remote, 1);
    assert_eq!(batches(&pipeline.clone().workers(at(&fleet).local(Local::Share)), 1), expected);
    let absent = Workers::at("127.0.0.1:9").unwrap().local(Local::Fallback);
    assert_eq!(batches(&pipeline.clone().workers(absent), 1), expected);
}

#[test]
fn workers_that_run_no_code_read_no_indexes() {
    let elsewhere = tempfile::tempdir().unwrap();
    let pipeline = items();
    let alone = [worker(elsewhere.path())];
    let with_items = pipeline.clone().functions(texts(), Arc::new(Items)).workers(at(&alone));
    let error = with_items.rank(Rank::new(0, 1)).start().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.message().contains("the pipeline has from_torch(Texts); start workers with"), "{error}");
    assert!(error.message().contains("or leave out workers="), "{error}");
    let fleet = [running(elsewhere.path(), Arc::new(Items))];
    let without = pipeline.workers(at(&fleet));
    let error = without.rank(Rank::new(0, 1)).start().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[test]
fn code_needs_a_token_and_beyond_this_machine_encryption() {
    let dir = tempfile::tempdir().unwrap();
    let start = |listen: &str, token: Option<Token>| {
        let code: Arc<dyn RowExecutor> = Arc::new(Executor::default());
        let options = WorkerOptions {
            listen: listen.into(),
            insecure: true,
            code: Some(code),
            token,
            ..options(dir.path())
        };
        Worker::start(options).err().map(|error| error.message().to_owned())
    };
    assert_eq!(start("127.0.0.1:0", Some(token())), None);
    let error = start("127.0.0.1:0", None).unwrap();
    assert!(error.contains("that runs code (--allow-code) needs a token (--token-file)"), "{error}");
    for (token, missing) in [(None, "a token (--token-file) and TLS"), (Some(token()), "that needs TLS")] {
        let error = start("0.0.0.0:0", token).unwrap();
        assert!(error.contains(missing), "{error}");
        assert!(error.contains("--insecure does not replace them"), "{error}");
    }
}
