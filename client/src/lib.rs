//! Put and get for programs.
//!
//! A [`Client`] asks its agent, the *coordinator*, where to put and where things lie, and moves the bytes itself, straight between its memory and the
//! nodes that hold objects. It believes nothing that it reads: every piece is checked against the checksum that was stored with the object, and the
//! table entries against the name that was asked for, before a get is a hit.
//!
//! * [`Client::put_batch`], [`Client::get_batch`]: many objects, from and to memory of the caller's, one result per key.
//! * [`Client::put`], [`Client::get`]: one object at once.
//! * [`Client::put_stream`], [`Client::open`]: one object, piece by piece.
//! * [`Client::exists`], [`Client::exists_leading_run`], [`Client::remove`], [`Client::remove_page`], [`Client::keep`], [`Client::locate`], [`Client::stat`], [`Client::list`], [`Client::nodes`],
//!   [`Client::segments`].
//!
//! Two traits stand between these and the world: [`Control`], the questions, and [`Holders`], the ways to move bytes. [`Client::connect`] uses
//! [`LinkControl`] and [`RemoteHolders`]; an agent gives itself a client with calls in process.
//!
//! Architecture invariant: this crate knows neither `store-core` nor `agent`; it asks and moves bytes, and decides nothing about placement.
//! Architecture invariant: all reading goes through `read::Core::read`, so nothing unverified reaches a caller.
#![forbid(unsafe_code)]

mod batch;
mod client;
mod connect;
mod control;
mod credentials;
mod error;
mod get;
mod holders;
pub mod limits;
mod link_control;
mod locate;
mod marks;
mod put;
mod rdma;
mod rdma_failures;
mod read;
mod remote_holders;
mod remove;
mod slot;
mod time;

pub use client::Client;
pub use connect::{ConnectOptions, DEFAULT_CLUSTER_NAME};
pub use control::Control;
pub use error::{ClientError, ReadFault};
pub use get::{Check, GetItem, GetOutcome};
pub use holders::{HolderAccess, Holders, OwnSegments};
pub use link_control::LinkControl;
pub use put::stream::PutStream;
pub use put::{PutItem, PutOptions, new_put_id};
pub use rdma::{RdmaPolicy, TransportCounts, Transports};
pub use read::ObjectInfo;
pub use read::reader::ObjectReader;
pub use remote_holders::RemoteHolders;
pub use remove::RemovedPage;
pub use time::default_deadline;
