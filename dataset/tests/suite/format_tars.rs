//! WebDataset tars and ILSVRC's tars of tars.

use crate::format_common::*;
use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use feedstock_dataset::{Layout, SampleId};
use std::path::Path;

fn write_webdataset(folder: &Path) {
    for shard in 0..3u64 {
        let mut members = vec![("__meta__/info".to_owned(), b"skipped".to_vec())];
        for i in shard * 50..(shard + 1) * 50 {
            members.push((format!("d/{i:05}.JPG"), picture(i, 3_000)));
            members.push((format!("d/{i:05}.cls"), format!("{}\n", i % 7).into_bytes()));
            let width = if shard == 2 { format!("{i}.5") } else { i.to_string() };
            let json = format!(r#"{{"width": {width}, "label": "x{i}", "nested": [1], "ok": true}}"#);
            members.push((format!("d/{i:05}.json"), json.into_bytes()));
            if i % 2 == 0 {
                members.push((format!("d/{i:05}.txt"), format!("caption {i}").into_bytes()));
                members.push((format!("d/{i:05}.seg.bin"), vec![i as u8; 10]));
            }
        }
        std::fs::write(folder.join(format!("shard-{shard:03}.tar")), tar_of(&members)).unwrap();
    }
}

#[tokio::test]
async fn webdataset_groups_members_by_key() {
    let folder = tempfile::tempdir().unwrap();
    write_webdataset(folder.path());
    let dataset = open(folder.path()).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::WebDataset, 150));
    assert_eq!(catalog.payload_columns(), ["image", "seg_bin"]);
    let schema = catalog.schema();
    assert_eq!(schema.field_with_name("width").unwrap().data_type(), &DataType::Float64);
    assert_eq!(schema.field_with_name("json_label").unwrap().data_type(), &DataType::Utf8);
    let rows = all_rows(&dataset).await;
    assert_eq!(payloads(&rows, "image"), (0..150).map(|i| Some(picture(i, 3_000))).collect::<Vec<_>>());
    let segments = (0..150u64).map(|i| (i % 2 == 0).then(|| vec![i as u8; 10])).collect::<Vec<_>>();
    assert_eq!(payloads(&rows, "seg_bin"), segments);
    assert_eq!(ints(&rows, "label"), (0..150).map(|i| i % 7).collect::<Vec<_>>());
    assert_eq!(texts(&rows, "key")[149], "d/00149");
    let text = rows[0].column_by_name("text").unwrap().as_string::<i32>();
    assert_eq!((text.value(0), text.is_null(1)), ("caption 0", true));
    let widths = rows.last().unwrap().column_by_name("width").unwrap().as_primitive::<Float64Type>();
    assert_eq!(widths.value(widths.len() - 1), 149.5);
    assert_eq!(catalog.describe_sample(SampleId(51)), "shard-001.tar member d/00051");
    // No block straddles two tars, and a block is one read.
    let start = dataset.storage().stats().requests;
    dataset.block_reader().fetch(feedstock_dataset::BlockId(0), 0).await.unwrap();
    assert_eq!(dataset.storage().stats().requests - start, 1);
    let some = dataset.filter("label = 3 and json_label = 'x3'").await.unwrap();
    assert_eq!(some.len(), 1);
}

#[tokio::test]
async fn patterns_name_shards() {
    let folder = tempfile::tempdir().unwrap();
    write_webdataset(folder.path());
    for (pattern, samples) in [("shard-{000..001}.tar", 100), ("shard-*.tar", 150), ("shard-00[02].tar", 100)]
    {
        let dataset = open(&folder.path().join(pattern)).await.unwrap();
        assert_eq!(dataset.catalog().samples(), samples, "{pattern}");
    }
    let error = open(&folder.path().join("shard-{000..003}.tar")).await.unwrap_err();
    assert!(error.message().contains("shard-003.tar"), "{error}");
}

#[tokio::test]
async fn ilsvrc_train_is_read_inside_its_inner_tars() {
    let folder = tempfile::tempdir().unwrap();
    let mut outer = Vec::new();
    let mut expected = Vec::new();
    for (class, wnid) in ["n02100000", "n01440764", "n15075141"].into_iter().enumerate() {
        let members: Vec<_> = (0..20u64)
            .map(|k| (format!("{wnid}_{k}.JPEG"), picture(class as u64 * 100 + k, 4_000)))
            .collect();
        expected.extend(members.iter().map(|(_, bytes)| Some(bytes.clone())));
        outer.push((format!("{wnid}.tar"), tar_of(&members)));
    }
    let at = folder.path().join("ILSVRC2012_img_train.tar");
    std::fs::write(&at, tar_of(&outer)).unwrap();
    let dataset = open(&at).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::IlsvrcTar, 60));
    assert_eq!(catalog.class_names("label").unwrap(), ["n01440764", "n02100000", "n15075141"]);
    let rows = all_rows(&dataset).await;
    assert_eq!(payloads(&rows, "image"), expected);
    assert_eq!(ints(&rows, "label")[..21], [vec![1; 20], vec![0]].concat());
    assert_eq!(texts(&rows, "wnid")[59], "n15075141");
    assert_eq!(texts(&rows, "path")[59], "n15075141_19.JPEG");
}

#[tokio::test]
async fn ilsvrc_validation_takes_its_labels_from_the_devkit() {
    let folder = tempfile::tempdir().unwrap();
    let members: Vec<_> =
        (1..=4u64).map(|k| (format!("ILSVRC2012_val_{k:08}.JPEG"), picture(k, 500))).collect();
    let at = folder.path().join("ILSVRC2012_img_val.tar");
    std::fs::write(&at, tar_of(&members)).unwrap();
    let bare = open(&at).await.unwrap();
    assert!(bare.catalog().schema().index_of("label").is_err());
    assert!(bare.catalog().notes()[0].contains("ground_truth"), "{:?}", bare.catalog().notes());
    let data = folder.path().join("ILSVRC2012_devkit_t12/data");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("ILSVRC2012_validation_ground_truth.txt"), "2\n1\n2\n3\n").unwrap();
    std::fs::copy("tests/real_tools/samples/meta.mat", data.join("meta.mat")).unwrap();
    let dataset = open(&at).await.unwrap();
    let rows = all_rows(&dataset).await;
    // ids 1, 2, 3 are n03, n01, n02: labels follow the sorted wnids, not the ids
    assert_eq!(texts(&rows, "wnid"), ["n00000001", "n00000003", "n00000001", "n00000002"]);
    assert_eq!(ints(&rows, "label"), [0, 2, 0, 1]);
    let labels = rows[0].column_by_name("label").unwrap().as_primitive::<Int64Type>();
    assert_eq!(labels.null_count(), 0);
}

/// A folder or file may be named like a pattern: an existing name takes precedence.
#[tokio::test]
async fn names_like_patterns_are_opened() {
    for folder in ["run [1]", "what?", "{a,b}", "all*"] {
        let parent = tempfile::tempdir().unwrap();
        let named = parent.path().join(folder);
        write_folder(&named, 0);
        assert_eq!(open(&named).await.unwrap().len(), 90, "{folder}");
        assert_eq!(open(&named.join("[ab]")).await.unwrap().len(), 60, "a pattern below {folder}");
    }
}
