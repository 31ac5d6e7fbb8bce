//! Listing by prefix: only holders keep full keys, so every node is asked, and the answer says who did not answer.

use crate::node::Node;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::NodeId;
use tenon_protocol::limits::LIST_ENTRIES_MAX;
use tenon_protocol::message::{ListEntry, ListReply, ListRequest, Reply, Request};
use tenon_protocol::name::Namespace;
use tokio::time::Instant;

impl Node {
    pub(super) async fn list(
        self: &Arc<Self>,
        deadline: Instant,
        request: ListRequest,
    ) -> Result<ListReply, ServiceError> {
        let own = self.list_own(&request)?;
        let others = self.peers().ids().map(async |node| {
            let answer = self
                .on_behalf(node, None, Request::List(request.clone()), deadline)
                .await;
            match answer {
                Ok(Reply::List(list)) => Ok(list),
                Ok(_) | Err(_) => Err(node),
            }
        });
        let (mut missing, mut pages) = (Vec::new(), vec![own]);
        for answer in join_all(others).await {
            match answer {
                Ok(page) => pages.push(page),
                Err(node) => missing.push(node),
            }
        }
        Ok(merge(pages, missing, request.limit))
    }

    /// The keys that this node holds.
    pub(super) fn list_own(&self, request: &ListRequest) -> Result<ListReply, ServiceError> {
        let namespace = Namespace::new(&request.namespace)?;
        if request.limit == 0 || request.limit > LIST_ENTRIES_MAX {
            let message = format!(
                "a listing of {} entries: 1 to {LIST_ENTRIES_MAX} are allowed",
                request.limit
            );
            return Err(ServiceError::new(ErrorCode::InvalidArgument, message));
        }
        let (entries, more) = self
            .holder()
            .list(&namespace, &request.prefix, request.after.as_deref(), request.limit);
        Ok(ListReply {
            entries,
            more,
            complete: true,
            missing: Vec::new(),
        })
    }
}

/// One page from many. Keys beyond the last one of a page that has more may be missing from that page, so the merged
/// page ends there too.
fn merge(pages: Vec<ListReply>, missing: Vec<NodeId>, limit: u32) -> ListReply {
    let known_to = pages
        .iter()
        .filter(|page| page.more)
        .filter_map(|page| Some(page.entries.last()?.key.clone()))
        .min();
    let mut more = known_to.is_some();
    let mut merged: BTreeMap<String, ListEntry> = BTreeMap::new();
    for entry in pages.into_iter().flat_map(|page| page.entries) {
        if known_to.as_ref().is_some_and(|known_to| entry.key > *known_to) {
            continue;
        }
        match merged.get_mut(&entry.key) {
            Some(seen) if seen.version == entry.version => seen.holders.extend(entry.holders),
            Some(seen) if !entry.version.wins_over(&seen.version) => {}
            _ => {
                merged.insert(entry.key.clone(), entry);
            }
        }
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    more |= merged.len() > limit;
    let entries = merged.into_values().take(limit).collect();
    ListReply {
        entries,
        more,
        complete: missing.is_empty(),
        missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenon_protocol::ids::{Epoch, PutId, Version};
    use tenon_protocol::message::Pin;

    fn page(node: u8, keys: &[&str], more: bool) -> ListReply {
        let entries = keys.iter().map(|key| ListEntry {
            key: (*key).to_owned(),
            len_bytes: 1,
            version: Version {
                epoch: Epoch(1),
                put_id: PutId::from_bytes([1; 16]),
            },
            holders: vec![NodeId::from_bytes([node; 16])],
            sealed_unix_ms: 0,
            pin: Pin::None,
        });
        ListReply {
            entries: entries.collect(),
            more,
            complete: true,
            missing: Vec::new(),
        }
    }

    fn keys(list: &ListReply) -> Vec<&str> {
        list.entries.iter().map(|entry| entry.key.as_str()).collect()
    }

    #[test]
    fn pages_merge_in_key_order_with_the_holders_of_both() {
        let list = merge(
            vec![page(1, &["a", "c"], false), page(2, &["b", "c"], false)],
            Vec::new(),
            10,
        );
        assert_eq!(keys(&list), ["a", "b", "c"]);
        assert_eq!(list.entries[2].holders.len(), 2);
        assert!(!list.more && list.complete);
    }

    #[test]
    fn a_page_that_has_more_ends_the_merged_page_at_its_last_key() {
        let list = merge(
            vec![page(1, &["a", "b"], true), page(2, &["c", "d"], false)],
            Vec::new(),
            10,
        );
        assert_eq!(keys(&list), ["a", "b"]);
        assert!(list.more);
    }

    #[test]
    fn the_limit_cuts_and_a_missing_node_is_told() {
        let missing = NodeId::from_bytes([9; 16]);
        let list = merge(vec![page(1, &["a", "b", "c"], false)], vec![missing], 2);
        assert_eq!(keys(&list), ["a", "b"]);
        assert!(list.more && !list.complete);
        assert_eq!(list.missing, [missing]);
    }
}
