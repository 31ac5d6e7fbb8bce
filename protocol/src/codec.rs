//! Bytes from messages and back. The encoding is postcard: fixed by the type, not self-describing; the link's handshake
//! fixes the version
//! of the types.

use crate::limits::MESSAGE_LEN_BYTES_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a message could not be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Longer than [`MESSAGE_LEN_BYTES_MAX`].
    #[error("a control message of {len_bytes} bytes is over the limit of {MESSAGE_LEN_BYTES_MAX}")]
    TooLong {
        /// The message's length.
        len_bytes: usize,
    },
    /// The bytes are no such message.
    #[error("{len_bytes} bytes are not a {kind}: {reason}")]
    Malformed {
        /// Which type was expected.
        kind: &'static str,
        /// How many bytes there were.
        len_bytes: usize,
        /// What the decoder found.
        reason: String,
    },
}

/// Encodes a message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = postcard::to_stdvec(message).map_err(|error| CodecError::Malformed {
        kind: std::any::type_name::<T>(),
        len_bytes: 0,
        reason: error.to_string(),
    })?;
    if bytes.len() > MESSAGE_LEN_BYTES_MAX {
        return Err(CodecError::TooLong { len_bytes: bytes.len() });
    }
    Ok(bytes)
}

/// Decodes a message that takes up exactly `bytes`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    if bytes.len() > MESSAGE_LEN_BYTES_MAX {
        return Err(CodecError::TooLong { len_bytes: bytes.len() });
    }
    let malformed = |reason: String| CodecError::Malformed {
        kind: std::any::type_name::<T>(),
        len_bytes: bytes.len(),
        reason,
    };
    match postcard::take_from_bytes::<T>(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(malformed(format!("{} bytes follow the message", rest.len()))),
        Err(error) => Err(malformed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{KeysRequest, Reply, Request};
    use proptest::prelude::*;

    fn locate() -> Request {
        Request::Locate(KeysRequest {
            namespace: "default".into(),
            keys: vec!["a".into(), "b".into()],
        })
    }

    #[test]
    fn a_message_survives_its_encoding() {
        assert_eq!(decode::<Request>(&encode(&locate()).unwrap()), Ok(locate()));
    }

    #[test]
    fn cut_lengthened_and_oversized_messages_are_refused() {
        let mut bytes = encode(&locate()).unwrap();
        assert!(matches!(
            decode::<Request>(&bytes[..bytes.len() - 1]),
            Err(CodecError::Malformed { .. })
        ));
        bytes.push(0);
        assert!(
            decode::<Request>(&bytes)
                .unwrap_err()
                .to_string()
                .contains("1 bytes follow")
        );
        let oversized = vec![0; MESSAGE_LEN_BYTES_MAX + 1];
        assert_eq!(
            decode::<Request>(&oversized),
            Err(CodecError::TooLong {
                len_bytes: oversized.len()
            })
        );
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Reply>(&bytes);
        }

        /// Every byte of a real message changed in turn: an error or another message, never a panic or an allocation of
        /// the claimed size.
        #[test]
        fn a_damaged_message_decodes_or_is_refused(at in 0usize..64, value: u8) {
            let mut bytes = encode(&locate()).unwrap();
            let at = at % bytes.len();
            bytes[at] = value;
            let _ = decode::<Request>(&bytes);
        }
    }
}
