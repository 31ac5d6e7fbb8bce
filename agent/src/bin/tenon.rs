//! `tenon`: put, get and look, from the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenon_agent::cli::main(std::env::args_os().collect()).into()
}
