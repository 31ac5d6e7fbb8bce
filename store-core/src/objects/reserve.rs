//! Reservations: how they begin, and how they end without an object.

use super::pieces::ArrivedPieces;
use super::region::{Reservation, State};
use super::segment::Segment;
use super::space::{Found, Refused, Taken};
use super::{CommitInProgress, Holder, Owner, RegionId, ReserveError, SegmentTable};
use crate::placement::nodes::NodeHint;
use crate::placement::{PlacementFigures, PoolSummary, StopReason};
use crate::time::Time;
use rand::Rng;
use std::sync::Arc;
use tenon_protocol::error::NoSpace;
use tenon_protocol::ids::{KeyHash, PutId, SegmentId, SessionId, Slot};
use tenon_protocol::limits::RESERVATION_TTL_MS_MAX;
use tenon_protocol::message::Pin;
use tenon_protocol::name::ObjectName;

/// What is to be reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReserveSpec {
    /// The attempt.
    pub put_id: PutId,
    /// The key.
    pub name: ObjectName,
    /// The object's exact length.
    pub len_bytes: u64,
    /// Who may write, and whose end ends the reservation.
    pub owner: Owner,
    /// Time to live since the last byte arrived; the holder's default if not given.
    pub ttl_ms: Option<u32>,
    /// How the object is to be pinned.
    pub pin: Pin,
    /// The object is to take the place of the one that the key has.
    pub replace: bool,
}

/// A region that is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// Where.
    pub region: RegionId,
    /// Its length, which is the object's.
    pub len_bytes: u64,
    /// Its place in the segment's table.
    pub slot: Slot,
    /// It ends this long after the last byte arrived.
    pub ttl_ms: u32,
    /// The right to write must be made for the owner: the reservation is new, or was made by another session before.
    pub needs_grant: bool,
}

/// Where an object would be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WouldPlace {
    /// In which segment.
    pub segment: SegmentId,
    /// Where in the segment.
    pub offset_bytes: u64,
    /// Calls to segments that it took to find it.
    pub segments_asked: u32,
}

/// What would become of objects if they were placed now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DryRun {
    /// Of each.
    pub places: Vec<Result<WouldPlace, ReserveError>>,
    /// What others would be told of the room then.
    pub hint: NodeHint,
}

/// A reservation that is over: the right to write to its region must be revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Where it was.
    pub region: RegionId,
    /// Whose.
    pub put_id: PutId,
    /// Of which key.
    pub key_hash: KeyHash,
    /// Why.
    pub reason: EndReason,
}

/// Why a reservation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// It has become an object.
    Sealed,
    /// The key has an object already, or the put was stored elsewhere.
    NotNeeded,
    /// The commit failed.
    Failed,
    /// The client gave it back.
    Aborted,
    /// No byte arrived for its time to live.
    Expired,
    /// The client's session ended.
    SessionEnded,
    /// Its segment was unmounted.
    Unmounted,
}

impl<T: SegmentTable> Holder<T> {
    /// Sets a region aside. Asking again for the same put, key and length answers the same region and begins its time
    /// to live anew; the owner is then the one that asked last.
    pub fn reserve<R: Rng + ?Sized>(
        &mut self,
        now: Time,
        rng: &mut R,
        spec: ReserveSpec,
    ) -> Result<Reserved, ReserveError> {
        self.pass(now);
        let ttl_ms = spec.ttl_ms.unwrap_or(self.config.reservation_ttl_ms);
        if ttl_ms == 0 || ttl_ms > RESERVATION_TTL_MS_MAX {
            return Err(ReserveError::TimeToLive { ttl_ms });
        }
        let key_hash = spec.name.hash(self.config.cluster);
        if let Some(&region) = self.reservations.get(&(spec.put_id, key_hash)) {
            return self.reserve_again(now, region, &spec);
        }
        let (segment, taken) = self.place(rng, spec.len_bytes)?;
        self.generation = self.generation.next();
        let expires_at = now.after_ms(ttl_ms.into());
        let reservation = Reservation {
            put_id: spec.put_id,
            name: Arc::new(spec.name),
            key_hash,
            owner: spec.owner,
            ttl_ms,
            pin: spec.pin,
            replace: spec.replace,
            reserved_at: now,
            expires_at,
            queued_at: expires_at,
            pieces: ArrivedPieces::new(spec.len_bytes),
            commit: None,
        };
        let state = State::Reserved(Box::new(reservation));
        let region = self
            .segments
            .get_mut(segment)
            .expect("room is found in mounted segments")
            .adopt(taken, self.generation, state);
        self.reservations.insert((spec.put_id, key_hash), region);
        self.by_owner.insert((spec.owner, region));
        self.expiries.insert((expires_at, region));
        Ok(self.reserved(region, true))
    }

