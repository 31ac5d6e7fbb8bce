//! What is shown, and that all of it is recorded.

use super::*;
use prometheus::proto::MetricType;
use std::collections::BTreeSet;
use std::path::Path;
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::SegmentId;
use tenon_protocol::message::{Alarm, AlarmKind, NodeState, Request, ReservedRegion, SpaceAccount};
use tenon_protocol::segments::SegmentState;
use tenon_store_core::placement::{PlacementFigures, StopReason};

#[track_caller]
fn assert_shows(text: &str, line: &str) {
    assert!(
        text.lines().any(|shown| shown == line),
        "{line:?} is missing in:\n{text}"
    );
}

fn segment(id: u32) -> SegmentInfo {
    SegmentInfo {
        node: NodeId::from_bytes([1; 16]),
        segment: SegmentId(id),
        backing: "memfd".into(),
        page_bytes: 4096,
        state: SegmentState::Active,
        mounting: None,
        draining: None,
        failure: None,
        space: SpaceAccount {
            capacity_bytes: 100,
            free_bytes: 40,
            sealed_bytes: 30,
            reserved_bytes: 20,
            held_bytes: 10,
            largest_free_bytes: 39,
            objects: 3,
            reservations: 2,
        },
        slots: 16,
        slots_used: 5,
    }
}

fn node(state: NodeState, is_self: bool) -> NodeInfo {
    NodeInfo {
        node: NodeId::from_bytes([2; 16]),
        incarnation: None,
        endpoint: "127.0.0.1:7601".into(),
        state,
        is_self,
        is_draining: false,
        version: None,
        space: None,
    }
}

fn of_segments(segments: Vec<SegmentInfo>) -> Snapshot {
    Snapshot {
        segments,
        ..Snapshot::default()
    }
}

#[test]
fn outcomes_of_reads_and_puts_are_told_apart() {
    let metrics = Metrics::new();
    for outcome in ReadOutcome::ALL {
        metrics.got(*outcome);
        metrics.located(*outcome);
    }
    metrics.got(ReadOutcome::of_error(ErrorCode::FailedRead));
    metrics.got(ReadOutcome::of_error(ErrorCode::Unavailable));
    metrics.put(PutOutcome::of_error(ErrorCode::NoSpace));
    let text = metrics.render(&Snapshot::default());
    for (outcome, count) in [
        ("hit", 1),
        ("miss", 1),
        ("unavailable", 2),
        ("failed_read", 2),
        ("failed", 1),
    ] {
        assert_shows(&text, &format!("tenon_gets_total{{outcome=\"{outcome}\"}} {count}"));
        assert_shows(&text, &format!("tenon_locates_total{{outcome=\"{outcome}\"}} 1"));
    }
    assert_shows(&text, "tenon_puts_total{outcome=\"no_space\"} 1");
    assert_shows(&text, "tenon_puts_total{outcome=\"stored\"} 0");
}

#[test]
fn bytes_of_a_segment_add_up_and_vanish_with_it() {
    let metrics = Metrics::new();
    let text = metrics.render(&of_segments(vec![segment(1), segment(2)]));
    for line in [
        "tenon_segment_capacity_bytes{segment=\"1\"} 100",
        "tenon_segment_bytes{segment=\"2\",use=\"free\"} 40",
        "tenon_segment_bytes{segment=\"2\",use=\"sealed\"} 30",
        "tenon_segment_bytes{segment=\"2\",use=\"reserved\"} 20",
        "tenon_segment_bytes{segment=\"2\",use=\"held\"} 10",
        "tenon_segment_largest_free_bytes{segment=\"2\"} 39",
        "tenon_segment_objects{segment=\"2\"} 3",
        "tenon_segment_reservations{segment=\"2\"} 2",
        "tenon_segment_slots{segment=\"2\"} 16",
        "tenon_segment_slots_used{segment=\"2\"} 5",
    ] {
        assert_shows(&text, line);
    }
    let text = metrics.render(&of_segments(vec![segment(1)]));
    assert!(!text.contains("segment=\"2\""), "{text}");
}

#[test]
fn other_members_are_counted_by_state() {
    let nodes = [
        node(NodeState::Alive, true),
        node(NodeState::Alive, false),
        node(NodeState::Alive, false),
        node(NodeState::Unreachable, false),
    ];
    let text = Metrics::new().render(&Snapshot {
        nodes: nodes.into(),
        ..Snapshot::default()
    });
    for (state, count) in [("alive", 2), ("unreachable", 1), ("refused", 0), ("unknown", 0)] {
        assert_shows(&text, &format!("tenon_peers{{state=\"{state}\"}} {count}"));
    }
}

