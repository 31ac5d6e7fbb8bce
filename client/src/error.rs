//! Why an operation of the client did not succeed.

use crate::limits::GET_WHOLE_BYTES_MAX;
use tenon_protocol::error::{ErrorCode, NoSpace, ServiceError};
use tenon_protocol::ids::{NodeId, Version};
use tenon_protocol::limits::OBJECT_LEN_BYTES_MAX;
use tenon_protocol::name::NameError;

/// The error of one operation, or of one key of a batch. That there is no such object is no error but an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The key names no object.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The same key twice in one put.
    #[error("key {key:?} stands twice in one put, at {first} and {again}: an object has one content")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Index of its first item.
        first: usize,
        /// Index of the refused item.
        again: usize,
    },
    /// An object has at least one byte.
    #[error("an object of zero bytes cannot be put")]
    Empty,
    /// Longer than the format allows.
    #[error("an object of {len_bytes} bytes is over the limit of {OBJECT_LEN_BYTES_MAX}")]
    TooLarge {
        /// The object's length.
        len_bytes: u64,
    },
    /// Too long to be read into one piece of memory that the client allocates.
    #[error(
        "an object of {len_bytes} bytes is over the {GET_WHOLE_BYTES_MAX} that are read at once: read it piece by piece"
    )]
    TooLargeAtOnce {
        /// The object's length.
        len_bytes: u64,
    },
    /// The destination has another size than what is read into it. Nothing was read.
    #[error("the destination has {destination_bytes} bytes, what is asked for has {asked_bytes}")]
    SizeMismatch {
        /// Length of the object, or of the range if one was asked for.
        asked_bytes: u64,
        /// Length of the destination.
        destination_bytes: u64,
    },
    /// The range is empty or does not lie inside the object.
    #[error("the range from {start} to {end} is empty or not inside the object of {object_bytes} bytes")]
    Range {
        /// First byte of the range.
        start: u64,
        /// The byte after its last.
        end: u64,
        /// The object's length.
        object_bytes: u64,
    },
    /// A stream got more or fewer bytes than it was opened for.
    #[error("the stream was opened for {announced_bytes} bytes and got {written_bytes}")]
    LengthMismatch {
        /// What was announced.
        announced_bytes: u64,
        /// What was written.
        written_bytes: u64,
    },
    /// A node that is needed does not answer. `None` stands for the agent that this client is connected to.
    #[error("{message}")]
    Unavailable {
        /// Who does not answer.
        node: Option<NodeId>,
        /// Who that is, and what it was needed for.
        message: String,
    },
    /// The object could not be placed.
    #[error("{message}")]
    NoSpace {
        /// Why, in numbers.
        numbers: Box<NoSpace>,
        /// The same in words.
        message: String,
    },
    /// A replica was found, and what was read from it is not the object. Nothing of it was delivered.
    #[error("reading from node {node} failed: {fault}")]
    FailedRead {
        /// Whose replica.
        node: NodeId,
        /// What is wrong with it.
        fault: ReadFault,
    },
    /// The object was replaced or removed while it was read in several parts.
    #[error("the object was replaced or removed while it was read: it was version {expected}")]
    Changed {
        /// The version that was opened.
        expected: Version,
    },
    /// At each look the object lay elsewhere, and was gone from there when it was read.
    #[error("the object was replaced or moved {times} times while it was read")]
    Restless {
        /// How often.
        times: u32,
    },
    /// The deadline passed.
    #[error("the deadline passed while {during}")]
    Deadline {
        /// What was under way.
        during: String,
    },
    /// This process has not the memory that the operation needs.
    #[error("cannot allocate {len_bytes} bytes: {reason}")]
    Memory {
        /// How much.
        len_bytes: u64,
        /// What the system said.
        reason: String,
    },
    /// The peer broke the protocol: a fault of one of the programs.
    #[error("the agent's answer makes no sense: {reason}")]
    Protocol {
        /// What is wrong with it.
        reason: String,
    },
    /// Another error that the service answered.
    #[error("{0}")]
    Service(ServiceError),
}

