//! Several views of an image on the command line: `--view` of bench and preview.

use crate::pages::images;
use crate::sandbox::{Sandbox, text};
use feedstock::catalog::{CatalogOptions, CatalogStore};
use feedstock::ops::{ChainSpec, View};
use feedstock::{Batch, BatchSize, Dataset, OpenOptions, Pipeline, Rank};
use serde_json::Value;

const SAMPLES: usize = 12;
const CROP: &str = "random_resized_crop:24:scale=0.2..1,horizontal_flip";
/// A crop that needs only a fraction of the image's size.
const SMALL: &str = "random_resized_crop:16,horizontal_flip";

/// A folder with sample images.
fn with_images() -> Sandbox {
    let place = Sandbox::new();
    let options =
        ["--samples", "12", "--classes", "3", "--width", "320", "--height", "240", "--layout", "folder"];
    place.json(&[&["synth", "imagenet", &data(&place)][..], &options].concat());
    place
}

fn data(place: &Sandbox) -> String {
    place.named("images")
}

fn views() -> [String; 4] {
    ["--view".to_owned(), format!("global={CROP}"), "--view".to_owned(), format!("local*3={SMALL}")]
}

/// Returns the images of a page of all samples, in catalog order.
fn page(place: &Sandbox, more: &[&str]) -> Vec<(u32, u32, Vec<u8>)> {
    let (data, out, views) = (data(place), place.named("page.html"), views());
    let fixed = ["preview", &data, "--shuffle", "none", "--seed", "7", "--out", &out];
    let views = views.each_ref().map(String::as_str);
    let facts = place.json(&[&fixed[..], &views, more].concat()).remove(0);
    assert_eq!((&facts["samples"], &facts["failed"]), (&Value::from(SAMPLES), &Value::from(0)));
    assert_eq!(facts["images"], 4 * SAMPLES);
    images(&std::fs::read_to_string(out).unwrap())
}

/// Returns the batch that a training program gets.
fn batch(place: &Sandbox, describe: impl Fn(Dataset) -> Pipeline) -> Batch {
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions { catalog, ..OpenOptions::default() };
    let dataset = futures::executor::block_on(Dataset::open_with(&data(place), options)).unwrap();
    let pipeline = describe(dataset).seed(7).batch(BatchSize::per_rank(SAMPLES as u64));
    pipeline.rank(Rank::new(0, 1)).start().unwrap().next().unwrap().unwrap()
}

fn spec(ops: &str) -> ChainSpec {
    ops.parse().unwrap()
}

#[test]
fn preview_shows_the_views_that_a_pipeline_makes() {
    let place = with_images();
    let batch = batch(&place, |dataset| {
        let decode = spec("decode_image").0.remove(0);
        let views = [View::new("global", spec(CROP)), View::new("local", spec(SMALL)).count(3)];
        dataset.views("image", decode, views)
    });
    let shown = page(&place, &[]);
    assert_eq!(shown.len(), 4 * SAMPLES);
    for (row, tile) in shown.chunks_exact(4).enumerate() {
        assert_eq!(tile[0], (24, 24, batch["global"].row(row).to_vec()), "row {row}");
        let local: Vec<u8> = tile[1..].iter().flat_map(|(_, _, pixels)| pixels.clone()).collect();
        assert_eq!(local, batch["local"].row(row), "row {row}");
    }
}

#[test]
fn a_view_draws_as_a_map_with_the_key_of_its_name_and_number() {
    let place = with_images();
    let decode = "decode_image:scaled=false";
    let batch = batch(&place, |dataset| {
        let pipeline = dataset.map_as("image", "x", spec(&format!("{decode},{CROP}"))).key("x", "global/0");
        pipeline.map_as("image", "y", spec(&format!("{decode},{SMALL}"))).key("y", "local/2")
    });
    for (row, tile) in page(&place, &["--ops", decode]).chunks_exact(4).enumerate() {
        assert_eq!(tile[0].2, batch["x"].row(row), "row {row}");
        assert_eq!(tile[3].2, batch["y"].row(row), "row {row}");
    }
}

#[test]
fn the_page_names_the_views_and_why_a_sample_is_unusable() {
    let place = with_images();
    let class = std::fs::read_dir(data(&place)).unwrap().map(|entry| entry.unwrap().path()).min().unwrap();
    for file in std::fs::read_dir(&class).unwrap() {
        std::fs::write(file.unwrap().path(), b"\xff\xd8\xff not an image").unwrap();
    }
    let (data, out, views) = (data(&place), place.named("page.html"), views());
    let fixed = ["preview", &data, "--original", "--out", &out];
    let facts = place.json(&[&fixed[..], &views.each_ref().map(String::as_str)].concat()).remove(0);
    assert_eq!((&facts["samples"], &facts["failed"]), (&Value::from(SAMPLES), &Value::from(4)));
    let html = std::fs::read_to_string(out).unwrap();
    assert_eq!(html.matches("class=\"bad\"").count(), 4);
    assert_eq!(html.matches("<small>global</small><div><img ").count(), 8);
    assert_eq!(html.matches("<small>local</small><div><img ").count(), 8);
    assert_eq!(html.matches("data:image/jpeg;base64,").count(), SAMPLES);
    let facts = format!("<dt>view local</dt><dd>{SMALL}</dd><dt>result</dt><dd>U8 [3, 16, 16, 3]</dd>");
    assert!(html.contains(&facts) && html.contains("<dt>ops</dt><dd>decode_image</dd>"), "{html:.2000}");
}

#[test]
fn bench_measures_views_and_their_bare_chain() {
    let place = with_images();
    let (data, views) = (data(&place), views());
    let fixed = ["bench", &data, "--batch-size", "4", "--slots", "3", "--threads", "2"];
    let asked = [&fixed[..], &views.each_ref().map(String::as_str)].concat();
    let run = place.json(&asked).remove(0);
    for key in ["samples_per_s", "chain_ceiling_samples_per_s"] {
        assert!(run[key].as_f64().unwrap() > 0.0, "{key}: {run}");
    }
    assert_eq!((&run["samples"], &run["epochs_exactly_once"]), (&Value::from(SAMPLES), &Value::from(1)));
    assert_eq!(run["slot_bytes"], 3 * 4 * (24 * 24 * 3 + 3 * 16 * 16 * 3));
    let without = place.json(&[&asked[..], &["--no-ceiling"]].concat()).remove(0);
    assert_eq!(without["chain_ceiling_samples_per_s"], Value::Null);
    let people = text(&place.run(&asked).stdout);
    assert!(people.contains("% of the bare chain's"), "{people}");
}

#[test]
fn wrong_views_are_one_sentence() {
    let place = with_images();
    let (data, out) = (data(&place), place.named("page.html"));
    for command in [&["bench", &data][..], &["preview", &data, "--out", &out]] {
        let refused = |more: &[&str]| place.complaint(2, &[command, &["--quiet"], more].concat());
        let form = refused(&["--view", CROP]);
        assert!(form.contains("--view must be NAME=OPS or NAME*N=OPS"), "{form}");
        let column = refused(&["--view", "label=resize:8x8"]);
        assert!(column.contains("--view label: the data set has a column with this name"), "{column}");
        let ops = refused(&["--view", "a=resize:8x8", "--ops", "decode_image,horizontal_flip"]);
        assert!(ops.contains("--ops has only the decoder") && ops.contains("into each --view"), "{ops}");
    }
}
