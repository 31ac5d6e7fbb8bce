//! What the link refuses: strangers, foreign grants, and bytes that are no frames. Each by its name; the agent goes on.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenon_integration::account::assert_empty;
use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::proxy::{Fault, Toward};
use tenon_integration::raw::{self, RawClient, deadline, identity, new_put_id, secret};
use tenon_protocol::checksum::Checksums;
use tenon_protocol::codec;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::member::MemberRequest;
use tenon_protocol::message::{Reply, Request};
use tenon_transport::link::{Link, LinkError, NoSecret, Role, SharedSecret, VERSIONS};
use tenon_transport::tcp::{TcpConnection, TcpOptions};
use tenon_transport::{ClusterId, Connection, PeerId, TransferError};

/// Refusals below this belong to the handshake itself, from here on to the agent's policy.
const POLICY_CODES: u16 = 1000;

/// The cluster takes no harm: nothing is reserved, and a well-behaved client is served.
async fn assert_unharmed(cluster: &Cluster) {
    assert_empty(cluster);
    let client = RawClient::dial(cluster[0].link_address()).await;
    let bytes = payload(1, 100_000);
    let put = client
        .reserve_one(
            new_put_id(),
            "after all that",
            bytes.len() as u64,
            Some(cluster[1].id()),
        )
        .await;
    put.write(0, &bytes).await.expect("the bytes can be written");
    client
        .commit_one(&put, Checksums::of(&bytes))
        .await
        .expect("the commit");
    assert_same(
        cluster[1].http().get_object("after all that").expect(200).bytes(),
        &bytes,
        "the object",
    );
    cluster[0].http().delete("/v1/objects/after%20all%20that").expect(204);
    assert_empty(cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_refused_each_by_its_reason() {
    let cluster = Cluster::start(2);
    let address = cluster[0].link_address();
    let right = identity();

    let other_secret = SharedSecret::new(b"not the secret of this cluster").expect("it is long enough");
    let refused = RawClient::dial_as(address, &right, &other_secret).await;
    assert!(matches!(refused, Err(LinkError::Unauthenticated { .. })), "{refused:?}");

    let refused = RawClient::dial_as(address, &right, &NoSecret).await;
    assert!(matches!(refused, Err(LinkError::Unauthenticated { .. })), "{refused:?}");

    let mut stranger = right.clone();
    stranger.cluster = ClusterId([9; 16]);
    let refused = RawClient::dial_as(address, &stranger, &*secret()).await;
    assert!(matches!(refused, Err(LinkError::WrongCluster { .. })), "{refused:?}");

    let endpoint = cluster[0].link_endpoint();
    let refused = Link::dial(&endpoint, &right, &*secret(), Some(PeerId([7; 16])), deadline()).await;
    assert!(matches!(refused, Err(LinkError::WrongPeer { .. })), "{refused:?}");

    // A member that is not in the view, and one that is but has another list of members.
    for peer in [[7; 16], cluster[1].id().to_bytes()] {
        let mut member = right.clone();
        (member.role, member.peer, member.context) = (Role::Member, PeerId(peer), [5; 32]);
        let refused = RawClient::dial_as(address, &member, &*secret()).await;
        assert!(
            matches!(
                refused,
                Err(LinkError::Refused {
                    code: POLICY_CODES..,
                    ..
                })
            ),
            "{refused:?}"
        );
    }
    // Whoever has the secret can speak for a member; its next sign of life sets that right.
    cluster.wait_all_alive();
    assert_unharmed(&cluster).await;
}

/// Sends bytes as they are to a node's link and returns what comes back until it closes.
fn send(cluster: &Cluster, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(cluster[0].link_address()).expect("the node listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a time-out can be set");
    // The node may close before it has read all of it.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the node did not close the connection: {error}"),
    }
    answer
}

fn handshake(versions: (u16, u16), kind: u8, len_bytes: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"TENONLNK".to_vec();
    for field in [versions.0, versions.1] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(&[kind, 0]);
    bytes.extend_from_slice(&len_bytes.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_handshake_is_closed_and_an_unknown_version_is_told() {
    let cluster = Cluster::start(2);
    assert!(
        send(&cluster, b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n").is_empty(),
        "not our magic: no answer"
    );
    assert!(send(&cluster, &[0; 4096]).is_empty(), "not our magic: no answer");
    // An impossible length, an impossible kind, a hello that is too short.
    for bytes in [
        handshake(VERSIONS, 1, u16::MAX, &[0; 100]),
        handshake(VERSIONS, 77, 4, &[0; 4]),
        handshake(VERSIONS, 1, 4, &[0; 4]),
    ] {
        send(&cluster, &bytes);
    }
    for versions in [(1, VERSIONS.0 - 1), (98, 99)] {
        let answer = send(&cluster, &handshake(versions, 1, 130, &[1; 130]));
        // A refusal has the header, kind 5, and begins with its code: 1 is the version.
        assert_eq!(answer.get(..8), Some(&b"TENONLNK"[..]), "{answer:?}");
        assert_eq!((answer[12], &answer[16..18]), (5, &[1, 0][..]), "{answer:?}");
    }
    assert_unharmed(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_request_are_malformed_and_the_link_goes_on() {
    let cluster = Cluster::start(2);
    let client = RawClient::dial(cluster[0].link_address()).await;
    let whole = codec::encode(&Request::Nodes).expect("a request");
    let longer: Vec<u8> = whole.iter().copied().chain([0; 3]).collect();
    for bytes in [&[][..], &[0xff; 64], &longer, &[0x00, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
        let answer = client
            .link()
            .call(Bytes::copy_from_slice(bytes), deadline())
            .await
            .expect("an answer");
        match codec::decode::<Reply>(&answer).expect("a reply") {
            Reply::Failed(error) => assert_eq!(error.code, ErrorCode::MalformedRequest, "{error}"),
            other => panic!("{bytes:?} was answered {other:?}"),
        }
    }
    assert!(matches!(client.call(&Request::Nodes).await, Reply::Nodes(_)));
    assert_unharmed(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_make_the_calls_of_members() {
    let cluster = Cluster::start(2);
    let client = RawClient::dial(cluster[0].link_address()).await;
    let ended = MemberRequest::SessionEnded {
        session: tenon_protocol::ids::SessionId::from_bytes([1; 16]),
    };
    match client.call(&Request::Member(ended)).await {
        Reply::Failed(error) => assert_eq!(error.code, ErrorCode::Forbidden, "{error}"),
        other => panic!("{other:?}"),
    }
    assert_unharmed(&cluster).await;
}

/// Lanes of a client to a node's own link.
async fn lanes(cluster: &Cluster, client: &RawClient) -> Arc<dyn Connection> {
    TcpConnection::open(
        &cluster[1].link_endpoint(),
        client.identity(),
        secret(),
        None,
        TcpOptions::default(),
        deadline(),
    )
    .await
    .expect("lanes can be opened")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_serves_its_session_its_range_and_its_direction_only() {
    let cluster = Cluster::start(2);
    let client = RawClient::dial(cluster[1].link_address()).await;
    let stranger = RawClient::dial(cluster[1].link_address()).await;
    let put_id = new_put_id();
    let put = client.reserve_one(put_id, "granted", 1000, None).await;
    let key = put.reservation.replicas[0].write_key;
    let foreign = lanes(&cluster, &stranger).await;

    let refused = raw::write(&*foreign, key, 0, &[1; 10]).await;
    assert!(
        matches!(
            refused,
            Err(TransferError::Forbidden { .. } | TransferError::UnknownKey { .. })
        ),
        "{refused:?}"
    );
    let refused = raw::write(&*foreign, 0x1234_5678_9abc_def0, 0, &[1; 10]).await;
    assert!(matches!(refused, Err(TransferError::UnknownKey { .. })), "{refused:?}");
    for (offset, len) in [(991, 10), (1000, 1), (u64::MAX - 4, 10)] {
        let refused = raw::write(&*put.connection, key, offset, &vec![1; len]).await;
        assert!(matches!(refused, Err(TransferError::OutOfRange { .. })), "{refused:?}");
    }
    let refused = raw::read(&*put.connection, key, 0, 10).await;
    assert!(
        matches!(refused, Err(TransferError::Forbidden { .. })),
        "a grant to write reads nothing: {refused:?}"
    );

    let Reply::Attach(attached) = client.call(&Request::Attach).await else {
        panic!("attach")
    };
    for readable in [attached.segments[0].data_key, attached.segments[0].table_key] {
        let refused = raw::write(&*put.connection, readable, 0, &[1; 64]).await;
        assert!(
            matches!(refused, Err(TransferError::Forbidden { .. })),
            "a grant to read writes nothing: {refused:?}"
        );
    }
    let segment_bytes = attached.segments[0].segment_bytes;
    let refused = raw::read(&*put.connection, attached.segments[0].data_key, segment_bytes - 5, 10).await;
    assert!(matches!(refused, Err(TransferError::OutOfRange { .. })), "{refused:?}");

    // After its put, the grant is over, for its own session too.
    put.write(0, &[7; 1000])
        .await
        .expect("the grant serves its own session");
    client
        .commit_one(&put, Checksums::of(&[7; 1000]))
        .await
        .expect("the commit");
    let refused = put.write(0, &[8; 1000]).await;
    assert!(
        matches!(refused, Err(TransferError::UnknownKey { .. } | TransferError::Revoked)),
        "{refused:?}"
    );
    assert_same(
        cluster[0].http().get_object("granted").expect(200).bytes(),
        &[7; 1000],
        "the object",
    );
    cluster[0].http().delete("/v1/objects/granted").expect(204);
    assert_unharmed(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_with_a_bad_magic_or_an_impossible_length_ends_its_link_alone() {
    let cluster = Cluster::start_with(&ClusterOptions {
        nodes: 2,
        proxied: vec![0],
        ..ClusterOptions::default()
    });
    // Of a frame of the link, the first byte belongs to the magic; the eighth is the high byte of the length.
    for offset in [0, 7] {
        let client = RawClient::dial(cluster[0].advertised()).await;
        let bystander = RawClient::dial(cluster[0].link_address()).await;
        cluster[0].proxy().set(Toward::Node, Fault::FlipAt(offset));
        let refused = client.try_call(&Request::Nodes).await;
        assert!(matches!(refused, Err(LinkError::Closed { .. })), "{refused:?}");
        cluster[0].proxy().heal();
        assert!(matches!(bystander.call(&Request::Nodes).await, Reply::Nodes(_)));
    }
    // On a lane: the frame's writer learns that its bytes did not arrive, and may try again.
    for offset in [0, 7] {
        let client = RawClient::dial(cluster[0].advertised()).await;
        let put = client.reserve_one(new_put_id(), "framed", 100_000, None).await;
        let before = cluster[0].proxy().flipped_bits();
        cluster[0].proxy().set(Toward::Node, Fault::FlipAt(offset));
        let refused = put.write(0, &payload(1, 100_000)).await;
        assert!(refused.is_err(), "a damaged header was taken");
        assert!(cluster[0].proxy().flipped_bits() > before);
        cluster[0].proxy().heal();
        client.link().close();
    }
    cluster.wait_all_alive();
    assert_unharmed(&cluster).await;
}
