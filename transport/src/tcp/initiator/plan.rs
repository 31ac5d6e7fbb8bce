//! Cutting a batch into parts, each of which travels on one lane under one request number.

use std::collections::HashMap;
use std::ops::Range;

use crate::engine::{Op, Transfer};
use crate::ids::RemoteKey;
use crate::limits::{STEP_BYTES, STEP_PARTS};

/// One request: a contiguous range of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartPlan {
    /// Index in the batch.
    pub(super) transfer: u32,
    /// Which part of the transfer.
    pub(super) index: u32,
    /// Where it starts in the transfer.
    pub(super) start_bytes: u64,
    pub(super) len_bytes: u64,
    pub(super) op: Op,
    pub(super) key: RemoteKey,
    pub(super) remote_offset_bytes: u64,
    /// Parts with the same number, zero apart, travel on one lane in order.
    group: u32,
}

/// Cuts transfers into parts. Those of a group stand together and in order. Independent transfers and all writes are
/// cut into frames; a grouped read is one part, however long, so that one hold covers it.
pub(super) fn parts(transfers: &mut dyn Iterator<Item = (u32, &Transfer)>, frame_bytes: u64) -> Vec<PartPlan> {
    let mut parts = Vec::new();
    let mut groups: HashMap<u32, usize> = HashMap::new();
    let mut grouped: Vec<Vec<PartPlan>> = Vec::new();
    for (index, transfer) in transfers {
        if transfer.group == 0 {
            cut(index, transfer, frame_bytes, &mut parts);
            continue;
        }
        let place = *groups.entry(transfer.group).or_insert_with(|| {
            grouped.push(Vec::new());
            grouped.len() - 1
        });
        let part_bytes = if transfer.op == Op::Read { u64::MAX } else { frame_bytes };
        cut(index, transfer, part_bytes, &mut grouped[place]);
    }
    parts.extend(grouped.into_iter().flatten());
    parts
}

fn cut(transfer_index: u32, transfer: &Transfer, part_bytes: u64, parts: &mut Vec<PartPlan>) {
    let len_bytes = transfer.len_bytes();
    let mut start_bytes = 0;
    let mut index = 0;
    while start_bytes < len_bytes {
        let part_len_bytes = part_bytes.min(len_bytes - start_bytes);
        parts.push(PartPlan {
            transfer: transfer_index,
            index,
            start_bytes,
            len_bytes: part_len_bytes,
            op: transfer.op,
            key: transfer.key,
            remote_offset_bytes: transfer.remote_offset_bytes.saturating_add(start_bytes),
            group: transfer.group,
        });
        start_bytes += part_len_bytes;
        index += 1;
    }
}

/// Ranges of parts that are sent in one go: as much as fits in a step, and never less than one part or group.
pub(super) fn steps(parts: &[PartPlan]) -> Vec<Range<usize>> {
    let mut steps: Vec<Range<usize>> = Vec::new();
    let mut step_bytes = 0_u64;
    for unit in units(parts, 0..parts.len()) {
        let unit_bytes = bytes(&parts[unit.clone()]);
        match steps.last_mut() {
            Some(step)
                if unit.end - step.start <= STEP_PARTS && step_bytes.saturating_add(unit_bytes) <= STEP_BYTES =>
            {
                step.end = unit.end;
                step_bytes += unit_bytes;
            }
            _ => {
                step_bytes = unit_bytes;
                steps.push(unit);
            }
        }
    }
    steps
}

/// Ranges of parts that must travel on one lane: a group, or a single independent part.
pub(super) fn units(parts: &[PartPlan], range: Range<usize>) -> Vec<Range<usize>> {
    let mut units: Vec<Range<usize>> = Vec::new();
    for at in range {
        match units.last_mut() {
            Some(unit) if parts[at].group != 0 && parts[unit.start].group == parts[at].group => unit.end = at + 1,
            _ => units.push(at..at + 1),
        }
    }
    units
}

/// Bytes of all these parts.
pub(super) fn bytes(parts: &[PartPlan]) -> u64 {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.len_bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::Memory;

    fn transfer(op: Op, len: usize, group: u32) -> Transfer {
        let local = vec![Arc::new(Memory::from_vec(vec![0; len])).whole()];
        Transfer {
            op,
            key: RemoteKey(1),
            remote_offset_bytes: 100,
            local,
            group,
        }
    }

    fn planned(transfers: &[Transfer]) -> Vec<PartPlan> {
        parts(&mut (0..).zip(transfers), 10)
    }

    fn places(parts: &[PartPlan]) -> Vec<(u32, u32, u64, u64)> {
        parts
            .iter()
            .map(|part| (part.transfer, part.index, part.remote_offset_bytes, part.len_bytes))
            .collect()
    }

    #[test]
    fn independent_transfers_and_writes_are_cut_at_frames_from_their_start() {
        let parts = planned(&[
            transfer(Op::Read, 25, 0),
            transfer(Op::Write, 20, 7),
            transfer(Op::Read, 9, 0),
        ]);
        let expected = [
            (0, 0, 100, 10),
            (0, 1, 110, 10),
            (0, 2, 120, 5),
            (2, 0, 100, 9),
            (1, 0, 100, 10),
            (1, 1, 110, 10),
        ];
        assert_eq!(places(&parts), expected);
        assert_eq!(units(&parts, 0..6), [0..1, 1..2, 2..3, 3..4, 4..6]);
    }

    #[test]
    fn groups_stand_together_with_whole_reads() {
        let parts = planned(&[
            transfer(Op::Read, 25, 3),
            transfer(Op::Read, 1, 4),
            transfer(Op::Read, 2, 3),
            transfer(Op::Read, 3, 4),
        ]);
        assert_eq!(
            places(&parts),
            [(0, 0, 100, 25), (2, 0, 100, 2), (1, 0, 100, 1), (3, 0, 100, 3)]
        );
        assert_eq!(units(&parts, 0..4), [0..2, 2..4]);
        assert_eq!(steps(&parts), vec![0..4; 1]);
    }

    #[test]
    fn a_step_is_bounded_but_takes_a_whole_group() {
        let many: Vec<_> = (0..STEP_PARTS * 2 + 1).map(|_| transfer(Op::Read, 1, 0)).collect();
        assert_eq!(
            steps(&planned(&many)),
            [
                0..STEP_PARTS,
                STEP_PARTS..STEP_PARTS * 2,
                STEP_PARTS * 2..STEP_PARTS * 2 + 1
            ]
        );
        let group: Vec<_> = (0..STEP_PARTS * 2).map(|_| transfer(Op::Read, 1, 9)).collect();
        assert_eq!(steps(&planned(&group)), vec![0..STEP_PARTS * 2; 1]);
    }
}
