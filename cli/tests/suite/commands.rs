//! The command line as users and scripts see it: results on standard output, one sentence on standard error, an exit
//! code.

use crate::sandbox::{Sandbox, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SAMPLES: u64 = 203;

/// A folder with sample images.
fn with_images(layout: &str) -> Sandbox {
    let place = Sandbox::new();
    let data = data(&place);
    let small = ["--samples", "203", "--classes", "7", "--width", "96", "--height", "80"];
    let shards = ["--samples-per-shard", "60", "--rows-per-group", "20", "--layout", layout];
    let made = place.json(&[&["synth", "imagenet", &data][..], &small, &shards].concat());
    assert_eq!(made[0]["samples"], SAMPLES);
    place
}

fn data(place: &Sandbox) -> String {
    place.named("images")
}

fn ids(line: &Value) -> Vec<u64> {
    line["samples"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// Returns global batches by position: the rows of all ranks in each step, sorted.
fn global_batches(lines: &[Value]) -> BTreeMap<u64, Vec<u64>> {
    let mut batches: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for line in lines {
        batches.entry(line["position"].as_u64().unwrap()).or_default().extend(ids(line));
    }
    batches.values_mut().for_each(|batch| batch.sort_unstable());
    batches
}

#[test]
fn inspect_shows_what_synth_made() {
    let place = with_images("parquet");
    let facts = &place.json(&["inspect", &data(&place)])[0];
    assert_eq!(facts["layout"], "parquet");
    assert_eq!(facts["samples"], SAMPLES);
    assert_eq!(facts["objects"], 4);
    assert_eq!(facts["counts"]["distinct"], 7);
    assert_eq!(facts["counts"]["top"][0]["count"], 29); // 203 = 7 × 29
    let columns: Vec<&str> =
        facts["columns"].as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap()).collect();
    for name in ["image", "label", "width", "height"] {
        assert!(columns.contains(&name), "{columns:?}");
    }
    let filtered = &place.json(&["inspect", &data(&place), "--filter", "label < 2"])[0];
    assert_eq!(filtered["selected"], 58);
    let rows =
        place.json(&["inspect", &data(&place), "--sql", "select count(*) as n from catalog where label = 3"]);
    assert_eq!(rows[0]["n"], 29);
    let people = text(&place.run(&["inspect", &data(&place)]).stdout);
    assert!(people.contains("203") && people.contains("7 values"), "{people}");
}

#[test]
fn samples_are_skipped_and_taken_after_the_filter() {
    let place = with_images("folder");
    let facts = |options: &[&str]| {
        place.json(&[&["inspect", &data(&place), "--count", "label"], options].concat()).remove(0)
    };
    let selected = |options: &[&str]| facts(options)["selected"].clone();
    assert_eq!(selected(&["--filter", "label < 2"]), 58);
    assert_eq!(selected(&["--filter", "label < 2", "--skip", "50"]), 8);
    assert_eq!(
        selected(&["--take", "5", "--skip", "50", "--filter", "label < 2"]),
        5,
        "whatever their sequence"
    );
    assert_eq!(selected(&["--take", "5000"]), SAMPLES);
    let counts = facts(&["--filter", "label < 2", "--skip", "20", "--take", "30"])["counts"]["top"].clone();
    let counted: u64 = counts.as_array().unwrap().iter().map(|one| one["count"].as_u64().unwrap()).sum();
    assert_eq!(counted, 30, "only selected samples are counted: {counts}");
    let none = place.complaint(2, &["inspect", &data(&place), "--skip", "203"]);
    assert!(none.contains("skip(203) keeps none of the 203 samples"), "{none}");
    let zero = place.complaint(2, &["inspect", &data(&place), "--take", "0"]);
    assert!(zero.contains("the number of samples must be at least 1; got 0"), "{zero}");
}

#[test]
fn columns_are_renamed_joined_and_added_before_the_filter() {
    let place = with_images("folder");
    let facts = |options: &[&str]| place.json(&[&["inspect", &data(&place)], options].concat()).remove(0);
    let options =
        ["--with-column", "twice=2 * label", "--with-column", "more=twice + 1", "--filter", "more < 4"];
    assert_eq!(facts(&options)["selected"], 58);
    let renamed = ["--filter", "target < 2", "--rename", "label=target", "--rename", "image=photo"];
    let found = facts(&renamed);
    assert_eq!(found["selected"], 58);
    let columns: Vec<&str> =
        found["columns"].as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert!(columns.contains(&"target") && columns.contains(&"photo") && !columns.contains(&"label"));
    // Each image is joined with itself, by the path.
    let plain = facts(&[]);
    let plain: Vec<&str> =
        plain["columns"].as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap()).collect();
    let others = plain.iter().filter(|name| !["path", "image", "sample_id"].contains(name));
    let others: Vec<String> = others.map(|name| format!("{name}=old_{name}")).collect();
    let renames: Vec<&str> = others.iter().flat_map(|pair| ["--rename", pair]).collect();
    let images = data(&place);
    let join = ["--join", &images, "--on", "path", "--filter", "label = old_label"];
    assert_eq!(facts(&[&renames[..], &join].concat())["selected"], SAMPLES);

    let taken = place.complaint(2, &["inspect", &data(&place), "--with-column", "label=1"]);
    assert!(taken.contains("--with-column: there is a column named label already"), "{taken}");
    let unnamed = place.failure(2, &["inspect", &data(&place), "--with-column", "label"]);
    assert!(unnamed.contains("it must be two texts with = between them"), "{unnamed}");
    let alone = place.failure(2, &["inspect", &data(&place), "--join", &data(&place)]);
    assert!(alone.contains("--on"), "{alone}");
    let both = place.complaint(2, &["inspect", &data(&place), "--join", &data(&place), "--on", "path"]);
    assert!(both.contains("both data sets have columns named"), "{both}");
}

#[test]
fn inspect_and_plan_agree_on_how_well_an_order_shuffles() {
    let place = with_images("folder");
    let order = ["--seed", "7", "--window", "50", "--world-size", "2", "--batch-size", "12"];
    let of = |command: &[&str]| {
        let printed = place.json(&[command, &order].concat());
        printed.last().unwrap()["shuffle_quality"].clone()
    };
    let inspected = of(&["inspect", &data(&place)]);
    assert!(inspected["order"]["global_batch"]["entropy_ratio"].as_f64().unwrap() > 0.5, "{inspected}");
    assert_eq!(inspected, of(&["plan", &data(&place), "--summary"]));
    let few = &place.json(&["inspect", &data(&place), "--filter", "label < 2", "--world-size", "100"])[0];
    assert_eq!(few["shuffle_quality"], Value::Null, "58 samples for 100 ranks");
}

#[test]
fn plan_gives_each_sample_once_and_the_same_batches_to_any_world_size() {
    let place = with_images("parquet");
    let data = data(&place);
    let plan = |more: &[&str]| {
        let fixed = ["plan", &data, "--seed", "7", "--epoch", "3", "--global-batch", "24"];
        place.json(&[&fixed[..], more].concat())
    };
    let alone = plan(&["--world-size", "1"]);
    assert_eq!(alone.len() as u64, SAMPLES / 24);
    assert_eq!(alone[1]["step"], 1);
    assert_eq!(alone[1]["position"], 24);
    let batches = global_batches(&alone);
    let mut all: Vec<u64> = batches.values().flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len() as u64, SAMPLES / 24 * 24, "each sample once");
    for world_size in ["2", "3", "5", "8"] {
        let lines = plan(&["--world-size", world_size]);
        assert_eq!(lines.len() as u64, SAMPLES / 24 * world_size.parse::<u64>().unwrap());
        assert_eq!(global_batches(&lines), batches);
    }
    let mut resumed = global_batches(&plan(&["--world-size", "4", "--from", "72"]));
    let mut expected = batches.clone();
    expected.retain(|position, _| *position >= 72);
    assert_eq!(resumed, expected);
    resumed = global_batches(&plan(&["--world-size", "4", "--steps", "2"]));
    assert_eq!(resumed.len(), 2);
    let third = plan(&["--world-size", "5", "--rank", "3", "--steps", "1"]);
    assert_eq!(third.len(), 1);
    assert_eq!(third[0]["rank"], 3);
    let padded = plan(&["--world-size", "2", "--tail", "pad"]);
    let valid = padded.iter().filter_map(|line| line["valid"].as_array()).flatten();
    let wrong = valid.filter(|valid| **valid == Value::Bool(false)).count() as u64;
    assert_eq!(wrong, 24 - SAMPLES % 24);
    assert_ne!(global_batches(&place.json(&["plan", &data, "--seed", "8", "--global-batch", "24"])), batches);
}