#[test]
fn alarms_are_counted_by_kind() {
    let alarm = Alarm {
        kind: AlarmKind::MemberRefused,
        nodes: Vec::new(),
        message: "another list".to_owned(),
    };
    let text = Metrics::new().render(&Snapshot {
        alarms: vec![alarm.clone(), alarm],
        ..Snapshot::default()
    });
    assert_shows(&text, "tenon_alarms{kind=\"member_refused\"} 2");
    assert_shows(&text, "tenon_alarms{kind=\"members_silent\"} 0");
}

#[test]
fn calls_are_counted_by_verb_and_result() {
    let metrics = Metrics::new();
    metrics.called(Verb::from(&Request::Nodes), None, Duration::from_millis(3));
    metrics.called(Verb::Locate, Some(ErrorCode::DeadlineExceeded), Duration::from_secs(6));
    metrics.http_answered("/v1/nodes", "GET", 200, Duration::from_millis(4));
    let text = metrics.render(&Snapshot::default());
    assert_shows(&text, "tenon_calls_total{result=\"ok\",verb=\"nodes\"} 1");
    assert_shows(
        &text,
        "tenon_calls_total{result=\"deadline_exceeded\",verb=\"locate\"} 1",
    );
    assert_shows(
        &text,
        "tenon_call_duration_seconds_bucket{verb=\"nodes\",le=\"0.0025\"} 0",
    );
    assert_shows(
        &text,
        "tenon_call_duration_seconds_bucket{verb=\"nodes\",le=\"0.005\"} 1",
    );
    assert_shows(&text, "tenon_call_duration_seconds_bucket{verb=\"locate\",le=\"10\"} 1");
    assert_shows(
        &text,
        "tenon_http_requests_total{method=\"GET\",route=\"/v1/nodes\",status=\"200\"} 1",
    );
}

#[test]
fn bytes_refusals_and_lone_decisions_are_counted() {
    let metrics = Metrics::new();
    metrics.received(Place::Http, 7);
    metrics.sent(Place::Segments, 1 << 40);
    metrics.refused(RefusedBecause::NotAMember);
    metrics.degraded();
    let text = metrics.render(&Snapshot::default());
    for line in [
        "tenon_received_bytes_total{place=\"http\"} 7",
        "tenon_received_bytes_total{place=\"segments\"} 0",
        "tenon_sent_bytes_total{place=\"segments\"} 1099511627776",
        "tenon_handshakes_refused_total{reason=\"not_a_member\"} 1",
        "tenon_degraded_answers_total 1",
    ] {
        assert_shows(&text, line);
    }
}

#[test]
fn the_costs_of_placement_are_shown() {
    let mut placement = PlacementCounters::default();
    let armed = PlacementFigures {
        armed: true,
        armed_calls: 3,
        hints_examined: 120,
        no_fit_credits: 117,
        scanned_positions: 121,
        chargeable_positions: 4,
        recovered: 1,
        ..Default::default()
    };
    let ended = |stop| PlacementFigures {
        stop: Some(stop),
        ..armed
    };
    for figures in [armed, ended(StopReason::ScanCap), ended(StopReason::ChargeableBudget)] {
        placement.record(&figures);
    }
    let text = Metrics::new().render(&Snapshot {
        placement,
        ..Snapshot::default()
    });
    for line in [
        "tenon_placement_armed_total 3",
        "tenon_placement_hints_examined_total 360",
        "tenon_placement_no_fit_credits_total 351",
        "tenon_placement_armed_calls_total 9",
        "tenon_placement_recovered_total 3",
        "tenon_placement_chargeable_exhaustions_total 1",
        "tenon_placement_scan_cap_exhaustions_total 1",
        "tenon_placement_scanned_positions_bucket{le=\"100\"} 0",
        "tenon_placement_scanned_positions_bucket{le=\"125\"} 3",
        "tenon_placement_scanned_positions_bucket{le=\"+Inf\"} 3",
        "tenon_placement_scanned_positions_sum 363",
        "tenon_placement_scanned_positions_count 3",
        "tenon_placement_chargeable_positions_bucket{le=\"5\"} 3",
        "tenon_placement_credits_bucket{le=\"0\"} 0",
        "tenon_placement_credits_bucket{le=\"200\"} 3",
    ] {
        assert_shows(&text, line);
    }
}

