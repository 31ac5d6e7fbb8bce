//! `tenon doctor`: what an operator needs to know before trusting a host.
//!
//! `collect` reads facts and judges nothing; `judge` is pure functions from facts to findings; `text` shows them.
//! What cannot be read is a fact, too, and gets a finding of its own.

mod collect;
mod facts;
mod finding;
mod judge;
mod text;

use super::args::Doctor;
use super::exit::Exit;
use super::failure::Failure;
use super::report::Report;
use super::session::Session;
use finding::Verdict;
use serde_json::json;

/// Looks at this host as an agent with this configuration would find it.
pub(super) async fn doctor(session: &Session, doctor: Doctor) -> Result<Report, Failure> {
    let facts = collect::collect(session, doctor.config).await;
    let findings = judge::judge(&facts);
    let verdict = judge::overall(&findings);
    let problems = findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Problem)
        .count();
    let failure = || {
        Failure::unfit(format!(
            "{problems} found that keep this host from serving as configured"
        ))
    };
    Ok(Report {
        text: text::render(&facts, &findings),
        json: json!({
            "verdict": verdict,
            "exit_code": if problems > 0 { Exit::Unfit as u8 } else { Exit::Done as u8 },
            "findings": findings,
            "facts": facts,
        }),
        failures: (problems > 0).then(failure).into_iter().collect(),
        ..Report::default()
    })
}
