//! Ids and counters as types of their own, so that none is taken for another.
//!
//! In human-readable formats (JSON, TOML) 128-bit ids are 32 lower-case hex digits; on the wire they are 16 bytes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

/// An id's text is not 32 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {text:?} is not 32 hexadecimal digits")]
pub struct ParseIdError {
    kind: &'static str,
    text: String,
}

fn parse_hex(kind: &'static str, text: &str) -> Result<[u8; 16], ParseIdError> {
    let refuse = || ParseIdError {
        kind,
        text: text.chars().take(64).collect(),
    };
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(refuse());
    }
    u128::from_str_radix(text, 16)
        .map(u128::to_be_bytes)
        .map_err(|_| refuse())
}

macro_rules! id_of_128_bits {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The id with these bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// The id's bytes.
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", u128::from_be_bytes(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex(stringify!($name), text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    self.0.serialize(serializer)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                    text.parse().map_err(serde::de::Error::custom)
                } else {
                    <[u8; 16]>::deserialize(deserializer).map(Self)
                }
            }
        }
    };
}

id_of_128_bits! {
    /// A node: made once, kept in its state directory, never derived from an address.
    NodeId
}
id_of_128_bits! {
    /// A cluster: every handshake names it. Also the constant under which keys are hashed.
    ClusterId
}
id_of_128_bits! {
    /// One authenticated link of a client, made by the client when it dials.
    SessionId
}
id_of_128_bits! {
    /// One put attempt, made by the client and the same in all retries of that attempt.
    PutId
}
id_of_128_bits! {
    /// The keyed 128-bit hash of a namespace and a key (see [`crate::name::ObjectName::hash`]).
    KeyHash
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter! {
    /// Which life of a node: max(stored + 1, Unix time in ms), stored before the node serves.
    Incarnation(u64)
}
counter! {
    /// A segment of one node, counted up from 1 in the order of mounting within one incarnation.
    SegmentId(u32)
}
counter! {
    /// A descriptor's place in the table beside its segment.
    Slot(u32)
}
counter! {
    /// Which use of a region: never repeated for a node, new at each reuse. 0 means that the region holds no object.
    Generation(u64)
}
counter! {
    /// How often a key was replaced or removed.
    Epoch(u64)
}

impl ClusterId {
    /// The id of the cluster with this name: SipHash-2-4 with 128 bits of output and a key of zeroes over the name's
    /// bytes.
    pub fn of_name(name: &str) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(name.as_bytes());
        Self(hasher.finish128().as_bytes())
    }
}

impl Generation {
    /// The generation of a descriptor that describes nothing.
    pub const NONE: Self = Self(0);

    /// The value before the first generation of `incarnation`. Incarnations are at least Unix milliseconds, so two
    /// lives of a node
    /// could only meet if one of them made more than 2^20 generations per millisecond, throughout.
    pub const fn base(incarnation: Incarnation) -> Self {
        Self(incarnation.0 << 20)
    }

    /// The generation after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Which object of a key: ordered by epoch; within an epoch the homes decide, and as a tie-break the lower put id wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Version {
    /// Raised by replace and remove.
    pub epoch: Epoch,
    /// The put that made the object.
    pub put_id: PutId,
}

impl Version {
    /// Whether this object stays when both are found without a decision of the homes between them.
    pub fn wins_over(&self, other: &Self) -> bool {
        (self.epoch, std::cmp::Reverse(self.put_id)) > (other.epoch, std::cmp::Reverse(other.put_id))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.put_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hex_in_json_and_bytes_on_the_wire() {
        let id = NodeId::from_bytes(*b"0123456789abcdef");
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, "\"30313233343536373839616263646566\"");
        assert_eq!(serde_json::from_str::<NodeId>(&json).unwrap(), id);
        assert_eq!(postcard::to_stdvec(&id).unwrap(), b"0123456789abcdef");
    }

    #[test]
    fn text_that_is_no_id_is_refused_by_name() {
        for text in [
            "",
            "12",
            "+0313233343536373839616263646566",
            "g0313233343536373839616263646566",
            "é",
        ] {
            let error = text.parse::<PutId>().unwrap_err();
            assert!(error.to_string().contains("PutId"), "{error}");
        }
    }

    #[test]
    fn the_higher_epoch_wins_then_the_lower_put_id() {
        let version = |epoch, id| Version {
            epoch: Epoch(epoch),
            put_id: PutId::from_bytes([id; 16]),
        };
        assert!(version(2, 9).wins_over(&version(1, 1)));
        assert!(version(1, 1).wins_over(&version(1, 9)));
        assert!(!version(1, 1).wins_over(&version(1, 1)));
    }

    #[test]
    fn generations_of_successive_incarnations_do_not_meet() {
        let first = Generation::base(Incarnation(1_790_000_000_000));
        let second = Generation::base(Incarnation(1_790_000_000_001));
        assert!(first.0 + (1 << 20) <= second.0);
        assert_ne!(first.next(), Generation::NONE);
    }
}
