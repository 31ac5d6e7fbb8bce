//! Namespaces, keys and the name (namespace, key) of an object.

use crate::ids::{ClusterId, KeyHash};
use crate::limits::{KEY_LEN_BYTES_MAX, NAMESPACE_LEN_BYTES_MAX};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fmt;
use std::hash::Hasher;

/// Why a text names no object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A key has at least one byte.
    #[error("the key is empty")]
    EmptyKey,
    /// A key has at most [`KEY_LEN_BYTES_MAX`] bytes.
    #[error("the key has {len_bytes} bytes, at most {KEY_LEN_BYTES_MAX} are allowed")]
    KeyTooLong {
        /// The refused key's length.
        len_bytes: usize,
    },
    /// Control characters (Unicode category Cc) are refused anywhere in a key.
    #[error("the key has the control character U+{code_point:04X} at byte {at_byte}")]
    ControlCharacter {
        /// The character.
        code_point: u32,
        /// Where it stands.
        at_byte: usize,
    },
    /// A namespace is 1 to [`NAMESPACE_LEN_BYTES_MAX`] of `A-Z a-z 0-9 . _ -`.
    #[error("namespace {text:?} is not 1 to {NAMESPACE_LEN_BYTES_MAX} of A-Z a-z 0-9 . _ -")]
    Namespace {
        /// The refused text, cut to 64 characters.
        text: String,
    },
}

/// A set of keys that is looked up together and kept apart from others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Box<str>);

impl Namespace {
    /// The namespace of requests that name none.
    pub const DEFAULT: &'static str = "default";

    /// Checks and takes a namespace name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if text.is_empty() || text.len() > NAMESPACE_LEN_BYTES_MAX || !text.bytes().all(allowed) {
            return Err(NameError::Namespace {
                text: text.chars().take(64).collect(),
            });
        }
        Ok(Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The full name of an object. Two objects are the same key exactly if these bytes are equal: nothing is normalised.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    namespace: Namespace,
    key: Box<str>,
}

impl ObjectName {
    /// Checks and takes a key in a namespace.
    pub fn new(namespace: &Namespace, key: &str) -> Result<Self, NameError> {
        if key.is_empty() {
            return Err(NameError::EmptyKey);
        }
        if key.len() > KEY_LEN_BYTES_MAX {
            return Err(NameError::KeyTooLong { len_bytes: key.len() });
        }
        if let Some((at_byte, character)) = key.char_indices().find(|(_, character)| character.is_control()) {
            return Err(NameError::ControlCharacter {
                code_point: character.into(),
                at_byte,
            });
        }
        Ok(Self {
            namespace: namespace.clone(),
            key: key.into(),
        })
    }

    /// The namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The key within the namespace.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// SipHash-2-4 with 128 bits of output over namespace, a zero byte and key, keyed with the cluster's id. (A
    /// namespace has no
    /// zero byte, so no two names share an input.)
    pub fn hash(&self, cluster: ClusterId) -> KeyHash {
        let mut hasher = SipHasher24::new_with_key(&cluster.to_bytes());
        hasher.write(self.namespace.0.as_bytes());
        hasher.write(&[0]);
        hasher.write(self.key.as_bytes());
        KeyHash::from_bytes(hasher.finish128().as_bytes())
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(key: &str) -> Result<ObjectName, NameError> {
        ObjectName::new(&Namespace::new(Namespace::DEFAULT).unwrap(), key)
    }

    #[test]
    fn keys_of_every_allowed_kind_are_taken_as_they_are() {
        for key in [
            "a",
            "with/slash",
            "100%",
            "two words",
            "schlüssel/鍵",
            &"x".repeat(KEY_LEN_BYTES_MAX),
        ] {
            assert_eq!(named(key).unwrap().key(), key);
        }
    }

    #[test]
    fn bad_keys_are_refused_with_the_reason() {
        assert_eq!(named(""), Err(NameError::EmptyKey));
        assert_eq!(named(&"x".repeat(1025)), Err(NameError::KeyTooLong { len_bytes: 1025 }));
        assert_eq!(
            named("a\nb"),
            Err(NameError::ControlCharacter {
                code_point: 10,
                at_byte: 1
            })
        );
        assert_eq!(
            named("\u{85}"),
            Err(NameError::ControlCharacter {
                code_point: 0x85,
                at_byte: 0
            })
        );
    }

    #[test]
    fn bad_namespaces_are_refused() {
        for text in ["", "a/b", "é", &"n".repeat(64)] {
            assert!(Namespace::new(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_hash_depends_on_cluster_namespace_and_key() {
        let cluster = ClusterId::from_bytes([1; 16]);
        let hash = named("k").unwrap().hash(cluster);
        assert_eq!(hash, named("k").unwrap().hash(cluster));
        assert_ne!(hash, named("k").unwrap().hash(ClusterId::from_bytes([2; 16])));
        let other = ObjectName::new(&Namespace::new("other").unwrap(), "k").unwrap();
        assert_ne!(hash, other.hash(cluster));
        assert_ne!(hash, named("l").unwrap().hash(cluster));
    }
}
