//! What a node does for clients, and what it answers to whom.

use crate::executor::Slot;
use crate::home::not_answered;
use crate::message::{Ask, Body, Call, Packet, Party, ReserveAsk, Tell};
use crate::world::Sim;
use rand::RngExt;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Epoch, PutId, Version};
use tenon_protocol::member::{HomeAnswer, HomeEntry, HomeEventKind, MemberReply, MemberRequest};
use tenon_protocol::message::{Committed, KeyResult, Located};
use tenon_store_core::coordinator::{Found, HolderState, LookUp, readable, relocated};
use tenon_store_core::objects::{Owner, RegionId};
use tenon_store_core::time::Time;

/// How long a look-up goes on asking homes that do not know yet, and the pauses between.
const UNKNOWN_WAIT_MS: u64 = 4_000;
const UNKNOWN_PAUSE_MS_MIN: u64 = 10;
const UNKNOWN_PAUSE_MS_MAX: u64 = 250;

/// A call is answered so much before its deadline: a tenth of its time, at most this.
const MARGIN_MS_MAX: u64 = 100;

/// What is decided at a deadline is answered at the next look at the time, of which a call may need some.
const LATE_MS_MAX: u64 = 4 * crate::world::TICK_MS;

impl Sim {
    /// A packet has arrived at a process that takes it.
    pub(crate) fn arrived(&self, me: usize, packet: Packet) {
        match packet.body {
            Body::Tell(tell) => self.call_answered(me, packet.call, packet.from_life, tell),
            Body::Ask { ask, left_ms } => {
                let sim = self.clone();
                let (from, call) = (packet.from, packet.call);
                self.spawn(Some(me), async move { sim.serve(me, from, call, ask, left_ms).await });
            }
        }
    }

    async fn serve(self, me: usize, from: Party, call: u64, ask: Ask, left_ms: u64) {
        let margin_ms = (left_ms / 10).min(MARGIN_MS_MAX);
        let deadline = self.clock(me).after_ms(left_ms - margin_ms);
        let what = ask.name();
        let tell = match ask {
            Ask::Member(request) => Tell::Member(self.serve_member(me, from.host(), request, deadline).await),
            Ask::Reserve(ask) => Tell::Reserved(self.reserve(me, ask)),
            Ask::Commit { put_id, key } => Tell::Committed(self.commit(me, put_id, key, deadline).await),
            Ask::Copy { key, version } => Tell::Copied(self.commit_copy(me, key, version, deadline).await),
            Ask::Take { key, entry } => Tell::Copied(self.take_over(me, from.host(), key, entry, deadline).await),
            Ask::Write { region, put_id } => {
                let takes_ms = self.with(|world| world.rng.random_range(0..20));
                Tell::Written(self.write(me, region, put_id, takes_ms).await)
            }
            Ask::Read { replica, len_bytes } => Tell::Read(self.read(me, &replica, len_bytes)),
            Ask::Serve(call) => self.serve_client(me, call, deadline).await,
        };
        self.with(|world| {
            let (now, runs_since) = (world.clock(me), world.nodes[me].runs_since);
            if now > deadline.max(runs_since).after_ms(LATE_MS_MAX) {
                world
                    .model
                    .violated(format!("{me} has ended {what} at {now}, its deadline was {deadline}"));
            }
            let (from, from_life, to) = (Party::Node(me), world.nodes[me].life, from);
            let to_life = match to {
                Party::Node(node) => world.nodes[node].life,
                Party::Client(_) => 0,
            };
            let body = Body::Tell(tell);
            world.send(Packet {
                from,
                from_life,
                to,
                to_life,
                call,
                body,
            });
        });
    }

    async fn serve_member(&self, me: usize, from: usize, request: MemberRequest, deadline: Time) -> MemberReply {
        match request {
            MemberRequest::Home(mut events) => {
                let event = events.pop().expect("one event per call");
                MemberReply::Home(vec![self.serve_home(me, event, deadline).await])
            }
            MemberRequest::Holder(questions) => {
                MemberReply::Holder(questions.iter().map(|ask| self.answer_as_holder(me, ask)).collect())
            }
            MemberRequest::Announce(page) => MemberReply::Announce(self.announce_to(me, self.id(from), page.after)),
            MemberRequest::HandOver(page) => {
                let partner = self.id(from);
                let page = self.with(|world| world.process(me).directory.hand_over(partner, page.after));
                MemberReply::HandOver(page)
            }
            MemberRequest::Heartbeat(heartbeat) => {
                self.heard(me, from, &heartbeat);
                MemberReply::Heartbeat(Box::new(self.heartbeat(me, from)))
            }
            other => unreachable!("{other:?} is not used here"),
        }
    }

