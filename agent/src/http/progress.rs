//! What is known of a connection from the bytes that came on it and from what handlers say: where its request begins
//! and ends, whether anything is under way, and until when the answer must have been taken.

use std::task::Waker;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::limits::{HTTP_HEAD_FIELDS_MAX, HTTP_HEAD_LEN_BYTES_MAX};

/// How a client begins that speaks HTTP/2 without asking first.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// Where on the stream of received bytes the library is, as far as that can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// A head begins at byte `from`, and so many lines of it have come; so much of its end has.
    Expected { from: u64, lines: usize, end: LineEnds },
    /// A head ended before this byte.
    Ended { at: u64 },
    /// A head that the library need not see.
    Faulty(HeadFault),
    /// The bytes of two requests came together, or a body has no announced length.
    Unknown,
}

/// How much of the empty line that ends a head has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineEnds {
    /// Nothing of the head has come: empty lines before it do not count.
    Leading,
    None,
    One,
    OneAndReturn,
}

/// What is wrong with a head before it is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadFault {
    /// It has more bytes than a head may have.
    TooLong,
    /// It has more fields than a head may have.
    TooManyFields,
    /// It is of another version, whose clients do not wait for an answer.
    Http2,
}

impl Head {
    const fn expected(from: u64) -> Self {
        Self::Expected {
            from,
            lines: 0,
            end: LineEnds::Leading,
        }
    }

    /// Takes `bytes` into account, the first of which is byte `at` of the stream.
    fn after(self, at: u64, bytes: &[u8]) -> Self {
        let Self::Expected {
            from,
            mut lines,
            mut end,
        } = self
        else {
            return self;
        };
        if at == from && bytes.starts_with(HTTP2_PREFACE) {
            return Self::Faulty(HeadFault::Http2);
        }
        // Bytes of the body before it may be many: they are not looked at.
        let skipped = usize::try_from(from.saturating_sub(at)).unwrap_or(usize::MAX);
        for (byte, at) in bytes.get(skipped..).unwrap_or_default().iter().zip(at.max(from)..) {
            if at - from >= HTTP_HEAD_LEN_BYTES_MAX as u64 {
                return Self::Faulty(HeadFault::TooLong);
            }
            lines += usize::from(*byte == b'\n' && end != LineEnds::Leading);
            end = match (end, byte) {
                (LineEnds::Leading, b'\r' | b'\n') => LineEnds::Leading,
                (LineEnds::None, b'\n') => LineEnds::One,
                (LineEnds::One, b'\r') => LineEnds::OneAndReturn,
                (LineEnds::One | LineEnds::OneAndReturn, b'\n') => return Self::Ended { at: at + 1 },
                _ => LineEnds::None,
            };
            // The first line is none of the fields.
            if lines > HTTP_HEAD_FIELDS_MAX + 1 {
                return Self::Faulty(HeadFault::TooManyFields);
            }
        }
        Self::Expected { from, lines, end }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Progress {
    /// Handlers at work, and bodies of answers that are still made.
    under_way: u32,
    /// What was under way has ended, and its last bytes have not been flushed yet.
    answering: bool,
    /// Since when nothing was under way.
    quiet_since: Instant,
    /// Until when the answer under way must have been taken.
    answer_by: Option<Instant>,
    /// The place among the transfers that the answer under way has: its last bytes still take memory when they are not
    /// made any more.
    place: Option<OwnedSemaphorePermit>,
    received_bytes: u64,
    head: Head,
    /// Where the request under way ends, if that is known.
    request_end: Option<u64>,
    /// Waits to hear that the peer has closed its sending side, which it has.
    end_awaited_by: Option<Waker>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            under_way: 0,
            answering: false,
            quiet_since: Instant::now(),
            answer_by: None,
            place: None,
            received_bytes: 0,
            head: Head::expected(0),
            request_end: None,
            end_awaited_by: None,
        }
    }

    /// Since when nothing has been under way, if nothing is.
    pub(super) fn quiet_since(&self) -> Option<Instant> {
        self.is_quiet().then_some(self.quiet_since)
    }

    fn is_quiet(&self) -> bool {
        self.under_way == 0 && !self.answering
    }

