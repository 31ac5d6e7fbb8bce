//! Removals: of keys, and of everything under a prefix.

use crate::client::per_key;
use crate::control::reply;
use crate::{Client, ClientError};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{KeysRequest, Request};
use tenon_protocol::name::Namespace;
use tokio::time::Instant;

/// What became of a page of keys that were to be removed.
#[derive(Debug, Default)]
pub struct RemovedPage {
    /// How many objects were removed.
    pub removed: u64,
    /// Keys whose objects may be there still, and why; see [`Client::remove`] for what `unavailable` means.
    pub failed: Vec<(String, ClientError)>,
    /// After which key to go on; `None` if this was the last page.
    pub next: Option<String>,
    /// Nodes that did not say what they hold: that was not removed.
    pub missing: Vec<NodeId>,
}

impl Client {
    /// Removes objects; one result per key: whether there was one. `unavailable` means that the removal is decided and not every holder has
    /// carried it out; repeating it completes it.
    pub async fn remove(
        &self,
        namespace: &Namespace,
        keys: Vec<String>,
        deadline: Instant,
    ) -> Vec<Result<bool, ClientError>> {
        let service = &self.core.service;
        per_key("remove", keys, async |keys| {
            let namespace = namespace.to_string();
            let request = Request::Remove(KeysRequest { namespace, keys });
            service.call(request, deadline, reply!(Remove)).await
        })
        .await
    }

    /// Removes the first keys that begin with `prefix` and come after `after`, in byte order, at most `limit`: what they have when it is their turn. A
    /// whole prefix, or with an empty one a whole namespace, is removed by going on until there is no next page: each is a short
    /// call, so that others are served in between ([`REMOVE_PAGE_KEYS`](crate::limits::REMOVE_PAGE_KEYS)), and who stops in the middle has removed what
    /// was answered so.
    pub async fn remove_page(
        &self,
        namespace: &Namespace,
        prefix: &str,
        after: Option<String>,
        limit: u32,
        deadline: Instant,
    ) -> Result<RemovedPage, ClientError> {
        let listed = self.list(namespace, prefix, after, limit, deadline).await?;
        let keys: Vec<String> = listed.entries.into_iter().map(|entry| entry.key).collect();
        let next = keys.last().filter(|_| listed.more).cloned();
        let mut page = RemovedPage {
            next,
            missing: listed.missing,
            ..RemovedPage::default()
        };
        let removed = self.remove(namespace, keys.clone(), deadline).await;
        for (key, removed) in keys.into_iter().zip(removed) {
            match removed {
                Ok(was_there) => page.removed += u64::from(was_there),
                Err(error) => page.failed.push((key, error)),
            }
        }
        Ok(page)
    }
}