    async fn serve_client(&self, me: usize, call: Call, deadline: Time) -> Tell {
        match call {
            Call::Reserve {
                put_id,
                key,
                holder,
                session,
                replace,
            } => {
                let coordinator = self.id(me);
                let owner = Owner { coordinator, session };
                let ask = ReserveAsk {
                    put_id,
                    key,
                    owner,
                    replace,
                };
                Tell::Reserved(self.reserve_at(me, holder, ask, deadline).await)
            }
            Call::Commit {
                put_id,
                key,
                holder,
                further,
            } => {
                let committed = self.commit_at(me, holder, put_id, key, deadline).await;
                if let Ok(known) = &committed {
                    self.commit_further(me, (holder, further), put_id, key, known, deadline)
                        .await;
                }
                Tell::Committed(committed)
            }
            Call::Locate { key } => Tell::Located(self.locate(me, key, false, deadline).await),
            Call::Relocate { key, missed } => Tell::Located(self.relocate(me, key, missed, deadline).await),
            Call::Remove { key } => Tell::Removed(self.remove_at(me, key, deadline).await),
        }
    }

    async fn reserve_at(&self, me: usize, holder: usize, ask: ReserveAsk, deadline: Time) -> KeyResult<RegionId> {
        if holder == me {
            return self.reserve(me, ask);
        }
        match self.call(me, holder, Ask::Reserve(ask), deadline).await? {
            Tell::Reserved(result) => result,
            _ => Err(not_answered()),
        }
    }

    async fn commit_at(
        &self,
        me: usize,
        holder: usize,
        put_id: PutId,
        key: usize,
        deadline: Time,
    ) -> KeyResult<Committed> {
        if holder == me {
            return self.commit(me, put_id, key, deadline).await;
        }
        match self.call(me, holder, Ask::Commit { put_id, key }, deadline).await? {
            Tell::Committed(result) => result,
            _ => Err(not_answered()),
        }
    }

    /// Has the homes look whether an object is there that a reader did not find, and then believes no home alone.
    async fn relocate(&self, me: usize, key: usize, missed: Version, deadline: Time) -> KeyResult<Option<Located>> {
        let homes = self.with(|world| world.keys[key].homes);
        let mut told = Vec::new();
        for home in [Some(homes.first), homes.second].into_iter().flatten() {
            let (sim, done) = (self.clone(), Slot::new());
            told.push(done.clone());
            let event = self.home_event(key, HomeEventKind::Doubt { version: missed });
            self.spawn(Some(me), async move {
                let looked = sim.ask_home(me, home, event, deadline).await;
                done.fill(looked);
            });
        }
        let mut looked = Vec::new();
        for done in told {
            looked.push(done.await);
        }
        let found = self.locate(me, key, true, deadline).await?;
        relocated(homes, missed, looked, found)
    }

    /// Looks what the key has, and removes that.
    async fn remove_at(&self, me: usize, key: usize, deadline: Time) -> KeyResult<bool> {
        let found = self.find_at(me, key, false, deadline).await?;
        let up_to = found.map_or(Epoch(0), |entry| entry.version.epoch);
        match self.decide(me, key, HomeEventKind::Remove { up_to }, deadline).await? {
            HomeAnswer::Done { changed } => Ok(changed),
            other => Err(ServiceError::new(ErrorCode::Internal, format!("{other:?}"))),
        }
    }

    async fn locate(&self, me: usize, key: usize, asks_both: bool, deadline: Time) -> KeyResult<Option<Located>> {
        match self.find_at(me, key, asks_both, deadline).await? {
            Some(entry) => self.located(me, entry),
            None => Ok(None),
        }
    }

    /// Asks the homes of a key, and again after a while where they do not know yet.
    pub(crate) async fn find_at(
        &self,
        me: usize,
        key: usize,
        asks_both: bool,
        deadline: Time,
    ) -> KeyResult<Option<HomeEntry>> {
        let patience = deadline.min(self.clock(me).after_ms(UNKNOWN_WAIT_MS));
        let mut pause_ms = UNKNOWN_PAUSE_MS_MIN;
        loop {
            match self.look_up(me, key, asks_both, deadline).await {
                Found::Hit(entry) => return Ok(Some(entry)),
                Found::Miss => return Ok(None),
                Found::Failed(error) => return Err(error),
                Found::Unknown => {}
            }
            if self.clock(me).after_ms(pause_ms) >= patience {
                let message = "the homes of the key are still learning what is held; try again";
                return Err(ServiceError::new(ErrorCode::Overloaded, message));
            }
            self.sleep(me, pause_ms).await;
            pause_ms = (2 * pause_ms).min(UNKNOWN_PAUSE_MS_MAX);
        }
    }

    async fn look_up(&self, me: usize, key: usize, asks_both: bool, deadline: Time) -> Found {
        let homes = self.with(|world| world.keys[key].homes);
        let mut look_up = LookUp::new(homes, asks_both);
        while let Some(home) = look_up.home() {
            let event = self.home_event(key, HomeEventKind::Locate);
            look_up.answered(self.ask_home(me, home, event, deadline).await);
        }
        look_up.found()
    }

    fn located(&self, me: usize, entry: HomeEntry) -> KeyResult<Option<Located>> {
        readable(entry, |replica| {
            let holder = self.with(|world| world.index_of(replica.holder));
            match self.known_life(me, holder) {
                Some(incarnation) if incarnation > replica.incarnation => HolderState::LaterLife,
                _ if self.is_reachable(me, replica.holder) => HolderState::Reachable,
                _ => HolderState::Silent,
            }
        })
    }
}
