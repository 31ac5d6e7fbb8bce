//! Bytes per key at a home and at a holder: the state machines alone, filled through what they are told.

use std::collections::VecDeque;
use std::ops::Range;

use anyhow::{Context as _, Result, bail, ensure};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tenon_protocol::checksum::Checksums;
use tenon_protocol::ids::{
    ClusterId, Epoch, Generation, Incarnation, KeyHash, NodeId, PutId, SegmentId, SessionId, Slot, Version,
};
use tenon_protocol::limits::PAGE_KEYS_MAX;
use tenon_protocol::member::{
    HolderAnswer, HomeAnswer, HomeEntry, HomeEvent, HomeEventKind, Homes, MirrorEntry, Page, PageKey,
};
use tenon_protocol::message::{Pin, Replica};
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_store_core::directory::{Action, Directory, Event, RequestToken};
use tenon_store_core::limits::LEARNING_PAUSE_MS;
use tenon_store_core::objects::{
    Accepted, CommitSpec, CommitStep, Holder, HolderConfig, Owner, ReserveSpec, SealPlan, SegmentSpec, SegmentTable,
};
use tenon_store_core::placement::Policy;
use tenon_store_core::time::Time;

use crate::control::program::{OBJECT_BYTES, key};
use crate::report::Report;

const SEED: u64 = 32;
const HOME: NodeId = NodeId::from_bytes([1; 16]);
const PARTNER: NodeId = NodeId::from_bytes([2; 16]);
const LIFE: Incarnation = Incarnation(1_700_000_000_000);
const HOMES: Homes = Homes {
    first: HOME,
    second: Some(PARTNER),
};
const OBJECT_LEN: usize = 64;

const _: () = assert!(OBJECT_LEN as u64 == OBJECT_BYTES, "one length in two types");

/// Memory that a process has resident.
pub fn rss_bytes(process: &str) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm"))?;
    let pages: f64 = text.split(' ').nth(1).context("statm has a second field")?.parse()?;
    let page_bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.context("pages have a size")?;
    Ok(pages * page_bytes as f64)
}

/// Fills two homes and a holder. By puts, the second half of the keys is measured: until then what is bounded, such as
/// outcomes, is full.
pub fn run(keys: u64, report: &mut Report) -> Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut growths = Vec::new();
    let mut measure = |case: &'static str, fill: &mut dyn FnMut() -> Result<()>| {
        let before = rss_bytes("self")?;
        fill()?;
        growths.push((case, (rss_bytes("self")? - before) / keys as f64));
        anyhow::Ok(())
    };
    // What is filled stays until all is measured: memory that was given back would be used again unseen.
    let mut decided = Home::new(Vec::new())?;
    decided.put(keys, &mut rng)?;
    measure("home_by_puts", &mut || decided.put(keys, &mut rng))?;
    let mut hashes: Vec<KeyHash> = (0..keys).map(|_| KeyHash::from_bytes(rng.random())).collect();
    hashes.sort_unstable();
    let mut learned = None;
    measure("home_by_pages", &mut || {
        learned = Some(Home::new(std::mem::take(&mut hashes))?);
        Ok(())
    })?;
    let mut held = Held::new(2 * keys)?;
    held.put(0..keys, &mut rng)?;
    measure("holder", &mut || held.put(keys..2 * keys, &mut rng))?;
    let learned = learned.context("a home has learned")?;
    let counts = [decided.keys(), learned.keys(), held.holder.account().objects];
    ensure!(counts == [2 * keys, keys, 2 * keys], "{counts:?} keys are kept");
    for (case, bytes) in growths {
        println!("{:24} {bytes:>8.1} B per key", format!("memory/{case}"));
        report.push(&format!("memory/{case}"), "bytes_per_key", bytes, "B");
    }
    Ok(())
}

/// Longer than anything takes here.
const PAUSE_MS: u64 = 60_000;

/// A directory and what the world answers it.
struct Home {
    directory: Directory,
    now: Time,
    last_token: u64,
    /// What the other member announces, in order.
    announced: Vec<KeyHash>,
}

