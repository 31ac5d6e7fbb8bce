//! What the reader of a lane leaves for its writer.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::limits::{MAX_QUEUED_READS, MAX_QUEUED_REPLIES};
use crate::tcp::wire::{Failure, Header, Kind, ReadEntry, put_failed, put_small};

/// The outcome of a request, to be told.
#[derive(Debug)]
pub(super) enum Reply {
    Wrote { request: u64, crc64: u64 },
    Failed { request: u64, failure: Failure },
}

impl Reply {
    pub(super) fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Wrote { request, crc64 } => put_small(to, Header::new(Kind::Wrote, *request, *crc64), &[]),
            Self::Failed { request, failure } => put_failed(to, *request, failure),
        }
    }
}

/// Reads that were asked for together: their holds are taken together.
#[derive(Debug)]
pub(super) struct Share {
    /// Number of the first request; the others follow.
    pub(super) first: u64,
    pub(super) frame_bytes: u64,
    pub(super) entries: Vec<ReadEntry>,
}

impl Share {
    fn requests(&self) -> Range<u64> {
        self.first..self.first.saturating_add(self.entries.len() as u64)
    }
}

/// Bounded: the reader waits for room.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    work: Notify,
    room: Notify,
}

#[derive(Debug, Default)]
struct State {
    replies: VecDeque<Reply>,
    shares: VecDeque<Share>,
    /// Reads in `shares` and in the one that the writer is at.
    reads: usize,
    /// Requests that are queued or being served and that nobody waits for. Never longer than `reads`.
    cancelled: Vec<Range<u64>>,
    /// The share that the writer is at.
    current: Range<u64>,
    next_request: u64,
}

/// What the writer finds.
#[derive(Debug)]
pub(super) enum Work {
    Serve(Share),
    /// There were replies only.
    Told,
    Nothing,
}

impl Queue {
    pub(super) async fn reply(&self, reply: Reply) {
        self.wait_for_room(|state| state.replies.len() < MAX_QUEUED_REPLIES)
            .await;
        self.state.lock().replies.push_back(reply);
        self.work.notify_one();
    }

    /// Takes on a share, unless its requests are numbered out of order.
    pub(super) async fn serve(&self, share: Share) -> Result<(), &'static str> {
        self.wait_for_room(|state| state.reads < MAX_QUEUED_READS).await;
        let mut state = self.state.lock();
        let requests = share.requests();
        if requests.start < state.next_request || requests.end == u64::MAX {
            return Err("reads are numbered out of order");
        }
        state.next_request = requests.end;
        state.reads += share.entries.len();
        state.shares.push_back(share);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Only the reader adds, so what fits when this returns still fits when the reader adds it.
    async fn wait_for_room(&self, fits: impl Fn(&State) -> bool) {
        while !fits(&self.state.lock()) {
            self.room.notified().await;
        }
    }

    /// Marks requests as not waited for. Those that are not queued any more are done anyway.
    pub(super) fn cancel(&self, requests: &Range<u64>) {
        let mut state = self.state.lock();
        let mut marked = Vec::new();
        for known in state.shares.iter().map(Share::requests).chain([state.current.clone()]) {
            let common = known.start.max(requests.start)..known.end.min(requests.end);
            if !common.is_empty() && !state.cancelled.contains(&common) {
                marked.push(common);
            }
        }
        let room = state.reads.saturating_sub(state.cancelled.len());
        marked.truncate(room);
        state.cancelled.extend(marked);
    }

    pub(super) fn is_cancelled(&self, request: u64) -> bool {
        self.state
            .lock()
            .cancelled
            .iter()
            .any(|cancelled| cancelled.contains(&request))
    }

    /// Puts all replies into `waiting` and hands out the next share, if there is one.
    pub(super) fn next(&self, waiting: &mut Vec<u8>) -> Work {
        let mut state = self.state.lock();
        let told = tell(&mut state, waiting);
        let share = state.shares.pop_front();
        if let Some(share) = &share {
            state.current = share.requests();
        }
        drop(state);
        if told {
            self.room.notify_one();
        }
        match share {
            Some(share) => Work::Serve(share),
            None if told => Work::Told,
            None => Work::Nothing,
        }
    }

    /// Puts all replies into `waiting`, in the middle of a share.
    pub(super) fn tell(&self, waiting: &mut Vec<u8>) {
        if tell(&mut self.state.lock(), waiting) {
            self.room.notify_one();
        }
    }

    /// The share that the writer was at is done.
    pub(super) fn served(&self, reads: usize) {
        let mut state = self.state.lock();
        state.reads -= reads;
        let end = state.current.end;
        state.current = 0..0;
        state.cancelled.retain(|cancelled| cancelled.start >= end);
        drop(state);
        self.room.notify_one();
    }

    /// Waits until there may be work.
    pub(super) async fn wait_for_work(&self) {
        self.work.notified().await;
    }
}

fn tell(state: &mut State, waiting: &mut Vec<u8>) -> bool {
    let told = !state.replies.is_empty();
    for reply in state.replies.drain(..) {
        reply.put(waiting);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RemoteKey;

    fn share(first: u64, reads: usize) -> Share {
        let entry = ReadEntry {
            key: RemoteKey(1),
            offset_bytes: 0,
            len_bytes: 1,
        };
        Share {
            first,
            frame_bytes: 1,
            entries: vec![entry; reads],
        }
    }

    #[tokio::test]
    async fn requests_are_cancelled_while_they_are_queued_or_served() {
        let queue = Queue::default();
        queue.serve(share(10, 5)).await.unwrap();
        queue.serve(share(15, 5)).await.unwrap();
        assert!(matches!(
            queue.next(&mut Vec::new()),
            Work::Serve(Share { first: 10, .. })
        ));
        queue.cancel(&(12..17));
        let cancelled: Vec<_> = (9..21).filter(|request| queue.is_cancelled(*request)).collect();
        assert_eq!(cancelled, [12, 13, 14, 15, 16]);
        queue.served(5);
        let cancelled: Vec<_> = (9..21).filter(|request| queue.is_cancelled(*request)).collect();
        assert_eq!(cancelled, [15, 16]);
        queue.cancel(&(10..12));
        assert!(!queue.is_cancelled(10), "what is done is not remembered");
    }

    #[tokio::test]
    async fn numbers_never_go_back() {
        let queue = Queue::default();
        queue.serve(share(10, 5)).await.unwrap();
        assert!(queue.serve(share(14, 1)).await.is_err());
        assert!(queue.serve(share(u64::MAX - 1, 5)).await.is_err());
        assert!(queue.serve(share(15, 1)).await.is_ok());
    }

    #[tokio::test]
    async fn the_reader_waits_while_the_queue_is_full() {
        let queue = Queue::default();
        queue.serve(share(1, MAX_QUEUED_READS)).await.unwrap();
        let mut more = std::pin::pin!(queue.serve(share(1 << 32, 1)));
        let brief = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(brief, &mut more).await.is_err());
        assert!(matches!(queue.next(&mut Vec::new()), Work::Serve(_)));
        queue.served(MAX_QUEUED_READS);
        more.await.unwrap();
    }
}
