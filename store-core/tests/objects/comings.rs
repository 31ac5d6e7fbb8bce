//! Segments that come and go between the other operations.

use crate::model::{Phase, Report, Segment};
use crate::operation::operation;
use crate::operations::{Run, SEGMENTS, hash, version};
use crate::table::CheckedTable;
use proptest::prelude::*;
use tenon_protocol::ids::{Generation, SegmentId};
use tenon_store_core::objects::{RegionId, SegmentSpec, UnmountError};
use tenon_store_core::placement::{Fallback, Policy};

impl Run {
    /// At most four at a time: a segment that is one of many matters to nobody.
    pub(crate) fn mount(&mut self, like: usize) {
        let gone = self.model.in_phase(Phase::Gone).len();
        if self.model.segments.len() - gone >= 4 {
            return;
        }
        let (len_bytes, slots) = SEGMENTS[like % SEGMENTS.len()];
        let (id, table) = (self.holder.new_segment_id().unwrap(), CheckedTable::default());
        assert_eq!(id.0 as usize, self.model.segments.len() + 1, "an id is given twice");
        self.holder
            .mount(id, &SegmentSpec { len_bytes, slots }, table.clone())
            .unwrap();
        self.tables.push(table);
        self.model.segments.push(Segment {
            capacity_bytes: len_bytes,
            slots,
            phase: Phase::Active,
        });
    }

    pub(crate) fn drain(&mut self, which: usize) {
        let at = which % self.model.segments.len();
        let answer = self.holder.drain(segment_id(at));
        match &mut self.model.segments[at].phase {
            Phase::Gone => assert_eq!(
                answer,
                Err(UnmountError::Unknown {
                    segment: segment_id(at)
                })
            ),
            phase => {
                assert_eq!(answer, Ok(()));
                *phase = Phase::Draining;
            }
        }
    }

    pub(crate) fn drop_some(&mut self, which: usize) {
        let draining = self.model.in_phase(Phase::Draining);
        let Some(&at) = draining.get(which % draining.len().max(1)) else {
            return;
        };
        let (mut from_bytes, mut objects) = (Some(0), 0);
        while let Some(from) = from_bytes {
            let step = self.holder.drop_some(self.now(), segment_id(at), from);
            from_bytes = step.next_bytes;
            objects += step.objects;
        }
        let mut told: Vec<_> = self
            .holder
            .take_evicted()
            .iter()
            .map(|evicted| evicted.generation)
            .collect();
        let mut dropped: Vec<_> = self.model.drop_all(at).iter().map(|region| region.generation).collect();
        told.sort_unstable();
        dropped.sort_unstable();
        assert_eq!(objects, dropped.len() as u64);
        assert_eq!(told, dropped, "homes are told of exactly what has gone");
    }

    pub(crate) fn unmount(&mut self, which: usize) {
        let at = which % self.model.segments.len();
        let segment = segment_id(at);
        let is_empty = self.model.slots_used(at) == 0;
        let phase = &mut self.model.segments[at].phase;
        match self.holder.unmount(segment) {
            Ok(table) => {
                assert!(*phase == Phase::Draining && is_empty);
                assert!(table.described().is_empty());
                *phase = Phase::Gone;
            }
            Err(UnmountError::Unknown { .. }) => assert_eq!(*phase, Phase::Gone),
            Err(UnmountError::InUse { .. }) => assert!(*phase == Phase::Active || !is_empty),
        }
    }

    /// Another holder says that an object that homes know of stays there: it goes here, if its segment drains. If it does not, it stays here for others.
    pub(crate) fn move_away(&mut self, key: u8, put_id: u8) {
        let sealed = self.sealed_as(key, put_id);
        let is_told =
            sealed.is_some_and(|_| matches!(self.model.sealed(key), Some((.., report)) if report != Report::UnderWay));
        let is_leaving = sealed.is_some_and(|(id, _)| self.model.phase(id.segment) == Phase::Draining);
        let mut movable = Vec::new();
        for at in 0..self.model.segments.len() {
            let listed = self.holder.movable(self.now(), segment_id(at), 0, usize::MAX);
            movable.extend(listed.map(|(listed, _)| listed).unwrap_or_default());
        }
        let asked = sealed.map_or(version(1, put_id), |(_, version)| version);
        let is_listed = movable
            .iter()
            .any(|one| one.key_hash == hash(key) && one.version == asked);
        assert_eq!(is_listed, is_told);
        let stays = sealed.filter(|_| is_told && !is_leaving).map(|(id, _)| id.generation);
        assert_eq!(self.holder.stays(hash(key), asked), stays);
        let Some((id, _)) = sealed.filter(|_| is_leaving) else {
            return;
        };
        let later = RegionId {
            generation: Generation(id.generation.0 + 1_000_000),
            ..id
        };
        assert!(!self.holder.moved(self.now(), later), "another region is not meant");
        assert_eq!(self.holder.moved(self.now(), id), is_told);
        assert_eq!(self.holder.take_evicted().len(), usize::from(is_told));
        if is_told {
            self.model.give_up(id, None);
        }
    }

    /// Whatever was done before: once nothing is under way every segment can be given back.
    pub(crate) fn unmount_all(&mut self) {
        for at in 0..self.model.segments.len() {
            self.drain(at);
            self.drop_some(0);
            self.unmount(at);
            self.compare();
        }
        assert_eq!(self.holder.account().capacity_bytes, 0);
    }
}

fn segment_id(at: usize) -> SegmentId {
    SegmentId(u32::try_from(at + 1).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn a_holder_that_gives_each_segment_an_allocator_of_its_own_agrees_too(operations in proptest::collection::vec(operation(), 1..160)) {
        let mut run = Run::that_places(Policy { fallback: Fallback::FitAware, ..Policy::default() });
        for operation in operations {
            run.apply(operation);
            run.compare();
        }
        run.finish();
    }
}
