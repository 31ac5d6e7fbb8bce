//! Whether payload can go over RDMA, and what is missing if not.

use super::super::facts::{
    Configuration, Device, DeviceDetails, Gid, Known, Library, Module, ModuleState, Port, PortDetails, Purpose, Rdma,
    Wish, state_name,
};
use super::{bytes, count, push};
use crate::cli::doctor::finding::{Finding, Section, Verdict};
use tenon_transport::limits::{VERBS_READ_BYTES_MAX, VERBS_REGION_BYTES};
use tenon_transport::verbs::{GidKind, LinkLayer};

const LIBRARY: (Section, &str) = (Section::Rdma, "rdma.library");
const MODULES: (Section, &str) = (Section::Rdma, "rdma.modules");
const DEVICE: (Section, &str) = (Section::Rdma, "rdma.device");
const REGION: (Section, &str) = (Section::Rdma, "rdma.region_size");
const PORT: (Section, &str) = (Section::Rdma, "rdma.port");
const MTU: (Section, &str) = (Section::Rdma, "rdma.mtu");
const GID: (Section, &str) = (Section::Rdma, "rdma.gid");
const USABLE: (Section, &str) = (Section::Rdma, "rdma.usable");

pub(super) fn judge(rdma: &Rdma, configuration: &Configuration) -> Vec<Finding> {
    if configuration.rdma == Some(Wish::Off) {
        let message = "rdma.policy forbids it: payload goes over TCP";
        return vec![Finding::new(USABLE, Verdict::Ok, "RDMA", message)];
    }
    let mut findings = vec![library(rdma), modules(rdma)];
    findings.extend(unseen_devices(rdma));
    for device in &rdma.devices {
        findings.extend(judge_device(device, rdma, configuration));
    }
    findings.extend(usable(rdma, configuration.rdma == Some(Wish::Require)));
    findings
}

fn library(rdma: &Rdma) -> Finding {
    let finding = |verdict, message: String| Finding::new(LIBRARY, verdict, "libibverbs", message);
    match &rdma.library {
        Library::Answers => finding(
            Verdict::Ok,
            format!("lists {}", count(rdma.devices.len(), "device", "devices")),
        ),
        Library::NotInstalled => finding(Verdict::Warning, "is not installed: payload goes over TCP".to_owned())
            .advise("apt-get install libibverbs1 ibverbs-providers, then restart tenond"),
        Library::NoKernelSupport(said) => {
            let message = format!("finds no RDMA in the kernel ({said}): payload goes over TCP");
            finding(Verdict::Warning, message).advise("see the modules below")
        }
        Library::Fails(said) => finding(Verdict::Warning, format!("{said}: payload goes over TCP"))
            .advise("ibv_devices (package ibverbs-utils) says what other programs see"),
    }
}

fn modules(rdma: &Rdma) -> Finding {
    let finding = |verdict, message: String| Finding::new(MODULES, verdict, "kernel modules", message);
    let modules = match &rdma.modules {
        Known::Yes(modules) => modules,
        Known::No { not_read } => {
            return finding(Verdict::Warning, format!("which are loaded is not known: {not_read}")).advise("lsmod");
        }
    };
    let there = |module: &&Module| module.state != ModuleState::Absent;
    let names: Vec<_> = modules.iter().filter(there).map(|module| module.name).collect();
    if !rdma.devices.is_empty() {
        return finding(Verdict::Ok, names.join(", "));
    }
    let has = |purpose| modules.iter().filter(there).any(|module| module.purpose == purpose);
    let drivers: Vec<_> = modules
        .iter()
        .filter(|module| there(module) && module.purpose == Purpose::Driver)
        .map(|module| module.name)
        .collect();
    match (has(Purpose::Verbs), drivers.as_slice()) {
        (false, _) => finding(
            Verdict::Warning,
            "ib_uverbs is missing, without which no program has verbs".to_owned(),
        )
        .advise("modprobe ib_uverbs, and the driver of the device; kernels for cloud machines often lack both"),
        (true, []) => finding(
            Verdict::Warning,
            "ib_uverbs is there, and no driver of a device".to_owned(),
        )
        .advise(
            "modprobe mlx5_ib for ConnectX-4 and newer, irdma, bnxt_re, efa for others, rdma_rxe for RDMA in software",
        ),
        (true, ["rdma_rxe"]) => finding(
            Verdict::Warning,
            "rdma_rxe, RDMA in software, is there and drives no netdev".to_owned(),
        )
        .advise("rdma link add rxe0 type rxe netdev NAME"),
        (true, drivers) => {
            let message = format!("{} found no device", drivers.join(", "));
            finding(Verdict::Warning, message)
                .advise("lspci and the kernel's log (dmesg) say whether the device is there")
        }
    }
}

