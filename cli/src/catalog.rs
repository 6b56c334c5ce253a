//! `feedstock catalog`: builds or refreshes a catalog ahead of a job.

use super::common::Common;
use super::failure::{Failure, Outcome};
use super::output::{Output, count};
use super::source::SourceArgs;
use clap::Args;
use feedstock_dataset::CatalogStore;
use serde_json::json;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  feedstock catalog s3://bucket/train                # once, into the cache folder
  feedstock catalog s3://bucket/train --beside       # into s3://bucket/train/_feedstock/, for all machines
  feedstock catalog s3://bucket/train --publish s3://bucket/catalogs         # for --catalogs-from on other machines
  feedstock catalog s3://bucket/train --check list   # compare the catalog with storage, at any size
  feedstock catalog s3://bucket/train --rebuild      # even if the stored catalog is current

feedstock compares a stored catalog with a listing of the storage (names, sizes, ETags) when it opens it, and rebuilds
it if the data changed. A catalog of more than 100,000 objects is compared only with --check list.";

/// Build the catalog of a data set, or check the stored one.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    #[command(flatten)]
    source: SourceArgs,
    /// Read the headers of all objects again, even if the stored catalog is current.
    #[arg(long)]
    rebuild: bool,
    /// Copy the catalog into this folder or bucket, too, where other machines find it with --catalogs-from.
    #[arg(long, value_name = "FOLDER")]
    publish: Option<String>,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let start = Instant::now();
        let dataset = self.source.how.open(&self.source.uri, common, self.rebuild)?;
        let seconds = start.elapsed().as_secs_f64();
        if let Some(folder) = &self.publish {
            futures::executor::block_on(dataset.publish_catalog(folder))?;
        }
        let catalog = dataset.catalog();
        let place = match self.source.how.store() {
            CatalogStore::Cache(folder) => folder.display().to_string(),
            CatalogStore::Beside => format!("{}/_feedstock", catalog.uri().trim_end_matches('/')),
            CatalogStore::Nowhere => {
                "memory only; to store it, set FEEDSTOCK_CACHE or HOME, or use --beside".to_owned()
            }
        };
        let kept = dataset.is_catalog_kept();
        let mut output = Output::new();
        if common.json {
            output.json(&json!({
                "uri": catalog.uri(),
                "layout": catalog.layout().name(),
                "samples": catalog.samples(),
                "objects": catalog.objects().len(),
                "blocks": catalog.blocks(),
                "content_hash": format!("{:016x}", catalog.content_hash()),
                "store": place,
                "kept": kept,
                "published": self.publish,
                "notes": catalog.notes(),
                "seconds": seconds,
            }))?;
            output.end()?;
            return self.stored(kept, &place);
        }
        let published =
            self.publish.as_ref().map_or_else(String::new, |folder| format!(", published in {folder}"));
        output.line(format!(
            "{}: {} samples in {} blocks of {} {} objects, content hash {:016x}; ready after {seconds:.2} s{}",
            catalog.uri(),
            count(catalog.samples()),
            count(catalog.blocks() as u64),
            count(catalog.objects().len() as u64),
            catalog.layout(),
            catalog.content_hash(),
            if kept { format!(", stored in {place}") } else { String::new() } + &published,
        ))?;
        for note in catalog.notes() {
            output.fact("note", note)?;
        }
        output.end()?;
        self.stored(kept, &place)
    }

    /// Fails if the catalog was not stored, which is the purpose of the command.
    fn stored(&self, kept: bool, place: &str) -> Outcome {
        match kept || self.source.how.store() == CatalogStore::Nowhere {
            true => Ok(()),
            false => Err(Failure::retry(format!(
                "the catalog was not stored in {place}: it is not writable, its disk is full, or the URLs are signed; \
                 name another folder with --catalog-dir"
            ))),
        }
    }
}
