//! Where nodes are: on loopback addresses that no other test uses at the same time, or in network namespaces.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use crate::network::{Namespace, Network};

/// Where every node under test serves HTTP, on its own address.
pub const HTTP_PORT: u16 = 7600;
/// Where every node under test serves the link, on its own address.
pub const LINK_PORT: u16 = 7601;
/// Where a proxy stands before a node, on the node's address.
pub const PROXY_PORT: u16 = 7602;
/// Whoever has bound this UDP port of an address owns the address.
const CLAIM_PORT: u16 = 7599;

/// An address of 127.77.0.0/16, owned until this is dropped. Outgoing connections never take ports of it, so a node that is restarted
/// finds its ports free.
#[derive(Debug)]
pub struct AddressLease {
    address: Ipv4Addr,
    _claim: UdpSocket,
}

impl AddressLease {
    /// Takes a free address, also among processes.
    pub fn take() -> Self {
        loop {
            let address = Ipv4Addr::new(127, 77, rand::random(), rand::random_range(1..=254));
            match UdpSocket::bind((address, CLAIM_PORT)) {
                Ok(claim) => {
                    return Self { address, _claim: claim };
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => panic!("cannot use the loopback address {address}: {error}"),
            }
        }
    }

    /// The address with a port.
    pub fn port(&self, port: u16) -> SocketAddr {
        (self.address, port).into()
    }
}

/// Where a node is.
#[derive(Debug)]
pub enum Place {
    /// On a loopback address of its own.
    Loopback(AddressLease),
    /// In a network namespace of its own: its HTTP front on the loopback address there, its link where the others reach it.
    Namespace(Namespace, Ipv4Addr),
}

impl Place {
    /// That of the node with this index in a private network.
    pub fn in_network(network: &Network, index: usize) -> Self {
        Self::Namespace(network.namespace(index), Network::address(index))
    }

    /// Where its HTTP front listens.
    pub fn http(&self) -> SocketAddr {
        match self {
            Self::Loopback(lease) => lease.port(HTTP_PORT),
            Self::Namespace(..) => (Ipv4Addr::LOCALHOST, HTTP_PORT).into(),
        }
    }

    /// Another port where others reach it.
    pub fn port(&self, port: u16) -> SocketAddr {
        match self {
            Self::Loopback(lease) => lease.port(port),
            Self::Namespace(_, address) => (*address, port).into(),
        }
    }

    /// The namespace it is in, if that is one of its own.
    pub fn namespace(&self) -> Option<&Namespace> {
        match self {
            Self::Loopback(_) => None,
            Self::Namespace(namespace, _) => Some(namespace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_owner_at_a_time() {
        let lease = AddressLease::take();
        assert!(UdpSocket::bind(lease.port(CLAIM_PORT)).is_err());
    }
}
