//! Devices and their ports.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rdma_sys::{ibv_device_attr, ibv_device_cap_flags as capability, ibv_mtu, ibv_port_attr, ibv_port_state};

use super::error::VerbsError;
use super::gid::GidEntry;
use super::raw;

/// Names of the RDMA devices of this host, sorted. Empty if there are none.
///
/// # Errors
/// [`VerbsError::NoLibrary`], [`VerbsError::NoKernelSupport`].
pub fn devices() -> Result<Vec<String>, VerbsError> {
    let mut names = raw::device_names().map_err(not_listed)?;
    names.sort();
    Ok(names)
}

fn not_listed(source: io::Error) -> VerbsError {
    match source.raw_os_error() {
        Some(libc::EOPNOTSUPP) => VerbsError::NoLibrary,
        _ => VerbsError::NoKernelSupport { source },
    }
}

/// Largest payload of a packet on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1,024 bytes: the most on Ethernet with 1,500 bytes.
    B1024,
    /// 2,048 bytes.
    B2048,
    /// 4,096 bytes.
    B4096,
}

impl Mtu {
    const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        128 << self.number()
    }

    /// The MTU of this length, if it is one.
    #[must_use]
    pub fn of_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    pub(super) fn number(self) -> u32 {
        match self {
            Self::B256 => ibv_mtu::IBV_MTU_256,
            Self::B512 => ibv_mtu::IBV_MTU_512,
            Self::B1024 => ibv_mtu::IBV_MTU_1024,
            Self::B2048 => ibv_mtu::IBV_MTU_2048,
            Self::B4096 => ibv_mtu::IBV_MTU_4096,
        }
    }

    /// The MTU of this number; a number that is not known is taken as the smallest, which every path carries.
    fn of_number(number: u32) -> Self {
        let found = Self::ALL.into_iter().find(|mtu| mtu.number() == number);
        found.unwrap_or(Self::B256)
    }
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// No link.
    Down,
    /// Link, not yet configured.
    Initialising,
    /// Configured, carries no traffic yet.
    Armed,
    /// Carries traffic.
    Active,
    /// Was active; the link is being restored.
    ActiveDeferred,
    /// A state that this program does not know.
    Unknown(u32),
}

impl From<u32> for PortState {
    fn from(number: u32) -> Self {
        match number {
            ibv_port_state::IBV_PORT_DOWN => Self::Down,
            ibv_port_state::IBV_PORT_INIT => Self::Initialising,
            ibv_port_state::IBV_PORT_ARMED => Self::Armed,
            ibv_port_state::IBV_PORT_ACTIVE => Self::Active,
            ibv_port_state::IBV_PORT_ACTIVE_DEFER => Self::ActiveDeferred,
            other => Self::Unknown(other),
        }
    }
}

/// What a port is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: addressed by local id.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// The device does not say, or something that this program does not know.
    Unknown(u8),
}

/// A port as it is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Its state.
    pub state: PortState,
    /// What it is attached to.
    pub link_layer: LinkLayer,
    /// The MTU in force.
    pub active_mtu: Mtu,
    /// The largest MTU it could have.
    pub max_mtu: Mtu,
    /// Longest message or one-sided transfer of one request.
    pub max_message_bytes: u32,
    /// Rows of its GID table, used or not.
    pub gid_rows: u32,
    /// Its local id; 0 on Ethernet.
    pub local_id: u16,
}

impl Port {
    fn new(number: u8, found: &ibv_port_attr) -> Self {
        Self {
            number,
            state: PortState::from(found.state),
            link_layer: match found.link_layer {
                rdma_sys::IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
                rdma_sys::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                other => LinkLayer::Unknown(other),
            },
            active_mtu: Mtu::of_number(found.active_mtu),
            max_mtu: Mtu::of_number(found.max_mtu),
            max_message_bytes: found.max_msg_sz,
            gid_rows: count(found.gid_tbl_len),
            local_id: found.lid,
        }
    }
}

/// What a device can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Version of its firmware; may be empty.
    pub firmware: String,
    /// Ports, numbered from 1.
    pub ports: u8,
    /// Longest range that is registered in one piece, in bytes.
    pub max_region_bytes: u64,
    /// Sizes of pages that it maps: bit n stands for 2^n bytes.
    pub page_sizes: u64,
    /// Most queue pairs of the host.
    pub max_queue_pairs: u32,
    /// Most requests of one queue.
    pub max_requests: u32,
    /// Most parts of a request's scatter list.
    pub max_parts: u32,
    /// Most parts of a read's scatter list.
    pub max_read_parts: u32,
    /// Most completion queues of the host.
    pub max_completion_queues: u32,
    /// Most entries of one completion queue.
    pub max_completions: u32,
    /// Most memory regions of the host.
    pub max_regions: u32,
    /// Most memory windows of the host.
    pub max_windows: u32,
    /// Reads that it serves at once on one queue pair.
    pub max_reads_as_target: u8,
    /// Reads that it has under way at once on one queue pair.
    pub max_reads_as_initiator: u8,
    /// Whether it has memory windows of type 2. Whether it enforces their bounds must be probed.
    pub windows: bool,
    /// Time it adds to a peer's acknowledgement timeout.
    pub acknowledge_delay: Duration,
}

/// An open device.
#[derive(Debug)]
pub struct Device {
    name: String,
    attributes: DeviceAttributes,
    raw: Arc<raw::Context>,
}

