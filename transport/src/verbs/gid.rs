//! The addresses of a port, and which of them is used.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A port's address: 16 bytes in network order, of the form of an IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The address as IPv6.
    #[must_use]
    pub fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    /// The IPv4 address that it maps, if it maps one.
    #[must_use]
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        self.ipv6().to_ipv4_mapped()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ipv6().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// What packets look like that are sent under an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// Native InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet only, not routable.
    RoceV1,
    /// RoCE version 2: UDP over IP.
    RoceV2,
    /// A kind that this program does not know.
    Unknown(u32),
}

impl From<u32> for GidKind {
    fn from(number: u32) -> Self {
        match number {
            rdma_sys::IBV_GID_TYPE_IB => Self::InfiniBand,
            rdma_sys::IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            rdma_sys::IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::RoceV1 => f.write_str("RoCE v1"),
            Self::RoceV2 => f.write_str("RoCE v2"),
            Self::Unknown(number) => write!(f, "unknown kind {number}"),
        }
    }
}

/// A row of a GID table that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GidEntry {
    /// The port whose table it is in.
    pub port: u32,
    /// Its place in the table.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// What packets look like.
    pub kind: GidKind,
    /// Index of the network interface that it belongs to; 0 if the device does not say.
    pub interface: u32,
}

impl GidEntry {
    /// Name of the network interface that it belongs to, if it has one.
    #[must_use]
    pub fn interface_name(&self) -> Option<String> {
        let name = nix::net::if_::if_indextoname(self.interface).ok()?;
        Some(name.to_string_lossy().into_owned())
    }
}

/// How well an address serves, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    RoceV2Ipv4,
    RoceV2Ipv6,
    InfiniBand,
    RoceV2LinkLocal,
    RoceV1,
    Unusable,
}

impl Rank {
    fn of(entry: &GidEntry) -> Self {
        let Ok(_) = u8::try_from(entry.index) else {
            return Self::Unusable;
        };
        match entry.kind {
            GidKind::RoceV2 if entry.gid.ipv4().is_some() => Self::RoceV2Ipv4,
            GidKind::RoceV2 if entry.gid.ipv6().is_unicast_link_local() => Self::RoceV2LinkLocal,
            GidKind::RoceV2 => Self::RoceV2Ipv6,
            GidKind::InfiniBand => Self::InfiniBand,
            GidKind::RoceV1 => Self::RoceV1,
            GidKind::Unknown(_) => Self::Unusable,
        }
    }
}

/// Why an address was taken or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidVerdict {
    /// It is used: no other is better, and those as good come later in the table.
    Chosen,
    /// It is used: the configuration names it.
    Configured,
    /// The configuration names another.
    NotConfigured,
    /// As good as the chosen one, which comes earlier in the table.
    Later,
    /// Routed and easy to recognise, but an address that maps IPv4 is there too.
    Ipv6,
    /// Reaches one link only, and a better address is there.
    LinkLocal,
    /// RoCE v1 is not routable, and a better address is there.
    RoceV1,
    /// Native InfiniBand, and RoCE v2 is there.
    InfiniBand,
    /// Its kind is unknown, or its place in the table is beyond what a connection can name (255).
    Unusable,
}

impl fmt::Display for GidVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chosen => "chosen: the best kind, and the first of it",
            Self::Configured => "chosen: the configuration names it",
            Self::NotConfigured => "not used: the configuration names another",
            Self::Later => "not used: as good as the chosen one, which comes first",
            Self::Ipv6 => "not used: an address that maps IPv4 is preferred",
            Self::LinkLocal => "not used: link-local, reaches one link only",
            Self::RoceV1 => "not used: RoCE v1 is not routable",
            Self::InfiniBand => "not used: a RoCE v2 address is preferred",
            Self::Unusable => "not usable: of unknown kind, or too far down the table",
        })
    }
}

