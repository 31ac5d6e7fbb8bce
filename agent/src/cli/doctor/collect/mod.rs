//! Reads the facts, from the configuration, the system, the library of verbs, the agent and the peers.

mod agent;
mod configuration;
mod kernel;
mod memory;
mod peers;
mod rdma;

use super::facts::{Facts, Host};
use crate::cli::session::Session;
use nix::unistd::{Uid, User};
use std::path::PathBuf;

/// Looks at everything. `config` is the file that the user names.
pub(super) async fn collect(session: &Session, config: Option<PathBuf>) -> Facts {
    let (configuration, config) = configuration::read(config);
    let (agent, pid) = agent::ask(session, config.as_ref()).await;
    let peers = peers::reach(session, (&configuration, config.as_ref()), &agent).await;
    Facts {
        host: host(),
        rdma: rdma::look(),
        memory: memory::look(pid),
        configuration,
        agent,
        peers,
    }
}

fn host() -> Host {
    let uid = Uid::effective();
    let named = User::from_uid(uid).ok().flatten().map(|user| user.name);
    Host {
        name: kernel::text("/proc/sys/kernel/hostname").unwrap_or_else(|_| "this host".to_owned()),
        user: named.unwrap_or_else(|| format!("user {uid}")),
    }
}
