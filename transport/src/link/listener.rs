//! Accepts connections, shakes hands and hands them to the service or to the target side of the tcp engine.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::exports::Exports;
use crate::ids::SessionId;
use crate::limits::{
    ACCEPT_PAUSE, FINISH_TIMEOUT, HANDSHAKE_TIMEOUT, MAX_HALF_OPEN, MAX_LANES_PER_SESSION, MAX_LANES_TOTAL, MAX_LINKS,
    PROGRESS_TIMEOUT, SHUTDOWN_GRACE,
};
use crate::link::auth::Authenticator;
use crate::link::endpoint::Endpoint;
use crate::link::handshake::{self, Accepted};
use crate::link::hello::{Channel, Identity, LinkError, RefusalCode};
use crate::link::server::{Admission, Service, Session, serve_session, stopped};
use crate::stream::Stream;
use crate::tcp::{LaneContext, serve_lane};

/// What a listener may be told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Time a dialler has for its whole handshake.
    pub handshake_timeout: Duration,
    /// A data lane on which something is under way and no byte moves for this long is closed.
    pub progress_timeout: Duration,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: HANDSHAKE_TIMEOUT,
            progress_timeout: PROGRESS_TIMEOUT,
        }
    }
}

/// Everything a listener serves with.
#[derive(Clone)]
pub struct Serving {
    /// Who we are.
    pub identity: Arc<Identity>,
    /// Keys for proofs.
    pub auth: Arc<dyn Authenticator>,
    /// Policy.
    pub admission: Arc<dyn Admission>,
    /// Answers the calls of control links.
    pub service: Arc<dyn Service>,
    /// What data lanes may touch.
    pub exports: Arc<Exports>,
    /// Answers the calls that RDMA transfers need; `None` refuses them.
    pub rdma: Option<Arc<dyn Service>>,
    /// Where data lanes run. Give bulk data a runtime of its own, apart from control calls.
    pub data_runtime: Handle,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// An endpoint could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {endpoint}: {source}")]
pub struct BindError {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// What the system said.
    pub source: io::Error,
}

/// A bound endpoint. Serves control links and data lanes alike.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    local: Endpoint,
    options: ListenerOptions,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Binds an endpoint with the default options. A unix socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind(endpoint: &Endpoint) -> Result<Self, BindError> {
        Self::bind_with(endpoint, ListenerOptions::default()).await
    }

