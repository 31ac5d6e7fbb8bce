//! What people see: tables, sizes, rates and times.

use crate::fingerprint::hex;
use indicatif::{BinaryBytes, HumanDuration};
use std::fmt::Write;
use std::time::Duration;
use tenon_client::ObjectInfo;
use tenon_protocol::message::{IndexInfo, ListEntry, NodeInfo, NodeState, NodesReply, Pin};
use tenon_protocol::segments::{SegmentInfo, SegmentState, SegmentsReply};

/// Rows with their columns aligned, the first row being the heads. The last column is not padded.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, &width) in row.iter().zip(&widths) {
            // Writing to a string does not fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn heads(heads: &[&str]) -> Vec<String> {
    heads.iter().map(|&head| head.to_owned()).collect()
}

pub(super) fn entries(entries: &[ListEntry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let (len_bytes, sealed) = (entry.len_bytes, utc(entry.sealed_unix_ms));
        let pin = match entry.pin {
            Pin::None => "-",
            Pin::Soft { .. } => "soft",
            Pin::Hard => "hard",
        };
        let _ = writeln!(text, "{len_bytes:>14}  {sealed}  {pin:<4}  {}", entry.key);
    }
    text
}

/// `pin` is what its holders say of it, if they do.
pub(super) fn object(info: &ObjectInfo, pin: Option<Pin>) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<13}{value}");
    };
    line("key", info.name.key().to_owned());
    line("namespace", info.name.namespace().to_string());
    line(
        "length",
        format!("{} bytes ({})", info.len_bytes, BinaryBytes(info.len_bytes)),
    );
    line("version", info.version.to_string());
    line("sealed", utc(info.sealed_unix_ms));
    line("checksum", format!("{:#018x} (CRC-64/NVME)", info.checksums.whole));
    if !info.fingerprint.is_empty() {
        line("fingerprint", hex(&info.fingerprint));
    }
    match pin {
        None | Some(Pin::None) => {}
        Some(Pin::Soft { for_ms }) => line("pin", format!("soft, for {} s", for_ms.div_ceil(1000))),
        Some(Pin::Hard) => line("pin", "hard".to_owned()),
    }
    for replica in &info.replicas {
        let (node, segment) = (replica.holder, replica.segment);
        let (offset, generation) = (replica.offset_bytes, replica.generation);
        line(
            "replica",
            format!("node {node}, segment {segment}, offset {offset}, generation {generation}"),
        );
    }
    text
}

pub(super) fn nodes(reply: &NodesReply) -> String {
    let mut rows = vec![heads(&[
        "NODE",
        "STATE",
        "ENDPOINT",
        "CAPACITY",
        "FREE",
        "OBJECTS",
        "VERSION",
        "INCARNATION",
        "",
    ])];
    rows.extend(reply.nodes.iter().map(node));
    let mut text = format!(
        "{}view: {}, revision {}\nindex of this agent: {}\n",
        table(&rows),
        reply.view_source,
        reply.view_revision,
        index(&reply.index)
    );
    for alarm in &reply.alarms {
        text.push_str(&format!("alarm {}: {}\n", alarm.kind.name(), alarm.message));
    }
    text
}

