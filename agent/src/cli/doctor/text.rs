//! The findings as people see them: a section each, one verdict per line, what to do under it.

use super::facts::Facts;
use super::finding::{Finding, Section, Verdict};
use crate::cli::text::table;
use std::fmt::Write;

/// Longest subject that others are aligned with; longer ones have a line to themselves.
const SUBJECT_CHARS_MAX: usize = 30;
/// Columns of the verdict.
const VERDICT_CHARS: usize = 9;

/// All of it.
pub(super) fn render(facts: &Facts, findings: &[Finding]) -> String {
    let mut text = format!("{}, as seen by {}\n", facts.host.name, facts.host.user);
    let width = findings
        .iter()
        .map(|finding| finding.subject.chars().count())
        .filter(|chars| *chars <= SUBJECT_CHARS_MAX)
        .max()
        .unwrap_or(0);
    for section in Section::ALL {
        let mut of_section = findings.iter().filter(|finding| finding.section == section).peekable();
        if of_section.peek().is_some() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "\n{}", section.title());
        }
        of_section.for_each(|finding| line(&mut text, finding, width));
    }
    let _ = writeln!(text, "\n{}", summary(findings));
    text
}

fn line(text: &mut String, finding: &Finding, width: usize) {
    let indent = 2 + VERDICT_CHARS + width + 2;
    let _ = write!(text, "  {:<VERDICT_CHARS$}", finding.verdict.name());
    match finding.subject.chars().count() > width {
        true => {
            let _ = write!(text, "{}\n{:indent$}", finding.subject, "");
        }
        false => {
            let _ = write!(text, "{:<width$}  ", finding.subject);
        }
    }
    let _ = writeln!(text, "{}", finding.message.replace('\n', " "));
    for row in table(&finding.rows).lines() {
        let _ = writeln!(text, "{:indent$}  {row}", "");
    }
    if let Some(advice) = &finding.advice {
        let _ = writeln!(text, "{:indent$}-> {advice}", "");
    }
}

fn summary(findings: &[Finding]) -> String {
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (ok, warnings, problems) = (count(Verdict::Ok), count(Verdict::Warning), count(Verdict::Problem));
    let plural = |number| if number == 1 { "" } else { "s" };
    let end = if problems > 0 {
        "not usable as configured"
    } else {
        "usable"
    };
    format!(
        "{ok} ok, {warnings} warning{}, {problems} problem{}: {end}",
        plural(warnings),
        plural(problems)
    )
}

/// A time in milliseconds, to the microsecond.
pub(super) fn micros(us: u64) -> String {
    format!("{}.{:03} ms", us / 1000, us % 1000)
}

#[cfg(test)]
mod tests {
    use super::super::judge::{judge, samples};
    use super::*;

    #[test]
    fn every_finding_has_a_line_with_its_verdict_and_its_advice() {
        for facts in [samples::good_host(), samples::host_of_which_nothing_can_be_read()] {
            let findings = judge(&facts);
            let text = render(&facts, &findings);
            for finding in &findings {
                let begin = format!("  {:<9}{}", finding.verdict.name(), finding.subject);
                assert!(text.lines().any(|line| line.starts_with(&begin)), "{begin}\n{text}");
                assert!(text.contains(&finding.message), "{text}");
                assert!(
                    finding
                        .advice
                        .as_ref()
                        .is_none_or(|advice| text.contains(&format!("-> {advice}\n")))
                );
            }
            assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
        }
    }

    #[test]
    fn messages_begin_in_one_column_and_addresses_stand_under_their_port() {
        let facts = samples::good_host();
        let text = render(&facts, &judge(&facts));
        let column = |part: &str| {
            let line = text.lines().find(|line| line.contains(part));
            line.and_then(|line| line.find(part))
                .unwrap_or_else(|| panic!("{part} in {text}"))
        };
        assert_eq!(column("lists 2 devices"), column("active, Ethernet"));
        assert!(column("GID 0") > column("active, Ethernet"));
        assert!(text.ends_with("0 warnings, 0 problems: usable\n"), "{text}");
    }

    #[test]
    fn times_have_milliseconds() {
        assert_eq!(micros(7), "0.007 ms");
        assert_eq!(micros(12_345), "12.345 ms");
    }
}
