//! Ids, control messages and on-memory formats of Tenon.
//!
//! This crate is the leaf of the workspace: what two processes must agree on, and nothing else. It does no I/O,
//! knows no sockets, no storage and no async runtime. Everything that crosses a wire or lies in shared memory is
//! fixed-width, versioned and length-limited here, and nowhere else.
//!
//! * [`ids`] – node, segment, session and put ids; incarnations, generations, versions.
//! * [`name`] – namespaces, keys and their 128-bit hash.
//! * [`checksum`] – CRC-64/NVME, per piece and whole.
//! * [`table`] – the descriptor and key table that lie beside a segment.
//! * [`placement`] – what nodes say of their room, dry runs, maps of segments.
//! * [`segments`] – the segments of nodes, and how they come and go.
//! * [`message`] – what the control service is asked and what it answers.
//! * [`overview`] – what a node tells of itself and of the other members.
//! * [`error`] – the stable error codes.
//! * [`codec`] – bytes from messages and back.
//! * [`limits`] – every bound of the above.
#![forbid(unsafe_code)]

/// The version of all that crosses a link. It is raised with each change that makes builds of before and after misread each
/// other; the handshake refuses who speaks another one. `tests/wire` has the formats of calls of this version.
pub const WIRE_VERSION: u16 = 4;

pub mod checksum;
pub mod codec;
pub mod error;
pub mod ids;
pub mod limits;
pub mod member;
pub mod message;
pub mod name;
pub mod overview;
pub mod placement;
pub mod segments;
pub mod table;