/// What of an index is worth a look.
fn index(index: &IndexInfo) -> String {
    let mut text = if index.settled { "settled" } else { "learning" }.to_owned();
    for (count, what) in [
        (index.unannounced_members, "members to announce"),
        (index.partners_out_of_step, "partners out of step"),
        (index.pending_keys, "keys pending"),
        (index.owed_drops, "drops owed"),
        (index.untold_keys, "keys untold"),
        (index.unpublished_objects, "objects unpublished"),
        (index.waiting_decisions, "decisions waiting"),
        (index.conflicts, "conflicts"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text.push_str(&format!(", {} keys", index.keys));
    text
}

fn node(node: &NodeInfo) -> Vec<String> {
    let dash = || "-".to_owned();
    let bytes = |pick: fn(&tenon_protocol::message::SpaceAccount) -> u64| {
        node.space
            .as_ref()
            .map_or_else(dash, |space| BinaryBytes(pick(space)).to_string())
    };
    vec![
        node.node.to_string(),
        match node.state {
            NodeState::Alive if node.is_draining => "draining",
            NodeState::Alive => "alive",
            NodeState::Unreachable => "unreachable",
            NodeState::Refused => "refused",
            NodeState::Unknown => "unknown",
        }
        .to_owned(),
        node.endpoint.clone(),
        bytes(|space| space.capacity_bytes),
        bytes(|space| space.free_bytes),
        node.space.map_or_else(dash, |space| space.objects.to_string()),
        node.version.clone().unwrap_or_else(dash),
        node.incarnation
            .map_or_else(dash, |incarnation| incarnation.to_string()),
        if node.is_self { "(this agent)" } else { "" }.to_owned(),
    ]
}

pub(super) fn segments(reply: &SegmentsReply) -> String {
    let mut rows = vec![heads(&[
        "NODE",
        "SEGMENT",
        "STATE",
        "CAPACITY",
        "FREE",
        "SEALED",
        "RESERVED",
        "HELD",
        "LARGEST FREE",
        "SLOTS",
        "PAGES",
        "BACKING",
    ])];
    rows.extend(reply.segments.iter().map(segment));
    table(&rows)
}

fn segment(segment: &SegmentInfo) -> Vec<String> {
    let bytes = |value: u64| BinaryBytes(value).to_string();
    let space = &segment.space;
    vec![
        segment.node.to_string(),
        segment.segment.to_string(),
        state_of(segment).to_owned(),
        bytes(space.capacity_bytes),
        bytes(space.free_bytes),
        bytes(space.sealed_bytes),
        bytes(space.reserved_bytes),
        bytes(space.held_bytes),
        bytes(space.largest_free_bytes),
        format!("{}/{}", segment.slots_used, segment.slots),
        bytes(segment.page_bytes),
        segment.backing.clone(),
    ]
}

fn state_of(segment: &SegmentInfo) -> &'static str {
    match segment.state {
        SegmentState::Mounting => "mounting",
        SegmentState::Active => "active",
        SegmentState::Draining => "draining",
        SegmentState::Gone if segment.failure.is_some() => "failed",
        SegmentState::Gone => "gone",
    }
}

/// A segment that comes or goes, and how far it is.
pub(super) fn changed_segment(info: &SegmentInfo) -> String {
    let SegmentInfo { node, segment, .. } = info;
    let bytes = |value: u64| BinaryBytes(value).to_string();
    let mut text = format!("segment {segment} of node {node}: {}", state_of(info));
    if let Some(progress) = &info.mounting {
        text.push_str(&format!(
            ", {} of {} have memory",
            bytes(progress.prefaulted_bytes),
            bytes(progress.len_bytes)
        ));
    }
    if let Some(progress) = &info.draining {
        text.push_str(&format!(
            ", {} objects left ({}), {} moved, {} dropped",
            progress.left_objects,
            bytes(progress.left_bytes),
            progress.moved_objects,
            progress.dropped_objects
        ));
    }
    text.push('\n');
    text
}

/// How long a transfer took and how fast it was.
pub(super) fn throughput(len_bytes: u64, took: Duration) -> String {
    let (size, rate) = (BinaryBytes(len_bytes), bytes_per_s(len_bytes, took));
    let took = match took.as_secs() {
        0..60 => format!("{:.3} s", took.as_secs_f64()),
        _ => HumanDuration(took).to_string(),
    };
    format!("{size} in {took}, {:.2} GB/s", rate / 1e9)
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
pub(super) fn bytes_per_s(len_bytes: u64, took: Duration) -> f64 {
    len_bytes as f64 / took.as_secs_f64().max(1e-9)
}

/// A time as `2026-11-29T14:05:09Z`.
pub(super) fn utc(unix_ms: u64) -> String {
    let (days, second) = (unix_ms / 86_400_000, unix_ms / 1000 % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The date of a day, counted from 1970-01-01 in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_400_YEARS: u64 = 146_097;
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut rest) = (1970 + days / DAYS_PER_400_YEARS * 400, days % DAYS_PER_400_YEARS);
    let days_of_year = |year| if is_leap(year) { 366 } else { 365 };
    while rest >= days_of_year(year) {
        rest -= days_of_year(year);
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for days_of_month in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < days_of_month {
            break;
        }
        rest -= days_of_month;
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenon_protocol::checksum::Checksums;
    use tenon_protocol::ids::{Epoch, Generation, Incarnation, NodeId, PutId, SegmentId, Slot, Version};
    use tenon_protocol::message::{Alarm, AlarmKind, Replica, SpaceAccount};
    use tenon_protocol::name::{Namespace, ObjectName};

    fn version() -> Version {
        Version {
            epoch: Epoch(3),
            put_id: PutId::from_bytes([9; 16]),
        }
    }

    #[test]
    fn times_are_dates() {
        for (unix_s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_799, "2024-02-28T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (13_574_563_200, "2400-02-29T00:00:00Z"),
        ] {
            assert_eq!(utc(unix_s * 1000 + 7), text);
        }
    }

    #[test]
    fn columns_are_aligned_and_lines_end_without_blanks() {
        let rows = [
            vec!["A".to_owned(), "B".to_owned()],
            vec!["long".to_owned(), String::new()],
            vec!["é".to_owned(), "b".to_owned()],
        ];
        assert_eq!(table(&rows), "A     B\nlong\né     b\n");
    }

    #[test]
    fn an_object_shows_everything_that_stat_promises() {
        let info = ObjectInfo {
            name: ObjectName::new(&Namespace::new("default").unwrap(), "a key").unwrap(),
            len_bytes: 70_000,
            version: version(),
            sealed_unix_ms: 0,
            fingerprint: vec![0xab, 1],
            checksums: Checksums {
                whole: 0x12,
                pieces: vec![0x12],
            },
            replicas: vec![Replica {
                holder: NodeId::from_bytes([7; 16]),
                incarnation: Incarnation(1),
                segment: SegmentId(2),
                offset_bytes: 4096,
                slot: Slot(5),
                generation: Generation(77),
                is_copy: false,
            }],
        };
        let expected = "\
key          a key
namespace    default
length       70000 bytes (68.36 KiB)
version      3.09090909090909090909090909090909
sealed       1970-01-01T00:00:00Z
checksum     0x0000000000000012 (CRC-64/NVME)
fingerprint  ab01
pin          hard
replica      node 07070707070707070707070707070707, segment 2, offset 4096, generation 77
";
        assert_eq!(object(&info, Some(Pin::Hard)), expected);
    }

    #[test]
    fn nodes_are_a_table_with_alarms_below() {
        let space = SpaceAccount {
            capacity_bytes: 1 << 30,
            free_bytes: 1 << 29,
            objects: 4,
            ..SpaceAccount::default()
        };
        let reply = NodesReply {
            view_source: "static".into(),
            view_revision: 3,
            nodes: vec![
                NodeInfo {
                    node: NodeId::from_bytes([1; 16]),
                    incarnation: Some(Incarnation(8)),
                    endpoint: "127.0.0.1:7601".into(),
                    state: NodeState::Alive,
                    is_self: true,
                    is_draining: false,
                    version: Some("0.1.0".into()),
                    space: Some(space),
                },
                NodeInfo {
                    node: NodeId::from_bytes([2; 16]),
                    incarnation: None,
                    endpoint: "127.0.0.2:7601".into(),
                    state: NodeState::Unreachable,
                    is_self: false,
                    is_draining: false,
                    version: None,
                    space: None,
                },
                NodeInfo {
                    node: NodeId::from_bytes([3; 16]),
                    incarnation: Some(Incarnation(2)),
                    endpoint: "127.0.0.3:7601".into(),
                    state: NodeState::Alive,
                    is_self: false,
                    is_draining: true,
                    version: None,
                    space: None,
                },
            ],
            index: Box::new(IndexInfo {
                keys: 12,
                unannounced_members: 1,
                ..IndexInfo::default()
            }),
            alarms: vec![Alarm {
                kind: AlarmKind::MembersSilent,
                nodes: Vec::new(),
                message: "2 of 3 members".into(),
            }],
        };
        let text = nodes(&reply);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7);
        assert_eq!(lines[6], "alarm members_silent: 2 of 3 members");
        assert!(
            lines[1].contains("alive") && lines[1].contains("512.00 MiB") && lines[1].ends_with("(this agent)"),
            "{text}"
        );
        assert!(lines[2].contains("unreachable") && lines[2].contains(" -  "), "{text}");
        assert!(lines[3].contains("draining") && !lines[3].contains("alive"), "{text}");
        assert_eq!(lines[4], "view: static, revision 3");
        assert_eq!(
            lines[5],
            "index of this agent: learning, 1 members to announce, 12 keys"
        );
    }

    #[test]
    fn segments_are_a_table() {
        let segment = SegmentInfo {
            node: NodeId::from_bytes([1; 16]),
            segment: SegmentId(1),
            backing: "memfd".into(),
            page_bytes: 4096,
            state: SegmentState::Active,
            space: SpaceAccount::default(),
            slots: 16,
            slots_used: 4,
            mounting: None,
            draining: None,
            failure: None,
        };
        let text = segments(&SegmentsReply {
            segments: vec![segment],
            missing: Vec::new(),
        });
        assert!(
            text.contains("4/16") && text.contains("4.00 KiB") && text.ends_with("memfd\n"),
            "{text}"
        );
    }

    #[test]
    fn listed_keys_stand_last_so_that_blanks_in_them_do_no_harm() {
        let entry = ListEntry {
            key: "a b".into(),
            len_bytes: 5,
            version: version(),
            holders: Vec::new(),
            sealed_unix_ms: 0,
            pin: Pin::Hard,
        };
        assert_eq!(entries(&[entry]), "             5  1970-01-01T00:00:00Z  hard  a b\n");
    }

    #[test]
    fn throughput_is_in_decimal_gigabytes() {
        assert_eq!(
            throughput(256 << 20, Duration::from_millis(500)),
            "256.00 MiB in 0.500 s, 0.54 GB/s"
        );
    }
}
