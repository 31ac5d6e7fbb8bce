//! The control service, as the client sees it.

use crate::error::ClientError;
use futures_util::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use tenon_protocol::error::ServiceError;
use tenon_protocol::message::{Reply, Request};
use tokio::time::{Instant, timeout_at};

/// A way to the control service of one agent: over a link, or inside the agent's own process.
pub trait Control: Send + Sync {
    /// Asks. `Ok` holds the agent's answer, [`Reply::Failed`] included.
    ///
    /// # Errors
    /// There is no answer, and the call may or may not have been carried out: `unavailable` if the agent cannot be reached or the link
    /// broke, `deadline_exceeded` if it did not answer by `deadline`, `forbidden` if it refuses us, `invalid_argument` if the
    /// request cannot be sent at all.
    fn call(&self, request: Request, deadline: Instant) -> BoxFuture<'_, Result<Reply, ServiceError>>;
}

/// [`Control`] with a bound on each call and answers of the right kind.
#[derive(Clone)]
pub(crate) struct Service {
    control: Arc<dyn Control>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

/// What became of one call.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The agent answered.
    Reply(Reply),
    /// The agent answered that the call as a whole failed.
    Failed(ServiceError),
    /// There is no answer; the call may have been carried out.
    Lost(ServiceError),
    /// There is no answer by the deadline; the call may have been carried out.
    TimedOut,
}

impl Service {
    pub(crate) fn new(control: Arc<dyn Control>) -> Self {
        Self { control }
    }

    /// Asks, and comes back by `deadline` whatever the way to the agent does.
    pub(crate) async fn ask(&self, request: Request, deadline: Instant) -> Answer {
        match timeout_at(deadline, self.control.call(request, deadline)).await {
            Ok(Ok(Reply::Failed(error))) => Answer::Failed(error),
            Ok(Ok(reply)) => Answer::Reply(reply),
            Ok(Err(error)) => Answer::Lost(error),
            Err(_) => Answer::TimedOut,
        }
    }

    /// Asks once; `take` takes the expected reply apart and gives any other back.
    pub(crate) async fn call<T>(
        &self,
        request: Request,
        deadline: Instant,
        take: impl FnOnce(Reply) -> Result<T, Reply>,
    ) -> Result<T, ClientError> {
        let kind = kind_of(&request);
        match self.ask(request, deadline).await {
            Answer::Reply(reply) => take(reply).map_err(|other| unexpected(kind, &other)),
            Answer::Failed(error) | Answer::Lost(error) => Err(error.into()),
            Answer::TimedOut => Err(ClientError::deadline(format!(
                "waiting for the agent's answer to {kind}"
            ))),
        }
    }
}

/// Another reply than one to the request.
pub(crate) fn unexpected(kind: &str, reply: &Reply) -> ClientError {
    let text = format!("{reply:?}");
    let name: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
    ClientError::protocol(format!("the reply to {kind} is of kind {name}"))
}

/// Another number of results than of keys.
pub(crate) fn check_count(kind: &str, asked: usize, answered: usize) -> Result<(), ClientError> {
    if asked == answered {
        return Ok(());
    }
    Err(ClientError::protocol(format!(
        "{answered} results to {kind} of {asked} keys"
    )))
}

fn kind_of(request: &Request) -> &'static str {
    match request {
        Request::Reserve(_) => "reserve",
        Request::Commit(_) => "commit",
        Request::Abort(_) => "abort",
        Request::Locate(_) => "locate",
        Request::Relocate(_) => "relocate",
        Request::Exists(_) => "exists",
        Request::Remove(_) => "remove",
        Request::List(_) => "list",
        Request::Nodes => "nodes",
        Request::Segments { .. } => "segments",
        Request::Attach => "attach",
        Request::Token => "token",
        Request::Member(_) => "member",
        Request::DryRun(_) => "dry run",
        Request::SegmentMap(_) => "segment map",
        Request::Keep(_) => "keep",
        Request::Segment(_) => "segment",
    }
}

/// Takes one kind of [`Reply`] apart and gives any other back, for [`Service::call`].
macro_rules! reply {
    ($kind:ident) => {
        |reply| match reply {
            tenon_protocol::message::Reply::$kind(value) => Ok(value),
            other => Err(other),
        }
    };
}
pub(crate) use reply;
