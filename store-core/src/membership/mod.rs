//! Who the members are, which of them keep the entry of a key, and whether a member answers.
//!
//! A [`View`] is the member list at one revision. From it alone follow the homes of every key ([`View::homes`]):
//! whether a member answers ([`Reachability`]) never changes who is responsible, only who can be asked.

mod departures;
mod reachability;
mod rendezvous;
mod view;

pub use self::departures::Departures;
pub use self::reachability::{Life, ProbeFailure, ProbeTiming, Reachability};
pub use self::rendezvous::{HOME_SEED, INDEX_SEED, IndexCache, IndexNodes, home_score, index_score};
pub use self::view::{View, ViewError, ViewSource};
pub use tenon_protocol::member::Homes;
