//! The command line `tenon`: puts and gets through an agent, and shows what the agent knows.
//!
//! Every command ends with a `Report` or a `Failure`; only [`main`] prints them and only the binary exits.

mod args;
mod doctor;
mod exit;
mod failure;
mod keep;
mod limits;
mod look;
mod progress;
mod report;
mod segment;
mod session;
mod source;
mod target;
mod text;
mod transfer;

pub use exit::Exit;

use args::{Arguments, Command};
use clap::Parser;
use clap::error::ErrorKind;
use failure::Failure;
use report::Report;
use session::Session;
use std::ffi::OsString;
use std::io;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Runs the command that the arguments (the program's name first) ask for, and prints what came of it.
pub fn main(arguments: Vec<OsString>) -> Exit {
    let wants_json = arguments.iter().any(|argument| argument == "--json");
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error, wants_json),
    };
    let is_json = arguments.global.json;
    let result = match Runtime::new() {
        Ok(runtime) => {
            let result = runtime.block_on(run(arguments));
            // A thread that waits for standard input must not keep the process.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(Failure::output("a runtime".as_ref(), &error)),
    };
    report::print(result, is_json, progress::stderr_is_terminal())
}

/// Help and version go to standard output, wrong usage to standard error.
fn explain(error: &clap::Error, wants_json: bool) -> Exit {
    let is_asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if wants_json && !is_asked_for {
        let text = error.render().to_string();
        let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        return report::print(Err(Failure::usage(line)), true, false);
    }
    // There is nowhere else to say that it cannot be printed.
    let _ = error.print();
    if is_asked_for { Exit::Done } else { Exit::Usage }
}

async fn run(arguments: Arguments) -> Result<Report, Failure> {
    let session = Session::new(arguments.global);
    let command = async {
        match arguments.command {
            Command::Put(put) => transfer::put(&session, put).await,
            Command::Get(get) => transfer::get(&session, get).await,
            Command::Ls(ls) => look::ls(&session, ls).await,
            Command::Rm(rm) => look::rm(&session, rm).await,
            Command::Touch(keys) => keep::touch(&session, keys).await,
            Command::Pin(pin) => keep::pin(&session, pin).await,
            Command::Unpin(keys) => keep::unpin(&session, keys).await,
            Command::Stat { key } => look::stat(&session, &key).await,
            Command::Nodes => look::nodes(&session).await,
            Command::Segments { node } => look::segments(&session, node).await,
            Command::Segment { command } => segment::segment(&session, command).await,
            Command::Doctor(doctor) => doctor::doctor(&session, doctor).await,
        }
    };
    tokio::select! {
        result = command => result,
        () = interrupted() => Err(Failure::interrupted()),
    }
}

/// Waits for SIGINT or SIGTERM: what is half done is dropped and cleans up after itself.
async fn interrupted() {
    let wait = async |kind| -> io::Result<()> {
        signal(kind)?.recv().await;
        Ok(())
    };
    let (interrupt, terminate) = (wait(SignalKind::interrupt()), wait(SignalKind::terminate()));
    let came = tokio::select! {
        came = interrupt => came,
        came = terminate => came,
    };
    if came.is_err() {
        // Without a handler the signals end the process by themselves.
        std::future::pending::<()>().await;
    }
}
