//! Cutting batches into frames that a message and the service's limits hold, and putting the answers together again.

use crate::limits::{FRAME_ITEMS_BYTES_MAX, FRAMES_IN_FLIGHT_MAX};
use futures_util::StreamExt;
use futures_util::stream;
use std::future::Future;
use tenon_protocol::limits::BATCH_KEYS_MAX;

/// Cuts `items` into runs of at most [`BATCH_KEYS_MAX`] items and [`FRAME_ITEMS_BYTES_MAX`] bytes, keeping the order. An item that is longer than
/// that by itself gets a run of its own.
pub(crate) fn frames<T>(items: Vec<T>, len_bytes: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut frames: Vec<Vec<T>> = Vec::new();
    let mut filled_bytes = 0;
    for item in items {
        let item_bytes = len_bytes(&item);
        match frames.last_mut() {
            Some(frame) if frame.len() < BATCH_KEYS_MAX && filled_bytes + item_bytes <= FRAME_ITEMS_BYTES_MAX => {
                filled_bytes += item_bytes;
                frame.push(item);
            }
            _ => {
                filled_bytes = item_bytes;
                frames.push(vec![item]);
            }
        }
    }
    frames
}

/// Sends the frames, several at once, and gives all their results in the order of the items.
pub(crate) async fn send_all<T, R, F>(frames: Vec<Vec<T>>, send: impl Fn(Vec<T>) -> F) -> Vec<R>
where
    F: Future<Output = Vec<R>>,
{
    let answers: Vec<Vec<R>> = stream::iter(frames.into_iter().map(send))
        .buffered(FRAMES_IN_FLIGHT_MAX)
        .collect()
        .await;
    answers.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_the_order_and_both_limits() {
        let items: Vec<usize> = (0..3 * BATCH_KEYS_MAX + 1).collect();
        let cut = frames(items.clone(), |_| 1);
        assert_eq!(cut.iter().map(Vec::len).max(), Some(BATCH_KEYS_MAX));
        assert_eq!(cut.len(), 4);
        assert_eq!(cut.concat(), items);

        let large = FRAME_ITEMS_BYTES_MAX / 2;
        let cut = frames(vec![large, large, 1, 2 * large + 2, 1], |&len| len);
        assert_eq!(cut, [vec![large, large], vec![1], vec![2 * large + 2], vec![1]]);
    }

    #[test]
    fn an_empty_batch_has_no_frames() {
        assert!(frames(Vec::<u8>::new(), |_| 1).is_empty());
    }

    #[tokio::test]
    async fn answers_come_in_the_order_of_the_items() {
        let frames = vec![vec![3u64, 1], vec![0], vec![2]];
        let answers = send_all(frames, |frame| async move {
            tokio::time::sleep(std::time::Duration::from_millis(frame[0])).await;
            frame.into_iter().map(|item| item * 10).collect()
        })
        .await;
        assert_eq!(answers, [30, 10, 0, 20]);
    }
}
