//! An initiator for tests that keeps to nothing: it writes where and when it likes.

use std::sync::Arc;

use tokio::time::Instant;

use super::flight::Flight;
use super::message::{Ask, Offer, Settle, Tell, Want};
use super::path::{Path, ReadRequest, WriteRequest};
use super::rails::Rails;
use crate::engine::TransferError;
use crate::ids::RemoteKey;
use crate::link::{Authenticator, Channel, Endpoint, Identity, Link};
use crate::memory::Slice;
use crate::verbs::{Access, Remote, Status};

/// A link with one queue pair, on the first rail of this process.
#[derive(Debug)]
pub struct Rogue {
    rails: Arc<Rails>,
    link: Arc<Link>,
    path: Arc<Path>,
}

/// What it was granted.
#[derive(Clone, Copy, Debug)]
pub struct RogueGrant {
    /// Where the range starts.
    pub to: Remote,
    grant: u64,
}

/// Fails a test that needs something else.
fn unexpected(told: &Tell) -> ! {
    panic!("the owner tells {told:?}")
}

impl Rogue {
    /// Connects as any initiator does.
    ///
    /// # Panics
    /// If the owner does not take it.
    pub async fn connect(
        rails: &Arc<Rails>,
        endpoint: &Endpoint,
        identity: &Identity,
        auth: &dyn Authenticator,
        deadline: Instant,
    ) -> Self {
        let link = Link::dial_for(Channel::Rdma, endpoint, identity, auth, None, deadline).await;
        let link = link.expect("the owner lets it in");
        let address = rails.all()[0].address().expect("the port is active");
        let queue_pair = rails.queue_pair(0, Access::REMOTE_READ).expect("a queue pair");
        let endpoint = queue_pair.endpoint(&address.gid, rand::random()).expect("an endpoint");
        let offers = vec![Offer {
            path: 0,
            subnet: address.subnet,
            endpoint,
        }];
        let any_subnet = false;
        let asked = link.call(Ask::Connect { any_subnet, offers }.encode().into(), deadline);
        let told = Tell::decode(&asked.await.expect("an answer")).expect("it can be understood");
        let Tell::Connected { accepted, .. } = &told else {
            unexpected(&told)
        };
        let [accept] = accepted.as_slice() else {
            unexpected(&told)
        };
        let connected = queue_pair.connect(&endpoint, &address.gid, &accept.endpoint, rails.timing());
        connected.expect("the queue pair is connected");
        Self {
            rails: Arc::clone(rails),
            link,
            path: Path::new(0, 0, accept.pushes, queue_pair),
        }
    }

    /// Whether the owner said that writes may be asked for.
    #[must_use]
    pub fn may_push(&self) -> bool {
        self.path.pushes
    }

    async fn ask(&self, ask: Ask, deadline: Instant) -> Result<Tell, TransferError> {
        let answer = self.link.call(ask.encode().into(), deadline).await.expect("an answer");
        match Tell::decode(&answer).expect("it can be understood") {
            Tell::Failed(error) => Err(error),
            told => Ok(told),
        }
    }

    /// Sends whatever bytes as a call; the owner's answer, if there is one in time.
    pub async fn say(&self, bytes: &[u8], deadline: Instant) -> Option<Vec<u8>> {
        let answer = self.link.call(bytes.to_vec().into(), deadline).await;
        answer.ok().map(|answer| answer.to_vec())
    }

    /// The call by which an initiator listens for what it is to close, which is answered after a long time.
    #[must_use]
    pub fn listening() -> Vec<u8> {
        Ask::Listen.encode()
    }

    /// Asks for one more path under some number, to a queue pair that has one; whether the owner made one.
    ///
    /// # Panics
    /// If the owner tells something else.
    pub async fn takes_path(&self, number: u8, deadline: Instant) -> bool {
        let address = self.rails.all()[0].address().expect("the port is active");
        let endpoint = self.path.endpoint(&address.gid).expect("an endpoint");
        let offers = vec![Offer {
            path: number,
            subnet: address.subnet,
            endpoint,
        }];
        let any_subnet = false;
        match self.ask(Ask::Connect { any_subnet, offers }, deadline).await {
            Ok(Tell::Connected { accepted, .. }) => !accepted.is_empty(),
            Ok(told) => unexpected(&told),
            Err(_) => false,
        }
    }