impl Home {
    /// The home of two members that has learned these keys, and all that there is to know.
    fn new(announced: Vec<KeyHash>) -> Result<Self> {
        let mut home = Self {
            directory: Directory::new(HOME, PAUSE_MS),
            now: Time::from_ms(1),
            last_token: 0,
            announced,
        };
        home.tell(Event::View {
            members: vec![HOME, PARTNER],
        })?;
        home.tell(Event::Heard {
            node: PARTNER,
            incarnation: LIFE,
            untold_keys: 0,
            asked_at: Some(Time::MAX),
        })?;
        // Pages come apart in time.
        for _ in 0..=home.announced.len() / PAGE_KEYS_MAX {
            home.now = home.now.after_ms(LEARNING_PAUSE_MS);
            home.tell(Event::Tick)?;
        }
        ensure!(home.directory.counts().is_settled(), "the home has not settled");
        Ok(home)
    }

    fn keys(&self) -> u64 {
        self.directory.counts().keys as u64
    }

    /// Lets this many new objects be proposed and sealed.
    fn put(&mut self, keys: u64, rng: &mut ChaCha8Rng) -> Result<()> {
        for _ in 0..keys {
            let key_hash = KeyHash::from_bytes(rng.random());
            let put_id = PutId::from_bytes(rng.random());
            let lies = replica(self.last_token);
            let propose = HomeEventKind::Propose {
                put_id,
                len_bytes: OBJECT_BYTES,
                replicas: vec![lies],
                replace: false,
            };
            let answer = self.ask(key_hash, propose)?;
            let Some(HomeAnswer::Accepted { version, .. }) = answer else {
                bail!("a proposal got {answer:?}");
            };
            let sealed = HomeEventKind::Sealed {
                version,
                holder: lies.holder,
                generation: lies.generation,
                replace: false,
            };
            let answer = self.ask(key_hash, sealed)?;
            ensure!(matches!(answer, Some(HomeAnswer::Done { .. })), "a seal got {answer:?}");
        }
        Ok(())
    }

    fn ask(&mut self, key_hash: KeyHash, kind: HomeEventKind) -> Result<Option<HomeAnswer>> {
        self.last_token += 1;
        let event = HomeEvent {
            key_hash,
            homes: HOMES,
            kind,
        };
        self.tell(Event::Request {
            token: RequestToken(self.last_token),
            deadline: self.now.after_ms(5_000),
            event,
        })
    }

    /// Hands an event in and does what is to be done, until nothing is. Answers what was replied last.
    fn tell(&mut self, event: Event) -> Result<Option<HomeAnswer>> {
        let mut events = VecDeque::from([event]);
        let mut replied = None;
        while let Some(event) = events.pop_front() {
            for action in self.directory.handle(self.now, event) {
                events.extend(match action {
                    Action::Reply { answer, .. } => {
                        replied = Some(answer?);
                        None
                    }
                    action => Some(self.answer(action)),
                });
            }
        }
        Ok(replied)
    }

    fn answer(&self, action: Action) -> Event {
        match action {
            Action::AskPartner { question, .. } => Event::PartnerAnswered {
                question,
                answer: Ok(HomeAnswer::Done { changed: true }),
            },
            Action::AskHolder { question, .. } => Event::HolderAnswered {
                question,
                answer: Ok(HolderAnswer::Confirmed { held: true }),
            },
            Action::AskAnnouncement { question, after, .. } => Event::Announced {
                question,
                answer: Ok(self.page(after)),
            },
            Action::AskHandOver { question, .. } => Event::HandedOver {
                question,
                answer: Ok(Page::default()),
            },
            Action::Reply { .. } => unreachable!("replies are taken before"),
        }
    }

