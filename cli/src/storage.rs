//! Options for storage: endpoint, credentials, deadline.

use clap::Args;
use feedstock_dataset::{Secret, StorageOptions};
use std::num::NonZeroUsize;
use std::time::Duration;

/// How storage is accessed. Credentials come from the usual environment variables (AWS_*, GOOGLE_*, AZURE_*).
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Storage")]
pub(crate) struct StorageArgs {
    /// S3 endpoint of a store other than AWS (http://127.0.0.1:9000).
    #[arg(long, global = true, value_name = "URL")]
    endpoint: Option<String>,
    /// S3 region.
    #[arg(long, global = true)]
    region: Option<String>,
    /// Send no credentials, for public buckets.
    #[arg(long, global = true)]
    anonymous: bool,
    /// Another setting of the store, for example aws_session_token=…; may be repeated.
    #[arg(long = "storage", global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    settings: Vec<(String, Secret)>,
    /// Seconds without progress after which a storage operation fails.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 120)]
    deadline: u64,
    /// Do not request a read a second time if its answer is late.
    #[arg(long, global = true)]
    no_hedge: bool,
    /// Requests under way at once per bucket or host. Default: 128 for buckets, 32 for web servers.
    #[arg(long, global = true, value_name = "N")]
    max_concurrency: Option<NonZeroUsize>,
    /// The processes that read at the same time. Each begins with its share of 256 requests. Default: WORLD_SIZE, else 1.
    #[arg(long, global = true, value_name = "N")]
    readers: Option<NonZeroUsize>,
}

fn key_value(text: &str) -> Result<(String, Secret), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), Secret::from(value)))
}

impl StorageArgs {
    pub(crate) fn options(&self) -> StorageOptions {
        let mut options = StorageOptions {
            anonymous: self.anonymous,
            deadline: Duration::from_secs(self.deadline),
            hedge: !self.no_hedge,
            max_concurrency: self.max_concurrency,
            readers: self.readers,
            ..StorageOptions::default()
        };
        let named = [("aws_endpoint", &self.endpoint), ("aws_region", &self.region)];
        for (key, value) in named {
            if let Some(value) = value {
                options = options.with(key, value.as_str());
            }
        }
        options.config.extend(self.settings.iter().cloned());
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        storage: StorageArgs,
    }

    #[test]
    fn late_reads_are_requested_twice_unless_the_option_is_given() {
        let hedge = |arguments: &[&str]| Program::try_parse_from(arguments).unwrap().storage.options().hedge;
        assert!(hedge(&["feedstock"]) && !hedge(&["feedstock", "--no-hedge"]));
    }
}
