//! The `feedstock` command; `feedstock --help` teaches it.

fn main() -> std::process::ExitCode {
    feedstock_cli::main(std::env::args_os()).into()
}
