//! Each way in which a handshake may fail has a name, on both sides.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use support::*;
use tenon_transport::link::{
    Authenticator, Endpoint, Identity, Link, LinkError, ListenerOptions, NoSecret, Refusal, RefusalCode, Role, Serving,
    SharedSecret, TokenClaims, VERSIONS,
};
use tenon_transport::{ClusterId, PeerId, SessionId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::time::Instant;

fn secret() -> SharedSecret {
    SharedSecret::new(SECRET).unwrap()
}

fn other_secret() -> SharedSecret {
    SharedSecret::new(b"another secret, as long").unwrap()
}

async fn dial(server: &Server, identity: &Identity, auth: &dyn Authenticator) -> Result<Arc<Link>, LinkError> {
    Link::dial(&server.endpoint, identity, auth, Some(SERVER), soon()).await
}

fn now_unix_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn claims() -> TokenClaims {
    TokenClaims {
        peer: CLIENT,
        session: SESSION,
        expires_unix_ms: now_unix_ms() + 60_000,
        scope: 3,
    }
}

async fn raw(server: &Server) -> TcpStream {
    let Endpoint::Tcp(address) = server.endpoint else {
        panic!("a TCP endpoint")
    };
    TcpStream::connect(address).await.unwrap()
}

/// A handshake message put together by hand.
fn message(versions: (u16, u16), kind: u8, len: u16) -> Vec<u8> {
    let mut bytes = b"TENONLNK".to_vec();
    bytes.extend_from_slice(&versions.0.to_le_bytes());
    bytes.extend_from_slice(&versions.1.to_le_bytes());
    bytes.extend_from_slice(&[kind, 0]);
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes
}

/// Code of the refusal that comes back.
async fn refusal_code(stream: &mut TcpStream) -> u16 {
    let mut answer = Vec::new();
    tokio::time::timeout(SOON, stream.read_to_end(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((&answer[..8], answer[12]), (&b"TENONLNK"[..], 5), "a refusal");
    u16::from_le_bytes([answer[16], answer[17]])
}

#[tokio::test]
async fn both_sides_learn_who_the_other_is() {
    for endpoint in [loopback(), unix("identity")] {
        let echo = Arc::new(Echo::default());
        let serving = Serving {
            auth: Arc::new(secret()),
            service: echo.clone(),
            ..serving()
        };
        let server = Server::start(&endpoint, serving).await;
        let link = dial(&server, &client_identity(), &secret()).await.unwrap();
        let remote = link.remote();
        assert_eq!((remote.peer, remote.incarnation, remote.session), (SERVER, 7, SESSION));
        assert_eq!(
            (remote.role, remote.features, remote.context),
            (Role::Member, 0b101, [8; 32])
        );
        eventually("the session opens", || !echo.opened.lock().is_empty()).await;
        let session = Arc::clone(&echo.opened.lock()[0]);
        assert_eq!(
            (session.peer, session.incarnation, session.session),
            (CLIENT, 3, SESSION)
        );
        assert_eq!(
            (session.role, session.features, session.context),
            (Role::Client, 0b011, [9; 32])
        );
        assert_eq!(session.scope, None);
        drop(link);
        eventually("the session closes", || {
            echo.closed.lock().iter().any(|closed| Arc::ptr_eq(closed, &session))
        })
        .await;
    }
}

#[tokio::test]
async fn a_token_lets_its_bearer_in_with_its_scope() {
    let echo = Arc::new(Echo::default());
    let serving = Serving {
        auth: Arc::new(secret()),
        service: echo.clone(),
        ..serving()
    };
    let server = Server::start(&loopback(), serving).await;
    let token = secret().mint(claims());
    let _link = dial(&server, &client_identity(), &token).await.unwrap();
    eventually("the session opens", || {
        echo.opened.lock().iter().any(|session| session.scope == Some(3))
    })
    .await;
}

#[tokio::test]
async fn a_token_out_of_place_or_time_is_refused() {
    let server = Server::with_auth(secret()).await;
    let expired = TokenClaims {
        expires_unix_ms: now_unix_ms() - 1,
        ..claims()
    };
    let other_session = TokenClaims {
        session: SessionId([1; 16]),
        ..claims()
    };
    let other_peer = TokenClaims {
        peer: PeerId([1; 16]),
        ..claims()
    };
    for (claims, words) in [
        (expired, "expired"),
        (other_session, "another session"),
        (other_peer, "another peer"),
    ] {
        let error = dial(&server, &client_identity(), &secret().mint(claims))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, LinkError::Unauthenticated { reason } if reason.contains(words)),
            "{error}"
        );
    }
    let member = Identity {
        role: Role::Member,
        ..client_identity()
    };
    let error = dial(&server, &member, &secret().mint(claims())).await.unwrap_err();
    assert!(
        matches!(&error, LinkError::Unauthenticated { reason } if reason.contains("member")),
        "{error}"
    );
    let error = dial(&server, &client_identity(), &other_secret().mint(claims()))
        .await
        .unwrap_err();
    assert!(
        matches!(error, LinkError::Unauthenticated { .. }),
        "minted from another secret: {error}"
    );
}

#[tokio::test]
async fn without_the_secret_nobody_gets_in_or_is_fooled() {
    let witness = Arc::new(Witness::default());
    let serving = Serving {
        auth: Arc::new(secret()),
        admission: witness.clone(),
        ..serving()
    };
    let server = Server::start(&loopback(), serving).await;
    for auth in [&NoSecret as &dyn Authenticator, &other_secret()] {
        let error = dial(&server, &client_identity(), auth).await.unwrap_err();
        assert!(matches!(error, LinkError::Unauthenticated { .. }), "{error}");
    }
    eventually("the acceptor names both", || {
        witness
            .errors
            .lock()
            .iter()
            .filter(|error| error.starts_with("Unauthenticated"))
            .count()
            == 2
    })
    .await;
    // An acceptor without the secret is found out by its own proof, before the dialler has proven anything.
    let open = Server::with_auth(NoSecret).await;
    let error = dial(&open, &client_identity(), &secret()).await.unwrap_err();
    assert!(
        matches!(&error, LinkError::Unauthenticated { reason } if reason.contains("the peer")),
        "{error}"
    );
}

#[tokio::test]
async fn another_cluster_or_peer_is_named() {
    let server = Server::with_auth(NoSecret).await;
    let stranger = Identity {
        cluster: ClusterId([1; 16]),
        ..client_identity()
    };
    let error = dial(&server, &stranger, &NoSecret).await.unwrap_err();
    assert!(
        matches!(error, LinkError::WrongCluster { ours } if ours == stranger.cluster),
        "{error}"
    );

    let expected = PeerId([1; 16]);
    let error = Link::dial(&server.endpoint, &client_identity(), &NoSecret, Some(expected), soon())
        .await
        .unwrap_err();
    assert!(
        matches!(error, LinkError::WrongPeer { expected: e, found: SERVER } if e == expected),
        "{error}"
    );
    assert!(
        Link::dial(&server.endpoint, &client_identity(), &NoSecret, None, soon())
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn who_may_open_the_unix_socket_learns_the_cluster() {
    let anywhere = Identity {
        cluster: ClusterId::ANY,
        ..client_identity()
    };
    let server = Server::start(&unix("any-cluster"), serving()).await;
    let link = dial(&server, &anywhere, &NoSecret).await.unwrap();
    assert_eq!(link.remote().cluster, server_identity().cluster);

    let server = Server::with_auth(NoSecret).await;
    let error = dial(&server, &anywhere, &NoSecret).await.unwrap_err();
    assert!(matches!(error, LinkError::WrongCluster { .. }), "{error}");
}

#[tokio::test]
async fn policy_refuses_with_its_own_code() {
    let refusal = Refusal {
        code: 1_234,
        message: "another member list".to_owned(),
    };
    let witness = Arc::new(Witness {
        refusal: Some(refusal),
        ..Witness::default()
    });
    let server = Server::start(
        &loopback(),
        Serving {
            admission: witness.clone(),
            ..serving()
        },
    )
    .await;
    let error = dial(&server, &client_identity(), &NoSecret).await.unwrap_err();
    assert!(
        matches!(&error, LinkError::Refused { code: 1_234, message } if message == "another member list"),
        "{error}"
    );
    eventually("it is counted", || {
        witness.errors.lock().iter().any(|error| error.starts_with("Refused"))
    })
    .await;
}

#[tokio::test]
async fn an_unknown_version_is_told_what_we_speak() {
    let witness = Arc::new(Witness::default());
    let server = Server::start(
        &loopback(),
        Serving {
            admission: witness.clone(),
            ..serving()
        },
    )
    .await;
    for theirs in [(1, VERSIONS.0 - 1), (VERSIONS.1 + 1, 99)] {
        let mut stream = raw(&server).await;
        stream.write_all(&message(theirs, 1, 100)).await.unwrap();
        stream.write_all(&[0; 100]).await.unwrap();
        assert_eq!(refusal_code(&mut stream).await, RefusalCode::Version as u16);
        let named = format!("Version {{ ours: {VERSIONS:?}, theirs: {theirs:?} }}");
        eventually("it is named", || witness.errors.lock().contains(&named)).await;
    }
}

#[tokio::test]
async fn the_dialler_names_an_acceptor_of_another_version_or_protocol() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap());
    let answers = tokio::spawn(async move {
        for answer in [
            [message((5, 6), 5, 4), vec![1, 0, 0, 0]].concat(),
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            message(VERSIONS, 2, 65_000),
            message(VERSIONS, 4, 0),
        ] {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&answer).await.unwrap();
            stream.shutdown().await.unwrap();
            _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
    let dial = || Link::dial(&endpoint, &CLIENT_IDENTITY, &NoSecret, None, soon());
    static CLIENT_IDENTITY: std::sync::LazyLock<Identity> = std::sync::LazyLock::new(client_identity);
    assert!(matches!(
        dial().await,
        Err(LinkError::Version {
            ours: VERSIONS,
            theirs: (5, 6)
        })
    ));
    assert!(matches!(dial().await, Err(LinkError::BadMagic { .. })));
    assert!(
        matches!(dial().await, Err(LinkError::Protocol { .. })),
        "an impossible length"
    );
    assert!(
        matches!(dial().await, Err(LinkError::Protocol { .. })),
        "a welcome without a challenge"
    );
    answers.await.unwrap();
}

#[tokio::test]
async fn garbage_gets_no_answer_and_is_named() {
    let witness = Arc::new(Witness::default());
    let server = Server::start(
        &loopback(),
        Serving {
            admission: witness.clone(),
            ..serving()
        },
    )
    .await;
    let mut stream = raw(&server).await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // Closing with something unread may reset the connection; no byte comes back either way.
    _ = tokio::time::timeout(SOON, stream.read_to_end(&mut answer))
        .await
        .unwrap();
    assert!(answer.is_empty());
    eventually("it is named", || {
        witness.errors.lock().iter().any(|error| error.starts_with("BadMagic"))
    })
    .await;
    // The listener goes on.
    assert!(dial(&server, &client_identity(), &NoSecret).await.is_ok());
}

#[tokio::test]
async fn impossible_lengths_and_bodies_are_refused() {
    let server = Server::with_auth(NoSecret).await;
    for bytes in [
        message(VERSIONS, 1, 60_000),
        message(VERSIONS, 3, 0),
        [message(VERSIONS, 1, 50), vec![0xff; 50]].concat(),
    ] {
        let mut stream = raw(&server).await;
        stream.write_all(&bytes).await.unwrap();
        assert_eq!(refusal_code(&mut stream).await, RefusalCode::Malformed as u16);
    }
}

#[tokio::test]
async fn a_slow_handshake_ends_at_the_deadline_of_either_side() {
    let witness = Arc::new(Witness::default());
    let options = ListenerOptions {
        handshake_timeout: Duration::from_millis(100),
        ..ListenerOptions::default()
    };
    let serving = Serving {
        admission: witness.clone(),
        ..serving()
    };
    let server = Server::start_with(&loopback(), serving, options).await;
    let mut stream = raw(&server).await;
    stream.write_all(&message(VERSIONS, 1, 100)).await.unwrap();
    let ended = tokio::time::timeout(SOON, stream.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "the acceptor hangs up");
    eventually("it is named", || {
        witness.errors.lock().iter().any(|error| error.starts_with("Deadline"))
    })
    .await;

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::Tcp(silent.local_addr().unwrap());
    let deadline = Instant::now() + Duration::from_millis(100);
    let error = Link::dial(&endpoint, &client_identity(), &NoSecret, None, deadline)
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            LinkError::Deadline {
                during: "the handshake"
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn nobody_at_the_address_is_named_with_it() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::Tcp(free.local_addr().unwrap());
    drop(free);
    let error = Link::dial(&endpoint, &client_identity(), &NoSecret, None, soon())
        .await
        .unwrap_err();
    assert!(error.to_string().contains(&endpoint.to_string()), "{error}");
    assert!(matches!(error, LinkError::Connect { .. }));
}

#[tokio::test]
async fn an_abandoned_socket_is_replaced_and_a_live_one_is_not() {
    let endpoint = unix("abandoned");
    let Endpoint::Unix(path) = &endpoint else {
        panic!("a unix endpoint")
    };
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    let server = Server::start(&endpoint, serving()).await;
    assert!(dial(&server, &client_identity(), &NoSecret).await.is_ok());
    let error = tenon_transport::link::Listener::bind(&endpoint).await.unwrap_err();
    assert_eq!(error.source.kind(), std::io::ErrorKind::AddrInUse);
    assert!(dial(&server, &client_identity(), &NoSecret).await.is_ok());
}
