//! Learning what other members know, and telling partners what was decided without them.

use super::members::{Learning, Retold, Untold};
use super::work::{Asker, Decision, Job, JobKind, Mirrored, Purpose, Step};
use super::{Action, Answer, Directory};
use crate::limits::{
    DIRECTORY_QUESTION_MS, HAND_OVER_KEYS_SEEN_MAX, LEARNING_AT_ONCE_MAX, LEARNING_PAUSE_MS, PAGE_STEP_KEYS_MAX,
    RETRY_MS,
};
use crate::planted::{Bug, is_planted};
use tenon_protocol::ids::{KeyHash, NodeId};
use tenon_protocol::member::{HomeAnswer, HomeEvent, HomeEventKind, Homes, MirrorEntry, Page, PageKey};
use tenon_protocol::message::KeyResult;

impl Directory {
    /// Whether this home may say what a key's object is, as far as it depends on what others know.
    pub(super) fn may_decide(&self, homes: Homes) -> bool {
        self.members.is_complete() && self.members.is_in_step_with(homes.partner_of(self.node))
    }

    /// Whether this home has learned all that there is to know of a key.
    pub(super) fn is_grown(&self, homes: Homes) -> bool {
        self.members.is_complete() && self.members.is_grown_with(homes.partner_of(self.node))
    }

    /// A job that decides has come before this home knows all: the partner is asked what it knows, or the job waits.
    pub(super) fn recall(&mut self, key: KeyHash, job: Job) {
        let partner = job.asker.homes.partner_of(self.node);
        let Some(to) = partner.filter(|partner| self.members.is_seen(*partner)) else {
            return self.wait_for_more(key, job);
        };
        let event = HomeEvent {
            key_hash: key,
            homes: job.asker.homes,
            kind: HomeEventKind::Recall,
        };
        self.ask_partner(to, Purpose::Step { key }, event);
        self.wait(key, job.asker, Step::Recall(job.kind));
    }

    /// The partner has said, or not, what it knows of a key.
    pub(super) fn recalled(&mut self, key: KeyHash, mut job: Job, answer: Answer) {
        let Answer::Partner(Ok(HomeAnswer::Known { entry, is_grown })) = answer else {
            return self.wait_for_more(key, job);
        };
        let asker = Asker {
            token: None,
            homes: job.asker.homes,
        };
        if is_grown {
            job.is_recalled = true;
            self.work.entry(key).or_default().queue.push_front(job);
        } else {
            self.wait_for_more(key, job);
        }
        let claim = Job::of(asker, JobKind::Claim(entry));
        self.work.entry(key).or_default().queue.push_front(claim);
    }

    /// A job can't go on before more is known.
    fn wait_for_more(&mut self, key: KeyHash, job: Job) {
        match job.kind {
            JobKind::Publish(entry) => self.contest_publication(key, job.asker, entry),
            _ => self.waiting.push_back((key, job)),
        }
    }

    /// Tries again what waited until more is known. What nobody waits for any more is not tried.
    pub(super) fn retry_waiting(&mut self) {
        for (key, job) in std::mem::take(&mut self.waiting) {
            if job.asker.token.is_some_and(|token| self.requests.contains(token)) {
                self.submit(key, job);
            }
        }
    }

    /// Asks members for what they have not told yet, and tells partners what they were not told, some at a time.
    pub(super) fn learn(&mut self) {
        let (mut asks, mut tells) = (Vec::new(), Vec::new());
        for (id, member) in self.members.askable(self.now) {
            match (member.announced, member.handed_over) {
                (Learning::Asked(_), _) | (_, Learning::Asked(_)) => {}
                (Learning::Open(after), _) => asks.push((Purpose::Announce { member: id }, id, after)),
                (_, Learning::Open(after)) => asks.push((Purpose::HandOver { partner: id }, id, after)),
                (Learning::Done, Learning::Done) => {}
            }
            if member.retelling == 0 && !member.untold.is_empty() {
                tells.extend(member.to_retell().map(|(key, untold)| (id, key, untold)));
            }
        }
        let room = LEARNING_AT_ONCE_MAX.saturating_sub(self.learning);
        for (purpose, to, after) in asks.into_iter().take(room) {
            self.learning += 1;
            self.ask_page(purpose, to, after);
        }
        for (to, key, untold) in tells {
            self.retell(to, key, &untold);
        }
    }

    fn retell(&mut self, to: NodeId, key: KeyHash, untold: &Untold) {
        self.members.change(to, |member| {
            member.retelling += 1;
            member.retold_key = Some(key);
        });
        let (entry, ends_after) = self.share_of(key, untold);
        let purpose = Purpose::Retell(Retold {
            partner: to,
            key,
            stamp: untold.stamp,
            ends_after,
        });
        let event = HomeEvent {
            key_hash: key,
            homes: untold.homes,
            kind: HomeEventKind::Share(entry),
        };
        self.ask_partner(to, purpose, event);
    }

    /// Asks the other home of a key, and goes on with the purpose when it answers or does not.
    pub(super) fn ask_partner(&mut self, to: NodeId, purpose: Purpose, event: HomeEvent) {
        let deadline = self.now.after_ms(DIRECTORY_QUESTION_MS);
        let question = self.new_question(deadline, purpose);
        self.actions.push(Action::AskPartner {
            question,
            to,
            deadline,
            event,
        });
    }

