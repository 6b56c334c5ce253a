//! `feedstock worker`: serves rows to ranks on other machines.

use super::CodeRunner;
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
  feedstock worker --allow /data/imagenet                             # for ranks on this machine, at 127.0.0.1:7117
  feedstock worker --listen 0.0.0.0:7117 --allow s3://corpus/ --token-file token \\
      --tls-cert worker.crt --tls-key worker.key --client-ca ca.crt   # for other machines
  feedstock worker --health 127.0.0.1:7117                            # print the status; exit code 0 if healthy

Ranks list their workers: pipeline.workers(Workers::at(\"host:7117,…\")?) in Rust, loader(workers=\"host:7117,…\") in
Python. The worker reads storage with its own credentials (AWS_*, GOOGLE_*, AZURE_*), which it never sends. It reads only
data below an --allow. On SIGTERM it drains: ranks move to other workers, then it exits. A
second SIGTERM ends it at once. Any Arrow Flight client can read a lane at the same address, which also serves gRPC
health checks.";

/// Decode samples for ranks on other machines.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    /// The address to listen on; port 0 picks a free port. A non-local address needs a token and TLS.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7117")]
    listen: String,
    /// A folder, bucket, prefix or object that requests may read; may be repeated [default: none].
    #[arg(long, value_name = "URI")]
    allow: Vec<String>,
    /// Maximum encoded bytes that all streams together may hold, with --row-index-bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30)]
    memory_bytes: u64,
    /// Bytes of working memory that each CPU thread may take for one sample. Larger samples borrow from
    /// --memory-bytes.
    #[arg(long, value_name = "BYTES", default_value_t = feedstock_ops::DECODER_MEMORY)]
    decoder_memory: u64,
    /// Bytes of --memory-bytes that are kept to decode crops of JPEGs faster from the second epoch on; 0 keeps nothing
    /// [default: 64 MiB, at most 1/16 of --memory-bytes].
    #[arg(long, value_name = "BYTES")]
    row_index_bytes: Option<u64>,
    /// The worker's share of the work relative to other workers, 1 to 4096: a worker of 8 serves twice as many rows as a
    /// worker of 4 [default: --threads].
    #[arg(long, value_name = "UNITS", value_parser = clap::value_parser!(u32).range(1..=4096))]
    capacity: Option<u32>,
    /// PEM file: the worker's certificate, followed by its certificate chain.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file: the private key of --tls-cert.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PEM file: the authority that must have issued the certificates of clients.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    /// Allow non-local connections without a token or TLS (trusted networks only).
    #[arg(long)]
    insecure: bool,
    /// Run Python functions and data sets that ranks send (map_rows with executor="worker", from_torch), in processes
    /// of this user. Only by `python -m feedstock worker`. That needs a token, and with a non-local address TLS, also
    /// with --insecure [default: refuse them].
    #[arg(long)]
    allow_code: bool,
    /// Bytes of memory that each process of --allow-code may allocate.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30, requires = "allow_code")]
    code_memory_bytes: u64,
    /// Seconds that ranks have to move to other workers after SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain_timeout: u64,
    /// Print the status of the worker at this address, and exit.
    #[arg(long, value_name = "HOST:PORT")]
    health: Option<String>,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    store: StoreArgs,
}

impl Command {
    pub(crate) fn run(&self, common: &Common, code: Option<CodeRunner>) -> Outcome {
        if let Some(address) = &self.health {
            return self.health(common, address);
        }
        let worker = Worker::start(self.options(common, code)?)?;
        let mut output = Output::new();
        match common.json {
            true => output.json(&serde_json::json!({ "address": worker.address().to_string() }))?,
            false => output.line(format!("listening on {}", worker.address()))?,
        }
        output.end()?;
        if self.allow.is_empty() && self.allow_code {
            tracing::warn!(
                "this worker has no --allow: it only makes items of from_torch and rejects all other data sets"
            );
        } else if self.allow.is_empty() {
            tracing::warn!("this worker may not read any data and will reject every request; set --allow");
        }
        worker.wait_for_signal()?;
        tracing::info!("draining: {} streams", worker.status().streams);
        if !worker.drain(Duration::from_secs(self.drain_timeout)) {
            tracing::warn!(
                "{} streams were cut off: their ranks had not moved to other workers in time",
                worker.status().streams
            );
        }
        worker.stop_functions();
        Ok(())
    }

    fn options(&self, common: &Common, code: Option<CodeRunner>) -> Outcome<WorkerOptions> {
        if self.allow_code && code.is_none() {
            return Err(Failure::config(
                "--allow-code needs a Python interpreter, which this program does not have; run `python -m feedstock worker \
                 --allow-code` where the package feedstock is installed",
            ));
        }
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
        options.capacity = self.capacity;
        options.memory_bytes = self.memory_bytes;
        options.decoder_memory = self.decoder_memory;
        options.row_index_bytes = self.row_index_bytes;
        options.insecure = self.insecure;
        options.code = code.filter(|_| self.allow_code).map(|make| make(self.code_memory_bytes));
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
            true => Err(Failure::retry("the worker is draining; use another one")),
            false => Ok(()),
        }
    }
}