#[test]
fn a_summary_states_how_well_the_order_shuffles() {
    let place = with_images("parquet");
    let data = data(&place);
    let summary = |more: &[&str]| {
        let fixed = ["plan", &data, "--seed", "7", "--global-batch", "20", "--world-size", "2", "--summary"];
        place.json(&[&fixed[..], more].concat()).remove(0)
    };
    let facts = summary(&["--window", "40"]);
    assert_eq!((&facts["steps"], &facts["samples"]), (&Value::from(10), &Value::from(SAMPLES)));
    let quality = &facts["shuffle_quality"];
    assert_eq!(
        (&quality["label_column"], &quality["sampled_steps"]),
        (&Value::from("label"), &Value::from(10))
    );
    let number = |value: &Value| value.as_f64().unwrap();
    let full = number(&quality["full_shuffle"]["global_batch"]["entropy_bits"]);
    assert!((2.4..7f64.log2()).contains(&full), "{full} bits of 20 draws of 7 labels");
    assert!((number(&quality["full_shuffle"]["displacement"]) - 1.0 / 3.0).abs() < 0.05);
    assert_eq!(quality["half_window"]["window"], 20);
    assert_eq!(quality["twice_window"]["window"], 80);
    assert_eq!(summary(&["--shuffle", "full"])["shuffle_quality"]["order"]["reads"]["requests"], 200);
    let by_width = summary(&["--labels", "width"]);
    assert_eq!(by_width["shuffle_quality"]["label_column"], "width");

    let people = ["plan", &data, "--global-batch", "20", "--world-size", "2", "--summary", "--window", "40"];
    let people = text(&place.run(&people).stdout);
    for fact in [
        "label column",
        "global batch",
        "rank's batch",
        "same shard",
        "displacement",
        "reads",
        "twice the window",
    ] {
        assert!(people.contains(fact), "{fact} is not in: {people}");
    }
    let complaint = place.complaint(2, &["plan", &data, "--labels", "image", "--summary"]);
    assert!(complaint.contains("labels must be a column of texts or integers"), "{complaint}");
    let huge = ["plan", &data, "--global-batch", "300000", "--tail", "pad", "--summary"];
    assert_eq!(
        place.json(&huge)[0]["shuffle_quality"]["sampled_steps"],
        1,
        "a step has no more rows than the epoch"
    );
}

