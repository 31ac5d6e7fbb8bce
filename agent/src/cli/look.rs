//! The commands that move no objects: `ls`, `rm`, `stat`, `nodes` and `segments`.

use super::args::{Ls, Rm};
use super::failure::Failure;
use super::progress;
use super::report::Report;
use super::session::Session;
use super::text;
use crate::fingerprint::hex;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tenon_client::limits::REMOVE_PAGE_KEYS;
use tenon_client::{Client, ClientError, ObjectInfo};
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::NodeId;
use tenon_protocol::limits::LIST_ENTRIES_MAX;
use tenon_protocol::message::{ListEntry, Pin};
use tenon_protocol::name::{Namespace, ObjectName};

/// Lists keys, page by page.
pub(super) async fn ls(session: &Session, ls: Ls) -> Result<Report, Failure> {
    let namespace = session.namespace()?;
    let client = session.connect().await?;
    let mut entries: Vec<ListEntry> = Vec::new();
    let (mut after, mut missing) = (ls.after, Vec::new());
    let more = loop {
        let wanted = ls.limit - entries.len() as u64;
        let limit = u32::try_from(wanted).unwrap_or(LIST_ENTRIES_MAX).min(LIST_ENTRIES_MAX);
        let page = client
            .list(&namespace, &ls.prefix, after, limit, session.deadline(0))
            .await?;
        missing.extend(
            page.missing
                .into_iter()
                .filter(|node| !missing.contains(node))
                .collect::<Vec<_>>(),
        );
        let is_empty = page.entries.is_empty();
        entries.extend(page.entries);
        after = entries.last().map(|entry| entry.key.clone());
        if !page.more || is_empty || entries.len() as u64 >= ls.limit {
            break page.more;
        }
    };
    Ok(Report {
        text: text::entries(&entries),
        json: json!({ "entries": entries, "more": more, "complete": missing.is_empty(), "missing": missing }),
        failures: not_answering(&missing, "what it holds is not listed"),
        remark: more.then(|| {
            format!(
                "there are more; {} are shown: --limit shows more, --after goes on",
                entries.len()
            )
        }),
    })
}

fn not_answering(nodes: &[NodeId], what: &str) -> Vec<Failure> {
    nodes
        .iter()
        .map(|&node| ServiceError::unavailable(node, what).into())
        .collect()
}

/// Removes objects.
pub(super) async fn rm(session: &Session, rm: Rm) -> Result<Report, Failure> {
    let namespace = session.namespace()?;
    let client = session.connect().await?;
    match rm.prefix {
        Some(prefix) => rm_prefix(session, &client, &namespace, &prefix).await,
        None if rm.all => rm_prefix(session, &client, &namespace, "").await,
        None => rm_keys(session, &client, &namespace, rm.keys).await,
    }
}

