//! Options for storage: endpoint, credentials, deadline.

use clap::Args;
use feedstock_dataset::{Secret, StorageOptions};
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
