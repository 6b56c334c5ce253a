//! The `feedstock` command; `feedstock --help` teaches it.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
