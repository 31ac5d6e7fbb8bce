//! Cutting transfers into slices.

use std::ops::Range;

use crate::limits::{VERBS_READ_BYTES_MAX, VERBS_READ_PARTS_MAX, VERBS_SLICE_BYTES};
use crate::memory::Slice;

/// A contiguous part of a transfer's remote range, and the local memory that it stands against.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    /// From the start of the transfer.
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    pub(super) local: Vec<Slice>,
}

/// How long the slices of reads are: several paths share them evenly if they are short, one path has less to do if they are long.
pub(super) fn read_bytes(paths: usize) -> u64 {
    if paths > 1 {
        VERBS_SLICE_BYTES
    } else {
        VERBS_READ_BYTES_MAX
    }
}

/// Cuts a scatter list at multiples of `slice_bytes`, and where a request would have too many parts.
pub(super) fn cuts(local: &[Slice], slice_bytes: u64) -> Vec<Cut> {
    let mut cuts: Vec<Cut> = Vec::new();
    let mut at = 0;
    for slice in local {
        let mut done = 0;
        while done < slice.len_bytes() {
            let room = slice_bytes - at % slice_bytes;
            let len_bytes = room.min(slice.len_bytes() - done);
            let part = sub(slice, done..done + len_bytes);
            match cuts.last_mut() {
                Some(last) if at % slice_bytes != 0 && last.local.len() < VERBS_READ_PARTS_MAX => {
                    last.local.push(part);
                    last.len_bytes += len_bytes;
                }
                _ => cuts.push(Cut {
                    offset_bytes: at,
                    len_bytes,
                    local: vec![part],
                }),
            }
            at += len_bytes;
            done += len_bytes;
        }
    }
    cuts
}

/// A part of a slice that is known to lie inside it.
pub(super) fn sub(slice: &Slice, range: Range<u64>) -> Slice {
    slice.subslice(range).expect("parts are cut from inside")
}

/// The part of a scatter list that starts at `offset_bytes` and has `len_bytes`.
pub(super) fn window(local: &[Slice], offset_bytes: u64, len_bytes: u64) -> Vec<Slice> {
    let (mut skip, mut left, mut found) = (offset_bytes, len_bytes, Vec::new());
    for slice in local {
        if skip >= slice.len_bytes() {
            skip -= slice.len_bytes();
            continue;
        }
        let take = left.min(slice.len_bytes() - skip);
        if take > 0 {
            found.push(sub(slice, skip..skip + take));
        }
        left -= take;
        skip = 0;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::memory::Memory;

    #[test]
    fn reads_that_paths_share_are_cut_shorter_than_those_of_one_path() {
        assert_eq!([0, 1, 2, 16].map(read_bytes), [4 << 20, 4 << 20, 1 << 20, 1 << 20]);
    }

    proptest! {
        #[test]
        fn cuts_follow_each_other_and_are_the_list(
            lens in proptest::collection::vec(1..2 * VERBS_READ_BYTES_MAX, 1..12),
            paths in 0..4_usize,
        ) {
            let slice_bytes = read_bytes(paths);
            let memory = Arc::new(Memory::anonymous(lens.iter().sum()).unwrap());
            let mut start = 0;
            let local: Vec<Slice> = lens.iter().map(|len| {
                let slice = sub(&memory.whole(), start..start + len);
                start += len;
                slice
            }).collect();
            let mut at = 0;
            for cut in cuts(&local, slice_bytes) {
                prop_assert_eq!(cut.offset_bytes, at);
                prop_assert!(cut.len_bytes > 0 && cut.local.len() <= VERBS_READ_PARTS_MAX);
                prop_assert_eq!(cut.len_bytes, cut.local.iter().map(Slice::len_bytes).sum::<u64>());
                prop_assert_eq!(at / slice_bytes, (at + cut.len_bytes - 1) / slice_bytes);
                let same: Vec<_> = window(&local, at, cut.len_bytes).iter().map(Slice::range).collect();
                prop_assert_eq!(same, cut.local.iter().map(Slice::range).collect::<Vec<_>>());
                at += cut.len_bytes;
            }
            prop_assert_eq!(at, lens.iter().sum::<u64>());
        }
    }
}
