//! Objects that are put and read piece by piece.

use crate::support::*;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tenon_client::{ClientError, ObjectReader, PutOptions, PutStream};
use tenon_protocol::error::ErrorCode;
use tenon_protocol::message::PutOutcome;
use tokio::time::Instant;

async fn put_stream(agent: &Arc<FakeAgent>, len_bytes: usize) -> PutStream {
    let options = PutOptions::default();
    agent
        .client()
        .put_stream(&name("k"), len_bytes as u64, &options, soon())
        .await
        .unwrap()
}

async fn open(agent: &Arc<FakeAgent>) -> ObjectReader {
    agent
        .client()
        .open(&name("k"), soon())
        .await
        .unwrap()
        .expect("the object is there")
}

#[tokio::test]
async fn a_stream_is_one_object_however_it_is_cut() {
    for chunk in [1000, 64 * 1024, MIB, MIB + 1, 40 * MIB] {
        let agent = FakeAgent::new(2, 2, 64 << 20);
        let bytes = payload(if chunk == 1000 { MIB + 5 } else { 20 * MIB + 5 }, chunk as u64);
        let mut stream = put_stream(&agent, bytes.len()).await;
        for part in bytes.chunks(chunk) {
            stream.write(Bytes::copy_from_slice(part)).await.unwrap();
        }
        assert_eq!(stream.written_bytes(), bytes.len() as u64);
        let put_id = stream.put_id();
        let committed = stream.finish().await.unwrap();
        assert_eq!(
            (committed.outcome, committed.version.put_id),
            (PutOutcome::Stored, put_id)
        );
        assert!(
            agent.client().get(&name("k"), soon()).await.unwrap().unwrap() == bytes,
            "chunks of {chunk}"
        );
    }
}

#[tokio::test]
async fn a_stream_of_another_length_stores_nothing() {
    let agent = FakeAgent::new(1, 1, 8 << 20);
    let mut stream = put_stream(&agent, 100).await;
    stream.write(Bytes::from_static(&[1; 60])).await.unwrap();
    let short = ClientError::LengthMismatch {
        announced_bytes: 100,
        written_bytes: 60,
    };
    assert_eq!(stream.finish().await.unwrap_err(), short);

    let mut stream = put_stream(&agent, 100).await;
    stream.write(Bytes::from_static(&[1; 60])).await.unwrap();
    let long = ClientError::LengthMismatch {
        announced_bytes: 100,
        written_bytes: 120,
    };
    assert_eq!(stream.write(Bytes::from_static(&[1; 60])).await.unwrap_err(), long);
    assert_eq!(
        stream.write(Bytes::from_static(&[1; 40])).await.unwrap_err(),
        long,
        "it has failed for good"
    );
    assert_eq!(stream.finish().await.unwrap_err(), long);
    assert_eq!((agent.pending(), agent.count(is_commit)), (0, 0));
}

#[tokio::test]
async fn an_aborted_or_dropped_stream_gives_its_reservation_back() {
    let agent = FakeAgent::new(1, 1, 8 << 20);
    let mut stream = put_stream(&agent, MIB).await;
    stream.write(Bytes::from_static(&[1; 60])).await.unwrap();
    stream.abort().await;
    assert_eq!(agent.pending(), 0);

    let stream = put_stream(&agent, MIB).await;
    assert_eq!(agent.pending(), 1);
    drop(stream);
    eventually("the abort", || agent.pending() == 0).await;
}

