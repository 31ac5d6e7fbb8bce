//! RDMA devices as the library of verbs shows them, and what the kernel has.

use super::kernel;
use std::sync::Arc;

use tenon_transport::verbs::{self, GidEntry, PortState, VerbsError, judge_gids};

use crate::cli::doctor::facts::{Device, DeviceDetails, Gid, Known, Library, Port, PortDetails, Rdma, WindowsSeen};

/// Asks every device.
pub(super) fn look() -> Rdma {
    let (library, names) = match verbs::devices() {
        Ok(names) => (Library::Answers, names),
        Err(VerbsError::NoLibrary) => (Library::NotInstalled, Vec::new()),
        Err(VerbsError::NoKernelSupport { source }) => (Library::NoKernelSupport(source.to_string()), Vec::new()),
        Err(error) => (Library::Fails(error.to_string()), Vec::new()),
    };
    Rdma {
        library,
        devices: names.into_iter().map(device).collect(),
        kernel_devices: Known::from_result(kernel::names("/sys/class/infiniband")),
        modules: kernel::modules(),
        numa_nodes: Known::from_result(kernel::names("/sys/devices/system/node").map(|names| numa_nodes(&names))),
    }
}

/// How many of the names in the directory of nodes are nodes. A kernel without NUMA has none: that is one node.
fn numa_nodes(names: &[String]) -> usize {
    let is_node = |name: &&String| {
        name.strip_prefix("node")
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    names.iter().filter(is_node).count().max(1)
}

fn device(name: String) -> Device {
    let details = Known::from_result(verbs::Device::open(&name).map(|open| details(&open)));
    Device { name, details }
}

fn details(device: &Arc<verbs::Device>) -> DeviceDetails {
    let attributes = device.attributes();
    DeviceDetails {
        firmware: attributes.firmware.clone(),
        numa_node: device.numa_node(),
        max_region_bytes: attributes.max_region_bytes,
        windows: windows(device),
        ports: (1..=attributes.ports).map(|number| port(device, number)).collect(),
    }
}

/// Tried on the first port that can carry something.
fn windows(device: &Arc<verbs::Device>) -> Option<Known<WindowsSeen>> {
    let usable = |number| {
        let port = device.port(number).ok()?;
        let gid = verbs::choose_gid(&device.gids(number).ok()?, None)?;
        (port.state == PortState::Active).then_some(gid)
    };
    let gid = (1..=device.attributes().ports).find_map(usable)?;
    Some(Known::from_result(verbs::probe_windows(device, &gid).map(WindowsSeen)))
}

fn port(device: &verbs::Device, number: u8) -> Port {
    let details = device.port(number).map(|port| PortDetails {
        state: port.state,
        link_layer: port.link_layer,
        active_mtu_bytes: port.active_mtu.bytes(),
        max_mtu_bytes: port.max_mtu.bytes(),
        gids: Known::from_result(device.gids(number).map(|entries| gids(&entries))),
    });
    Port {
        number,
        details: Known::from_result(details),
    }
}

fn gids(entries: &[GidEntry]) -> Vec<Gid> {
    judge_gids(entries, None)
        .into_iter()
        .map(|(entry, verdict)| Gid {
            entry,
            interface: entry.interface_name(),
            verdict,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_by_their_names() {
        let names = ["cpu", "node0", "node1", "node12", "nodes", "node", "online"].map(str::to_owned);
        assert_eq!(numa_nodes(&names), 3);
        assert_eq!(numa_nodes(&[]), 1);
    }

    #[test]
    fn any_host_can_be_looked_at() {
        let rdma = look();
        assert!(rdma.library == Library::Answers || rdma.devices.is_empty(), "{rdma:?}");
        assert!(rdma.numa_nodes.get().is_some_and(|nodes| *nodes >= 1), "{rdma:?}");
    }
}
