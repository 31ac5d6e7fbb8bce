//! Whether `tenond` could listen where its members are told to dial.

use crate::cli::doctor::facts::{Agent, AgentState, Bound, Configuration, LinkAddress};
use crate::cli::doctor::finding::{Finding, Section, Verdict};

const LISTEN: (Section, &str) = (Section::Configuration, "link.listen");
const DIALLED: (Section, &str) = (Section::Configuration, "link.dialled");

pub(super) fn judge(configuration: &Configuration, agent: &Agent) -> Vec<Finding> {
    let Some(link) = &configuration.link else {
        return Vec::new();
    };
    let mut findings = vec![listen(link, &agent.state)];
    findings.extend(dialled(link));
    findings
}

fn listen(link: &LinkAddress, agent: &AgentState) -> Finding {
    let finding =
        |verdict, message: &str| Finding::new(LISTEN, verdict, format!("listen.link {}", link.listen), message);
    match (&link.bound, agent) {
        (Bound::Free, _) => finding(Verdict::Ok, "can be bound"),
        (Bound::Taken { .. }, AgentState::Answers(_)) => finding(Verdict::Ok, "is in use, and the agent runs"),
        (Bound::Taken { said }, AgentState::NotAsked { .. }) => {
            finding(Verdict::Warning, said).advise("--connect names the agent, if it is what listens there")
        }
        (Bound::Taken { said }, _) => finding(Verdict::Problem, said)
            .advise("another program listens there: stop it (ss -ltnp names it), or choose another port"),
        (Bound::Not { said }, _) => finding(Verdict::Problem, said)
            .advise("choose an address of this host (ip address lists them) and a port that its user may use"),
    }
}

/// Others can't reach a link that listens to this host alone.
fn dialled(link: &LinkAddress) -> Option<Finding> {
    let dialled = link.dialled.filter(|dialled| !dialled.ip().is_loopback())?;
    link.listen.ip().is_loopback().then(|| {
        let message = format!("members dial {dialled}, and only this host can reach {}", link.listen);
        Finding::new(DIALLED, Verdict::Problem, "listen.link", message).advise(format!(
            "set listen.link to {dialled}, or to 0.0.0.0:{}",
            dialled.port()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn verdicts(link: LinkAddress, state: AgentState) -> Vec<(&'static str, Verdict)> {
        let good = samples::good_host();
        let configuration = Configuration {
            link: Some(link),
            ..good.configuration
        };
        let agent = Agent { state, ..good.agent };
        let findings = judge(&configuration, &agent);
        findings.iter().map(|finding| (finding.code, finding.verdict)).collect()
    }

    fn link(listen: &str, dialled: &str, bound: Bound) -> LinkAddress {
        LinkAddress {
            listen: listen.parse().unwrap(),
            dialled: Some(dialled.parse().unwrap()),
            bound,
        }
    }

    #[test]
    fn an_address_that_cannot_be_bound_is_a_problem_unless_the_agent_has_it() {
        let said = || "said".to_owned();
        let verdict = |bound, state| verdicts(link("10.0.0.7:7601", "10.0.0.7:7601", bound), state)[0].1;
        let answers = || samples::good_host().agent.state;
        let absent = || AgentState::Absent { said: said() };
        assert_eq!(verdict(Bound::Free, absent()), Verdict::Ok);
        assert_eq!(verdict(Bound::Taken { said: said() }, answers()), Verdict::Ok);
        assert_eq!(verdict(Bound::Taken { said: said() }, absent()), Verdict::Problem);
        let not_asked = AgentState::NotAsked { why: said() };
        assert_eq!(verdict(Bound::Taken { said: said() }, not_asked), Verdict::Warning);
        assert_eq!(verdict(Bound::Not { said: said() }, answers()), Verdict::Problem);
    }

    #[test]
    fn a_link_on_loopback_that_others_are_to_dial_elsewhere_is_a_problem() {
        let state = || samples::good_host().agent.state;
        let codes = |listen, dialled| verdicts(link(listen, dialled, Bound::Free), state());
        let problem = ("link.dialled", Verdict::Problem);
        assert!(codes("127.0.0.1:7601", "10.0.0.7:7601").contains(&problem));
        assert!(!codes("127.0.0.1:7601", "127.0.0.1:7601").contains(&problem));
        assert!(!codes("0.0.0.0:7601", "10.0.0.7:7601").contains(&problem));
    }
}
