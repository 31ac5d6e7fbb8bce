//! A put is wholly there or wholly gone, whoever dies, races or repeats.

use std::io::Write as _;
use std::time::Duration;

use tenon_integration::account::{assert_accounts, assert_empty, field};
use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::http::Http;
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::proxy::{Fault, Toward};
use tenon_integration::raw::{RawClient, new_put_id};
use tenon_integration::wait;
use tenon_protocol::checksum::Checksums;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::message::{PutOutcome, Reply, Request};

#[test]
fn of_two_writers_racing_for_a_key_one_stores_and_all_nodes_have_its_bytes() {
    let cluster = Cluster::start(5);
    let mut sealed_bytes = 0;
    for round in 0..40usize {
        let key = format!("contested {round}");
        let writers = [round % 5, (round + 2) % 5];
        let objects = [
            payload(round as u64, 10_000 + round),
            payload(1000 + round as u64, 30_000 + round),
        ];
        let outcomes: Vec<String> = std::thread::scope(|scope| {
            let race = |which: usize| {
                let (http, key, bytes) = (cluster[writers[which]].http(), &key, &objects[which]);
                scope.spawn(move || {
                    http.put_object(key, bytes)["outcome"]
                        .as_str()
                        .unwrap_or("none")
                        .to_owned()
                })
            };
            let racers = [race(0), race(1)];
            racers.map(|racer| racer.join().expect("a writer")).into()
        });
        let winner = match [outcomes[0].as_str(), outcomes[1].as_str()] {
            ["stored", "already_exists"] => 0,
            ["already_exists", "stored"] => 1,
            other => panic!("{key}: {other:?}"),
        };
        for node in cluster.nodes() {
            assert_same(node.http().get_object(&key).expect(200).bytes(), &objects[winner], &key);
        }
        sealed_bytes += objects[winner].len() as u64;
    }
    assert_accounts(&cluster);
    // Regions are aligned, so a little more than the payload is sealed; a loser that stayed would be 10,000 bytes.
    let sealed: u64 = cluster.nodes().iter().map(|node| field(node, "sealed_bytes")).sum();
    assert!(
        (sealed_bytes..sealed_bytes + 10_000).contains(&sealed),
        "{sealed} sealed for {sealed_bytes}"
    );
}

#[test]
fn a_second_put_of_a_key_keeps_the_first_object() {
    let cluster = Cluster::start(3);
    assert_eq!(cluster[0].http().put_object("kept", b"first")["outcome"], "stored");
    for node in cluster.nodes() {
        assert_eq!(
            node.http().put_object("kept", b"second, longer")["outcome"],
            "already_exists"
        );
        assert_same(
            node.http().get_object("kept").expect(200).bytes(),
            b"first",
            "the object",
        );
    }
    assert_accounts(&cluster);
}

#[test]
fn a_put_that_failed_and_is_stored_all_the_same_has_said_that_it_may_be() {
    let cluster = Cluster::start(3);
    let bytes = payload(5, 200_000);
    let (mut failed, mut stored_all_the_same) = (0, 0);
    for round in 0..150usize {
        let key = format!("hurried/{round}");
        let timeout_ms = 1 + round % 15;
        let path = format!("{}?timeout_ms={timeout_ms}", Http::object_path(&key));
        let answer = cluster[round % 3].http().put(&path, &bytes);
        if answer.status == 201 {
            continue;
        }
        failed += 1;
        let may_be_stored = answer.json()["error"]["message"]
            .as_str()
            .is_some_and(|message| message.contains("whether the put is stored is not known"));
        // What goes on ends soon.
        std::thread::sleep(Duration::from_millis(50));
        let found = cluster[0].http().get(&Http::object_path(&key));
        if found.status == 200 {
            stored_all_the_same += 1;
            assert!(may_be_stored, "{answer:?}, and it is there");
        }
    }
    println!("{failed} puts failed, and {stored_all_the_same} of them are there");
    assert!(failed > 0, "no deadline was too short");
}

