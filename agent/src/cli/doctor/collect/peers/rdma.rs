//! Over RDMA.

use std::sync::Arc;

use tenon_client::RdmaPolicy;
use tenon_transport::PeerId;
use tenon_transport::link::Endpoint;
use tenon_transport::verbs::engine::{self, OpenError, Rails, RailsOptions};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::{Dialler, failed, micros, whole_micros};
use crate::cli::doctor::facts::{Outcome, RailReach, Reach};
use crate::cli::limits::{DOCTOR_CALLS, DOCTOR_QUEUE_PAIRS_MAX};
use crate::config::{Member, RdmaConfig};

/// The devices that the configuration names.
pub(super) enum Devices {
    /// They are not to be used, or there are none, which is told of the devices.
    None,
    /// Why they cannot be used.
    Unusable(String),
    Open(Arc<Rails>),
}

impl Devices {
    pub(super) async fn open(config: &RdmaConfig) -> Self {
        let has_devices = tenon_transport::verbs::devices().is_ok_and(|devices| !devices.is_empty());
        if config.policy == RdmaPolicy::Forbid || !has_devices {
            return Self::None;
        }
        let options = RailsOptions {
            devices: config.devices.clone(),
            gid_index: config.gid_index,
            queue_pairs_max: DOCTOR_QUEUE_PAIRS_MAX,
            ..RailsOptions::default()
        };
        let runtime = Handle::current();
        // Devices are asked, which waits for them.
        match tokio::task::spawn_blocking(move || Rails::open(options, &runtime)).await {
            Ok(Ok(rails)) => Self::Open(rails),
            Ok(Err(error)) => Self::Unusable(error.to_string()),
            Err(error) => Self::Unusable(error.to_string()),
        }
    }

    /// Tries a peer that was reached over TCP; `None` if this host is to use no device.
    pub(super) async fn reach(&self, dialler: &Dialler<'_>, member: &Member, has_rdma: bool) -> Option<Reach> {
        let outcome = match self {
            Self::None => return None,
            _ if !has_rdma => Outcome::NoDevice,
            Self::Unusable(why) => Outcome::NotTried { why: why.clone() },
            Self::Open(rails) => measure(dialler, member, rails).await,
        };
        Some(Reach {
            transport: "rdma",
            outcome,
        })
    }
}

async fn measure(dialler: &Dialler<'_>, member: &Member, rails: &Arc<Rails>) -> Outcome {
    let (identity, expect) = (dialler.identity(), Some(PeerId(member.node.to_bytes())));
    let endpoint = Endpoint::Tcp(member.endpoint);
    let started = Instant::now();
    let bounds = (DOCTOR_CALLS, dialler.deadline());
    match engine::reach(rails, &endpoint, &identity, &*dialler.auth, expect, bounds).await {
        Ok(reach) => {
            let rails = reach.rails.into_iter().map(|found| RailReach {
                rail: found.rail,
                round_trip_us: whole_micros(found.round_trip),
            });
            let rails: Vec<_> = rails.collect();
            Outcome::ReachedByRails {
                connect_us: micros(started),
                round_trip_us: rails.iter().map(|rail| rail.round_trip_us).min().unwrap_or(u64::MAX),
                rails,
                unusable: reach.unusable,
            }
        }
        Err(error @ OpenError::NoPath { .. }) => Outcome::NoRail {
            said: error.to_string(),
        },
        Err(OpenError::Link(error)) => failed(&error, &dialler.cluster_name),
    }
}
