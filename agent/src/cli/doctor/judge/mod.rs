//! From facts to findings: pure functions, one file per section.
//!
//! *Problem* is what keeps the configuration from working; *warning* what makes the node worse than it could be, and what
//! could not be seen. Payload that cannot go over RDMA goes over TCP, so nothing about RDMA is a problem unless it is
//! required.

mod agent;
mod configuration;
mod link;
mod memory;
mod peers;
mod push;
mod rdma;
#[cfg(test)]
pub(super) mod samples;

use super::facts::Facts;
use super::finding::{Finding, Verdict};

/// All findings.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = configuration::judge(&facts.configuration);
    findings.extend(link::judge(&facts.configuration, &facts.agent));
    findings.extend(agent::judge(&facts.agent, &facts.configuration));
    findings.extend(rdma::judge(&facts.rdma, &facts.configuration));
    findings.extend(memory::judge(facts));
    findings.extend(peers::judge(facts));
    findings
}

/// The gravest verdict.
pub(super) fn overall(findings: &[Finding]) -> Verdict {
    let verdicts = findings.iter().map(|finding| finding.verdict);
    verdicts.max().unwrap_or(Verdict::Ok)
}

/// Bytes as people read them.
fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

/// So many of something.
fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_host_has_nothing_but_ok() {
        let findings = judge(&samples::good_host());
        let others: Vec<_> = findings
            .iter()
            .filter(|finding| finding.verdict != Verdict::Ok)
            .collect();
        assert!(others.is_empty(), "{others:?}");
        assert_eq!(overall(&findings), Verdict::Ok);
    }

    #[test]
    fn whatever_is_not_ok_says_what_to_do() {
        for facts in [samples::good_host(), samples::host_of_which_nothing_can_be_read()] {
            for finding in judge(&facts) {
                assert!(
                    finding.verdict == Verdict::Ok || finding.advice.is_some(),
                    "no advice: {finding:?}"
                );
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_a_warning_of_its_own_and_nothing_worse() {
        let findings = judge(&samples::host_of_which_nothing_can_be_read());
        assert_eq!(overall(&findings), Verdict::Warning, "{findings:?}");
        for code in [
            "configuration.file",
            "agent.answers",
            "rdma.library",
            "rdma.modules",
            "rdma.device",
            "memory.locked",
            "memory.huge_pages",
        ] {
            let found = findings.iter().find(|finding| finding.code == code);
            assert!(
                found.is_some_and(|finding| finding.verdict == Verdict::Warning),
                "{code}: {findings:?}"
            );
        }
    }

    #[test]
    fn the_gravest_verdict_counts() {
        assert_eq!(overall(&[]), Verdict::Ok);
        assert!(Verdict::Ok < Verdict::Warning && Verdict::Warning < Verdict::Problem);
    }
}
