//! What most tests need.

pub use crate::agent::{FakeAgent, Fate, name, namespace, payload};
pub use crate::wire::Script;
use std::sync::Arc;
use std::time::Duration;
use tenon_client::{ClientError, GetItem, GetOutcome};
use tenon_protocol::message::Request;
use tenon_transport::{Memory, Slice};
use tokio::time::Instant;

pub const MIB: usize = 1 << 20;

/// Time enough.
pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Memory with a recognisable content.
pub fn blank(len_bytes: usize) -> Slice {
    Arc::new(Memory::from_vec(vec![0xee; len_bytes])).whole()
}

pub fn source(bytes: &[u8]) -> Slice {
    Arc::new(Memory::from_vec(bytes.to_vec())).whole()
}

/// An agent with one node and, on it, one object under `key`.
pub fn agent_with(key: &str, bytes: &[u8]) -> Arc<FakeAgent> {
    let agent = FakeAgent::new(1, 1, 64 << 20);
    agent.store(key, bytes);
    agent
}

/// Gets one whole object into a destination of its size.
pub async fn get_into(agent: &Arc<FakeAgent>, key: &str, into: &Slice) -> Result<GetOutcome, ClientError> {
    let item = GetItem::whole(key, into.clone());
    agent
        .client()
        .get_batch(&namespace(), vec![item], soon())
        .await
        .pop()
        .unwrap()
}

pub fn is_hit(outcome: &Result<GetOutcome, ClientError>) -> bool {
    matches!(outcome, Ok(GetOutcome::Hit(_)))
}

pub fn is_locate(request: &Request) -> bool {
    matches!(request, Request::Locate(_) | Request::Relocate(_))
}

pub fn is_commit(request: &Request) -> bool {
    matches!(request, Request::Commit(_))
}

pub fn is_abort(request: &Request) -> bool {
    matches!(request, Request::Abort(_))
}

/// Waits until `done`, or fails.
pub async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = soon();
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
