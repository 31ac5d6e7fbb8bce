//! The node agent. See `tenond --help`.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use tenon_agent::config::{Config, Environment, Flags, Host};
use tenon_agent::identity::{Identity, StateDir, stored_node_id};
use tenon_agent::startup::{Exit, Failure, Lanes, start_log};

fn main() -> ExitCode {
    let flags = Flags::parse();
    let environment = Environment::of_process();
    let done = if flags.init {
        init(&flags, &environment)
    } else if flags.check_config {
        check_config(&flags, &environment)
    } else {
        serve(&flags, &environment)
    };
    match done {
        Ok(()) => Exit::Done.into(),
        Err(failure) => {
            for line in failure.to_string().lines() {
                eprintln!("tenond: {line}");
            }
            failure.exit().into()
        }
    }
}

/// Makes the node's id if there is none, and prints it.
fn init(flags: &Flags, environment: &Environment) -> Result<(), Failure> {
    let path = Config::load_state_dir(flags, environment)?;
    let node = match stored_node_id(&path)? {
        Some(node) => node,
        None => StateDir::take(&path)?.node_id_or_new()?,
    };
    print(&format!("{node}\n"))
}

/// Prints what would be used, and changes nothing.
fn check_config(flags: &Flags, environment: &Environment) -> Result<(), Failure> {
    let config = Config::load(flags, environment, &Host::probe())?;
    config.check_membership(stored_node_id(&config.state_dir)?)?;
    print(&config.to_toml())
}

/// Everything is checked before anything is bound, mapped or changed.
fn serve(flags: &Flags, environment: &Environment) -> Result<(), Failure> {
    let config = Config::load(flags, environment, &Host::probe())?;
    config.check_membership(stored_node_id(&config.state_dir)?)?;
    start_log(config.log);
    let identity = Identity::begin(&config.state_dir, unix_ms())?;
    Lanes::start()?.run(&config, identity)
}

fn print(text: &str) -> Result<(), Failure> {
    let written = io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| io::stdout().flush());
    written.map_err(|source| Failure::Process {
        doing: "write to the standard output",
        source,
    })
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