impl Device {
    /// Opens the device of this name.
    ///
    /// # Errors
    /// Those of [`devices`], [`VerbsError::UnknownDevice`], and [`VerbsError::System`] if the device refuses: mostly a
    /// lack of rights on `/dev/infiniband`.
    pub fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let found = devices()?;
        let failed = |operation| {
            let device = name.to_owned();
            move |source| VerbsError::System {
                operation,
                device,
                source,
            }
        };
        let opened = raw::Context::open(name).map_err(failed("open the device file"))?;
        let Some(raw) = opened else {
            let name = name.to_owned();
            return Err(VerbsError::UnknownDevice { name, found });
        };
        let attributes = raw.query_device().map_err(failed("query the attributes"))?;
        Ok(Arc::new(Self {
            name: name.to_owned(),
            attributes: of_device(&attributes),
            raw: Arc::new(raw),
        }))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it can do.
    #[must_use]
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// A port as it is now.
    ///
    /// # Errors
    /// [`VerbsError::UnknownPort`], [`VerbsError::System`].
    pub fn port(&self, number: u8) -> Result<Port, VerbsError> {
        let ports = self.attributes.ports;
        if !(1..=ports).contains(&number) {
            return Err(VerbsError::UnknownPort {
                device: self.name.clone(),
                port: number,
                ports,
            });
        }
        let found = self.raw.query_port(number);
        let found = found.map_err(|source| self.failed("query a port", source))?;
        Ok(Port::new(number, &found))
    }

    /// The rows of a port's GID table that are in use.
    ///
    /// # Errors
    /// As [`Device::port`].
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.port(port)?;
        let mut rows = 0;
        for number in 1..=self.attributes.ports {
            rows += usize::try_from(self.port(number)?.gid_rows).unwrap_or(0);
        }
        let found = self.raw.gid_table(rows);
        let mut found = found.map_err(|source| self.failed("read the GID table", source))?;
        found.retain(|entry| entry.port == u32::from(port));
        Ok(found)
    }

    /// The NUMA node that it is attached to; `None` if it has none, such as a software device.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        let path = format!("/sys/class/infiniband/{}/device/numa_node", self.name);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    pub(super) fn raw(&self) -> &Arc<raw::Context> {
        &self.raw
    }

    /// Makes an error of what the system said.
    pub(super) fn failed(&self, operation: &'static str, source: io::Error) -> VerbsError {
        VerbsError::System {
            operation,
            device: self.name.clone(),
            source,
        }
    }
}

fn of_device(found: &ibv_device_attr) -> DeviceAttributes {
    let firmware = found.fw_ver.iter().map(|byte| byte.cast_unsigned());
    let firmware: Vec<u8> = firmware.take_while(|byte| *byte != 0).collect();
    let windows = capability::IBV_DEVICE_MEM_WINDOW_TYPE_2A | capability::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    DeviceAttributes {
        firmware: String::from_utf8_lossy(&firmware).into_owned(),
        ports: found.phys_port_cnt,
        max_region_bytes: found.max_mr_size,
        page_sizes: found.page_size_cap,
        max_queue_pairs: count(found.max_qp),
        max_requests: count(found.max_qp_wr),
        max_parts: count(found.max_sge),
        max_read_parts: count(found.max_sge_rd),
        max_completion_queues: count(found.max_cq),
        max_completions: count(found.max_cqe),
        max_regions: count(found.max_mr),
        max_windows: count(found.max_mw),
        max_reads_as_target: small(found.max_qp_rd_atom),
        max_reads_as_initiator: small(found.max_qp_init_rd_atom),
        windows: found.device_cap_flags & windows.0 != 0,
        // 4.096 µs to the power that it names; more than 31 cannot be said.
        acknowledge_delay: Duration::from_nanos(4096 << found.local_ca_ack_delay.min(31)),
    }
}

/// A count as devices give it: never negative.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// A count of which a connection can say 255 at most.
fn small(value: i32) -> u8 {
    u8::try_from(count(value)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_devices_or_library_says_so() {
        match devices() {
            Ok(found) => assert!(found.is_sorted()),
            Err(error @ (VerbsError::NoLibrary | VerbsError::NoKernelSupport { .. })) => println!("{error}"),
            Err(error) => panic!("{error}"),
        }
        let error = Device::open("no-such-device").unwrap_err();
        assert!(
            matches!(
                error,
                VerbsError::NoLibrary | VerbsError::NoKernelSupport { .. } | VerbsError::UnknownDevice { .. }
            ),
            "{error}"
        );
    }

    #[test]
    fn what_the_library_says_of_a_missing_part_gets_a_name() {
        let told = |errno| not_listed(io::Error::from_raw_os_error(errno));
        assert!(matches!(told(libc::EOPNOTSUPP), VerbsError::NoLibrary));
        assert!(matches!(told(libc::ENOSYS), VerbsError::NoKernelSupport { .. }));
    }

    #[test]
    fn mtus_have_lengths() {
        let lengths: Vec<u32> = Mtu::ALL.into_iter().map(Mtu::bytes).collect();
        assert_eq!(lengths, [256, 512, 1024, 2048, 4096]);
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::of_bytes(mtu.bytes()), Some(mtu));
            assert_eq!(Mtu::of_number(mtu.number()), mtu);
        }
        assert_eq!(Mtu::of_bytes(1500), None);
    }
}