/// Removes all that begin with a prefix, page by page; each page has its own deadline.
async fn rm_prefix(session: &Session, client: &Client, namespace: &Namespace, prefix: &str) -> Result<Report, Failure> {
    let counter = progress::counter("objects removed", session.somebody_looks());
    let (mut removed, mut failed, mut missing) = (0, Vec::new(), BTreeSet::new());
    let mut after = None;
    loop {
        let page = client
            .remove_page(namespace, prefix, after, REMOVE_PAGE_KEYS, session.deadline(0))
            .await
            .map_err(|error| Failure::from(error).while_doing(format_args!("after {removed} objects were removed")))?;
        removed += page.removed;
        failed.extend(page.failed);
        missing.extend(page.missing);
        counter.set_position(removed);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let missing: Vec<NodeId> = missing.into_iter().collect();
    let (mut failures, mut told) = (Vec::new(), Vec::new());
    for (key, error) in failed {
        let failure = not_removed(&key, error);
        told.push(json!({ "key": key, "error": failure.json() }));
        failures.push(failure);
    }
    failures.extend(not_answering(&missing, "what it holds is not removed"));
    Ok(Report {
        text: format!("removed {removed} objects\n"),
        json: json!({ "removed": removed, "failed": told, "complete": missing.is_empty(), "missing": missing }),
        failures,
        remark: None,
    })
}

fn not_removed(key: &str, error: ClientError) -> Failure {
    Failure::from(error).while_doing(format_args!("cannot remove {key:?}"))
}

async fn rm_keys(
    session: &Session,
    client: &Client,
    namespace: &Namespace,
    keys: Vec<String>,
) -> Result<Report, Failure> {
    let removed = client.remove(namespace, keys.clone(), session.deadline(0)).await;
    let silent: Vec<String> = (keys.iter().zip(&removed))
        .filter(|(_, result)| matches!(result, Err(ClientError::Unavailable { node: Some(_), .. })))
        .map(|(key, _)| key.clone())
        .collect();
    let gone = gone(session, client, namespace, silent).await;
    let mut report = Report::default();
    let mut results = Vec::new();
    for (key, result) in keys.into_iter().zip(removed) {
        match result {
            Ok(true) => {
                report.text.push_str(&format!("removed {key:?}\n"));
                results.push(json!({ "key": key, "removed": true }));
            }
            Ok(false) => {
                report.failures.push(Failure::miss(namespace.as_str(), &key));
                results.push(json!({ "key": key, "removed": false }));
            }
            Err(ClientError::Unavailable { node: Some(node), .. }) if gone.contains(&key) => {
                report.text.push_str(&format!(
                    "removed {key:?}; node {node} does not answer, and gives the memory back when it does\n"
                ));
                results.push(json!({ "key": key, "removed": true, "waits_for": node }));
            }
            Err(error) => {
                let failure = not_removed(&key, error);
                results.push(json!({ "key": key, "error": failure.json() }));
                report.failures.push(failure);
            }
        }
    }
    report.json = json!({ "results": results });
    Ok(report)
}

/// Of the keys whose removal a node has not confirmed, those whose removal is decided all the same: they have no object any
/// more.
async fn gone(session: &Session, client: &Client, namespace: &Namespace, keys: Vec<String>) -> BTreeSet<String> {
    if keys.is_empty() {
        return BTreeSet::new();
    }
    let found = client.exists(namespace, keys.clone(), session.deadline(0)).await;
    let gone = keys.into_iter().zip(found);
    gone.filter(|(_, found)| matches!(found, Ok(false)))
        .map(|(key, _)| key)
        .collect()
}

/// Shows what is known of one object.
pub(super) async fn stat(session: &Session, key: &str) -> Result<Report, Failure> {
    let name = session.name(key)?;
    let client = session.connect().await?;
    let found = client.stat(&name, session.deadline(0)).await;
    let found = found.map_err(|error| Failure::from(error).while_doing(format_args!("cannot read {key:?}")))?;
    let info = found.ok_or_else(|| Failure::miss(name.namespace().as_str(), key))?;
    let pin = pin(session, &client, &name).await;
    Ok(Report {
        text: text::object(&info, pin),
        json: object(&info, pin),
        ..Report::default()
    })
}

/// What keeps an object from being evicted, if its holder says so. It is not written beside the object, so the holder is asked.
async fn pin(session: &Session, client: &Client, name: &ObjectName) -> Option<Pin> {
    let listed = client
        .list(name.namespace(), name.key(), None, 1, session.deadline(0))
        .await;
    let entry = listed.ok()?.entries.into_iter().next()?;
    (entry.key == name.key()).then_some(entry.pin)
}

fn object(info: &ObjectInfo, pin: Option<Pin>) -> Value {
    json!({
        "key": info.name.key(),
        "namespace": info.name.namespace().as_str(),
        "len_bytes": info.len_bytes,
        "version": info.version,
        "sealed_unix_ms": info.sealed_unix_ms,
        "sealed": text::utc(info.sealed_unix_ms),
        "checksum": format!("{:#018x}", info.checksums.whole),
        "fingerprint": hex(&info.fingerprint),
        "pin": pin,
        "replicas": info.replicas,
    })
}

/// Shows the members of the view.
pub(super) async fn nodes(session: &Session) -> Result<Report, Failure> {
    let reply = session.connect().await?.nodes(session.deadline(0)).await?;
    Ok(Report {
        text: text::nodes(&reply),
        json: json!(reply),
        ..Report::default()
    })
}

/// Shows segments.
pub(super) async fn segments(session: &Session, node: Option<NodeId>) -> Result<Report, Failure> {
    let reply = session.connect().await?.segments(node, session.deadline(0)).await?;
    Ok(Report {
        text: text::segments(&reply),
        json: json!(reply),
        failures: not_answering(&reply.missing, "its segments are not shown"),
        ..Report::default()
    })
}