#[test]
fn a_forecast_states_the_bottleneck_and_what_helps() {
    let place = with_images("folder");
    let data = data(&place);
    let machine = ["--threads", "1", "--decode-ms", "4", "--step-ms", "10"];
    let slow = [&["simulate", &data, "--seed", "7", "--batch-size", "10"][..], &machine[..]].concat();
    let facts = place.json(&slow).remove(0);
    let forecast = &facts["forecast"];
    assert_eq!((&forecast["bottleneck"], &forecast["requests"]), (&Value::from("cpu"), &Value::from(200)));
    let rate = forecast["samples_per_s"].as_f64().unwrap();
    assert!((240.0..=260.0).contains(&rate), "{rate} of 250");
    let people = text(&place.run(&slow).stdout);
    for fact in ["samples/s", "waiting", "first batch", "memory", "bottleneck", "as set", "threads × 2"] {
        assert!(people.contains(fact), "{fact} is not in: {people}");
    }
    for (wrong, expected) in [
        (["--store", "near"], "--store must be one of s3, express, far, local; got near"),
        (["--world-size", "0"], "--world-size must be at least 1; got 0"),
        (["--budget-bytes", "1000"], "smaller than one batch"),
        (["--world-size", "1000"], "fewer than one global batch"),
    ] {
        let complaint = place.complaint(2, &["simulate", &data, "--batch-size", "10", wrong[0], wrong[1]]);
        assert!(complaint.contains(expected), "{complaint}");
    }
}

#[test]
fn every_layout_holds_the_same_labels() {
    for layout in ["parquet", "folder", "webdataset", "ipc", "ilsvrc"] {
        let place = with_images(layout);
        let facts = &place.json(&["inspect", &data(&place)])[0];
        assert_eq!((&facts["layout"], &facts["samples"]), (&Value::from(layout), &Value::from(SAMPLES)));
        assert_eq!(facts["counts"]["distinct"], 7, "{layout}");
        let run =
            &place.json(&["bench", &data(&place), "--batch-size", "29", "--no-ceiling", "--ops", OPS])[0];
        assert_eq!((&run["samples"], &run["epochs_exactly_once"]), (&Value::from(SAMPLES), &Value::from(1)));
    }
}

