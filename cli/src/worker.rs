//! `feedstock worker`: makes rows for ranks on other machines.

use super::common::Common;
use super::failure::{Failure, Outcome};
use super::output::Output;
use super::source::StoreArgs;
use super::workers::{TrustArgs, read};
use clap::Args;
use feedstock_dataset::{OpenOptions, Secret};
use feedstock_ingest::{Identity, ServerTls, Worker, WorkerOptions};
use feedstock_trainer_bridge::Workers;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  feedstock worker --allow /data/imagenet                             # for this machine's own ranks, on 127.0.0.1:7117
  feedstock worker --listen 0.0.0.0:7117 --allow s3://corpus/ --token-file token \\
      --tls-cert worker.crt --tls-key worker.key --client-ca ca.crt   # for others
  feedstock worker --health 127.0.0.1:7117                            # is it there? Exit code 0, and how it is

Ranks name their workers: pipeline.workers(Workers::at(\"host:7117,…\")?) in Rust, loader(workers=\"host:7117,…\") in
Python. Reads happen with this process's credentials (AWS_*, GOOGLE_*, AZURE_*), which never leave it; of what requests
name, it reads only what lies below an --allow. SIGTERM drains: no new streams, ranks go elsewhere, then it ends; a second
one ends it at once. Any Arrow Flight client can read a lane at the same address; gRPC's health service answers there too.";

/// Decode for ranks on other machines.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    /// Where to listen; port 0 takes a free one. Beyond this machine it needs a token and TLS.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7117")]
    listen: String,
    /// A folder, bucket, prefix or object that requests may name; may be repeated [default: none].
    #[arg(long, value_name = "URI")]
    allow: Vec<String>,
    /// Encoded bytes that all streams together may hold.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30)]
    memory_bytes: u64,
    /// Bytes of working memory that each CPU thread may take for one sample; larger ones borrow from the memory of streams.
    #[arg(long, value_name = "BYTES", default_value_t = feedstock_ops::DECODER_MEMORY)]
    decoder_memory: u64,
    /// PEM file: the worker's certificate and those that vouch for it.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file: its private key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PEM file: whoever connects must show a certificate of this authority.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    /// Listen beyond this machine without token and TLS: in networks that keep everybody else out.
    #[arg(long)]
    insecure: bool,
    /// Seconds that ranks have to go elsewhere when the worker is asked to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain_timeout: u64,
    /// Ask the worker at this address how it is, and print that.
    #[arg(long, value_name = "HOST:PORT")]
    health: Option<String>,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    store: StoreArgs,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        if let Some(address) = &self.health {
            return self.health(common, address);
        }
        log();
        let worker = Worker::start(self.options(common)?)?;
        let mut output = Output::new();
        match common.json {
            true => output.json(&serde_json::json!({ "address": worker.address().to_string() }))?,
            false => output.line(format!("listening on {}", worker.address()))?,
        }
        output.end()?;
        if self.allow.is_empty() {
            tracing::warn!("nothing may be read: every request will be refused; name data with --allow");
        }
        worker.wait_for_signal()?;
        tracing::info!("draining: {} streams", worker.status().streams);
        if !worker.drain(Duration::from_secs(self.drain_timeout)) {
            tracing::warn!(
                "{} streams were cut off: their ranks had not gone elsewhere",
                worker.status().streams
            );
        }
        Ok(())
    }

    fn options(&self, common: &Common) -> Outcome<WorkerOptions> {
        let (storage, catalog) = (common.storage.options(), self.store.options());
        let mut options = WorkerOptions::new(move || OpenOptions {
            storage: storage.clone(),
            catalog: catalog.clone(),
            audio_probe: Some(feedstock_trainer_bridge::audio_probe()),
            functions: feedstock_ops::sql_functions(),
            ..OpenOptions::default()
        });
        options.listen.clone_from(&self.listen);
        options.allow.clone_from(&self.allow);
        options.threads = Some(common.threads());
        options.memory_bytes = self.memory_bytes;
        options.decoder_memory = self.decoder_memory;
        options.insecure = self.insecure;
        options.token = self.trust.token()?;
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let identity = Identity { certificates: read(certificate)?, key: Secret::from(read(key)?) };
            let client_ca = self.client_ca.as_deref().map(read).transpose()?;
            options.tls = Some(ServerTls { identity, client_ca });
        }
        Ok(options)
    }

    fn health(&self, common: &Common, address: &str) -> Outcome {
        let status = self.trust.apply(Workers::at(address)?)?.status(address)?;
        let mut output = Output::new();
        let value = serde_json::to_value(&status).map_err(|e| Failure::bug(e.to_string()))?;
        match (common.json, value.as_object()) {
            (false, Some(facts)) => {
                for (name, value) in facts {
                    output.fact(name, value.as_str().map_or_else(|| value.to_string(), str::to_owned))?;
                }
            }
            _ => output.json(&value)?,
        }
        output.end()?;
        match status.draining {
            true => Err(Failure::retry("the worker is going away")),
            false => Ok(()),
        }
    }
}

/// What happens is told on standard error; RUST_LOG says how much.
fn log() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::INFO.into())
        .from_env_lossy();
    // Whoever embeds the command may have a subscriber already.
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Told on standard error as well, which panics where that is full or closed.
    let _kept = subscriber.log_internal_errors(false).try_init();
}