/// Devices of the kernel that the library does not list.
fn unseen_devices(rdma: &Rdma) -> Vec<Finding> {
    let listed = |name: &&String| rdma.devices.iter().any(|device| device.name == **name);
    let unseen = rdma.kernel_devices.get().into_iter().flatten();
    let finding = |name: &String| {
        let message = "the kernel has this device, and libibverbs does not list it";
        Finding::new(DEVICE, Verdict::Warning, name, message)
            .advise("install the library's part for it (Debian: ibverbs-providers), and load ib_uverbs")
    };
    unseen.filter(|name| !listed(name)).map(finding).collect()
}

fn judge_device(device: &Device, rdma: &Rdma, configuration: &Configuration) -> Vec<Finding> {
    let details = match &device.details {
        Known::Yes(details) => details,
        Known::No { not_read } => {
            let finding = Finding::new(DEVICE, Verdict::Warning, &device.name, not_read);
            return vec![finding.advise("the user of tenond needs to read and write /dev/infiniband/uverbs*")];
        }
    };
    let message = format!(
        "firmware {}, {}, registers up to {} at once",
        if details.firmware.is_empty() {
            "unknown"
        } else {
            &details.firmware
        },
        place(details, rdma),
        bytes(details.max_region_bytes)
    );
    let mut findings = vec![Finding::new(DEVICE, Verdict::Ok, &device.name, message)];
    findings.extend(region_size(&device.name, details, configuration));
    findings.extend(push::judge(&device.name, details, configuration.push));
    for port in &details.ports {
        findings.extend(judge_port(&device.name, port));
    }
    findings
}

fn place(details: &DeviceDetails, rdma: &Rdma) -> String {
    match (details.numa_node, &rdma.numa_nodes) {
        (Some(node), Known::Yes(nodes)) => format!("NUMA node {node} of {nodes}"),
        (Some(node), Known::No { .. }) => format!("NUMA node {node}"),
        (None, _) => "at no NUMA node".to_owned(),
    }
}

fn region_size(device: &str, details: &DeviceDetails, configuration: &Configuration) -> Option<Finding> {
    let max_bytes = details.max_region_bytes;
    // Each part is registered with the beginning of the next one.
    let part_bytes = VERBS_REGION_BYTES + VERBS_READ_BYTES_MAX;
    let longest_bytes = configuration.longest_bytes()?.min(part_bytes);
    if longest_bytes <= max_bytes {
        return None;
    }
    let message = format!(
        "registers at most {} at once, the longest part of a segment or table has {}: it goes over TCP",
        bytes(max_bytes),
        bytes(longest_bytes)
    );
    let finding = Finding::new(REGION, Verdict::Warning, device, message);
    Some(finding.advise("configure several smaller [[segments]]"))
}

fn judge_port(device: &str, port: &Port) -> Vec<Finding> {
    let subject = format!("{device} port {}", port.number);
    let details = match &port.details {
        Known::Yes(details) => details,
        Known::No { not_read } => {
            let finding = Finding::new(PORT, Verdict::Warning, subject, not_read);
            return vec![finding.advise("the kernel's log (dmesg) may say why")];
        }
    };
    let chosen = match details.chosen() {
        Some(gid) => format!(", GID {} ({})", gid.entry.index, gid.address()),
        None => String::new(),
    };
    let message = format!(
        "{}, {}, MTU {}{chosen}",
        state_name(details.state),
        match details.link_layer {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Unknown(_) => "unknown link layer",
        },
        details.active_mtu_bytes,
    );
    let verdict = if details.is_active() {
        Verdict::Ok
    } else {
        Verdict::Warning
    };
    let mut port = Finding::new(PORT, verdict, &*subject, message).with_rows(gid_rows(details));
    if !details.is_active() {
        port.advice = Some(not_active(details));
    }
    let mut findings = vec![port];
    findings.extend(mtu(&subject, details));
    findings.extend(gid(&subject, details));
    findings
}