/// What is wrong with a replica that was read under the right generation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadFault {
    /// A piece's bytes have another checksum than was stored for it.
    #[error("piece {piece} has checksum {found:#018x} where {expected:#018x} was stored")]
    Piece {
        /// Index of the piece.
        piece: u64,
        /// What was stored when the object was put.
        expected: u64,
        /// Of the bytes that arrived.
        found: u64,
    },
    /// The pieces' checksums do not combine to the whole's.
    #[error("the checksums of its pieces combine to {found:#018x}, that of the whole is {expected:#018x}")]
    Sums {
        /// The whole's.
        expected: u64,
        /// What the pieces' combine to.
        found: u64,
    },
    /// The table's row does not have the checksum that the descriptor names.
    #[error("its row has checksum {found:#018x} where {expected:#018x} was stored")]
    Row {
        /// What the descriptor names.
        expected: u64,
        /// Of the row that arrived.
        found: u64,
    },
    /// The descriptor or row cannot be understood.
    #[error("{0}")]
    Table(#[from] tenon_protocol::table::TableError),
    /// The table describes something else than what the index said would be there.
    #[error("its {field} is {found}, {expected} was expected")]
    Other {
        /// Which field.
        field: &'static str,
        /// What was expected.
        expected: String,
        /// What the table says.
        found: String,
    },
}

impl ClientError {
    /// The stable code of this error, the same that the service uses.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Name(_) => ErrorCode::InvalidName,
            Self::DuplicateKey { .. } | Self::SizeMismatch { .. } | Self::TooLargeAtOnce { .. } => {
                ErrorCode::InvalidArgument
            }
            Self::Empty => ErrorCode::EmptyObject,
            Self::TooLarge { .. } => ErrorCode::ObjectTooLarge,
            Self::Range { .. } => ErrorCode::RangeNotSatisfiable,
            Self::LengthMismatch { .. } => ErrorCode::LengthMismatch,
            Self::Unavailable { .. } => ErrorCode::Unavailable,
            Self::NoSpace { .. } => ErrorCode::NoSpace,
            Self::FailedRead { .. } => ErrorCode::FailedRead,
            Self::Changed { .. } | Self::Restless { .. } => ErrorCode::Conflict,
            Self::Deadline { .. } => ErrorCode::DeadlineExceeded,
            Self::Memory { .. } => ErrorCode::Overloaded,
            Self::Protocol { .. } => ErrorCode::Internal,
            Self::Service(error) => error.code,
        }
    }

    /// The node that is meant, if one is.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Self::Unavailable { node, .. } => *node,
            Self::FailedRead { node, .. } => Some(*node),
            Self::Service(error) => error.node,
            _ => None,
        }
    }

    pub(crate) fn deadline(during: impl Into<String>) -> Self {
        Self::Deadline { during: during.into() }
    }

    pub(crate) fn unavailable(node: NodeId, doing: &str) -> Self {
        ServiceError::unavailable(node, doing).into()
    }

    pub(crate) fn protocol(reason: impl Into<String>) -> Self {
        Self::Protocol { reason: reason.into() }
    }
}

impl From<ServiceError> for ClientError {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError {
                code: ErrorCode::Unavailable,
                message,
                node,
                ..
            } => Self::Unavailable { node, message },
            ServiceError {
                code: ErrorCode::NoSpace,
                message,
                no_space: Some(numbers),
                ..
            } => Self::NoSpace { numbers, message },
            error => Self::Service(error),
        }
    }
}

impl From<ClientError> for ServiceError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Service(error) => error,
            ClientError::NoSpace { numbers, message } => Self {
                no_space: Some(numbers),
                ..Self::new(ErrorCode::NoSpace, message)
            },
            error => Self {
                node: error.node(),
                ..Self::new(error.code(), error.to_string())
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_errors_survive_the_way_through_the_client() {
        let node = NodeId::from_bytes([7; 16]);
        let numbers = NoSpace {
            asked_bytes: 1,
            free_bytes: 2,
            largest_free_bytes: 3,
            evictable_bytes: 4,
            held_bytes: 5,
            largest_segment_bytes: 10,
            entries_looked_at: 6,
            stop_reason: "all looked at".into(),
        };
        for error in [
            ServiceError::unavailable(node, "reading"),
            ServiceError::no_space(numbers),
            ServiceError::new(ErrorCode::UnknownPut, "never reserved"),
        ] {
            let code = error.code;
            let through = ClientError::from(error.clone());
            assert_eq!(through.code(), code);
            assert_eq!(ServiceError::from(through), error);
        }
    }

    #[test]
    fn a_failed_read_keeps_its_code_and_node_for_the_service() {
        let node = NodeId::from_bytes([7; 16]);
        let fault = ReadFault::Piece {
            piece: 3,
            expected: 1,
            found: 2,
        };
        let error = ServiceError::from(ClientError::FailedRead { node, fault });
        assert_eq!((error.code, error.node), (ErrorCode::FailedRead, Some(node)));
        assert!(error.message.contains("piece 3"), "{}", error.message);
    }
}