    /// Where an export lies that may be read.
    ///
    /// # Errors
    /// The owner's.
    ///
    /// # Panics
    /// If the owner tells something else.
    pub async fn resolve(&self, key: RemoteKey, deadline: Instant) -> Result<Remote, TransferError> {
        match self.ask(Ask::Resolve { key }, deadline).await? {
            Tell::Resolved { at, .. } => Ok(at[0].at(0).expect("it has a first part")),
            told => unexpected(&told),
        }
    }

    /// Listens for what it is to forget, and may say later that it has.
    ///
    /// # Panics
    /// If the owner tells something else.
    pub async fn listen_for_keys(&self, deadline: Instant) -> Vec<RemoteKey> {
        match self.ask(Ask::Listen, deadline).await {
            Ok(Tell::Wanted { keys, .. }) => keys,
            told => panic!("the owner tells {told:?}"),
        }
    }

    /// Says that it has forgotten keys.
    ///
    /// # Panics
    /// If the owner tells something else.
    pub async fn forgot(&self, keys: Vec<RemoteKey>, deadline: Instant) {
        let told = self.ask(Ask::Forgot(keys), deadline).await;
        assert_eq!(told, Ok(Tell::Done));
    }

    /// Asks for a window, which the owner takes back at the deadline.
    ///
    /// # Errors
    /// The owner's.
    ///
    /// # Panics
    /// If the owner tells something else.
    pub async fn grant(
        &self,
        key: RemoteKey,
        offset_bytes: u64,
        len_bytes: u64,
        deadline: Instant,
    ) -> Result<Option<RogueGrant>, TransferError> {
        let want = Want {
            key,
            offset_bytes,
            len_bytes,
            path: 0,
        };
        let told = self.ask(Ask::Grant(vec![want]), deadline).await?;
        let Tell::Granted(mut granted) = told else {
            unexpected(&told)
        };
        let given = granted.pop().expect("one answer")?;
        Ok(given.map(|given| RogueGrant {
            to: given.to,
            grant: given.grant,
        }))
    }

    /// Gives a grant back; the checksum of what landed if it says that all did.
    ///
    /// # Errors
    /// The owner's.
    ///
    /// # Panics
    /// If the owner tells something else.
    pub async fn settle(
        &self,
        grant: RogueGrant,
        landed: bool,
        deadline: Instant,
    ) -> Result<Option<u64>, TransferError> {
        let settle = Settle {
            grant: grant.grant,
            landed,
        };
        let told = self.ask(Ask::Settle(vec![settle]), deadline).await?;
        let Tell::Settled(mut settled) = told else {
            unexpected(&told)
        };
        settled.pop().expect("one answer")
    }

    /// Writes wherever it is told to; how that ended. After any but success the queue pair is of no use any more.
    ///
    /// # Panics
    /// If its own memory cannot be registered.
    pub async fn write(&self, to: Remote, from: &Slice) -> Status {
        let flight = Flight::new(1);
        let from = vec![self.rails.source(0, from).expect("its own memory")];
        self.path
            .post_writes(&flight, vec![WriteRequest { request: 0, to, from }])
            .await;
        flight.landed().await;
        flight.statuses()[0].expect("it has landed")
    }

    /// Reads from wherever it is told to; how that ended. After any but success the queue pair is of no use any more.
    ///
    /// # Panics
    /// If its own memory cannot be registered.
    pub async fn read(&self, from: Remote, into: &Slice) -> Status {
        let flight = Flight::new(1);
        let region = self.rails.lend(0, into, Access::LOCAL_WRITE).expect("its own memory");
        let read = ReadRequest {
            request: 0,
            from,
            place: None,
            into: vec![region.part_of(into).expect("a part of itself")],
            slots: Vec::new(),
            access: None,
        };
        self.path.post(&flight, vec![read]).await;
        flight.landed().await;
        flight.statuses()[0].expect("it has landed")
    }

    /// Has writes under way without end until it is dropped.
    pub async fn write_on(&self, to: Remote, from: &Slice) {
        while self.write(to, from).await == Status::Success {}
    }
}
