//! Whether this host reaches its peers.

use super::super::text::micros;
use crate::cli::doctor::facts::{Facts, Outcome, Peer, RailReach, Reach, Wish};
use crate::cli::doctor::finding::{Finding, Section, Verdict};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::NodeState;

const MEMBERS: (Section, &str) = (Section::Peers, "peer.members");
const SEEN: (Section, &str) = (Section::Peers, "peer.seen_by_agent");

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let requires_rdma = facts.configuration.rdma == Some(Wish::Require);
    facts.peers.iter().flat_map(|one| peer(one, requires_rdma)).collect()
}

fn peer(peer: &Peer, requires_rdma: bool) -> Vec<Finding> {
    let reaches = peer.transports.iter();
    let mut findings: Vec<_> = reaches.map(|reach| transport(peer, reach, requires_rdma)).collect();
    let reached = |reach: &Reach| matches!(reach.outcome, Outcome::Reached { .. });
    findings.extend(peer.transports.iter().find_map(|reach| other_list(peer, reach)));
    findings.extend(seen(peer, peer.transports.iter().any(reached)));
    findings
}

/// The peer's list has other nodes than this host's.
fn other_list(peer: &Peer, reach: &Reach) -> Option<Finding> {
    let Outcome::Reached {
        same_members: false,
        only_there,
        only_here,
        ..
    } = &reach.outcome
    else {
        return None;
    };
    let listed = |nodes: &[NodeId], whose: &str| {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        (!nodes.is_empty()).then(|| format!("only {whose} has {}", nodes.join(", ")))
    };
    let differences: Vec<String> = [listed(only_there, "its list"), listed(only_here, "this host's")]
        .into_iter()
        .flatten()
        .collect();
    let message = format!(
        "its member list is not that of this host, so each refuses the other: {}",
        differences.join("; ")
    );
    let finding = Finding::new(MEMBERS, Verdict::Problem, &*peer.endpoint, message);
    Some(finding.advise("give all members the same list, and restart those that had another"))
}

fn transport(peer: &Peer, reach: &Reach, requires_rdma: bool) -> Finding {
    let code = match reach.transport {
        "tcp" => "peer.tcp",
        "rdma" => "peer.rdma",
        _ => "peer.transport",
    };
    let subject = format!("{} over {}", peer.endpoint, reach.transport.to_uppercase());
    let finding = |verdict, message: String| Finding::new((Section::Peers, code), verdict, subject, message);
    match &reach.outcome {
        Outcome::Reached {
            connect_us,
            round_trip_us,
            ..
        } => {
            let (round_trip, connect) = (micros(*round_trip_us), micros(*connect_us));
            let node = peer.node;
            finding(
                Verdict::Ok,
                format!("round trip {round_trip}, connected in {connect}, node {node}"),
            )
        }
        Outcome::ReachedByRails {
            connect_us,
            rails,
            unusable,
            ..
        } => by_rails(finding, *connect_us, rails, unusable),
        Outcome::NoDevice => finding(without_rdma(requires_rdma), "it uses no RDMA device".to_owned())
            .advise("run tenon doctor on it, which says why; payload to it goes over TCP unless rdma.policy requires RDMA"),
        Outcome::NoRail { said } => finding(without_rdma(requires_rdma), said.clone())
            .advise("compare the networks of the ports of both hosts; payload to it goes over TCP unless rdma.policy requires RDMA"),
        Outcome::NobodyListens { said } => finding(Verdict::Warning, said.clone())
            .advise("the host answers, and no program listens there: start tenond on it, or correct its endpoint"),
        Outcome::Silent { said } => finding(Verdict::Problem, said.clone())
            .advise("check that the host runs, the route to it, and firewalls on the way"),
        Outcome::Refused { said } => finding(Verdict::Problem, said.clone())
            .advise("compare cluster.name, the secret, the member lists and the versions of both hosts"),
        Outcome::NotTried { why } => {
            finding(Verdict::Warning, format!("not dialled: {why}")).advise("run this as root or as the user of tenond")
        }
    }
}

/// Of a peer that RDMA does not reach, though it answers.
fn without_rdma(requires_rdma: bool) -> Verdict {
    match requires_rdma {
        true => Verdict::Problem,
        false => Verdict::Warning,
    }
}

fn by_rails(
    finding: impl FnOnce(Verdict, String) -> Finding,
    connect_us: u64,
    rails: &[RailReach],
    unusable: &[String],
) -> Finding {
    let over = rails
        .iter()
        .map(|rail| format!("{} over {}", micros(rail.round_trip_us), rail.rail));
    let over: Vec<_> = over.collect();
    let message = format!("round trip {}, connected in {}", over.join(", "), micros(connect_us));
    match unusable {
        [] => finding(Verdict::Ok, message),
        others => finding(Verdict::Warning, format!("{message}; not over {}", others.join("; ")))
            .advise("compare the ports of both hosts: fewer rails carry less"),
    }
}

