//! The stable error codes, their texts on the wire, and the error that every call of the control service may answer.

use crate::ids::{NodeId, PutId};
use crate::limits::ERROR_MESSAGE_LEN_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// What went wrong, for programs. New codes are added at the end; texts never change.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl ErrorCode {
            /// Every code, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The stable text of the code.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

error_codes! {
    /// The key or namespace is empty, too long or holds a forbidden character.
    InvalidName = "invalid_name",
    /// Another argument makes no sense; the message says which.
    InvalidArgument = "invalid_argument",
    /// An object of zero bytes.
    EmptyObject = "empty_object",
    /// An object larger than the largest segment it may use, or than the format allows.
    ObjectTooLarge = "object_too_large",
    /// No node that may be used could hold the object; `no_space` says why in numbers.
    NoSpace = "no_space",
    /// A node that is needed does not answer; `node` names it.
    Unavailable = "unavailable",
    /// The named node is not in the view.
    UnknownNode = "unknown_node",
    /// The named segment is not mounted on that node.
    UnknownSegment = "unknown_segment",
    /// No such put is under way: never reserved, aborted, or expired.
    UnknownPut = "unknown_put",
    /// The bytes that arrived are not those that the committer described.
    ChecksumMismatch = "checksum_mismatch",
    /// A replica was found but could not be read rightly; nothing of it was delivered.
    FailedRead = "failed_read",
    /// The object changed while the call was under way.
    Conflict = "conflict",
    /// The call's deadline passed.
    DeadlineExceeded = "deadline_exceeded",
    /// A bounded table or queue is full; try again later.
    Overloaded = "overloaded",
    /// The caller may not do this.
    Forbidden = "forbidden",
    /// The node is draining or stopping.
    Draining = "draining",
    /// The bytes are no request that this version understands.
    MalformedRequest = "malformed_request",
    /// No such object.
    NotFound = "not_found",
    /// A body without a length, where one is needed.
    LengthRequired = "length_required",
    /// A body shorter or longer than announced.
    LengthMismatch = "length_mismatch",
    /// The asked range lies outside the object.
    RangeNotSatisfiable = "range_not_satisfiable",
    /// The grant is unknown, expired, revoked, or belongs to another session.
    GrantRefused = "grant_refused",
    /// A fault of the program itself; the log has the detail.
    Internal = "internal",
    /// Bytes of the object were never written.
    BytesMissing = "bytes_missing",
    /// The put id was used for other bytes of the key before; each put has an id of its own.
    PutIdReused = "put_id_reused",
    /// Transfers must go over RDMA, and cannot.
    RdmaRequired = "rdma_required",
    /// The memory of a segment cannot be had: not enough is there, or the system locks no more of it.
    NoMemory = "no_memory",
    /// The segment holds pinned objects, which would be lost.
    PinnedObjects = "pinned_objects",
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why nothing could be placed, in numbers. Bytes are of the nodes and segments that the request might have used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoSpace {
    /// What was asked for.
    pub asked_bytes: u64,
    /// Payload bytes that are free in all.
    pub free_bytes: u64,
    /// An upper bound of the largest free region.
    pub largest_free_bytes: u64,
    /// Bytes of objects that may be evicted.
    pub evictable_bytes: u64,
    /// Bytes of dropped regions that are still in use by the owner's own transfers.
    pub held_bytes: u64,
    /// Bytes of the largest segment: nothing longer can ever be placed.
    pub largest_segment_bytes: u64,
    /// Places that were looked at.
    pub entries_looked_at: u32,
    /// Why the search stopped.
    pub stop_reason: String,
}

/// The error of one call or of one key in a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ServiceError {
    /// For programs.
    pub code: ErrorCode,
    /// For people: what failed, with which values, what to do. At most [`ERROR_MESSAGE_LEN_BYTES_MAX`] bytes.
    pub message: String,
    /// The node that is meant, with [`ErrorCode::Unavailable`].
    pub node: Option<NodeId>,
    /// The numbers, with [`ErrorCode::NoSpace`], and with [`ErrorCode::ObjectTooLarge`] where segments are the reason.
    pub no_space: Option<Box<NoSpace>>,
}