#[tokio::test]
async fn impossible_objects_are_refused_before_anything_is_reserved() {
    let agent = FakeAgent::new(1, 1, 8 << 20);
    let options = PutOptions::default();
    let error = agent
        .client()
        .put_stream(&name("k"), 0, &options, soon())
        .await
        .unwrap_err();
    assert_eq!(error, ClientError::Empty);
    let error = agent
        .client()
        .put_stream(&name("k"), u64::MAX, &options, soon())
        .await
        .unwrap_err();
    assert_eq!(error, ClientError::TooLarge { len_bytes: u64::MAX });
    assert_eq!(agent.calls(|_| Some(())).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_holder_hangs_ends_at_its_deadline() {
    let agent = FakeAgent::new(1, 1, 64 << 20);
    agent.wrap(Script::hanging().wrap());
    let (start, span) = (Instant::now(), Duration::from_millis(300));
    let options = PutOptions::default();
    let len_bytes = 40 * MIB as u64;
    let mut stream = agent
        .client()
        .put_stream(&name("k"), len_bytes, &options, start + span)
        .await
        .unwrap();
    let error = stream.write(Bytes::from(vec![1; 40 * MIB])).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlineExceeded);
    assert!(
        start.elapsed() <= span + Duration::from_millis(1),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn pieces_are_read_in_any_order() {
    for script in [Script::guarded(), Script::one_sided()] {
        let bytes = payload(12 * MIB + 9, 3);
        let agent = agent_with("k", &bytes);
        agent.wrap(script.wrap());
        let mut reader = open(&agent).await;
        assert_eq!((reader.pieces(), reader.info().len_bytes), (13, bytes.len() as u64));
        for piece in (0..13).chain([5, 12, 0, 1]) {
            let end = bytes.len().min((piece + 1) * MIB);
            let read = reader.read_piece(piece as u64, soon()).await.unwrap();
            assert!(read == bytes[piece * MIB..end], "piece {piece}");
        }
        let error = reader.read_piece(13, soon()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::RangeNotSatisfiable);
        assert_eq!(agent.count(is_locate), 1);
    }
}

#[tokio::test]
async fn nothing_is_read_ahead_of_where_the_caller_stops() {
    let (bytes, script) = (payload(12 * MIB, 3), Script::guarded());
    let agent = agent_with("k", &bytes);
    agent.wrap(script.wrap());
    let mut reader = open(&agent).await;
    reader.read_ahead_until(2);
    let before = script.transfers();
    reader.read_piece(0, soon()).await.unwrap();
    reader.read_piece(1, soon()).await.unwrap();
    assert_eq!(script.transfers() - before, 2);
}

#[tokio::test]
async fn a_missing_object_is_not_opened() {
    let agent = FakeAgent::new(1, 1, 8 << 20);
    assert!(agent.client().open(&name("k"), soon()).await.unwrap().is_none());
}

#[tokio::test]
async fn an_object_replaced_or_removed_while_it_is_read_is_never_mixed() {
    for is_replaced in [true, false] {
        for script in [Script::guarded(), Script::one_sided()] {
            let (old, new) = (payload(12 * MIB, 1), payload(12 * MIB, 2));
            let agent = FakeAgent::new(1, 1, 64 << 20);
            agent.wrap(script.wrap());
            let located = agent.store("k", &old);
            let mut reader = open(&agent).await;
            reader.read_ahead_until(1);
            reader.read_piece(0, soon()).await.unwrap();
            agent.nodes[0].free(&located.replicas[0]);
            if is_replaced {
                agent.store("k", &new);
            } else {
                agent.forget("k");
            }
            let expected = located.version;
            let error = reader.read_piece(11, soon()).await.unwrap_err();
            assert_eq!(error, ClientError::Changed { expected });
        }
    }
}

/// The owner grants the read, but of another object: the stamp tells, before any checksum does.
#[tokio::test]
async fn an_object_replaced_in_its_own_region_is_told_from_a_damaged_one() {
    for script in [Script::guarded(), Script::one_sided()] {
        let (old, new) = (payload(4 * MIB, 1), payload(4 * MIB, 2));
        let agent = FakeAgent::new(1, 1, 64 << 20);
        agent.wrap(script.wrap());
        let located = agent.store("k", &old);
        let mut reader = open(&agent).await;
        reader.read_ahead_until(1);
        reader.read_piece(0, soon()).await.unwrap();
        agent.replace_in_place("k", &located, &new);
        let expected = located.version;
        let error = reader.read_piece(1, soon()).await.unwrap_err();
        assert_eq!(error, ClientError::Changed { expected });
        assert!(agent.client().get(&name("k"), soon()).await.unwrap().unwrap() == new);
    }
}

#[tokio::test]
async fn an_object_that_moves_while_it_is_read_is_followed() {
    let bytes = payload(4 * MIB, 1);
    let agent = FakeAgent::new(2, 1, 64 << 20);
    let mut located = agent.store("k", &bytes);
    let mut reader = open(&agent).await;
    reader.read_ahead_until(1);
    reader.read_piece(0, soon()).await.unwrap();
    let moved = agent.nodes[1].store(&name("k"), located.version, &bytes);
    agent.nodes[0].free(&located.replicas[0]);
    located.replicas = vec![moved];
    agent.index("k", located);
    for piece in 1..4 {
        let read = reader.read_piece(piece as u64, soon()).await.unwrap();
        assert!(read == bytes[piece * MIB..(piece + 1) * MIB], "piece {piece}");
    }
    assert_eq!(agent.count(is_locate), 2, "found once, it is not looked for again");
}

#[tokio::test]
async fn a_damaged_piece_fails_alone() {
    let bytes = payload(4 * MIB, 1);
    let agent = FakeAgent::new(1, 1, 64 << 20);
    let located = agent.store("k", &bytes);
    agent.nodes[0].write(&located.replicas[0], 2 * MIB as u64, &[bytes[2 * MIB] ^ 1]);
    let mut reader = open(&agent).await;
    for piece in [0, 1, 3] {
        reader.read_piece(piece, soon()).await.unwrap();
    }
    let error = reader.read_piece(2, soon()).await.unwrap_err();
    assert!(matches!(error, ClientError::FailedRead { .. }), "{error}");
}
