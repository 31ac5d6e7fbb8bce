//! Taking RDMA devices into use, or going on without them where the policy allows that.

use crate::assemble::StartError;
use crate::config::RdmaConfig;
use crate::lives::{Mapped, Mounting};
use crate::segments::{SegmentError, SegmentMemory};
use std::sync::Arc;
use tenon_client::RdmaPolicy;
use tenon_protocol::ids::SegmentId;
use tenon_transport::Exports;
use tenon_transport::link::Service;
use tenon_transport::verbs::engine::{Rails, RailsOptions, RdmaTarget};
use tokio::runtime::Handle;

/// Opens the devices and registers all segments with them. `None`: RDMA is not used, and the log says why.
///
/// # Errors
/// [`StartError::Rdma`] if it is required and cannot be had.
pub(crate) async fn prepare(
    config: &RdmaConfig,
    memories: &mut Vec<Mapped>,
    data: &Handle,
) -> Result<Option<Arc<Rails>>, StartError> {
    if config.policy == RdmaPolicy::Forbid {
        return Ok(None);
    }
    let options = RailsOptions {
        devices: config.devices.clone(),
        gid_index: config.gid_index,
        waits_for_ports: config.policy == RdmaPolicy::Prefer,
        push: config.push,
        ..RailsOptions::default()
    };
    let runtime = data.clone();
    // Devices are asked and tried, which waits for them.
    let opened = tokio::task::spawn_blocking(move || Rails::open(options, &runtime)).await;
    let rails = match opened {
        Ok(Ok(rails)) => rails,
        Ok(Err(error)) => return without(config.policy, &error.to_string()),
        Err(error) => return without(config.policy, &error.to_string()),
    };
    let (registering, mut taken) = (Arc::clone(&rails), std::mem::take(memories));
    let registered = tokio::task::spawn_blocking(move || {
        let failure = register_all(&registering, &mut taken).err();
        (taken, failure)
    });
    let (back, failure) = registered.await.map_err(|error| StartError::Rdma {
        reason: error.to_string(),
    })?;
    *memories = back;
    match failure {
        None => Ok(Some(rails)),
        Some(error) => {
            for (_, memory, _) in memories {
                memory.deregister();
            }
            without(config.policy, &error.to_string())
        }
    }
}

/// Registers all segments at the same time.
fn register_all(rails: &Arc<Rails>, memories: &mut [Mapped]) -> Result<(), SegmentError> {
    std::thread::scope(|scope| {
        let begun: Vec<_> = (memories.iter_mut())
            .map(|(segment, memory, mounting)| scope.spawn(|| register(rails, *segment, memory, mounting)))
            .collect();
        let ended = begun
            .into_iter()
            .map(|registering| registering.join().expect("registering panics nowhere"));
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

fn register(
    rails: &Arc<Rails>,
    segment: SegmentId,
    memory: &mut SegmentMemory,
    mounting: &Mounting,
) -> Result<(), SegmentError> {
    memory.register(segment, rails, mounting)?;
    tracing::info!(%segment, len_bytes = memory.len_bytes(), "registered for RDMA");
    Ok(())
}

fn without(policy: RdmaPolicy, reason: &str) -> Result<Option<Arc<Rails>>, StartError> {
    if policy == RdmaPolicy::Require {
        let reason = reason.to_owned();
        return Err(StartError::Rdma { reason });
    }
    tracing::info!(reason, "RDMA is not used, transfers go over TCP");
    Ok(None)
}

/// Answers what peers ask who transfer over RDMA.
///
/// # Errors
/// [`StartError::Rdma`] if a device that was opened fails.
pub(crate) fn target(
    rails: Option<&Arc<Rails>>,
    exports: &Arc<Exports>,
    data: &Handle,
) -> Result<Option<Arc<dyn Service>>, StartError> {
    let Some(rails) = rails else { return Ok(None) };
    match RdmaTarget::new(Arc::clone(rails), Arc::clone(exports), data.clone()) {
        Ok(target) => Ok(Some(Arc::new(target))),
        Err(error) => Err(StartError::Rdma {
            reason: error.to_string(),
        }),
    }
}