#[test]
fn room_that_was_found_refused_or_not_there_is_told_apart() {
    let metrics = Metrics::new();
    let own = NodeId::from_bytes([1; 16]);
    let reservation = |holder| {
        let region = ReservedRegion {
            holder,
            segment: SegmentId(1),
            offset_bytes: 0,
            write_key: 1,
            ttl_ms: 1,
        };
        Ok(Reservation { replicas: vec![region] })
    };
    metrics.placed(own, &reservation(own));
    metrics.placed(own, &reservation(NodeId::from_bytes([2; 16])));
    metrics.placed(own, &Err(ServiceError::new(ErrorCode::NoSpace, "full")));
    metrics.room_answered(Why::Confirmation, RoomAnswer::Refused, 3);
    metrics.allocation_failed(AllocationFailure::of_stop_reason("slots"));
    metrics.allocation_failed(AllocationFailure::of_stop_reason("a reason of another version"));
    let text = metrics.render(&of_segments(vec![segment(1)]));
    for line in [
        "tenon_placed_total{on=\"self\"} 1",
        "tenon_placed_total{on=\"other\"} 1",
        "tenon_placement_failures_total{code=\"no_space\"} 1",
        "tenon_room_answers_total{answer=\"refused\",why=\"confirmation\"} 3",
        "tenon_room_answers_total{answer=\"given\",why=\"local\"} 0",
        "tenon_allocation_failures_total{reason=\"slots\"} 1",
        "tenon_allocation_failures_total{reason=\"other\"} 1",
        "tenon_allocation_failures_total{reason=\"nothing_fits\"} 0",
        "tenon_segment_fragmentation_ratio{segment=\"1\"} 0.025",
    ] {
        assert_shows(&text, line);
    }
}

#[test]
fn every_reason_of_placement_to_stop_has_a_label() {
    for reason in [
        StopReason::PoolExhausted,
        StopReason::PositionBudget,
        StopReason::ChargeableBudget,
        StopReason::ScanCap,
        StopReason::NothingFits,
    ] {
        let label = AllocationFailure::of_stop_reason(&reason.to_string());
        assert_eq!(label.as_str(), reason.to_string());
    }
}

#[test]
fn the_program_says_which_it_is() {
    let text = Metrics::new().render(&Snapshot::default());
    let build = text.lines().find(|line| line.starts_with("tenon_build_info{")).unwrap();
    assert!(
        build.contains(&format!("version=\"{}\"", env!("CARGO_PKG_VERSION"))) && build.ends_with(" 1"),
        "{build}"
    );
}

#[test]
fn names_have_the_prefix_and_a_base_unit() {
    let metrics = Metrics::new();
    metrics.called(Verb::Nodes, None, Duration::ZERO);
    metrics.http_answered("/v1/nodes", "GET", 200, Duration::ZERO);
    metrics.render(&of_segments(vec![segment(1)]));
    let mut families = metrics.registry.gather();
    families.extend(placement::families(&PlacementCounters::default()));
    assert!(families.len() > 30, "{}", families.len());
    for family in families {
        let name = family.name();
        assert!(name.starts_with("tenon_") && !family.help().is_empty(), "{name}");
        let counts = family.get_field_type() == MetricType::COUNTER;
        assert_eq!(counts, name.ends_with("_total"), "{name}");
        assert!(
            !name.contains("_ms") && !name.contains("_kb") && !name.contains("_mb"),
            "{name}"
        );
    }
}

/// A metric that nobody records is worse than none: it reads as "never happened".
#[test]
fn every_metric_is_recorded_somewhere() {
    let recorders: BTreeSet<&str> = include_str!("mod.rs")
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("pub fn "))
        .filter(|signature| signature.contains("(&self"))
        .filter_map(|signature| signature.split('(').next())
        .collect();
    assert!(recorders.len() >= 10, "{recorders:?}");
    let mut others = String::new();
    collect_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut others);
    for recorder in recorders {
        assert!(
            others.contains(&format!(".{recorder}(")),
            "nobody calls Metrics::{recorder}"
        );
    }
}

fn collect_sources(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("metrics") {
            collect_sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}