/// The netdev of a port, as far as its addresses tell.
fn netdev(details: &PortDetails) -> &str {
    let gids = details.gids.get().map(Vec::as_slice).unwrap_or_default();
    let named = gids.iter().find_map(|gid| gid.interface.as_deref());
    named.unwrap_or("NAME")
}

fn not_active(details: &PortDetails) -> String {
    match details.link_layer {
        LinkLayer::InfiniBand => "check the cable and the subnet manager (ibstat)".to_owned(),
        _ => format!(
            "ip link set {} up; check the cable and the switch's port",
            netdev(details)
        ),
    }
}

fn gid_rows(details: &PortDetails) -> Vec<Vec<String>> {
    let row = |gid: &Gid| {
        vec![
            format!("GID {}", gid.entry.index),
            gid.address(),
            gid.entry.kind.to_string(),
            gid.interface.clone().unwrap_or_else(|| "-".to_owned()),
            gid.verdict.to_string(),
        ]
    };
    details.gids.get().into_iter().flatten().map(row).collect()
}

fn mtu(subject: &str, details: &PortDetails) -> Option<Finding> {
    let (active, most) = (details.active_mtu_bytes, details.max_mtu_bytes);
    if active >= most || !details.is_active() {
        return None;
    }
    let finding = Finding::new(
        MTU,
        Verdict::Warning,
        subject,
        format!("packets carry {active} bytes of at most {most}"),
    );
    Some(finding.advise(match details.link_layer {
        LinkLayer::InfiniBand => "the subnet manager sets the MTU".to_owned(),
        _ => format!(
            "ip link set {} mtu 9000 (at least {} for {most}), on the peers and switches too",
            netdev(details),
            most + 100
        ),
    }))
}

fn gid(subject: &str, details: &PortDetails) -> Option<Finding> {
    let finding = |message: String| Finding::new(GID, Verdict::Warning, subject, message);
    if let Known::No { not_read } = &details.gids {
        return Some(finding(not_read.clone()).advise("the kernel's log (dmesg) may say why"));
    }
    let address = format!("ip address add ADDRESS/PREFIX dev {}", netdev(details));
    match details.chosen() {
        None => Some(finding("no address can be used: its GID table has none".to_owned()).advise(address)),
        Some(gid) if gid.entry.kind == GidKind::RoceV1 => {
            Some(finding("its best address is of RoCE v1, which no router carries".to_owned()).advise(address))
        }
        Some(gid) if gid.entry.kind == GidKind::RoceV2 && gid.entry.gid.ipv6().is_unicast_link_local() => {
            Some(finding("its best address is link-local, which no router carries".to_owned()).advise(address))
        }
        Some(_) => None,
    }
}

/// Whether there is a port at all that carries payload.
fn usable(rdma: &Rdma, is_required: bool) -> Option<Finding> {
    if rdma.devices.is_empty() && !is_required {
        return None;
    }
    let details = rdma.devices.iter().filter_map(|device| device.details.get());
    let ports = details
        .flat_map(|details| &details.ports)
        .filter_map(|port| port.details.get());
    let usable = ports.filter(|port| port.is_active() && port.chosen().is_some()).count();
    Some(match usable {
        0 if is_required => Finding::new(
            USABLE,
            Verdict::Problem,
            "RDMA",
            "no port can be used, and rdma.policy requires one: tenond does not start",
        )
        .advise("see what is missing above, or set rdma.policy to prefer"),
        0 => Finding::new(
            USABLE,
            Verdict::Warning,
            "RDMA",
            "no port is active and has an address: payload goes over TCP",
        )
        .advise("see the ports above"),
        usable => {
            let ports = count(usable, "port is", "ports are");
            Finding::new(USABLE, Verdict::Ok, "RDMA", format!("{ports} active and addressed"))
        }
    })
}

#[cfg(test)]
#[path = "rdma_tests.rs"]
mod tests;