    /// Until when the peer must have taken the answer under way.
    pub(super) fn answer_by(&self) -> Option<Instant> {
        self.answer_by
    }

    pub(super) fn received(&mut self, bytes: &[u8]) {
        self.head = self.head.after(self.received_bytes, bytes);
        self.received_bytes += bytes.len() as u64;
    }

    /// What is wrong with the head that comes.
    pub(super) fn fault(&self) -> Option<HeadFault> {
        match self.head {
            Head::Faulty(fault) => Some(fault),
            _ => None,
        }
    }

    /// Whether some of a head may have come that no handler has seen, and nothing else is under way. If the library says
    /// something now, it has refused that head.
    pub(super) fn may_be_refused(&self) -> bool {
        let has_begun = match self.head {
            Head::Expected { from, .. } => self.received_bytes > from,
            Head::Ended { .. } | Head::Unknown => true,
            Head::Faulty(_) => false,
        };
        has_begun && self.is_quiet()
    }

    /// Whether bytes have come that are not part of the request under way; `None` if it is not known where that ends.
    pub(super) fn has_surplus(&self) -> Option<bool> {
        self.request_end.map(|end| self.received_bytes > end)
    }

    /// A handler begins with a request whose body has so many bytes, if that is known.
    pub(super) fn begin(&mut self, body_bytes: Option<u64>) {
        self.under_way += 1;
        self.answer_by = None;
        self.place = None;
        self.request_end = match (self.head, body_bytes) {
            (Head::Ended { at }, Some(body_bytes)) => at.checked_add(body_bytes),
            _ => None,
        };
        self.tell_end();
    }

    /// The body of an answer is made while it is sent, which must be done by a deadline. The place is kept until then.
    pub(super) fn streaming(&mut self, answer_by: Instant, place: OwnedSemaphorePermit) {
        self.under_way += 1;
        self.answer_by = Some(answer_by);
        self.place = Some(place);
    }

    /// The handler has made its answer, at least its head. Unless the answer has a deadline already, this is it.
    pub(super) fn handled(&mut self, answer_by: Instant) {
        self.answer_by.get_or_insert(answer_by);
        self.head = match self.request_end {
            Some(end) if self.received_bytes <= end => Head::expected(end),
            _ => Head::Unknown,
        };
    }

