//! Whether the agent of this host answers.

use super::{bytes, count};
use crate::cli::doctor::facts::{Agent, AgentAnswer, AgentState, Configuration, Known};
use crate::cli::doctor::finding::{Finding, Section, Verdict};

const ANSWERS: (Section, &str) = (Section::Agent, "agent.answers");
const NODE: (Section, &str) = (Section::Agent, "agent.node");
const SEGMENTS: (Section, &str) = (Section::Agent, "agent.segments");

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
            findings.extend(segments(subject, answer, configuration));
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

/// What the agent has mounted, where that is not what is configured or cannot be seen.
fn segments(subject: &str, answer: &AgentAnswer, configuration: &Configuration) -> Option<Finding> {
    let finding = |message: String| Finding::new(SEGMENTS, Verdict::Warning, subject, message);
    let mounted = match &answer.segments {
        Known::Yes(mounted) => mounted,
        Known::No { not_read } => {
            let message = format!("its segments are not known: {not_read}");
            return Some(finding(message).advise("the log of the agent may say why"));
        }
    };
    let mut mounted: Vec<u64> = mounted.iter().map(|segment| segment.len_bytes).collect();
    let mut configured: Vec<u64> = configuration
        .segments
        .as_ref()?
        .iter()
        .map(|segment| segment.len_bytes)
        .collect();
    mounted.sort_unstable();
    configured.sort_unstable();
    let listed = |lengths: &[u64]| {
        lengths
            .iter()
            .map(|&length| bytes(length))
            .collect::<Vec<_>>()
            .join(", ")
    };
    (mounted != configured).then(|| {
        let (mounted, configured) = (listed(&mounted), listed(&configured));
        finding(format!(
            "it runs with segments of {mounted}, and the configuration has {configured}"
        ))
        .advise("restart tenond if the configuration is newer; a flag of its command line goes before its file")
    })
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
    fn nobody_and_other_segments_are_warnings_and_somebody_else_is_a_problem() {
        let said = || "said".to_owned();
        assert_eq!(verdict(AgentState::Absent { said: said() }), Verdict::Warning);
        assert_eq!(verdict(AgentState::NotAsked { why: said() }), Verdict::Warning);
        assert_eq!(verdict(AgentState::Fails { said: said() }), Verdict::Problem);
        let AgentState::Answers(mut answer) = samples::good_host().agent.state else {
            panic!("it answers")
        };
        assert_eq!(verdict(AgentState::Answers(answer.clone())), Verdict::Ok);
        let not_read = "no answer".to_owned();
        for segments in [Known::Yes(Vec::new()), Known::No { not_read }] {
            let other = AgentAnswer {
                segments,
                ..answer.clone()
            };
            assert_eq!(verdict(AgentState::Answers(other)), Verdict::Warning);
        }
        answer.node = Some(NodeId::from_bytes([9; 16]));
        assert_eq!(verdict(AgentState::Answers(answer)), Verdict::Problem);
    }
}
