//! Which rails of two hosts are on the same network.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use nix::ifaddrs::getifaddrs;

/// A network: an address with as many bits of it as count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subnet {
    pub(super) prefix: Ipv6Addr,
    pub(super) prefix_bits: u8,
}

impl Subnet {
    /// The network of an address, of which the first `prefix_bits` count.
    pub(super) fn new(address: Ipv6Addr, prefix_bits: u8) -> Self {
        let prefix_bits = prefix_bits.min(128);
        let shift = 128 - u32::from(prefix_bits);
        let kept = u128::from(address).checked_shr(shift).unwrap_or(0);
        Self {
            prefix: kept.checked_shl(shift).unwrap_or(0).into(),
            prefix_bits,
        }
    }

    /// The network that the system says an address of an interface is in; IPv4 addresses are the mapped ones.
    pub(super) fn of_interface(address: Ipv6Addr, interface: Option<&str>) -> Option<Self> {
        let all = getifaddrs().ok()?;
        for entry in all.filter(|entry| interface.is_none_or(|name| entry.interface_name == name)) {
            let (Some(found), Some(mask)) = (entry.address.and_then(ip), entry.netmask.and_then(ip)) else {
                continue;
            };
            if mapped(found) == address {
                let bits = match mask {
                    IpAddr::V4(mask) => 96 + u128::from(u32::from(mask).count_ones()),
                    IpAddr::V6(mask) => u128::from(u128::from(mask).count_ones()),
                };
                return Some(Self::new(address, u8::try_from(bits).ok()?));
            }
        }
        None
    }
}

fn ip(address: nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix.to_ipv4_mapped() {
            Some(v4) if self.prefix_bits >= 96 => write!(f, "{v4}/{}", self.prefix_bits - 96),
            _ => write!(f, "{}/{}", self.prefix, self.prefix_bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn addresses_of_one_network_have_the_same_subnet() {
        let of = |last: u8, bits| Subnet::new(Ipv4Addr::new(10, 77, 0, last).to_ipv6_mapped(), bits);
        assert_eq!(of(1, 96 + 24), of(2, 96 + 24));
        assert_ne!(of(1, 96 + 32), of(2, 96 + 32));
        assert_eq!(of(1, 96 + 24).to_string(), "10.77.0.0/24");
        assert_eq!(of(1, 0), Subnet::new(Ipv6Addr::LOCALHOST, 0));
        assert_eq!(Subnet::new("fe80::1".parse().unwrap(), 64).to_string(), "fe80::/64");
    }

    #[test]
    fn the_subnet_of_an_interface_is_the_systems() {
        let loopback = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        let found = Subnet::of_interface(loopback, Some("lo")).unwrap();
        assert_eq!(found.to_string(), "127.0.0.0/8");
        assert_eq!(Subnet::of_interface(loopback, Some("none such")), None);
    }
}
