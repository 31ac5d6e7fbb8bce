//! Opaque identities: what they stand for is the business of the crates above.

use std::fmt;

/// Names an exported range on its owner. Random and unguessable; never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemoteKey(pub u64);

/// Identity of a process at the other end of a link or connection. Never derived from host and port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub [u8; 16]);

/// One authenticated session: a control link and the data connections that belong to it carry the same id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

/// The cluster a peer belongs to. Peers of different clusters refuse each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(pub [u8; 16]);

impl ClusterId {
    /// What a dialler of a unix socket says that does not know the cluster: whoever may open the socket learns it.
    pub const ANY: Self = Self([0; 16]);
}

/// Writes 16 bytes as lower-case hexadecimal digits.
fn write_hex(bytes: [u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{:032x}", u128::from_be_bytes(bytes))
}

macro_rules! hex_id {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(self.0, f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "("))?;
                write_hex(self.0, f)?;
                f.write_str(")")
            }
        }
    };
}

hex_id!(PeerId);
hex_id!(SessionId);
hex_id!(ClusterId);

/// A key is a capability: it is shown by its last two bytes only.
impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteKey(…{:04x})", self.0 & 0xffff)
    }
}

impl fmt::Display for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "…{:04x}", self.0 & 0xffff)
    }
}
