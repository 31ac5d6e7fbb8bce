//! Runs a program, or a test of this workspace, in the machine with RDMA devices (see the module `machine`), and ends as it ended.
//!
//! `rdma_machine -- rdma link`, `rdma_machine --program target/debug/tenond -- tenond --version`,
//! `rdma_machine --test tenon-transport:conformance -- --nocapture`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tenon_integration::machine::{Job, JobOutput, MachineError, MachineOptions, RdmaPlace, test_binary};

/// Runs a command where RDMA devices are: in the machine, or on this host with TENON_RDMA=native.
#[derive(Debug, Parser)]
struct Arguments {
    /// A program of the host to put into the machine's PATH; may be given again.
    #[arg(long)]
    program: Vec<PathBuf>,
    /// Build this integration test and run it, with the command as its arguments.
    #[arg(long, value_name = "PACKAGE:TEST", value_parser = package_and_test)]
    test: Option<(String, String)>,
    /// An environment variable for the command, NAME=VALUE; may be given again.
    #[arg(long, value_parser = name_and_value)]
    env: Vec<(String, String)>,
    /// A directory of the host to have under /share.
    #[arg(long)]
    share: Option<PathBuf>,
    #[arg(long, default_value_t = MachineOptions::default().memory_mib)]
    memory_mib: u32,
    #[arg(long, default_value_t = MachineOptions::default().cpus)]
    cpus: u32,
    /// Bound the locked memory of the command, and take away the capability to exceed it.
    #[arg(long)]
    locked_memory_kib: Option<u64>,
    /// Kill the machine if the command takes longer.
    #[arg(long, default_value_t = 300)]
    timeout_s: u64,
    /// The command and its arguments.
    #[arg(last = true)]
    command: Vec<String>,
}

fn package_and_test(text: &str) -> Result<(String, String), String> {
    let (package, test) = text.split_once(':').ok_or("not PACKAGE:TEST")?;
    Ok((package.to_owned(), test.to_owned()))
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("not NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn run(mut arguments: Arguments) -> Result<JobOutput, MachineError> {
    if let Some((package, test)) = &arguments.test {
        let path = test_binary(package, test)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        arguments.command.insert(0, name);
        arguments.program.push(path);
    }
    let options = MachineOptions {
        programs: arguments.program,
        memory_mib: arguments.memory_mib,
        cpus: arguments.cpus,
        share: arguments.share,
    };
    let mut words = arguments.command.iter().map(String::as_str);
    let program = words.next().unwrap_or("true");
    let mut job = Job::program(program, words).timeout(Duration::from_secs(arguments.timeout_s));
    for (name, value) in arguments.env {
        job = job.env(name, value);
    }
    if let Some(kib) = arguments.locked_memory_kib {
        job = job.locked_memory_kib(kib);
    }
    RdmaPlace::start(&options)?.run(&job)
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(output) => {
            // Whoever reads our output may have gone: then there is nobody to tell.
            let _ = std::io::stdout().write_all(output.stdout.bytes());
            let _ = std::io::stderr().write_all(output.stderr.bytes());
            ExitCode::from(u8::try_from(output.status).unwrap_or(u8::MAX))
        }
        Err(error) => {
            eprintln!("rdma_machine: {error}");
            ExitCode::FAILURE
        }
    }
}
