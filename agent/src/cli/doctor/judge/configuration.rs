//! Whether `tenond` would take its configuration.

use super::{bytes, count};
use crate::cli::doctor::facts::{Configuration, Known};
use crate::cli::doctor::finding::{Finding, Section, Verdict};

const FILE: (Section, &str) = (Section::Configuration, "configuration.file");
const SECRET: (Section, &str) = (Section::Configuration, "configuration.secret");
const MEMBERS: (Section, &str) = (Section::Configuration, "configuration.members");

pub(super) fn judge(configuration: &Configuration) -> Vec<Finding> {
    let subject = match &configuration.file {
        Some(path) => path.display().to_string(),
        None => "defaults".to_owned(),
    };
    let mut findings = Vec::new();
    for error in &configuration.errors {
        findings.push(match configuration.is_private {
            true => Finding::new(FILE, Verdict::Warning, &*subject, error)
                .advise("run this as root or as the user of tenond: what is configured is not compared below"),
            false => Finding::new(FILE, Verdict::Problem, &*subject, error)
                .advise("correct it; tenond --check-config says what would be used"),
        });
    }
    if let Some(segments) = &configuration.segments {
        let total_bytes = segments
            .iter()
            .fold(0_u64, |sum, segment| sum.saturating_add(segment.len_bytes));
        let segments = count(segments.len(), "segment", "segments");
        let message = format!("can be used: {segments} of {} together", bytes(total_bytes));
        findings.push(Finding::new(FILE, Verdict::Ok, subject, message));
    }
    findings.extend(configuration.secret_error.iter().map(|error| {
        Finding::new(SECRET, Verdict::Warning, "secret", error)
            .advise("name it with --secret-file, or else peers are seen through the agent alone")
    }));
    findings.extend(members(configuration));
    findings
}

fn members(configuration: &Configuration) -> Option<Finding> {
    if configuration.members == 0 {
        return None;
    }
    if let Some(error) = &configuration.membership_error {
        let problem = Finding::new(MEMBERS, Verdict::Problem, "members", error);
        return Some(problem.advise("list the id that tenond --init prints, the same list on every member"));
    }
    let members = count(configuration.members, "member", "members");
    Some(match &configuration.node {
        Known::Yes(Some(node)) => Finding::new(
            MEMBERS,
            Verdict::Ok,
            "members",
            format!("{members}, {node} is this node"),
        ),
        Known::Yes(None) => Finding::new(MEMBERS, Verdict::Problem, "members", "this node has no id yet")
            .advise("make one with tenond --init, and list it"),
        Known::No { not_read } => {
            let message = format!("{members}; which is this node cannot be seen: {not_read}");
            Finding::new(MEMBERS, Verdict::Warning, "members", message)
                .advise("run this as root or as the user of tenond")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn verdicts(configuration: &Configuration) -> Vec<(&'static str, Verdict)> {
        let findings = judge(configuration);
        findings.iter().map(|finding| (finding.code, finding.verdict)).collect()
    }

    #[test]
    fn a_file_that_cannot_be_used_is_a_problem_and_one_that_is_private_is_not() {
        let mut configuration = samples::good_host().configuration;
        configuration.segments = None;
        configuration.members = 0;
        configuration.errors = vec!["line 3".into(), "line 4".into()];
        assert_eq!(
            verdicts(&configuration),
            [
                ("configuration.file", Verdict::Problem),
                ("configuration.file", Verdict::Problem)
            ]
        );
        configuration.is_private = true;
        configuration.errors.pop();
        assert_eq!(verdicts(&configuration), [("configuration.file", Verdict::Warning)]);
    }

    #[test]
    fn a_secret_that_only_tenond_may_read_is_a_warning() {
        let mut configuration = samples::good_host().configuration;
        configuration.secret_error = Some("permission denied".into());
        assert!(verdicts(&configuration).contains(&("configuration.secret", Verdict::Warning)));
    }

    #[test]
    fn a_node_outside_of_its_own_list_is_a_problem() {
        let mut configuration = samples::good_host().configuration;
        configuration.membership_error = Some("not in its list".into());
        assert!(verdicts(&configuration).contains(&("configuration.members", Verdict::Problem)));
        configuration.membership_error = None;
        configuration.node = Known::Yes(None);
        assert!(verdicts(&configuration).contains(&("configuration.members", Verdict::Problem)));
        configuration.node = Known::No {
            not_read: "private".into(),
        };
        assert!(verdicts(&configuration).contains(&("configuration.members", Verdict::Warning)));
    }
}
