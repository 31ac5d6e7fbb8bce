//! Whether the agent of this host answers.

use super::count;
use crate::cli::doctor::facts::{Agent, AgentAnswer, AgentState, Configuration};
use crate::cli::doctor::finding::{Finding, Section, Verdict};

const ANSWERS: (Section, &str) = (Section::Agent, "agent.answers");
const NODE: (Section, &str) = (Section::Agent, "agent.node");

pub(super) fn judge(agent: &Agent, configuration: &Configuration) -> Vec<Finding> {
    let subject = agent.endpoint.as_deref().unwrap_or("agent");
    let finding = |verdict, message: &str| Finding::new(ANSWERS, verdict, subject, message);
    match &agent.state {
        AgentState::Answers(answer) => {
            let version = answer.version.as_deref().unwrap_or("unknown");
            let members = count(answer.members.len(), "peer", "peers");
            let message = format!(
                "version {version}, {members}, answers within {}",
                super::super::text::micros(answer.round_trip_us)
            );
            let mut findings = vec![finding(Verdict::Ok, &message)];
            findings.extend(other_node(subject, answer, configuration));
            findings
        }
        AgentState::Absent { said } => vec![
            finding(Verdict::Warning, said)
                .advise("start it; until then what it would find is checked, and not what it has"),
        ],
        AgentState::Fails { said } => {
            vec![
                finding(Verdict::Problem, said)
                    .advise("check which program listens there, its version and its cluster"),
            ]
        }
        AgentState::NotAsked { why } => {
            vec![finding(Verdict::Warning, why).advise("--connect address:port with --secret-file names it")]
        }
    }
}

/// The agent is another node than the configuration describes: what is said of one is not true of the other.
fn other_node(subject: &str, answer: &AgentAnswer, configuration: &Configuration) -> Option<Finding> {
    let stored = configuration.node.get().copied().flatten()?;
    let answering = answer.node.filter(|node| *node != stored)?;
    let message = format!("the agent is node {answering}, and the configuration is that of node {stored}");
    Some(
        Finding::new(NODE, Verdict::Problem, subject, message)
            .advise("--config names the agent's configuration, --connect the configuration's agent"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use tenon_protocol::ids::NodeId;

    fn verdict(state: AgentState) -> Verdict {
        let good = samples::good_host();
        let agent = Agent { state, ..good.agent };
        super::super::overall(&judge(&agent, &good.configuration))
    }

    #[test]
    fn nobody_is_a_warning_and_somebody_else_a_problem() {
        let said = || "said".to_owned();
        assert_eq!(verdict(AgentState::Absent { said: said() }), Verdict::Warning);
        assert_eq!(verdict(AgentState::NotAsked { why: said() }), Verdict::Warning);
        assert_eq!(verdict(AgentState::Fails { said: said() }), Verdict::Problem);
        let AgentState::Answers(mut answer) = samples::good_host().agent.state else {
            panic!("it answers")
        };
        assert_eq!(verdict(AgentState::Answers(answer.clone())), Verdict::Ok);
        answer.node = Some(NodeId::from_bytes([9; 16]));
        assert_eq!(verdict(AgentState::Answers(answer)), Verdict::Problem);
    }
}
