//! Logging to standard error. The environment's `RUST_LOG` sets the level.

use std::io::{IsTerminal, stderr};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{EnvFilter, fmt};

/// Logs warnings, as a person reads them.
pub(crate) fn warnings() {
    let subscriber = fmt().with_env_filter(filter(LevelFilter::WARN)).without_time().with_target(false);
    // The process that embeds the command may have a subscriber already.
    let _kept = subscriber
        .with_ansi(stderr().is_terminal())
        .with_writer(stderr)
        .log_internal_errors(false) // standard error may be full or closed, and writing to it would panic
        .try_init();
}

/// Logs what a server does, with times.
pub(crate) fn of_server() {
    let subscriber = fmt().with_env_filter(filter(LevelFilter::INFO)).with_writer(stderr);
    let _kept = subscriber.log_internal_errors(false).try_init();
}

fn filter(level: LevelFilter) -> EnvFilter {
    EnvFilter::builder().with_default_directive(level.into()).from_env_lossy()
}