    fn page(&self, after: Option<KeyHash>) -> Page {
        let start = self.announced.partition_point(|hash| Some(*hash) <= after);
        let end = self.announced.len().min(start + PAGE_KEYS_MAX);
        let keys = (start..end).map(|at| PageKey {
            key_hash: self.announced[at],
            homes: HOMES,
            entry: MirrorEntry {
                sealed: Some(HomeEntry {
                    version: Version {
                        epoch: Epoch(1),
                        put_id: PutId::from_bytes((at as u128).to_le_bytes()),
                    },
                    len_bytes: OBJECT_BYTES,
                    replicas: vec![replica(at as u64)],
                }),
                ..MirrorEntry::default()
            },
        });
        Page {
            keys: keys.collect(),
            next: (end < self.announced.len()).then(|| self.announced[end - 1]),
        }
    }
}

fn replica(number: u64) -> Replica {
    Replica {
        holder: PARTNER,
        incarnation: LIFE,
        segment: SegmentId(1),
        offset_bytes: number * OBJECT_BYTES,
        slot: Slot(u32::try_from(number).expect("fewer slots than 2^32")),
        generation: Generation(Generation::base(LIFE).0 + 1 + number),
        is_copy: false,
    }
}

/// A table that is nowhere.
#[derive(Debug)]
struct NoTable;

impl SegmentTable for NoTable {
    fn seal(&mut self, _plan: &SealPlan) {}

    fn invalidate(&mut self, _slot: Slot) {}
}

/// A holder with one segment.
struct Held {
    holder: Holder<NoTable>,
    namespace: Namespace,
    checksums: Checksums,
}

impl Held {
    fn new(objects: u64) -> Result<Self> {
        let mut holder = Holder::new(HolderConfig {
            node: HOME,
            incarnation: LIFE,
            cluster: ClusterId::of_name("memory"),
            reservation_ttl_ms: 30_000,
            policy: Policy::default(),
            eviction: None,
        });
        let spec = SegmentSpec {
            len_bytes: objects * OBJECT_BYTES,
            slots: u32::try_from(objects)?,
        };
        let id = holder.new_segment_id()?;
        holder.mount(id, &spec, NoTable)?;
        Ok(Self {
            holder,
            namespace: Namespace::new(Namespace::DEFAULT)?,
            checksums: Checksums::of(&[0; OBJECT_LEN]),
        })
    }

    fn put(&mut self, numbers: Range<u64>, rng: &mut ChaCha8Rng) -> Result<()> {
        let now = Time::from_ms(1);
        for number in numbers {
            // Names come in no order.
            let name = ObjectName::new(&self.namespace, &key(&format!("{:08x}", rng.random::<u32>()), number))?;
            let put_id = PutId::from_bytes(rng.random());
            let owner = Owner {
                coordinator: PARTNER,
                session: SessionId::from_bytes([3; 16]),
            };
            let spec = ReserveSpec {
                put_id,
                name: name.clone(),
                len_bytes: OBJECT_BYTES,
                owner,
                ttl_ms: None,
                pin: Pin::None,
                replace: false,
            };
            let region = self.holder.reserve(now, rng, spec)?.region;
            let write = self.holder.begin_write(region, 0, OBJECT_BYTES)?;
            self.holder.wrote(now, region, 0, OBJECT_BYTES, self.checksums.whole);
            self.holder.end_write(write);
            let spec = CommitSpec {
                put_id,
                name,
                checksums: self.checksums.clone(),
                fingerprint: Vec::new(),
            };
            let CommitStep::Verify(unverified) = self.holder.begin_commit(now, spec)? else {
                bail!("a new put has an outcome");
            };
            let verified = self.holder.verify(unverified, &[])?;
            let accepted = Accepted {
                epoch: Epoch(1),
                degraded: false,
            };
            let unreported = self.holder.seal(verified, accepted, 0);
            self.holder.report(now, unreported);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_and_holders_keep_what_they_are_filled_with() {
        let mut report = Report::new("memory");
        run(2 * PAGE_KEYS_MAX as u64 + 7, &mut report).unwrap();
        assert!(report.line().contains("memory/holder"));
    }
}
