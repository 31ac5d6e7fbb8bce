//! Many keys in one call stay one call, with a result per key, whatever becomes of its neighbours.

use std::sync::Arc;

use tenon_client::{Client, ClientError, GetItem, GetOutcome, PutItem, PutOptions, default_deadline};
use tenon_integration::account::{assert_accounts, assert_empty};
use tenon_integration::cluster::Cluster;
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::raw::memory_of;
use tenon_protocol::message::PutOutcome;
use tenon_protocol::name::Namespace;
use tenon_transport::{Memory, Slice};

const BATCH: usize = 128;

fn namespace() -> Namespace {
    Namespace::new(Namespace::DEFAULT).expect("the default namespace")
}

fn key(index: usize) -> String {
    format!("batch/{index:03}")
}

/// Lengths around the borders that matter, all in one batch.
fn bytes(index: usize) -> Vec<u8> {
    let lengths = [1, 100, 4096, (64 << 10) - 1, 64 << 10, 1 << 20, (1 << 20) + 1];
    payload(index as u64, lengths[index % lengths.len()])
}

fn empty_memory(len: usize) -> Slice {
    Arc::new(Memory::from_vec(vec![0; len])).whole()
}

async fn put_batch(
    client: &Client,
    indices: impl Iterator<Item = usize>,
    options: &PutOptions,
) -> Vec<Result<PutOutcome, ClientError>> {
    let items: Vec<_> = indices
        .map(|index| PutItem {
            key: key(index),
            source: memory_of(bytes(index)),
        })
        .collect();
    let results = client
        .put_batch(&namespace(), items, options, default_deadline(64 << 20))
        .await;
    results
        .into_iter()
        .map(|result| result.map(|committed| committed.outcome))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_128_keys_put_through_one_node_comes_back_through_every_other() {
    let cluster = Cluster::start(5);
    for (part, holder) in [0, 2, 4].into_iter().enumerate() {
        let options = PutOptions {
            node: Some(cluster[holder].id()),
            ..PutOptions::default()
        };
        let indices = (0..BATCH).filter(|index| index % 3 == part);
        let outcomes = put_batch(&cluster[0].client().await, indices, &options).await;
        assert!(
            outcomes.iter().all(|outcome| *outcome == Ok(PutOutcome::Stored)),
            "{outcomes:?}"
        );
    }
    for reader in cluster.others(&[0]) {
        for client in [reader.client().await, reader.client_over_tcp().await] {
            let destinations: Vec<_> = (0..BATCH).map(|index| empty_memory(bytes(index).len())).collect();
            let items = destinations.iter().enumerate();
            let items = items
                .map(|(index, into)| GetItem::whole(key(index), into.clone()))
                .collect();
            let outcomes = client.get_batch(&namespace(), items, default_deadline(64 << 20)).await;
            for (index, outcome) in outcomes.iter().enumerate() {
                assert!(matches!(outcome, Ok(GetOutcome::Hit(_))), "{}: {outcome:?}", key(index));
                assert_same(&destinations[index].to_vec(), &bytes(index), &key(index));
            }
        }
    }
    let again = put_batch(&cluster[3].client().await, 0..BATCH, &PutOptions::default()).await;
    assert!(
        again.iter().all(|outcome| *outcome == Ok(PutOutcome::AlreadyExists)),
        "{again:?}"
    );
    assert_accounts(&cluster);

    let keys: Vec<String> = (0..BATCH).map(key).collect();
    let removed = cluster[1]
        .client()
        .await
        .remove(&namespace(), keys, default_deadline(0))
        .await;
    assert!(removed.iter().all(|removed| *removed == Ok(true)), "{removed:?}");
    assert_empty(&cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_key_and_a_miss_in_a_batch_are_their_own_results_only() {
    let cluster = Cluster::start(3);
    let client = cluster[0].client().await;
    let source = || memory_of(payload(1, 1000));
    let item = |key: &str| PutItem {
        key: key.to_owned(),
        source: source(),
    };
    let items = vec![
        item("good"),
        item(""),
        item("twice"),
        item("twice"),
        item("b\0d"),
        item("also good"),
    ];
    let results = client
        .put_batch(&namespace(), items, &PutOptions::default(), default_deadline(0))
        .await;
    let stored: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(stored, [true, false, true, false, false, true], "{results:?}");

    let reader = cluster[1].client().await;
    let into = |len| empty_memory(len);
    let right = into(1000);
    let items = vec![
        GetItem::whole("good", right.clone()),
        GetItem::whole("nothing", into(1000)),
        GetItem::whole("also good", into(999)),
        GetItem::part("also good", 990..1000, into(10)),
        GetItem::part("also good", 990..1001, into(11)),
    ];
    let outcomes = reader.get_batch(&namespace(), items, default_deadline(0)).await;
    assert!(matches!(outcomes[0], Ok(GetOutcome::Hit(_))), "{outcomes:?}");
    assert_same(&right.to_vec(), &payload(1, 1000), "the good one");
    assert_eq!(outcomes[1], Ok(GetOutcome::Miss));
    assert!(
        matches!(outcomes[2], Err(ClientError::SizeMismatch { .. })),
        "{outcomes:?}"
    );
    assert!(matches!(outcomes[3], Ok(GetOutcome::Hit(_))), "{outcomes:?}");
    assert!(matches!(outcomes[4], Err(ClientError::Range { .. })), "{outcomes:?}");
    assert_accounts(&cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leading_run_of_hits_ends_at_the_first_gap() {
    let cluster = Cluster::start(5);
    let client = cluster[0].client().await;
    let outcomes = put_batch(&client, (0..BATCH).filter(|index| *index != 77), &PutOptions::default()).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let keys: Vec<String> = (0..BATCH).map(key).collect();
    for node in cluster.nodes() {
        let client = node.client().await;
        let run = client
            .exists_leading_run(&namespace(), keys.clone(), default_deadline(0))
            .await;
        assert_eq!(run, Ok(77));
        let each = client.exists(&namespace(), keys.clone(), default_deadline(0)).await;
        let missing: Vec<_> = (0..BATCH).filter(|index| each[*index] != Ok(true)).collect();
        assert_eq!(missing, [77], "{each:?}");
    }
    assert_accounts(&cluster);
}