    fn ask_page(&mut self, purpose: Purpose, to: NodeId, after: Option<KeyHash>) {
        let deadline = self.now.after_ms(DIRECTORY_QUESTION_MS);
        let is_announcement = matches!(purpose, Purpose::Announce { .. });
        let question = self.new_question(deadline, purpose);
        self.members.change(to, |member| {
            let learning = if is_announcement {
                &mut member.announced
            } else {
                &mut member.handed_over
            };
            *learning = Learning::Asked(after);
        });
        self.actions.push(if is_announcement {
            Action::AskAnnouncement {
                question,
                to,
                deadline,
                after,
            }
        } else {
            Action::AskHandOver {
                question,
                to,
                deadline,
                after,
            }
        });
    }

    /// A member has told a page of what it knows, or not.
    pub(super) fn learned(&mut self, from: NodeId, is_announcement: bool, answer: Option<KeyResult<Page>>) {
        self.learning -= 1;
        let page = answer.and_then(Result::ok);
        let now = self.now;
        let next = page.as_ref().map(|page| page.next);
        self.members.change(from, |member| {
            let learning = if is_announcement {
                &mut member.announced
            } else {
                &mut member.handed_over
            };
            let Learning::Asked(after) = *learning else { return };
            *learning = match next {
                Some(None) => Learning::Done,
                // Calls are served between the pages.
                Some(next) if next > after => {
                    member.ask_at = now.after_ms(LEARNING_PAUSE_MS);
                    Learning::Open(next)
                }
                // No answer, or one that leads nowhere.
                _ => {
                    member.ask_at = now.after_ms(RETRY_MS);
                    Learning::Open(after)
                }
            };
        });
        for PageKey { key_hash, homes, entry } in page.into_iter().flat_map(|page| page.keys) {
            if homes.includes(self.node) && homes.second != Some(homes.first) && entry.check().is_ok() {
                self.learned += 1;
                let asker = Asker { token: None, homes };
                let kind = match entry {
                    MirrorEntry {
                        sealed: Some(object), ..
                    } if is_announcement => JobKind::Publish(object),
                    _ if is_announcement => continue,
                    entry => JobKind::Claim(entry),
                };
                self.submit(key_hash, Job::of(asker, kind));
            }
        }
        self.learn();
        self.retry_waiting();
    }

    /// Remembers what the partner was not told, and forgets what it was.
    pub(super) fn note_untold(&mut self, key: KeyHash, homes: Homes, decision: &Decision, mirrored: &Mirrored) {
        let Some(partner) = homes.partner_of(self.node) else {
            return;
        };
        match mirrored {
            Mirrored::Told => self.members.told(partner, key),
            Mirrored::Alone { .. } | Mirrored::Refused(_) => {
                let untold = Untold {
                    homes,
                    withdrawn: decision.withdrawn(),
                    has_ends: decision.ends_puts() && !is_planted(Bug::EndsAreNotRetold),
                    ends_after: None,
                    stamp: 0,
                };
                self.members.leave_untold(partner, key, untold);
            }
            Mirrored::Objected(_) | Mirrored::Behind(_) | Mirrored::Ended { .. } => {}
        }
    }

    /// The entries and tombstones of the keys that are shared with a partner, in the order of key hashes, a step of a
    /// page. Whoever takes the first step is told all, so that nothing is left untold.
    pub fn hand_over(&mut self, partner: NodeId, after: Option<KeyHash>) -> Page {
        if after.is_none() {
            self.members.change(partner, |member| {
                member.untold.clear();
                member.has_overflowed = false;
            });
        }
        let [packed, loose] = self.entries.keys_after(after);
        let buried = Box::new(self.tombstones.keys_after(after));
        let (mut keys, mut horizon) = (Vec::new(), None::<KeyHash>);
        for source in [packed, loose, buried] {
            let enough = keys.len() + PAGE_STEP_KEYS_MAX;
            for (seen, (key, homes)) in source.enumerate() {
                if homes.partner_of(self.node) == Some(partner) {
                    keys.push((key, homes));
                }
                if keys.len() == enough || seen == HAND_OVER_KEYS_SEEN_MAX {
                    horizon = Some(horizon.map_or(key, |horizon| horizon.min(key)));
                    break;
                }
            }
        }
        keys.retain(|(key, _)| horizon.is_none_or(|horizon| *key <= horizon));
        keys.sort_unstable_by_key(|(key, _)| *key);
        keys.dedup_by_key(|(key, _)| *key);
        if keys.len() > PAGE_STEP_KEYS_MAX {
            keys.truncate(PAGE_STEP_KEYS_MAX);
            horizon = keys.last().map(|(key, _)| *key);
        }
        self.page(keys, horizon)
    }

    fn page(&self, keys: Vec<(KeyHash, Homes)>, next: Option<KeyHash>) -> Page {
        let keys = keys.into_iter().map(|(key_hash, homes)| PageKey {
            key_hash,
            homes,
            entry: match self.all_known(key_hash) {
                MirrorEntry { sealed, pending, .. } if is_planted(Bug::ForgetsTombstones) => MirrorEntry {
                    sealed,
                    pending,
                    ..MirrorEntry::default()
                },
                known => known,
            },
        });
        Page {
            keys: keys.collect(),
            next,
        }
    }
}
