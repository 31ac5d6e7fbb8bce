//! Keeps one lane open: runs it, fails its requests when it dies, and dials again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::ids::PeerId;
use crate::limits::{BACKOFF_MAX, BACKOFF_MIN, BACKOFF_RESET, REDIAL_TIMEOUT};
use crate::link::{Authenticator, Channel, Endpoint, Identity, LinkError, RefusalCode, Remote, handshake};
use crate::stream::Stream;
use crate::task::OwnedTask;
use crate::tcp::TcpOptions;
use crate::tcp::initiator::io;
use crate::tcp::initiator::requests::Requests;
use crate::tcp::lane::{Inbox, Outbox, Progress};

/// How a lane is dialled.
#[derive(Clone)]
pub(super) struct Dialler {
    pub(super) endpoint: Endpoint,
    pub(super) identity: Identity,
    pub(super) auth: Arc<dyn Authenticator>,
    pub(super) options: TcpOptions,
}

impl Dialler {
    pub(super) async fn dial(&self, expect: Option<PeerId>, deadline: Instant) -> Result<(Stream, Remote), LinkError> {
        let Self {
            endpoint,
            identity,
            auth,
            ..
        } = self;
        handshake::dial(endpoint, identity, Channel::Data, auth.as_ref(), expect, deadline).await
    }
}

/// Why a connection is closed for good; `None` while it is open.
pub(super) type Closed = watch::Sender<Option<String>>;

/// Closes a connection for good. Returns true if it was open.
pub(super) fn close(closed: &Closed, reason: String) -> bool {
    closed.send_if_modified(|closed| {
        let was_open = closed.is_none();
        closed.get_or_insert(reason);
        was_open
    })
}

/// Runs one lane until the connection is closed.
pub(super) async fn supervise(
    dialler: Dialler,
    peer: PeerId,
    first: Stream,
    requests: Arc<Requests>,
    closed: Arc<Closed>,
) {
    let _end = EndOfLane { requests: &requests };
    let mut closing = closed.subscribe();
    let mut stream = first;
    let mut backoff = BACKOFF_MIN;
    loop {
        let opened = Instant::now();
        requests.come_alive();
        let reason = tokio::select! {
            reason = run(stream, &requests, &dialler.options) => reason,
            reason = wait_closed(&mut closing) => return requests.die(&reason),
        };
        tracing::debug!(%peer, endpoint = %dialler.endpoint, reason, "data lane ended");
        if opened.elapsed() >= BACKOFF_RESET {
            backoff = BACKOFF_MIN;
        }
        stream = tokio::select! {
            reopened = reopen(&dialler, peer, &mut backoff) => match reopened {
                Ok(stream) => stream,
                Err(error) => {
                    let reason = format!("cannot be reopened: {error}");
                    requests.die(&reason);
                    close(&closed, reason);
                    return;
                }
            },
            reason = wait_closed(&mut closing) => return requests.die(&reason),
        };
    }
}

/// Fails the requests of a lane whose task ends in any other way than by the connection's closing, such as the end of
/// its runtime.
struct EndOfLane<'a> {
    requests: &'a Requests,
}

impl Drop for EndOfLane<'_> {
    fn drop(&mut self) {
        if self.requests.is_live() {
            self.requests.die("the lane's task has ended");
        }
    }
}

/// Waits until the connection is closed; says why.
async fn wait_closed(closing: &mut watch::Receiver<Option<String>>) -> String {
    let reason = closing
        .wait_for(Option::is_some)
        .await
        .ok()
        .and_then(|reason| reason.clone());
    reason.unwrap_or_else(|| "closed".to_owned())
}

/// Dials until it succeeds, or the peer says that it never will.
async fn reopen(dialler: &Dialler, peer: PeerId, backoff: &mut Duration) -> Result<Stream, LinkError> {
    loop {
        sleep(*backoff).await;
        *backoff = (*backoff * 2).min(BACKOFF_MAX);
        match dialler.dial(Some(peer), Instant::now() + REDIAL_TIMEOUT).await {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => tracing::debug!(%peer, endpoint = %dialler.endpoint, %error, "cannot reopen a data lane"),
        }
    }
}

/// True if dialling again would only hear the same.
fn is_final(error: &LinkError) -> bool {
    let passing = [RefusalCode::Busy as u16, RefusalCode::ShuttingDown as u16];
    match error {
        LinkError::Refused { code, .. } => !passing.contains(code),
        LinkError::BadMagic { .. }
        | LinkError::Version { .. }
        | LinkError::WrongCluster { .. }
        | LinkError::WrongPeer { .. }
        | LinkError::Unauthenticated { .. } => true,
        _ => false,
    }
}

/// Runs a lane over one stream until it ends, fails its requests and says why. When this returns, no task of it runs
/// any more; when it is dropped, its tasks end soon.
async fn run(stream: Stream, requests: &Arc<Requests>, options: &TcpOptions) -> String {
    let stream = Arc::new(stream);
    let progress = Arc::new(Progress::new(Arc::clone(&stream)));
    let inbox = Inbox::new(Arc::clone(&stream), Arc::clone(&progress));
    let outbox = Outbox::new(stream, Arc::clone(&progress));
    let mut receiver = OwnedTask::spawn(io::receive(inbox, Arc::clone(requests)));
    let mut sender = OwnedTask::spawn(io::send(outbox, Arc::clone(requests), options.frame_bytes));
    let reason = tokio::select! {
        error = receiver.ended() => error.map(|error| error.to_string()),
        error = sender.ended() => error.map(|error| error.to_string()),
        () = progress.stalled(options.progress_timeout, || requests.is_busy()) => {
            Some(format!("no byte moved for {:?}", options.progress_timeout))
        }
    };
    let reason = reason.unwrap_or_else(|| "a task failed".to_owned());
    // First, so that what the tasks still have in hand fails with this reason.
    requests.die(&reason);
    receiver.stop().await;
    sender.stop().await;
    reason
}