const OPS: &str = "decode_image,random_resized_crop:48,horizontal_flip";

#[test]
fn bench_has_the_promised_keys_and_proves_exactly_once() {
    let place = with_images("parquet");
    let run = &place.json(&[
        "bench",
        &data(&place),
        "--ops",
        OPS,
        "--batch-size",
        "7",
        "--epochs",
        "2",
        "--threads",
        "2",
    ])[0];
    for key in ["samples_per_s", "chain_ceiling_samples_per_s", "first_batch_s", "cpu_s_per_1000_samples"] {
        assert!(run[key].as_f64().unwrap() > 0.0, "{key}: {run}");
    }
    assert!(run["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
    let waits = ["p50", "p99", "p99_9", "max"].map(|quantile| run["waits_ms"][quantile].as_f64().unwrap());
    assert!(waits.is_sorted() && waits[3] > 0.0, "{run}");
    assert!(["ops", "storage", "consumer"].contains(&run["bottleneck"].as_str().unwrap()));
    assert_eq!(run["samples"], 2 * SAMPLES);
    assert_eq!(run["epochs_exactly_once"], 2);
    let share = &place.json(&[
        "bench",
        &data(&place),
        "--ops",
        OPS,
        "--batch-size",
        "7",
        "--world-size",
        "3",
        "--no-ceiling",
    ])[0];
    assert_eq!(share["samples"], SAMPLES / 21 * 21);
}

#[test]
fn a_slow_trainer_is_the_bottleneck() {
    let place = with_images("parquet");
    let slow = ["--ops", OPS, "--batch-size", "29", "--step-ms", "500", "--no-ceiling"]; // 7 steps
    let run = &place.json(&[&["bench", &data(&place)][..], &slow].concat())[0];
    assert_eq!(run["bottleneck"], "consumer", "{run}");
}

#[test]
fn doctor_passes_a_sound_data_set_and_names_each_file_that_cannot_be_decoded() {
    let place = with_images("folder");
    let sound = &place.json(&["doctor", &data(&place)])[0];
    assert_eq!(sound["examined"], SAMPLES);
    assert_eq!(sound["columns"][0]["refused"], 0, "{sound}");
    assert_eq!(sound["columns"][0]["formats"]["JPEG"], SAMPLES);
    assert_eq!(sound["columns"][0]["width"]["samples"], SAMPLES);
    let labels = &sound["layout"]["labels"];
    assert!(
        labels["in_a_run"].as_f64().unwrap() < labels["at_random"].as_f64().unwrap(),
        "class folders: {labels}"
    );

    let files = files_below(Path::new(&data(&place)));
    let (cut, empty) = (&files[40], &files[150]);
    let bytes = std::fs::read(cut).unwrap();
    std::fs::write(cut, &bytes[..bytes.len() / 2]).unwrap();
    std::fs::write(empty, b"").unwrap();
    let output = place.run(&["doctor", &data(&place), "--json"]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let report: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let refusals = report["columns"][0]["refusals"].as_array().unwrap();
    let names: Vec<&str> = refusals.iter().map(|refusal| refusal["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 2, "{report}");
    for (name, file) in names.iter().zip([cut, empty]) {
        assert!(file.to_str().unwrap().ends_with(name), "{name} is {}", file.display());
    }
    assert!(text(&output.stderr).contains("2 of 203 examined samples cannot be decoded"));
}

#[test]
fn doctor_reads_the_requested_number_of_samples() {
    let place = with_images("parquet");
    let some = &place.json(&["doctor", &data(&place), "--samples", "70"])[0];
    assert_eq!((&some["examined"], &some["columns"][0]["examined"]), (&70.into(), &70.into()), "{some}");
    let people = place.run(&["doctor", &data(&place), "--quiet"]);
    assert!(text(&people.stdout).contains("203 decode, 0 do not"), "{}", text(&people.stdout));
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files.sort();
    files
}

/// A worker with one CPU thread that listens on a free port. Dropping it kills the process.
struct WorkerProcess {
    child: Child,
    address: String,
}

impl WorkerProcess {
    fn start(place: &Sandbox) -> Self {
        let mut command = place.command();
        command.args(["worker", "--json", "--threads", "1", "--listen", "127.0.0.1:0", "--allow"]);
        let mut child =
            command.arg(data(place)).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let started: Value = serde_json::from_str(&line).unwrap();
        Self { child, address: started["address"].as_str().unwrap().to_owned() }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn workers_whose_cpus_are_busy_are_the_bottleneck() {
    let place = with_images("parquet");
    let worker = WorkerProcess::start(&place);
    let remote = [
        "--workers",
        &worker.address,
        "--ops",
        "decode_image,random_resized_crop:256,rand_augment",
        "--no-ceiling",
    ];
    let run = &place.json(&[&["bench", &data(&place), "--batch-size", "4"][..], &remote].concat())[0];
    assert_eq!(run["bottleneck"], "workers", "{run}");
    assert!(run["workers_busy"].as_f64().unwrap() > 0.85, "{run}");
}

#[test]
fn preview_is_one_self_contained_page() {
    let place = with_images("folder");
    let out = place.path("page.html");
    let asked = [
        "preview",
        &data(&place),
        "--ops",
        OPS,
        "--samples",
        "9",
        "--original",
        "--out",
        out.to_str().unwrap(),
    ];
    let said = &place.json(&asked)[0];
    assert_eq!((&said["samples"], &said["failed"]), (&Value::from(9), &Value::from(0)));
    let html = std::fs::read_to_string(&out).unwrap();
    assert_eq!(html.matches("data:image/png;base64,").count(), 9);
    assert_eq!(html.matches("data:image/jpeg;base64,").count(), 9);
    assert!(html.contains("label: ") && html.contains(".JPEG") && !html.contains("<script"));
    assert!(!html.contains("src=\"http"));
}

#[test]
fn preview_shows_why_an_image_is_unusable() {
    let place = with_images("folder");
    let class = std::fs::read_dir(data(&place)).unwrap().map(|e| e.unwrap().path()).min().unwrap();
    for file in std::fs::read_dir(&class).unwrap() {
        std::fs::write(file.unwrap().path(), b"\xff\xd8\xff not an image").unwrap();
    }
    let out = place.path("page.html");
    let asked =
        ["preview", &data(&place), "--shuffle", "none", "--samples", "30", "--out", out.to_str().unwrap()];
    let said = &place.json(&asked)[0];
    assert_eq!((&said["samples"], &said["failed"]), (&Value::from(30), &Value::from(29)));
    assert_eq!(std::fs::read_to_string(&out).unwrap().matches("class=\"bad\"").count(), 29);
}

#[test]
fn preview_fails_if_no_sample_is_usable() {
    let place = with_images("folder");
    let out = place.path("page.html");
    let asked = ["preview", &data(&place), "--ops", "decode_audio", "--out", out.to_str().unwrap()];
    let output = place.run(&asked);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    assert!(out.exists(), "the page with the reasons exists");
}

#[test]
fn options_for_local_output_files_reject_urls() {
    let place = with_images("folder");
    for asked in [
        vec!["synth", "imagenet", "s3://bucket/images", "--samples", "3"],
        vec!["preview", &data(&place), "--out", "file:///tmp/page.html"],
        vec!["plan", &data(&place), "--cursor", "s3://bucket/state.json"],
    ] {
        let output = place.run(&asked);
        assert_eq!(output.status.code(), Some(2), "{asked:?}");
        assert!(text(&output.stderr).contains("must be a path on this machine"), "{}", text(&output.stderr));
    }
    let nowhere = place.path("none/page.html");
    let output = place.run(&["preview", &data(&place), "--out", nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("create its folder"), "{}", text(&output.stderr));
}

#[test]
fn a_catalog_that_cannot_be_stored_is_not_reported_as_stored() {
    let place = with_images("folder");
    let file = place.path("file");
    std::fs::write(&file, b"no folder").unwrap();
    let folder = file.join("catalogs").display().to_string();
    let output = place.run(&["catalog", &data(&place), "--catalog-dir", &folder]);
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    assert!(!text(&output.stdout).contains("kept in"), "{}", text(&output.stdout));
}

#[test]
fn a_question_mark_in_a_file_name_is_not_a_query() {
    let place = with_images("folder");
    let class = std::fs::read_dir(data(&place)).unwrap().map(|e| e.unwrap().path()).min().unwrap();
    let before = place.json(&["inspect", &data(&place)])[0].clone();
    let picture = std::fs::read_dir(&class).unwrap().next().unwrap().unwrap().path();
    std::fs::copy(&picture, class.join("what?.jpg")).unwrap();
    std::fs::create_dir(class.with_file_name("who?")).unwrap();
    std::fs::copy(&picture, class.with_file_name("who?").join("a.jpg")).unwrap();
    let after = &place.json(&["inspect", &data(&place)])[0];
    let number = |value: &Value, field: &str| value[field].as_u64().unwrap();
    assert_eq!(number(after, "samples"), number(&before, "samples") + 2);
    assert_eq!(number(&after["counts"], "distinct"), number(&before["counts"], "distinct") + 1);
    assert_eq!(after["notes"], before["notes"]);
}

#[test]
fn a_query_has_values_as_json_and_cannot_write() {
    let place = with_images("folder");
    let query = "select count(*) n, avg(1.5) a, true b, null z, 'x' t from catalog";
    let row = &place.json(&["inspect", &data(&place), "--sql", query])[0];
    assert!(row["n"].is_u64() && row["z"].is_null(), "{row}");
    assert_eq!((&row["a"], &row["b"], &row["t"]), (&Value::from(1.5), &Value::from(true), &Value::from("x")));
    let out = place.path("out.csv");
    for query in [format!("copy (select 1) to '{}'", out.display()), "drop table catalog".to_owned()] {
        let output = place.run(&["inspect", &data(&place), "--sql", &query]);
        assert_eq!(output.status.code(), Some(2), "{query}: {}", text(&output.stderr));
    }
    assert!(!out.exists());
}

#[test]
fn cursor_explains_a_state_and_whether_it_fits() {
    let place = with_images("folder");
    let (file, data) = (place.path("state.json").display().to_string(), data(&place));
    let order = ["--seed", "7", "--window", "32", "--global-batch", "8"];
    place.run(&[&["plan", &data, "--epoch", "2", "--from", "16", "--cursor", &file], &order[..]].concat());
    let told = text(&place.run(&["cursor", &file]).stdout);
    for fact in [
        "epoch            2",
        "position         16 samples",
        "windows of 32 samples in blocks",
        "seed 7",
        "identity",
    ] {
        assert!(told.contains(fact), "{told}");
    }
    // A copy of the data is the same data.
    let copy = place.path("copy").display().to_string();
    let copied = Command::new("cp").args(["-r", &data, &copy]).status().unwrap();
    assert!(copied.success());
    let fit = &place.json(&["cursor", &file, &copy])[0];
    assert_eq!(
        (&fit["fits"], &fit["samples"]),
        (&Value::Bool(true), &place.json(&["inspect", &data])[0]["samples"])
    );
    // In the form of a loader's state_dict.
    let cursor = std::fs::read_to_string(&file).unwrap();
    let state = serde_json::json!({ "version": 1, "epoch": 2, "position": 16, "cursor": cursor });
    std::fs::write(&file, state.to_string()).unwrap();
    assert!(place.run(&["cursor", &file, &copy]).status.success());
    let first = files_below(Path::new(&copy)).into_iter().next().unwrap();
    std::fs::remove_file(&first).unwrap();
    let refused = place.run(&["cursor", &file, &copy]);
    assert_eq!(refused.status.code(), Some(2));
    let refused = text(&refused.stderr);
    assert!(refused.contains("catalog") && refused.contains("1 file removed"), "{refused}");
    assert!(refused.contains(first.file_name().unwrap().to_str().unwrap()), "{refused}");
    std::fs::write(&file, "{}").unwrap();
    assert!(place.complaint(2, &["cursor", &file]).contains("state_dict()"));
}

#[test]
fn a_published_catalog_serves_another_machine() {
    let place = with_images("parquet");
    let (shared, other) = (place.named("shared"), place.named("other"));
    let built = &place.json(&["catalog", &data(&place), "--publish", &shared])[0];
    assert_eq!(built["published"], shared.as_str());
    let taken =
        &place.json(&["catalog", &data(&place), "--catalog-dir", &other, "--catalogs-from", &shared])[0];
    assert_eq!(taken["content_hash"], built["content_hash"]);
    let tables = |folder: &str| {
        let folders = std::fs::read_dir(place.path(folder)).unwrap();
        let files = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
        files.map(|file| file.unwrap().file_name()).collect::<std::collections::BTreeSet<_>>()
    };
    assert!(tables("shared").len() > 3);
    assert_eq!(tables("shared"), tables("other"));
    let unknown = place.json(&["catalog", &data(&place), "--catalogs-from", &place.named("nothing")]);
    assert_eq!(unknown[0]["content_hash"], built["content_hash"], "it was built or found in the own cache");
}

#[test]
fn catalog_is_stored_in_the_folder_that_it_reports() {
    let place = with_images("parquet");
    let built = &place.json(&["catalog", &data(&place)])[0];
    assert!(Path::new(built["store"].as_str().unwrap()).starts_with(place.path("cache")));
    assert!(place.path("cache").exists());
    for option in [["--rebuild"].as_slice(), &["--check", "list"]] {
        let again = &place.json(&[&["catalog", &data(&place)], option].concat())[0];
        assert_eq!(built["content_hash"], again["content_hash"], "{option:?}");
    }
    let refused = place.run(&["catalog", &data(&place), "--check", "never"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("must be auto or list; got never"), "{}", text(&refused.stderr));
    let beside = &place.json(&["catalog", &data(&place), "--beside"])[0];
    assert!(Path::new(beside["store"].as_str().unwrap()).is_dir(), "{beside}");
    assert_eq!(
        place.json(&["inspect", &data(&place)])[0]["samples"],
        SAMPLES,
        "the catalog is not read as data"
    );
}

#[test]
fn errors_are_one_sentence_and_an_exit_code() {
    let place = with_images("parquet");
    let data = data(&place);
    let missing = place.path("nowhere");
    let complaint = place.complaint(4, &["inspect", missing.to_str().unwrap()]);
    assert!(complaint.contains("nowhere"), "{complaint}");
    let complaint = place.complaint(2, &["inspect", &data, "--filter", "labl < 3"]);
    assert!(complaint.contains("labl") && complaint.contains("label"), "{complaint}");
    let complaint = place.complaint(2, &["plan", &data, "--global-batch", "5000"]);
    assert!(complaint.contains("5000") && complaint.contains("203"), "{complaint}");
    let complaint = place.complaint(2, &["plan", &data, "--from", "204"]);
    assert!(complaint.contains("204"), "{complaint}");
    let complaint = place.complaint(2, &["plan", &data, "--world-size", "2", "--rank", "2"]);
    assert!(complaint.contains("--rank 2"), "{complaint}");
    let complaint = place.complaint(2, &["bench", &data, "--ops", "decode_image,resise:7"]);
    assert!(complaint.contains("resise"), "{complaint}");
    let complaint = place.complaint(2, &["bench", &data, "--ops", OPS, "--budget-bytes", "10"]);
    assert!(complaint.contains("budget"), "{complaint}");
    let complaint = place.complaint(2, &["synth", "imagenet", &data]);
    assert!(complaint.contains("not empty"), "{complaint}");
    let complaint = place.complaint(2, &["inspect", &data, "--storage", "aws_nonsense=1"]);
    assert!(complaint.contains("aws_nonsense"), "{complaint}");
}

#[test]
fn secrets_are_never_printed() {
    let place = Sandbox::new();
    let secret = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY";
    let arguments = [
        "inspect",
        "s3://bucket/train",
        "--endpoint",
        "http://127.0.0.1:9",
        "--region",
        "eu-x",
        "--deadline",
        "1",
    ];
    let token = format!("aws_session_token={secret}");
    let output = place
        .command()
        .args(arguments)
        .args(["--storage", &token])
        .env("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", secret)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("s3://bucket"), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains(secret) && !text(&output.stdout).contains(secret));
}

#[test]
fn a_reader_that_closes_the_pipe_is_not_an_error() {
    let place = with_images("parquet");
    let mut plan = place
        .command()
        .args(["plan", &data(&place), "--global-batch", "1", "--world-size", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(plan.stdout.take());
    let mut complaint = String::new();
    plan.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert!(plan.wait().unwrap().success(), "{complaint}");
    assert_eq!(complaint, "");
}

#[test]
fn filters_may_decode_image_headers() {
    let place = with_images("parquet");
    let run = |filter: &str| {
        place.run(&[
            "plan",
            &data(&place),
            "--filter",
            filter,
            "--global-batch",
            "1",
            "--world-size",
            "1",
            "--json",
        ])
    };
    let all = run("image_width(image) = width and image_format(image) = 'jpeg'");
    assert!(all.status.success(), "{}", text(&all.stderr));
    assert!(text(&all.stdout).lines().count() > 10);
    let none = run("image_height(image) > 100000");
    assert!(!none.status.success() && text(&none.stderr).contains("image_height(image) > 100000"));
}
