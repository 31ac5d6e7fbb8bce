//! Every limit of this crate, with its reason.

/// Largest payload of one control frame. A batch of some thousand entries fits; one frame cannot exhaust memory.
pub const MAX_LINK_FRAME_BYTES: u32 = 4 << 20;
/// Calls one side keeps open on one link, and the most the acceptor works on at once for one session.
pub const MAX_LINK_CALLS: usize = 128;
/// Largest credential in a hello.
pub const MAX_CREDENTIAL_BYTES: usize = 1024;
/// Shortest cluster secret: guessing it offline from a recorded handshake must be out of reach.
pub const MIN_SECRET_BYTES: usize = 16;
/// Most lanes of one connection.
pub const MAX_LANES: usize = 16;
/// Largest payload of one data frame.
pub const MAX_DATA_FRAME_BYTES: u32 = 16 << 20;
/// Most transfers in one batch.
pub const MAX_BATCH_TRANSFERS: usize = 4096;
