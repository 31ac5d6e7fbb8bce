//! The agent of this host.

use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tenon_client::Client;
use tenon_protocol::message::NodesReply;
use tenon_protocol::segments::{SegmentInfo, SegmentState, SegmentsReply};
use tenon_transport::link::Endpoint;
use tokio::time::Instant;

use super::peers::micros;
use crate::cli::doctor::facts::{Agent, AgentAnswer, AgentState, Known, MountedSegment};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::limits::DOCTOR_CALLS;
use crate::cli::session::{DEFAULT_SOCKET, Session};
use crate::config::Config;

/// Asks the agent that the user names, else the one that the configuration describes; its answers, and the id of its
/// process if it can be told.
pub(super) async fn ask(session: &Session, config: Option<&Config>) -> (Agent, Option<i32>) {
    let Some(endpoint) = endpoint(session, config) else {
        let why = "listen.unix is off: --connect names the agent".to_owned();
        let state = AgentState::NotAsked { why };
        return (Agent { endpoint: None, state }, None);
    };
    let state = match answers(session, &endpoint).await {
        Ok(answer) => AgentState::Answers(answer),
        Err(failure) if failure.exit == Exit::Unavailable => AgentState::Absent { said: failure.line() },
        Err(failure) => AgentState::Fails { said: failure.line() },
    };
    let pid = match (&endpoint, &state) {
        (Endpoint::Unix(path), AgentState::Answers(_)) => pid(path),
        _ => None,
    };
    let endpoint = Some(endpoint.to_string());
    (Agent { endpoint, state }, pid)
}

fn endpoint(session: &Session, config: Option<&Config>) -> Option<Endpoint> {
    match (session.named_agent(), config) {
        (Some(named), _) => Some(named.clone()),
        (None, Some(config)) => config.listen.unix.clone().map(Endpoint::Unix),
        (None, None) => Some(Endpoint::Unix(DEFAULT_SOCKET.into())),
    }
}

async fn answers(session: &Session, endpoint: &Endpoint) -> Result<AgentAnswer, Failure> {
    let client = session.connect_to(endpoint).await?;
    let reply = client.nodes(session.deadline(0)).await?;
    let mut round_trip_us = u64::MAX;
    for _ in 0..DOCTOR_CALLS {
        let started = Instant::now();
        client.nodes(session.deadline(0)).await?;
        round_trip_us = round_trip_us.min(micros(started));
    }
    let segments = own_segments(session, &client, &reply).await;
    let own = reply.nodes.iter().find(|node| node.is_self);
    Ok(AgentAnswer {
        node: own.map(|own| own.node),
        version: own.and_then(|own| own.version.clone()),
        round_trip_us,
        members: reply
            .nodes
            .iter()
            .filter(|node| !node.is_self)
            .map(|node| (node.node, node.state))
            .collect(),
        segments,
    })
}

async fn own_segments(session: &Session, client: &Client, nodes: &NodesReply) -> Known<Vec<MountedSegment>> {
    let own = nodes.nodes.iter().find(|node| node.is_self).map(|own| own.node);
    let reply = client.segments(own, session.deadline(0)).await;
    let mounted = |reply: SegmentsReply| {
        let is_there = |segment: &SegmentInfo| matches!(segment.state, SegmentState::Active | SegmentState::Draining);
        let segments = reply.segments.into_iter().filter(|segment| Some(segment.node) == own);
        let segments = segments.filter(is_there);
        segments
            .map(|segment| MountedSegment {
                len_bytes: segment.space.capacity_bytes,
                page_bytes: segment.page_bytes,
                backing: segment.backing,
            })
            .collect()
    };
    Known::from_result(reply.map(mounted))
}

/// Whoever listens at a socket.
fn pid(path: &Path) -> Option<i32> {
    let stream = UnixStream::connect(path).ok()?;
    let pid = getsockopt(&stream, PeerCredentials).ok()?.pid();
    // Zero is a process of another namespace.
    (pid > 0).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_process_behind_a_socket_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        assert_eq!(pid(&path), i32::try_from(std::process::id()).ok());
        assert_eq!(pid(&dir.path().join("none")), None);
    }
}
