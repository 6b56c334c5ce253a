//! The `feedstock` command; `feedstock --help` describes it.

fn main() -> std::process::ExitCode {
    feedstock_cli::main(std::env::args_os()).into()
}
