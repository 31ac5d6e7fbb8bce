//! Exit codes.

use std::process::ExitCode;
use tenon_protocol::error::ErrorCode;

/// How the command ended, for scripts. The numbers never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// There is no such object.
    Miss = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// A node or the agent does not answer, not in time, or not now: trying again may help.
    Unavailable = 3,
    /// No room for the object.
    NoSpace = 4,
    /// What was read or written is not what it should be; nothing wrong was delivered.
    FailedRead = 5,
    /// Not authenticated, or not allowed.
    Refused = 6,
    /// A key, length or other argument that is not possible, or a file that cannot be read.
    Invalid = 7,
    /// `tenon doctor` found something that keeps the host from serving as configured.
    Unfit = 8,
    /// A fault of a program, or output that cannot be written.
    Internal = 70,
    /// Ended by a signal.
    Interrupted = 130,
}

impl Exit {
    /// The code for an error of the service or the client.
    pub fn of(code: ErrorCode) -> Self {
        match code {
            ErrorCode::NotFound => Self::Miss,
            ErrorCode::Unavailable
            | ErrorCode::DeadlineExceeded
            | ErrorCode::Overloaded
            | ErrorCode::Draining
            | ErrorCode::UnknownPut
            | ErrorCode::RdmaRequired
            | ErrorCode::Conflict => Self::Unavailable,
            ErrorCode::NoSpace | ErrorCode::NoMemory => Self::NoSpace,
            ErrorCode::FailedRead | ErrorCode::ChecksumMismatch => Self::FailedRead,
            ErrorCode::Forbidden | ErrorCode::GrantRefused | ErrorCode::PinnedObjects => Self::Refused,
            ErrorCode::InvalidName
            | ErrorCode::InvalidArgument
            | ErrorCode::EmptyObject
            | ErrorCode::ObjectTooLarge
            | ErrorCode::UnknownNode
            | ErrorCode::UnknownSegment
            | ErrorCode::MalformedRequest
            | ErrorCode::LengthRequired
            | ErrorCode::LengthMismatch
            | ErrorCode::RangeNotSatisfiable
            | ErrorCode::BytesMissing
            | ErrorCode::PutIdReused => Self::Invalid,
            ErrorCode::Internal => Self::Internal,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// What `--help` says of them.
pub(super) const HELP: &str = "\
Exit codes:
  0   done
  1   miss: there is no such object
  2   wrong usage
  3   unavailable: a node or the agent does not answer, not within the deadline, or not now (overloaded, draining,
      another put or removal of the key came between): try again
  4   no space, or no memory for a segment
  5   failed read: bytes that do not have the checksum they should have; none of them were delivered
  6   refused: not authenticated, not allowed, or pinned objects would be lost
  7   invalid argument: a key, length, node or file that is not possible
  8   unfit: doctor found a problem, something that keeps the host from serving as configured (warnings end with 0)
  70  a fault of a program, or output that cannot be written
  130 ended by a signal
Of several keys that failed, the first decides.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_that_can_be_returned_is_in_the_help() {
        let codes = ErrorCode::ALL.iter().map(|&code| Exit::of(code));
        for exit in codes.chain([Exit::Done, Exit::Usage, Exit::Unfit, Exit::Interrupted]) {
            let line = format!("\n  {:<4}", exit as u8);
            assert!(HELP.contains(&line), "{exit:?}");
        }
    }

    #[test]
    fn the_kinds_of_failure_are_told_apart() {
        for (code, exit) in [
            (ErrorCode::NotFound, 1),
            (ErrorCode::Unavailable, 3),
            (ErrorCode::DeadlineExceeded, 3),
            (ErrorCode::NoSpace, 4),
            (ErrorCode::FailedRead, 5),
            (ErrorCode::Forbidden, 6),
            (ErrorCode::InvalidName, 7),
            (ErrorCode::EmptyObject, 7),
            (ErrorCode::Internal, 70),
        ] {
            assert_eq!(Exit::of(code) as u8, exit, "{code}");
        }
    }
}