    /// A handler, or the making of a body, has ended.
    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
        self.answering = true;
    }

    /// All that was said until now is on its way.
    pub(super) fn flushed(&mut self) {
        if self.under_way == 0 && self.answering {
            self.answering = false;
            self.answer_by = None;
            self.place = None;
            self.quiet_since = Instant::now();
        }
        self.tell_end();
    }

    /// Whether the peer may have closed its sending side without that being anybody's concern yet: the request has come
    /// as a whole and is not answered, or its head has come and how long it is will be known in a moment.
    fn needs_no_more(&self) -> bool {
        match self.is_quiet() {
            true => matches!(self.head, Head::Ended { .. }),
            false => self.request_end.is_some_and(|end| self.received_bytes >= end),
        }
    }

    /// The peer has closed its sending side: whether that is of concern now. If not, the waker is told when it is.
    pub(super) fn end_concerns(&mut self, waker: &Waker) -> bool {
        let concerns = !self.needs_no_more();
        self.end_awaited_by = (!concerns).then(|| waker.clone());
        concerns
    }

    fn tell_end(&mut self) {
        if !self.needs_no_more()
            && let Some(waker) = self.end_awaited_by.take()
        {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::Semaphore;

    #[test]
    fn a_head_ends_with_an_empty_line_wherever_reads_cut_it() {
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nbody\r\n\r\n";
        let end = request.len() as u64 - 8;
        for cut in 0..request.len() {
            let (first, second) = request.split_at(cut);
            let head = Head::expected(100).after(100, first).after(100 + cut as u64, second);
            assert_eq!(head, Head::Ended { at: 100 + end }, "cut at {cut}");
        }
        assert_eq!(
            Head::expected(0).after(0, b"GET /\nHost: a\n\nbody"),
            Head::Ended { at: 15 }
        );
    }

    #[test]
    fn bytes_before_the_head_do_not_count() {
        let head = Head::expected(4).after(0, b"\r\n\r\nGET / HTTP/1.1\r\n");
        assert!(matches!(head, Head::Expected { from: 4, .. }), "{head:?}");
    }

    #[tokio::test]
    async fn a_peer_may_close_its_side_when_its_announced_bytes_have_come() {
        let mut progress = Progress::new();
        assert!(!progress.needs_no_more());
        progress.received(b"PUT / HTTP/1.1\r\n\r\n123");
        assert!(progress.needs_no_more(), "how long it is will be known in a moment");
        progress.begin(Some(5));
        assert!(!progress.needs_no_more());
        progress.received(b"45");
        assert!(progress.needs_no_more());
        progress.handled(Instant::now());
        progress.ended();
        assert!(progress.needs_no_more(), "the answer is on its way");
        progress.flushed();
        assert!(!progress.needs_no_more());
        progress.received(b"GET / HTTP/1.1\r\n\r\n");
        progress.begin(Some(0));
        assert_eq!(progress.request_end, Some(progress.received_bytes));
        assert!(progress.needs_no_more());
    }

    #[tokio::test]
    async fn after_requests_that_came_together_ends_are_not_known() {
        let mut progress = Progress::new();
        progress.received(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n");
        progress.begin(Some(0));
        progress.handled(Instant::now());
        assert_eq!(progress.head, Head::Unknown);
        progress.begin(Some(0));
        assert_eq!(progress.request_end, None);
        assert!(!progress.needs_no_more());
    }
    #[test]
    fn empty_lines_before_a_head_do_not_end_it() {
        let head = Head::expected(0).after(0, b"\r\n\r\n\n");
        assert!(matches!(head, Head::Expected { lines: 0, .. }), "{head:?}");
        assert_eq!(head.after(5, b"GET / HTTP/1.1\r\n\r\n"), Head::Ended { at: 23 });
    }

    #[test]
    fn heads_have_a_longest_and_a_most() {
        let too_long = vec![b'x'; HTTP_HEAD_LEN_BYTES_MAX + 1];
        let fits = &too_long[1..];
        let lines = |count: usize| ["GET / HTTP/1.1\r\n", &"a:\r\n".repeat(count)].concat();
        for (bytes, expected) in [
            (too_long.as_slice(), Some(HeadFault::TooLong)),
            (fits, None),
            (lines(HTTP_HEAD_FIELDS_MAX).as_bytes(), None),
            (
                lines(HTTP_HEAD_FIELDS_MAX + 1).as_bytes(),
                Some(HeadFault::TooManyFields),
            ),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(HeadFault::Http2)),
        ] {
            let mut progress = Progress::new();
            progress.head = Head::expected(7);
            progress.received_bytes = 7;
            progress.received(bytes);
            assert_eq!(progress.fault(), expected, "{} bytes", bytes.len());
        }
    }

    #[test]
    fn bytes_of_a_body_are_of_no_head() {
        let body = "line\n".repeat(HTTP_HEAD_LEN_BYTES_MAX);
        let head = Head::expected(body.len() as u64).after(0, body.as_bytes());
        assert!(matches!(head, Head::Expected { lines: 0, .. }), "{head:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_its_deadline_until_its_last_byte_is_flushed() {
        let mut progress = Progress::new();
        let (own, default) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        progress.received(b"GET / HTTP/1.1\r\n\r\n");
        assert!(progress.may_be_refused());
        progress.begin(Some(0));
        let places = Arc::new(Semaphore::new(1));
        progress.streaming(own, Arc::clone(&places).try_acquire_owned().unwrap());
        progress.handled(default);
        progress.ended();
        progress.flushed();
        assert_eq!((progress.answer_by(), progress.quiet_since()), (Some(own), None));
        progress.ended();
        assert_eq!((progress.answer_by(), progress.quiet_since()), (Some(own), None));
        assert_eq!(places.available_permits(), 0);
        progress.flushed();
        assert_eq!((progress.answer_by(), progress.quiet_since()), (None, Some(own)));
        assert_eq!(places.available_permits(), 1);
        assert!(!progress.may_be_refused());
        progress.received(b"GET / HTTP/1.1\r\n\r\n");
        progress.begin(Some(0));
        progress.handled(default);
        assert_eq!(progress.answer_by(), Some(default));
    }
}