    /// Binds an endpoint.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind_with(endpoint: &Endpoint, options: ListenerOptions) -> Result<Self, BindError> {
        let bound = match endpoint {
            Endpoint::Tcp(address) => bind_tcp(*address).await,
            Endpoint::Unix(path) => bind_unix(path).map(|socket| (Socket::Unix(socket), endpoint.clone())),
        };
        let (socket, local) = bound.map_err(|source| BindError {
            endpoint: endpoint.clone(),
            source,
        })?;
        Ok(Self { socket, local, options })
    }

    /// What it is bound to, with the port that the system chose where 0 was asked for.
    #[must_use]
    pub fn local_endpoint(&self) -> &Endpoint {
        &self.local
    }

    /// Serves until `shutdown` becomes true or its sender is dropped; then stops accepting, tells every peer, lets
    /// calls under way finish for a short time, closes all, and returns. Dropping the future closes all at once.
    pub async fn serve(self, serving: Serving, mut shutdown: watch::Receiver<bool>) {
        let server = Arc::new(Server {
            serving,
            options: self.options,
            places: Places::default(),
        });
        let half_open = Arc::new(Semaphore::new(MAX_HALF_OPEN));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stopped(&mut shutdown) => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                (stream, from, opening) = self.next(&half_open) => {
                    connections.spawn(Arc::clone(&server).connection(stream, from, opening, shutdown.clone()));
                }
            }
        }
        drop(self);
        let ending = async { while connections.join_next().await.is_some() {} };
        if timeout(SHUTDOWN_GRACE + FINISH_TIMEOUT, ending).await.is_err() {
            connections.shutdown().await;
        }
    }

    /// The next connection, once there is room for one more handshake. Cancelling it loses nothing.
    async fn next(&self, half_open: &Arc<Semaphore>) -> (Stream, Endpoint, OwnedSemaphorePermit) {
        loop {
            // The semaphore is never closed.
            let Ok(opening) = Arc::clone(half_open).acquire_owned().await else {
                continue;
            };
            match self.accept().await {
                Ok((stream, from)) => return (stream, from, opening),
                Err(error) => {
                    // Out of descriptors, or the peer was gone before we came. Neither may stop the listener or make it
                    // spin.
                    tracing::warn!(endpoint = %self.local, %error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<(Stream, Endpoint)> {
        match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, address) = socket.accept().await?;
                Ok((Stream::from_tcp(stream)?, Endpoint::Tcp(address)))
            }
            Socket::Unix(socket) => Ok((Stream::Unix(socket.accept().await?.0), self.local.clone())),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Endpoint::Unix(path) = &self.local {
            // Best effort: what stays behind is replaced by the next who binds.
            _ = fs::remove_file(path);
        }
    }
}

async fn bind_tcp(address: SocketAddr) -> io::Result<(Socket, Endpoint)> {
    let socket = TcpListener::bind(address).await?;
    let local = Endpoint::Tcp(socket.local_addr()?);
    Ok((Socket::Tcp(socket), local))
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned_socket(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// True if there is a socket that nobody listens on.
fn is_abandoned_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// What the connections of one listener share.
struct Server {
    serving: Serving,
    options: ListenerOptions,
    places: Places,
}

impl Server {
    /// Serves one connection from its first byte to its last.
    async fn connection(
        self: Arc<Self>,
        stream: Stream,
        from: Endpoint,
        opening: OwnedSemaphorePermit,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let opened = tokio::select! {
            () = stopped(&mut shutdown) => return,
            opened = self.open(stream, &from) => opened,
        };
        drop(opening);
        match opened {
            Ok((accepted, _place)) => {
                if let Err(error) = self.opened(accepted, &from, shutdown).await {
                    tracing::warn!(%from, %error, "cannot move a data lane to its runtime");
                }
            }
            Err(error) => self.serving.admission.handshake_failed(&from, &error),
        }
    }

    /// Shakes hands and finds a place.
    async fn open(&self, stream: Stream, from: &Endpoint) -> Result<(Accepted, Place<'_>), LinkError> {
        let Serving {
            identity,
            auth,
            admission,
            ..
        } = &self.serving;
        let deadline = Instant::now() + self.options.handshake_timeout;
        let accepted = handshake::accept(
            stream,
            from.clone(),
            identity,
            auth.as_ref(),
            admission.as_ref(),
            deadline,
        )
        .await?;
        if accepted.hello.channel == Channel::Rdma && self.serving.rdma.is_none() {
            return Err(turn_away(&accepted, RefusalCode::NoRdma, "no RDMA device is used here", deadline).await);
        }
        let Some(place) = self
            .places
            .take(accepted.hello.channel, accepted.hello.identity.session)
        else {
            let message = "as many connections are open as there may be";
            return Err(turn_away(&accepted, RefusalCode::Busy, message, deadline).await);
        };
        handshake::welcome(&accepted, deadline)
            .await
            .map_err(|source| LinkError::Io {
                endpoint: from.clone(),
                source,
            })?;
        Ok((accepted, place))
    }

    /// Serves a connection that was let in.
    async fn opened(&self, accepted: Accepted, from: &Endpoint, shutdown: watch::Receiver<bool>) -> io::Result<()> {
        let Accepted { stream, hello, scope } = accepted;
        let identity = hello.identity;
        let service = match hello.channel {
            Channel::Control => Some(&self.serving.service),
            Channel::Rdma => self.serving.rdma.as_ref(),
            Channel::Data => None,
        };
        if let Some(service) = service {
            let session = Session {
                peer: identity.peer,
                session: identity.session,
                role: identity.role,
                incarnation: identity.incarnation,
                features: identity.features,
                context: identity.context,
                scope,
                endpoint: from.clone(),
            };
            serve_session(stream, Arc::new(session), Arc::clone(service), shutdown).await;
            return Ok(());
        }
        let detached = stream.detach()?;
        let lane = LaneContext {
            session: identity.session,
            exports: Arc::clone(&self.serving.exports),
            progress_timeout: self.options.progress_timeout,
        };
        let mut lanes = JoinSet::new();
        lanes.spawn_on(serve_lane(detached, lane, shutdown), &self.serving.data_runtime);
        // Dropping the set, when this future is dropped, ends the lane.
        lanes.join_next().await;
        Ok(())
    }
}

/// Tells a dialler that it is not served, and why.
async fn turn_away(accepted: &Accepted, code: RefusalCode, message: &str, deadline: Instant) -> LinkError {
    handshake::refuse(&accepted.stream, code, message, deadline).await;
    LinkError::Refused {
        code: code as u16,
        message: message.to_owned(),
    }
}

/// Counts what is open, so that it stays within limits.
#[derive(Debug, Default)]
struct Places {
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    links: usize,
    lanes: usize,
    lanes_of: HashMap<SessionId, usize>,
}

impl Places {
    /// A place for one more connection, if there is one.
    fn take(&self, channel: Channel, session: SessionId) -> Option<Place<'_>> {
        let mut open = self.open.lock();
        match channel {
            Channel::Control | Channel::Rdma if open.links >= MAX_LINKS => return None,
            Channel::Control | Channel::Rdma => open.links += 1,
            Channel::Data => {
                let lanes_of_session = open.lanes_of.get(&session).copied().unwrap_or_default();
                if open.lanes >= MAX_LANES_TOTAL || lanes_of_session >= MAX_LANES_PER_SESSION {
                    return None;
                }
                open.lanes += 1;
                open.lanes_of.insert(session, lanes_of_session + 1);
            }
        }
        Some(Place {
            places: self,
            channel,
            session,
        })
    }
}

/// Gives its place back when dropped.
#[derive(Debug)]
struct Place<'a> {
    places: &'a Places,
    channel: Channel,
    session: SessionId,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut open = self.places.open.lock();
        match self.channel {
            Channel::Control | Channel::Rdma => open.links -= 1,
            Channel::Data => {
                open.lanes -= 1;
                if let Entry::Occupied(mut lanes) = open.lanes_of.entry(self.session) {
                    *lanes.get_mut() -= 1;
                    if *lanes.get() == 0 {
                        lanes.remove();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_bounded_per_session_and_places_come_back() {
        let places = Places::default();
        let session = SessionId([1; 16]);
        let taken: Vec<_> = (0..MAX_LANES_PER_SESSION)
            .map(|_| places.take(Channel::Data, session).unwrap())
            .collect();
        assert!(places.take(Channel::Data, session).is_none());
        assert!(places.take(Channel::Data, SessionId([2; 16])).is_some());
        assert!(places.take(Channel::Control, session).is_some());
        drop(taken);
        assert!(places.take(Channel::Data, session).is_some());
        assert!(places.open.lock().lanes_of.is_empty());
    }
}
