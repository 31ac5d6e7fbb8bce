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
//! * [`message`] – what the control service is asked and what it answers.
//! * [`error`] – the stable error codes.
//! * [`codec`] – bytes from messages and back.
//! * [`limits`] – every bound of the above.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod codec;
pub mod error;
pub mod ids;
pub mod limits;
pub mod member;
pub mod message;
pub mod name;
pub mod placement;
pub mod table;
