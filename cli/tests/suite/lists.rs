//! Lists of images of a sample on the command line: bench and preview.

use crate::pages::images;
use crate::sandbox::{Sandbox, text};
use arrow::array::{ArrayRef, BinaryArray, Int64Array, ListArray, RecordBatch, StringArray, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use arrow::ipc::writer::FileWriter;
use serde_json::Value;
use std::sync::Arc;

const SAMPLES: usize = 20;
const OPS: &str = "decode_image,center_crop:4x4";

/// Returns the value of all pixels of image `number` of a sample.
fn value(sample: usize, number: usize) -> u8 {
    u8::try_from(10 * sample + number).unwrap()
}

fn png(value: u8) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, 8, 8);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&[value; 8 * 8 * 3]).unwrap();
    out
}

/// Makes lists of `items`, with 0 to 3 for each sample.
fn lists(items: ArrayRef) -> ArrayRef {
    let item = Arc::new(Field::new("item", items.data_type().clone(), true));
    Arc::new(ListArray::new(
        item,
        OffsetBuffer::from_lengths((0..SAMPLES).map(|sample| sample % 4)),
        items,
        None,
    ))
}

/// Writes a file with the columns `pages`, `list<binary>`, and `photos`, as Hugging Face's `Sequence(Image())`, as far as they are
/// `requested`. Sample 6 has a broken image if `is_broken`.
fn with_lists(requested: &[&str], is_broken: bool) -> Sandbox {
    let all = (0..SAMPLES).flat_map(|sample| (0..sample % 4).map(move |number| (sample, number)));
    let encoded: Vec<Vec<u8>> = all
        .map(|(sample, number)| match is_broken && (sample, number) == (6, 1) {
            true => b"not an image".to_vec(),
            false => png(value(sample, number)),
        })
        .collect();
    let binary: ArrayRef = Arc::new(BinaryArray::from_iter_values(&encoded));
    let paths: ArrayRef = Arc::new(StringArray::from_iter_values(encoded.iter().map(|_| "gone.png")));
    let fields =
        [("bytes", DataType::Binary), ("path", DataType::Utf8)].map(|(name, of)| Field::new(name, of, true));
    let structs = StructArray::new(Fields::from(fields.to_vec()), vec![binary.clone(), paths], None);
    let columns = [("pages", lists(binary)), ("photos", lists(Arc::new(structs)))];
    let labels: ArrayRef = Arc::new(Int64Array::from_iter_values(0..SAMPLES as i64));
    let columns = columns.into_iter().filter(|(name, _)| requested.contains(name)).chain([("label", labels)]);
    let rows = RecordBatch::try_from_iter(columns).unwrap();

    let place = Sandbox::new();
    let folder = place.path("documents");
    std::fs::create_dir(&folder).unwrap();
    let file = std::fs::File::create(folder.join("train.arrow")).unwrap();
    let mut writer = FileWriter::try_new(file, &rows.schema()).unwrap();
    writer.write(&rows).unwrap();
    writer.finish().unwrap();
    place
}

fn data(place: &Sandbox) -> String {
    place.named("documents")
}

#[test]
fn bench_measures_lists_of_images_and_their_bare_chain() {
    for column in ["pages", "photos"] {
        let place = with_lists(&[column], false);
        let data = data(&place);
        let asked = ["bench", &data, "--ops", OPS, "--batch-size", "5", "--threads", "2"];
        let run = place.json(&asked).remove(0);
        for key in ["samples_per_s", "chain_ceiling_samples_per_s", "slot_bytes"] {
            assert!(run[key].as_f64().unwrap() > 0.0, "{column}, {key}: {run}");
        }
        assert_eq!((&run["samples"], &run["epochs_exactly_once"]), (&Value::from(SAMPLES), &Value::from(1)));
        assert_eq!(run["padding_share"], Value::Null, "lists are not padded");
    }
}

#[test]
fn preview_shows_all_images_of_each_list() {
    let place = with_lists(&["pages", "photos"], false);
    let (data, out) = (data(&place), place.named("page.html"));
    let fixed = ["preview", &data, "--shuffle", "none", "--original", "--ops", OPS, "--out", &out];
    let several = place.complaint(2, &fixed);
    assert!(several.contains("--column") && several.contains("the columns are: pages, photos"), "{several}");
    for column in ["pages", "photos"] {
        let facts = place.json(&[&fixed[..], &["--column", column]].concat()).remove(0);
        assert_eq!((&facts["samples"], &facts["failed"]), (&Value::from(SAMPLES), &Value::from(0)));
        assert_eq!(facts["images"], 5 * (1 + 2 + 3));
        let html = std::fs::read_to_string(&out).unwrap();
        assert!(html.contains("<dt>result</dt><dd>U8 [N, 4, 4, 3]</dd>"), "{html:.2000}");
        assert_eq!(html.matches("<small>no images</small>").count(), SAMPLES / 4);
        assert!(
            html.contains("label: 7</figcaption>") && !html.contains("pages: ") && !html.contains("photos: ")
        );
        // The images after the ops and the stored ones of each sample follow each other.
        let shown = images(&html);
        let expected = (0..SAMPLES).flat_map(|sample| {
            let image = move |side: u32| {
                (0..sample % 4)
                    .map(move |number| (side, side, vec![value(sample, number); (side * side * 3) as usize]))
            };
            image(4).chain(image(8))
        });
        assert_eq!(shown, expected.collect::<Vec<_>>());
    }
}

#[test]
fn a_broken_image_of_a_list_is_named() {
    let place = with_lists(&["photos"], true);
    let (data, out) = (data(&place), place.named("page.html"));
    let facts = place.json(&["preview", &data, "--ops", OPS, "--out", &out]).remove(0);
    assert_eq!(facts["failed"], 1);
    let html = std::fs::read_to_string(&out).unwrap();
    assert!(html.contains("<span class=\"bad\">image 1 of the list: "), "{html:.2000}");
    let stopped =
        place.complaint(5, &["bench", &data, "--quiet", "--ops", OPS, "--no-ceiling", "--batch-size", "1"]);
    assert!(stopped.contains("row 6") && stopped.contains("image 1 of the list: "), "{stopped}");
}

#[test]
fn what_lists_cannot_be_is_explained() {
    let place = with_lists(&["pages"], false);
    let data = data(&place);
    let view = place.complaint(2, &["bench", &data, "--quiet", "--view", "a=resize:8x8"]);
    assert!(
        view.contains("--view is for columns of single images, and `pages` has lists of images"),
        "{view}"
    );
    let audio = place.complaint(2, &["bench", &data, "--quiet", "--ops", "decode_audio,resample:16000"]);
    assert!(audio.contains("only images can be in lists"), "{audio}");
    let fixed = ["bench", &data, "--quiet", "--ops", OPS, "--no-ceiling", "--batch-size", "1"];
    let few = place.complaint(5, &[&fixed[..], &["--max-images", "2"]].concat());
    assert!(few.contains("the list has 3 images, over --max-images (2)"), "{few}");
    let people = text(&place.run(&[&fixed[..], &["--max-images", "3"]].concat()).stdout);
    assert!(people.contains("20 in 20 batches"), "{people}");
}