#[test]
fn a_client_killed_in_the_middle_of_a_put_leaves_nothing() {
    let cluster = Cluster::start_with(&ClusterOptions {
        nodes: 3,
        proxied: vec![1],
        ..ClusterOptions::default()
    });
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("file");
    std::fs::write(&file, payload(1, 16 << 20)).expect("the file can be written");
    // The holder gets 3 MiB and then nothing, so the put is certainly in its middle.
    cluster[1].proxy().set(Toward::Node, Fault::StallAfter(3 << 20));
    let mut client = cluster[0]
        .tenon_command()
        .args([
            "put",
            "--node",
            &cluster[1].id().to_string(),
            "half",
            file.to_str().expect("a path in UTF-8"),
        ])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("tenon starts");
    wait::until(wait::SOON, "the put is under way", || {
        match field(&cluster[1], "reserved_bytes") {
            0 => Err("nothing is reserved"),
            _ => Ok(()),
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    client.kill().expect("the client can be killed");
    client.wait().expect("the client can be waited for");
    cluster[1].proxy().heal();

    assert_empty(&cluster);
    for node in cluster.nodes() {
        node.http().get_object("half").expect_error(404, "not_found");
    }
    assert_eq!(cluster[2].http().put_object("half", b"whole")["outcome"], "stored");
    assert_accounts(&cluster);
}

#[test]
fn an_http_client_that_goes_away_in_the_middle_of_a_body_leaves_nothing() {
    let cluster = Cluster::start(2);
    let mut stream = cluster[0].http().connect();
    let head = format!(
        "PUT /v1/objects/half?node={} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388608\r\n\r\n",
        cluster[1].id()
    );
    stream.write_all(head.as_bytes()).expect("the head can be sent");
    stream
        .write_all(&payload(1, 4 << 20))
        .expect("half of the body can be sent");
    wait::until(wait::SOON, "the put is under way", || {
        match field(&cluster[1], "reserved_bytes") {
            0 => Err("nothing is reserved"),
            _ => Ok(()),
        }
    });
    drop(stream);
    assert_empty(&cluster);
    cluster[1].http().get_object("half").expect_error(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_put_id_sent_twice_is_one_put() {
    let cluster = Cluster::start(3);
    let client = RawClient::dial(cluster[0].link_address()).await;
    let (put_id, bytes) = (new_put_id(), payload(3, (2 << 20) + 5));
    let holder = Some(cluster[1].id());
    let put = client.reserve_one(put_id, "once", bytes.len() as u64, holder).await;
    let again = client.reserve_one(put_id, "once", bytes.len() as u64, holder).await;
    assert_eq!(put.reservation, again.reservation, "the same region");

    put.write(0, &bytes).await.expect("the bytes can be written");
    let first = client
        .commit_one(&put, Checksums::of(&bytes))
        .await
        .expect("the commit");
    assert_eq!((first.outcome, first.version.put_id), (PutOutcome::Stored, put_id));
    for coordinator in cluster.nodes() {
        let other = RawClient::dial(coordinator.link_address()).await;
        let repeated = other
            .commit_one(&put, Checksums::of(&bytes))
            .await
            .expect("the repeated commit");
        assert_eq!(repeated, first, "through {}", coordinator.id());
    }
    // The same id for other bytes is no repetition.
    for len in [bytes.len(), 7] {
        let other = payload(13, len);
        let put = client.reserve_one(put_id, "once", other.len() as u64, holder).await;
        put.write(0, &other).await.expect("the bytes can be written");
        let error = client
            .commit_one(&put, Checksums::of(&other))
            .await
            .expect_err("the put was of other bytes");
        assert_eq!(error.code, ErrorCode::PutIdReused, "{error}");
        let path = format!("{}?put_id={put_id}&node={}", Http::object_path("once"), cluster[1].id());
        cluster[0].http().put(&path, &other).expect_error(409, "put_id_reused");
    }
    assert_same(
        cluster[2].http().get_object("once").expect(200).bytes(),
        &bytes,
        "the object",
    );
    assert_accounts(&cluster);
    assert_eq!(field(&cluster[1], "objects"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_was_lost_is_answered_the_same_when_repeated() {
    let cluster = Cluster::start_with(&ClusterOptions {
        nodes: 3,
        proxied: vec![0],
        ..ClusterOptions::default()
    });
    let client = RawClient::dial(cluster[0].advertised()).await;
    let (put_id, bytes) = (new_put_id(), payload(4, 300_000));
    let put = client
        .reserve_one(put_id, "answered", bytes.len() as u64, Some(cluster[1].id()))
        .await;
    put.write(0, &bytes).await.expect("the bytes can be written");

    // The coordinator carries the commit out; its answer does not arrive.
    cluster[0].proxy().set(Toward::Dialler, Fault::StallAfter(0));
    let request = put.commit_request(Checksums::of(&bytes));
    let lost = tokio::spawn(async move { client.try_call(&request).await });
    wait::until(wait::SOON, "the commit is carried out", || {
        match cluster[2].http().head(&Http::object_path("answered")).status {
            200 => Ok(()),
            status => Err(status),
        }
    });
    cluster[0].proxy().cut();
    lost.await
        .expect("the task")
        .expect_err("no answer can have come through");
    cluster[0].proxy().heal();
    cluster.wait_all_alive();

    let client = RawClient::dial(cluster[0].advertised()).await;
    let repeated = client
        .commit_one(&put, Checksums::of(&bytes))
        .await
        .expect("the repeated commit");
    assert_eq!(
        (repeated.outcome, repeated.version.put_id),
        (PutOutcome::Stored, put_id)
    );
    assert_same(
        cluster[2].http().get_object("answered").expect(200).bytes(),
        &bytes,
        "the object",
    );
    assert_accounts(&cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_session_ended_before_its_commit_is_wholly_gone() {
    let cluster = Cluster::start(2);
    let client = RawClient::dial(cluster[0].link_address()).await;
    let bytes = payload(5, 300_000);
    let put = client
        .reserve_one(new_put_id(), "gone", bytes.len() as u64, Some(cluster[1].id()))
        .await;
    put.write(0, &bytes).await.expect("the bytes can be written");
    assert_eq!(field(&cluster[1], "reservations"), 1);
    client.link().close();
    drop(client);
    assert_empty(&cluster);

    let later = RawClient::dial(cluster[0].link_address()).await;
    let error = later
        .commit_one(&put, Checksums::of(&bytes))
        .await
        .expect_err("there is nothing to commit");
    assert_eq!(error.code, ErrorCode::UnknownPut);
    cluster[1].http().get_object("gone").expect_error(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_other_bytes_than_arrived_is_refused_and_leaves_nothing() {
    let cluster = Cluster::start(2);
    let client = RawClient::dial(cluster[0].link_address()).await;
    let bytes = payload(6, (1 << 20) + 9);
    let last = bytes.len() - 1;
    for (written, code) in [
        (&bytes[..last], ErrorCode::BytesMissing),
        (&bytes[..1 << 20], ErrorCode::BytesMissing),
        (&payload(7, bytes.len())[..], ErrorCode::ChecksumMismatch),
    ] {
        let put = client
            .reserve_one(new_put_id(), "wrong", bytes.len() as u64, Some(cluster[1].id()))
            .await;
        put.write(0, written).await.expect("the bytes can be written");
        let error = client
            .commit_one(&put, Checksums::of(&bytes))
            .await
            .expect_err("these are other bytes");
        assert_eq!(error.code, code, "{error}");
        assert_empty(&cluster);
    }
    cluster[0].http().get_object("wrong").expect_error(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_a_put_did_not_write_is_neither_stored_nor_told_of() {
    let cluster = Cluster::start(1);
    let client = RawClient::dial(cluster[0].link_address()).await;
    let others = payload(11, (1 << 20) + 9);
    cluster[0].http().put_object("others", &others);
    let left_over = client.locate(&["others"]).await.items[0]
        .as_ref()
        .expect("an answer")
        .clone()
        .expect("the object is found");
    cluster[0].http().delete(&Http::object_path("others")).expect(204);
    for guess in [others.clone(), payload(12, others.len())] {
        for written in [&guess[..0], &guess[1..]] {
            let put = client
                .reserve_one(new_put_id(), "guess", guess.len() as u64, None)
                .await;
            let region = &put.reservation.replicas[0];
            assert_eq!(
                region.offset_bytes, left_over.replicas[0].offset_bytes,
                "the object that was removed lies where the put may write"
            );
            if !written.is_empty() {
                put.write(1, written).await.expect("the bytes can be written");
            }
            let error = client
                .commit_one(&put, Checksums::of(&guess))
                .await
                .expect_err("nobody wrote the first byte for this put");
            assert_eq!(error.code, ErrorCode::BytesMissing);
            assert_eq!(
                error.message,
                "byte 0 of 1048585 was never written (each MiB in at most 64 parts)"
            );
            assert_empty(&cluster);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_stands_in_a_commit_twice_is_committed_once_and_refused_once() {
    let cluster = Cluster::start(1);
    let client = RawClient::dial(cluster[0].link_address()).await;
    let put = client.reserve_one(new_put_id(), "twice", 3, None).await;
    put.write(0, b"abc").await.expect("the bytes can be written");
    let Request::Commit(mut request) = put.commit_request(Checksums::of(b"abc")) else {
        panic!("a commit")
    };
    request.items.push(request.items[0].clone());
    let Reply::Commit(items) = client.call(&Request::Commit(request)).await else {
        panic!("a commit is answered as one")
    };
    assert_eq!(items[0].as_ref().expect("the first").outcome, PutOutcome::Stored);
    assert_eq!(
        items[1].as_ref().expect_err("the second").code,
        ErrorCode::InvalidArgument
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_without_bytes_expires_and_its_grant_with_it() {
    let cluster = Cluster::start_with(&ClusterOptions {
        nodes: 2,
        more_config: "[timeouts]\nreservation_ttl_ms = 1500\n".to_owned(),
        ..ClusterOptions::default()
    });
    let client = RawClient::dial(cluster[0].link_address()).await;
    let bytes = payload(8, 300_000);
    let put = client
        .reserve_one(new_put_id(), "late", bytes.len() as u64, Some(cluster[1].id()))
        .await;
    // A byte within the time to live prolongs it.
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        put.write(0, &bytes[..1000])
            .await
            .expect("the reservation lives while bytes arrive");
    }
    assert_eq!(field(&cluster[1], "reservations"), 1);
    assert_empty(&cluster);
    put.write(0, &bytes).await.expect_err("the grant has ended");
    let error = client
        .commit_one(&put, Checksums::of(&bytes))
        .await
        .expect_err("the reservation has ended");
    assert_eq!(error.code, ErrorCode::UnknownPut, "{error}");
    assert_empty(&cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_put_gives_its_region_back_at_once() {
    let cluster = Cluster::start(2);
    let client = RawClient::dial(cluster[0].link_address()).await;
    let put_id = new_put_id();
    let put = client
        .reserve_one(put_id, "aborted", 1 << 20, Some(cluster[1].id()))
        .await;
    assert!(
        client
            .abort_one(put_id, "aborted", &put.holders())
            .await
            .expect("the abort")
    );
    assert_empty(&cluster);
    assert!(
        !client
            .abort_one(put_id, "aborted", &put.holders())
            .await
            .expect("the repeated abort")
    );
    put.write(0, &[1; 100]).await.expect_err("the grant has ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_the_coordinator_ends_no_reservation_before_its_time() {
    let mut cluster = Cluster::start_with(&ClusterOptions {
        nodes: 3,
        more_config: "[timeouts]\nreservation_ttl_ms = 4000\n".to_owned(),
        ..ClusterOptions::default()
    });
    let client = RawClient::dial(cluster[0].link_address()).await;
    let bytes = payload(9, 300_000);
    let put = client
        .reserve_one(new_put_id(), "orphan", bytes.len() as u64, Some(cluster[1].id()))
        .await;
    put.write(0, &bytes).await.expect("the bytes can be written");
    cluster[0].kill9();
    // Another coordinator commits what the first one reserved.
    let other = RawClient::dial_as(
        cluster[2].link_address(),
        client.identity(),
        &*tenon_integration::raw::secret(),
    )
    .await
    .expect("another coordinator can be dialled in the same session");
    let reply = other
        .try_call(&put.commit_request(Checksums::of(&bytes)))
        .await
        .expect("an answer");
    let Reply::Commit(items) = reply else {
        panic!("{reply:?}")
    };
    let committed = items[0].as_ref().expect("the commit");
    assert_eq!(committed.outcome, PutOutcome::Stored);
    assert_same(
        cluster[1].http().get_object("orphan").expect(200).bytes(),
        &bytes,
        "the object",
    );
    assert_accounts(&cluster);
}