    fn reserve_again(&mut self, now: Time, region: RegionId, spec: &ReserveSpec) -> Result<Reserved, ReserveError> {
        let record = self.record_mut(region).expect("reservations are recorded");
        let (reserved_bytes, len_bytes) = (record.len_bytes(), spec.len_bytes);
        if reserved_bytes != len_bytes {
            return Err(ReserveError::OtherLength {
                reserved_bytes,
                len_bytes,
            });
        }
        let reservation = record.reservation_mut().expect("it is reserved");
        if reservation.commit.is_some() {
            return Ok(self.reserved(region, false));
        }
        reservation.expires_at = now.after_ms(reservation.ttl_ms.into());
        let previous = std::mem::replace(&mut reservation.owner, spec.owner);
        self.by_owner.remove(&(previous, region));
        self.by_owner.insert((spec.owner, region));
        Ok(self.reserved(region, previous != spec.owner))
    }

    fn reserved(&self, region: RegionId, needs_grant: bool) -> Reserved {
        let record = self.record(region).expect("reservations are recorded");
        let reservation = record.reservation().expect("it is reserved");
        Reserved {
            region,
            len_bytes: record.len_bytes(),
            slot: record.slot,
            ttl_ms: reservation.ttl_ms,
            needs_grant,
        }
    }

    fn place<R: Rng + ?Sized>(&mut self, rng: &mut R, len_bytes: u64) -> Result<(SegmentId, Taken), ReserveError> {
        let (figures, found) = self.find_room(rng, len_bytes);
        self.placement.record(&figures);
        self.space_version += u64::from(found.is_ok());
        found.map(|(index, taken)| (self.segments.id_at(index), taken))
    }

    /// Where objects of these lengths would be placed now, each beside those before it. Nothing is set aside.
    pub fn dry_run<R: Rng + ?Sized>(&mut self, rng: &mut R, lens_bytes: &[u64]) -> DryRun {
        let mut taken = Vec::new();
        let mut would_place = |holder: &mut Self, len_bytes| {
            let (figures, found) = holder.find_room(rng, len_bytes);
            let (index, found) = found?;
            let place = WouldPlace {
                segment: holder.segments.id_at(index),
                offset_bytes: found.region.offset_bytes(),
                segments_asked: figures.calls(),
            };
            taken.push((index, found));
            Ok(place)
        };
        let places = lens_bytes
            .iter()
            .map(|&len_bytes| would_place(self, len_bytes))
            .collect();
        let hint = self.hint();
        for (index, taken) in taken {
            self.space.give_back(index, taken);
        }
        DryRun { places, hint }
    }

    /// Why a request would be refused now; `None` if it may be served. Nothing is set aside. The index of a node knows without a search; a strategy to
    /// compare with is played through, so that a request costs it what it costs.
    pub fn look<R: Rng + ?Sized>(&mut self, rng: &mut R, len_bytes: u64) -> Option<ReserveError> {
        if let Err(error) = self.check_len(len_bytes) {
            return Some(error);
        }
        if let Some(largest_bytes) = self.space.largest_that_fits_bytes() {
            let refused = || ReserveError::NoSpace(self.no_space(len_bytes, &Refused::default()));
            return (len_bytes > largest_bytes).then(refused);
        }
        let (figures, found) = self.find_room(rng, len_bytes);
        self.placement.record(&figures);
        let (segment, taken) = match found {
            Ok(found) => found,
            Err(error) => return Some(error),
        };
        self.space.give_back(segment, taken);
        None
    }

    /// Takes room from a segment; it leaks unless it is given back or becomes a region in use.
    fn find_room<R: Rng + ?Sized>(
        &mut self,
        rng: &mut R,
        len_bytes: u64,
    ) -> (PlacementFigures, Result<(usize, Taken), ReserveError>) {
        if let Err(error) = self.check_len(len_bytes) {
            return (PlacementFigures::default(), Err(error));
        }
        match self.space.take(rng, len_bytes) {
            Ok(Found {
                segment,
                taken,
                figures,
            }) => (figures, Ok((segment, taken))),
            Err(refused) => {
                let numbers = self.no_space(len_bytes, &refused);
                (refused.figures, Err(ReserveError::NoSpace(numbers)))
            }
        }
    }

    fn check_len(&self, len_bytes: u64) -> Result<(), ReserveError> {
        if len_bytes == 0 {
            return Err(ReserveError::EmptyObject);
        }
        if len_bytes > self.largest_segment_bytes && self.capacity_bytes > 0 {
            return Err(ReserveError::TooLarge(NoSpace {
                stop_reason: "too_large".to_owned(),
                ..self.no_space(len_bytes, &Refused::default())
            }));
        }
        Ok(())
    }