/// What the agent of this host says of the peer, where that is news.
fn seen(peer: &Peer, is_reached: bool) -> Option<Finding> {
    let finding = |verdict, message: &str| Finding::new(SEEN, verdict, &*peer.endpoint, message);
    Some(match peer.agent_sees? {
        NodeState::Alive => finding(Verdict::Ok, "the agent of this host says that it is alive"),
        NodeState::Unknown => finding(Verdict::Warning, "the agent of this host has not tried it yet")
            .advise("wait a second and run this again"),
        NodeState::Refused => finding(Verdict::Problem, "the agent of this host and it refuse each other")
            .advise("give all members the same list, and restart those that had another; its log says why"),
        NodeState::Unreachable if is_reached => finding(
            Verdict::Warning,
            "the agent of this host says that it does not answer, and it answered now",
        )
        .advise("run this again; if it stays so, the log of the agent says why"),
        NodeState::Unreachable => finding(Verdict::Warning, "the agent of this host says that it does not answer")
            .advise("see above, or in the log of the agent"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn gravest(outcome: Outcome, agent_sees: Option<NodeState>) -> Verdict {
        let mut peer = samples::good_host().peers.remove(0);
        peer.transports[0].outcome = outcome;
        peer.agent_sees = agent_sees;
        super::super::overall(&super::peer(&peer, false))
    }

    fn reached(same_members: bool) -> Outcome {
        Outcome::Reached {
            connect_us: 900,
            round_trip_us: 90,
            version: None,
            same_members,
            only_there: vec![NodeId::from_bytes([9; 16])],
            only_here: Vec::new(),
        }
    }

    #[test]
    fn the_round_trip_is_told() {
        let findings = judge(&samples::good_host());
        assert!(findings[0].message.starts_with("round trip 0.120 ms"), "{findings:?}");
    }

    #[test]
    fn a_peer_that_is_not_reached_is_as_grave_as_its_reason() {
        let said = || "said".to_owned();
        for (outcome, verdict) in [
            (reached(true), Verdict::Ok),
            (Outcome::NobodyListens { said: said() }, Verdict::Warning),
            (Outcome::NotTried { why: said() }, Verdict::Warning),
            (Outcome::Silent { said: said() }, Verdict::Problem),
            (Outcome::Refused { said: said() }, Verdict::Problem),
        ] {
            assert_eq!(gravest(outcome.clone(), None), verdict, "{outcome:?}");
        }
    }

    #[test]
    fn a_peer_without_rdma_is_a_problem_where_that_is_required() {
        let by_rails = |unusable: &[&str]| Outcome::ReachedByRails {
            connect_us: 2_000,
            round_trip_us: 9,
            rails: vec![RailReach {
                rail: "mlx5_0:1".into(),
                round_trip_us: 9,
            }],
            unusable: unusable.iter().map(|&why| why.into()).collect(),
        };
        let no_rail = Outcome::NoRail { said: "said".into() };
        let (ok, warning, problem) = (Verdict::Ok, Verdict::Warning, Verdict::Problem);
        for (outcome, preferred, required) in [
            (by_rails(&[]), ok, ok),
            (by_rails(&["mlx5_1:1: it is Down"]), warning, warning),
            (Outcome::NoDevice, warning, problem),
            (no_rail, warning, problem),
        ] {
            let mut facts = samples::good_host();
            facts.peers[0].transports[1].outcome = outcome.clone();
            for (wish, verdict) in [(Wish::Prefer, preferred), (Wish::Require, required)] {
                facts.configuration.rdma = Some(wish);
                assert_eq!(super::super::overall(&judge(&facts)), verdict, "{outcome:?} {wish:?}");
            }
        }
    }

    #[test]
    fn the_round_trip_over_each_rail_is_told() {
        let findings = judge(&samples::good_host());
        let told = findings.iter().find(|finding| finding.code == "peer.rdma").unwrap();
        assert!(
            told.message
                .starts_with("round trip 0.009 ms over mlx5_0:1, 0.011 ms over mlx5_1:1, "),
            "{told:?}"
        );
    }

    #[test]
    fn another_member_list_is_a_problem_though_the_peer_answers() {
        assert_eq!(gravest(reached(false), None), Verdict::Problem);
        let mut peer = samples::good_host().peers.remove(0);
        peer.transports[0].outcome = reached(false);
        let findings = super::peer(&peer, false);
        let said = &findings
            .iter()
            .find(|finding| finding.code == "peer.members")
            .unwrap()
            .message;
        assert!(
            said.ends_with(": only its list has 09090909090909090909090909090909"),
            "{said}"
        );
    }

    #[test]
    fn what_the_agent_says_of_a_peer_counts() {
        assert_eq!(gravest(reached(true), Some(NodeState::Alive)), Verdict::Ok);
        assert_eq!(gravest(reached(true), Some(NodeState::Unreachable)), Verdict::Warning);
        assert_eq!(gravest(reached(true), Some(NodeState::Refused)), Verdict::Problem);
    }
}