/// Judges every row of a port's table; at most one is chosen, and the same table always gives the same choice.
/// `configured` is the index that an operator asks for.
///
/// Preferred, in this order: RoCE v2 with an address that maps IPv4, RoCE v2 with a routed IPv6 address, native
/// InfiniBand, RoCE v2 link-local, RoCE v1; among equals the lowest index.
#[must_use]
pub fn judge_gids(entries: &[GidEntry], configured: Option<u32>) -> Vec<(GidEntry, GidVerdict)> {
    let best = entries
        .iter()
        .map(|entry| (Rank::of(entry), entry.index))
        .filter(|(rank, _)| *rank != Rank::Unusable)
        .min();
    let verdict = |entry: &GidEntry| {
        let rank = Rank::of(entry);
        match (configured, best) {
            _ if rank == Rank::Unusable => GidVerdict::Unusable,
            (Some(index), _) if index == entry.index => GidVerdict::Configured,
            (Some(_), _) => GidVerdict::NotConfigured,
            (None, Some(best)) if best == (rank, entry.index) => GidVerdict::Chosen,
            (None, Some((best, _))) if best == rank => GidVerdict::Later,
            (None, _) => match rank {
                Rank::RoceV2Ipv4 => GidVerdict::Later,
                Rank::RoceV2Ipv6 => GidVerdict::Ipv6,
                Rank::InfiniBand => GidVerdict::InfiniBand,
                Rank::RoceV2LinkLocal => GidVerdict::LinkLocal,
                Rank::RoceV1 => GidVerdict::RoceV1,
                Rank::Unusable => GidVerdict::Unusable,
            },
        }
    };
    entries.iter().map(|entry| (*entry, verdict(entry))).collect()
}

/// The row that [`judge_gids`] chooses.
#[must_use]
pub fn choose_gid(entries: &[GidEntry], configured: Option<u32>) -> Option<GidEntry> {
    judge_gids(entries, configured)
        .into_iter()
        .find(|(_, verdict)| matches!(verdict, GidVerdict::Chosen | GidVerdict::Configured))
        .map(|(entry, _)| entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, address: &str, kind: GidKind) -> GidEntry {
        let address: Ipv6Addr = address.parse().unwrap();
        GidEntry {
            port: 1,
            index,
            gid: Gid(address.octets()),
            kind,
            interface: 0,
        }
    }

    fn table() -> Vec<GidEntry> {
        vec![
            entry(0, "fe80::1", GidKind::RoceV1),
            entry(1, "fe80::1", GidKind::RoceV2),
            entry(2, "::ffff:10.0.0.1", GidKind::RoceV1),
            entry(3, "::ffff:10.0.0.1", GidKind::RoceV2),
            entry(4, "2001:db8::1", GidKind::RoceV2),
            entry(5, "::ffff:10.0.1.1", GidKind::RoceV2),
            entry(256, "::ffff:10.0.0.9", GidKind::RoceV2),
            entry(6, "::1", GidKind::Unknown(77)),
        ]
    }

    #[test]
    fn roce_v2_that_maps_ipv4_is_preferred_and_every_row_says_why() {
        let verdicts: Vec<_> = judge_gids(&table(), None)
            .into_iter()
            .map(|(_, verdict)| verdict)
            .collect();
        assert_eq!(
            verdicts,
            [
                GidVerdict::RoceV1,
                GidVerdict::LinkLocal,
                GidVerdict::RoceV1,
                GidVerdict::Chosen,
                GidVerdict::Ipv6,
                GidVerdict::Later,
                GidVerdict::Unusable,
                GidVerdict::Unusable,
            ]
        );
        let chosen = choose_gid(&table(), None).unwrap();
        assert_eq!((chosen.index, chosen.gid.ipv4()), (3, Some(Ipv4Addr::new(10, 0, 0, 1))));
    }

    #[test]
    fn the_choice_does_not_depend_on_the_order_of_the_rows() {
        let mut rows = table();
        for _ in 0..rows.len() {
            rows.rotate_left(1);
            assert_eq!(choose_gid(&rows, None).unwrap().index, 3);
        }
        rows.reverse();
        assert_eq!(choose_gid(&rows, None).unwrap().index, 3);
    }

    #[test]
    fn what_is_configured_wins_if_it_can_be_used() {
        assert_eq!(choose_gid(&table(), Some(1)).unwrap().index, 1);
        assert_eq!(choose_gid(&table(), Some(6)), None, "of unknown kind");
        assert_eq!(choose_gid(&table(), Some(99)), None, "not there");
    }

    #[test]
    fn without_a_good_address_the_next_best_is_taken() {
        assert_eq!(choose_gid(&table()[..3], None).unwrap().index, 1);
        assert_eq!(choose_gid(&table()[..1], None).unwrap().index, 0);
        assert_eq!(choose_gid(&table()[6..], None), None);
        let infiniband = [entry(0, "fe80::2", GidKind::InfiniBand)];
        assert_eq!(choose_gid(&infiniband, None).unwrap().index, 0);
    }
}