    fn no_space(&self, asked_bytes: u64, refused: &Refused) -> NoSpace {
        let PoolSummary {
            free_bytes,
            largest_free_upper_bound_bytes,
        } = self.space.summary();
        let without_slot_bytes = self.space.largest_without_slot_bytes();
        let stop_reason = if self.capacity_bytes == 0 {
            "no_segment".to_owned()
        } else if without_slot_bytes >= asked_bytes {
            "slots".to_owned()
        } else {
            refused.stop.to_string()
        };
        let entries_looked_at = match refused.stop {
            // One index has spoken for all.
            StopReason::NothingFits => u32::try_from(self.segments.active().count()).expect("segments are bounded"),
            _ => refused.figures.entries_examined(),
        };
        NoSpace {
            asked_bytes,
            free_bytes,
            largest_free_bytes: largest_free_upper_bound_bytes.unwrap_or(0).max(without_slot_bytes),
            evictable_bytes: self.evictable_bytes(),
            held_bytes: self.segments.active().map(Segment::held_bytes).sum(),
            largest_segment_bytes: self.largest_segment_bytes,
            entries_looked_at,
            stop_reason,
        }
    }

    /// A session gives a reservation back. False if it has none: one that another session has taken over by asking for
    /// it again stays, since a try that came to nothing must not end the next one.
    pub fn abort(&mut self, put_id: PutId, name: &ObjectName, by: SessionId) -> Result<bool, CommitInProgress> {
        let key_hash = name.hash(self.config.cluster);
        let Some(&region) = self.reservations.get(&(put_id, key_hash)) else {
            return Ok(false);
        };
        let record = self.record(region).expect("reservations are recorded");
        let reservation = record.reservation().expect("it is reserved");
        if reservation.commit.is_some() {
            return Err(CommitInProgress);
        }
        if reservation.owner.session != by {
            return Ok(false);
        }
        self.end(region, EndReason::Aborted);
        Ok(true)
    }

    /// A client's session has ended: its reservations end, except those with a commit in progress.
    pub fn session_ended(&mut self, owner: Owner) {
        while let Some(&(first, region)) = self.by_owner.range((owner, RegionId::LOWEST)..).next() {
            if first != owner {
                break;
            }
            self.end(region, EndReason::SessionEnded);
        }
    }

    /// Ends the reservations whose time to live has passed since their last byte arrived, and soft pins. Call it many times
    /// per second.
    pub fn expire(&mut self, now: Time) {
        self.pass(now);
        self.end_pins();
        while let Some(&(queued_at, region)) = self.expiries.first() {
            if queued_at > now {
                break;
            }
            self.expiries.pop_first();
            let record = self.record_mut(region).expect("queued reservations are recorded");
            let is_written = record.holds > 0;
            let reservation = record.reservation_mut().expect("it is reserved");
            if is_written && reservation.expires_at <= now {
                // Bytes are arriving: the time to live has not begun.
                reservation.expires_at = now.after_ms(reservation.ttl_ms.into());
            }
            reservation.queued_at = reservation.expires_at;
            let expires_at = reservation.expires_at;
            self.expiries.insert((expires_at, region));
            if expires_at <= now {
                self.end(region, EndReason::Expired);
            }
        }
    }

    /// The reservations that ended since the last call, in order. Ask after every call that may end one; the region may
    /// be in use for another put already, whose [`RegionId`] differs.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Ends a reservation and gives its region up.
    pub(super) fn end(&mut self, region: RegionId, reason: EndReason) {
        let state = self.retire(region);
        let State::Reserved(reservation) = state else {
            unreachable!("only reservations are ended");
        };
        self.unlist(region, &reservation, reason);
    }

    /// Forgets a reservation whose region has moved on.
    pub(super) fn unlist(&mut self, region: RegionId, reservation: &Reservation, reason: EndReason) {
        let (put_id, key_hash) = (reservation.put_id, reservation.key_hash);
        self.reservations.remove(&(put_id, key_hash));
        self.unqueue(region, reservation.owner, reservation.queued_at);
        self.ended.push(Ended {
            region,
            put_id,
            key_hash,
            reason,
        });
    }

    /// From here on neither time nor the end of the session ends the reservation.
    pub(super) fn unqueue(&mut self, region: RegionId, owner: Owner, queued_at: Time) {
        self.by_owner.remove(&(owner, region));
        self.expiries.remove(&(queued_at, region));
    }
}
