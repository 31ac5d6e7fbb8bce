//! What a command prints: text for people or one JSON document, and a line per failure.

use super::exit::Exit;
use super::failure::Failure;
use serde_json::{Value, json};
use std::io::{self, Write};

/// What a command has to say when it has come to its end.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// For people.
    pub(super) text: String,
    /// For programs.
    pub(super) json: Value,
    /// What did not succeed, though the rest did.
    pub(super) failures: Vec<Failure>,
    /// A remark for people at a terminal.
    pub(super) remark: Option<String>,
}

/// Prints what became of a command; the exit code.
pub(super) fn print(result: Result<Report, Failure>, is_json: bool, stderr_is_terminal: bool) -> Exit {
    let report = result.unwrap_or_else(|failure| Report {
        json: json!({ "error": failure.json() }),
        failures: vec![failure],
        ..Report::default()
    });
    let mut exit = report.failures.first().map_or(Exit::Done, |failure| failure.exit);
    let document = if is_json {
        format!("{}\n", report.json)
    } else {
        report.text
    };
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(document.as_bytes()).and_then(|()| stdout.flush());
    let mut lines: Vec<String> = report.failures.iter().map(Failure::line).collect();
    if let Err(error) = printed {
        let failure = Failure::output("standard output".as_ref(), &error);
        lines.push(failure.line());
        exit = if exit == Exit::Done { failure.exit } else { exit };
    }
    let mut stderr = io::stderr().lock();
    for line in lines {
        // There is nowhere else to say that standard error cannot be written.
        let _ = writeln!(stderr, "tenon: {line}");
    }
    if let Some(remark) = report.remark.filter(|_| stderr_is_terminal && !is_json) {
        let _ = writeln!(stderr, "{remark}");
    }
    exit
}
