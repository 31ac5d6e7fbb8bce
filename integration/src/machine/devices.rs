//! The devices that tests find.

use std::net::Ipv4Addr;

use super::error::MachineError;

/// The variable that tells a job which devices it has: `device:address,…`. It is set for every job in the machine; for tests on the
/// host's own devices whoever starts them sets it.
pub const DEVICES_VARIABLE: &str = "TENON_RDMA_DEVICES";

/// An RDMA device and the address that its netdev has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name, as `rdma link` has it.
    pub name: String,
    /// The IPv4 address of its netdev, and so of its RoCE v2 GID.
    pub address: Ipv4Addr,
}

/// A device of the machine, and the netdev under it.
#[derive(Debug, Clone, Copy)]
pub struct MachineDevice {
    /// Its name.
    pub name: &'static str,
    /// The end of a veth pair that it uses. The other end is that of its partner.
    pub netdev: &'static str,
    /// Its address, in a network of 256.
    pub address: Ipv4Addr,
}

impl From<MachineDevice> for Device {
    fn from(device: MachineDevice) -> Self {
        Self {
            name: device.name.to_owned(),
            address: device.address,
        }
    }
}

/// The machine's devices, in the order in which [`DEVICES_VARIABLE`] names them: hosts A and B on the first rail, A and B on the second.
pub const MACHINE_DEVICES: [MachineDevice; 4] = [
    MachineDevice {
        name: "rxe0",
        netdev: "rail1a",
        address: Ipv4Addr::new(10, 77, 0, 1),
    },
    MachineDevice {
        name: "rxe1",
        netdev: "rail1b",
        address: Ipv4Addr::new(10, 77, 0, 2),
    },
    MachineDevice {
        name: "rxe2",
        netdev: "rail2a",
        address: Ipv4Addr::new(10, 78, 0, 1),
    },
    MachineDevice {
        name: "rxe3",
        netdev: "rail2b",
        address: Ipv4Addr::new(10, 78, 0, 2),
    },
];

/// The value of [`DEVICES_VARIABLE`] in the machine.
pub(super) fn machine_device_list() -> String {
    MACHINE_DEVICES
        .map(|device| format!("{}:{}", device.name, device.address))
        .join(",")
}

/// Reads a value of [`DEVICES_VARIABLE`].
pub fn parse_devices(text: &str) -> Result<Vec<Device>, MachineError> {
    text.split(',')
        .map(|item| {
            let (name, address) = item.trim().split_once(':')?;
            let address = address.parse().ok()?;
            let name = name.to_owned();
            (!name.is_empty()).then_some(Device { name, address })
        })
        .collect::<Option<_>>()
        .ok_or_else(|| MachineError::DeviceList { text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_own_list_reads_back() {
        let devices = parse_devices(&machine_device_list()).expect("a list");
        assert_eq!(devices.len(), MACHINE_DEVICES.len());
        assert_eq!(devices[3].name, "rxe3");
        assert_eq!(devices[3].address, MACHINE_DEVICES[3].address);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["", "rxe0", "rxe0:", ":10.0.0.1", "rxe0:10.0.0.1,", "rxe0:host"] {
            assert!(parse_devices(text).is_err(), "{text:?}");
        }
    }
}
