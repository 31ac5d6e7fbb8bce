//! Whether a peer is reached over RDMA, and how quickly: for who wants to know, and transfers nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::connection::{OpenError, Shared};
use super::rails::Rails;
use super::supervisor::Tried;
use crate::ids::PeerId;
use crate::limits::VERBS_CONNECT_TIMEOUT;
use crate::link::{Authenticator, Channel, Endpoint, Identity, Link};

/// A peer that is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The rails that reach it, one at least.
    pub rails: Vec<RailReach>,
    /// Why others do not.
    pub unusable: Vec<String>,
}

/// A rail that reaches a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailReach {
    /// Of this host: device and port.
    pub rail: String,
    /// The least time that a read of a few bytes took.
    pub round_trip: Duration,
}

/// Connects to a peer as [`RdmaConnection::open`](super::RdmaConnection::open) does, reads a few bytes of its so many times over each rail, and ends the
/// connection.
///
/// # Errors
/// [`OpenError`].
pub async fn reach(
    rails: &Arc<Rails>,
    endpoint: &Endpoint,
    identity: &Identity,
    auth: &dyn Authenticator,
    expect: Option<PeerId>,
    (reads, deadline): (usize, Instant),
) -> Result<Reach, OpenError> {
    let link = Link::dial_for(Channel::Rdma, endpoint, identity, auth, expect, deadline).await?;
    let shared = Shared::new(rails, link);
    let numbers = shared.usable();
    let deadline = deadline.min(Instant::now() + VERBS_CONNECT_TIMEOUT);
    let (mut paths, mut unusable) = shared.try_paths(&numbers, false, deadline).await;
    if paths.is_empty() {
        (paths, unusable) = shared.try_paths(&numbers, true, deadline).await;
    }
    unusable.extend(rails.unused());
    let mut reached = Vec::new();
    for tried in paths {
        let rail = rails.all()[tried.path.rail].name.clone();
        match round_trip(&shared, &tried, reads, deadline).await {
            Ok(round_trip) => reached.push(RailReach { rail, round_trip }),
            Err(error) => unusable.push(format!("{rail}: {error}")),
        }
        tried.path.fail();
    }
    shared.close("it was only tried");
    match reached.is_empty() {
        true => Err(OpenError::NoPath { reasons: unusable }),
        false => Ok(Reach {
            rails: reached,
            unusable,
        }),
    }
}

/// The least of several.
async fn round_trip(shared: &Shared, tried: &Tried, reads: usize, deadline: Instant) -> Result<Duration, String> {
    let mut least = Duration::MAX;
    for _ in 0..reads.max(1) {
        let took = shared.probe(tried, deadline).await.map_err(|error| error.to_string())?;
        least = least.min(took);
    }
    Ok(least)
}