impl ServiceError {
    /// An error without node and numbers.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.len() > ERROR_MESSAGE_LEN_BYTES_MAX {
            let end = (0..=ERROR_MESSAGE_LEN_BYTES_MAX)
                .rev()
                .find(|&at| message.is_char_boundary(at))
                .unwrap_or(0);
            message.truncate(end);
        }
        Self {
            code,
            message,
            node: None,
            no_space: None,
        }
    }

    /// Whether what was asked for may have been carried out all the same.
    #[must_use]
    pub fn leaves_open(&self) -> bool {
        matches!(self.code, ErrorCode::Unavailable | ErrorCode::DeadlineExceeded)
    }

    /// The same of a put that may have been carried out all the same.
    #[must_use]
    pub fn of_unknown_put(self, put_id: PutId) -> Self {
        const UNKNOWN: &str = "whether the put is stored is not known: repeat it with the same put id";
        if self.message.contains(UNKNOWN) {
            return self;
        }
        let message = Self::new(self.code, format!("{}; {UNKNOWN}, {put_id}", self.message)).message;
        Self { message, ..self }
    }

    /// `node` does not answer; `doing` says what it was needed for.
    pub fn unavailable(node: NodeId, doing: &str) -> Self {
        Self {
            node: Some(node),
            ..Self::new(ErrorCode::Unavailable, format!("node {node} does not answer: {doing}"))
        }
    }

    /// Nothing could be placed: the message has sizes for people, the numbers those for programs.
    pub fn no_space(numbers: NoSpace) -> Self {
        let [mut asked, mut largest] = [numbers.asked_bytes, numbers.largest_free_bytes].map(size);
        if asked == largest {
            [asked, largest] = [numbers.asked_bytes, numbers.largest_free_bytes].map(|bytes| format!("{bytes} bytes"));
        }
        let message = format!(
            "no room for {asked}: {} free, largest free region at most {largest}, {} evictable, {} held; looked at {} places ({})",
            size(numbers.free_bytes),
            size(numbers.evictable_bytes),
            size(numbers.held_bytes),
            numbers.entries_looked_at,
            numbers.stop_reason
        );
        Self {
            no_space: Some(Box::new(numbers)),
            ..Self::new(ErrorCode::NoSpace, message)
        }
    }

    /// No segment could ever hold the object.
    pub fn too_large(numbers: NoSpace) -> Self {
        let message = format!(
            "an object of {} bytes is larger than the largest segment, which has {}",
            numbers.asked_bytes, numbers.largest_segment_bytes
        );
        Self {
            no_space: Some(Box::new(numbers)),
            ..Self::new(ErrorCode::ObjectTooLarge, message)
        }
    }
}

/// Bytes as people read them.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let power = bytes.checked_ilog2().unwrap_or(0) / 10;
    let Some(unit) = power
        .checked_sub(1)
        .and_then(|unit| UNITS.get(unit as usize).or(UNITS.last()))
    else {
        return format!("{bytes} bytes");
    };
    let shift = 10 * power.min(4);
    let hundredths = (u128::from(bytes) * 100) >> shift;
    format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100)
}

impl From<crate::name::NameError> for ServiceError {
    fn from(error: crate::name::NameError) -> Self {
        Self::new(ErrorCode::InvalidName, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_once_how_to_learn_whether_a_put_is_stored() {
        let put_id = PutId::from_bytes([7; 16]);
        let error = ServiceError::new(ErrorCode::DeadlineExceeded, "too late").of_unknown_put(put_id);
        assert!(
            error
                .message
                .starts_with("too late; whether the put is stored is not known"),
            "{error}"
        );
        assert!(error.message.ends_with(&put_id.to_string()), "{error}");
        assert_eq!(error.clone().of_unknown_put(put_id), error);
    }

    #[test]
    fn codes_are_distinct_and_appear_in_json_as_their_text() {
        let texts: std::collections::HashSet<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), ErrorCode::ALL.len());
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let error = ServiceError::new(ErrorCode::Internal, "é".repeat(ERROR_MESSAGE_LEN_BYTES_MAX));
        assert!(error.message.len() <= ERROR_MESSAGE_LEN_BYTES_MAX);
    }

    fn no_space(asked_bytes: u64, largest_free_bytes: u64) -> ServiceError {
        ServiceError::no_space(NoSpace {
            asked_bytes,
            free_bytes: 3 << 39,
            largest_free_bytes,
            evictable_bytes: 0,
            held_bytes: 0,
            largest_segment_bytes: 3 << 39,
            entries_looked_at: 2,
            stop_reason: "nothing_fits".into(),
        })
    }

    #[test]
    fn missing_room_is_told_in_sizes_that_people_read() {
        assert_eq!(
            no_space((5 << 20) + (1 << 19), 1_536).message,
            "no room for 5.50 MiB: 1.50 TiB free, largest free region at most 1.50 KiB, 0 bytes evictable, 0 bytes held; \
             looked at 2 places (nothing_fits)"
        );
        assert!(
            no_space(u64::MAX, 1)
                .message
                .starts_with("no room for 16777215.99 TiB: ")
        );
    }

    #[test]
    fn sizes_that_read_alike_are_told_to_the_byte() {
        let message = no_space((1 << 30) + 1, 1 << 30).message;
        assert!(message.starts_with("no room for 1073741825 bytes: "), "{message}");
        assert!(message.contains("at most 1073741824 bytes, "), "{message}");
    }
}
