//! What happened in a run: a number that stands for all of it, and, if it is wanted, its last lines.

use std::collections::VecDeque;

/// Lines that are kept.
const LINES_MAX: usize = 50_000;

#[derive(Debug)]
pub(crate) struct Trace {
    digest: u64,
    lines: Option<VecDeque<String>>,
}

impl Trace {
    pub(crate) fn new(is_told: bool) -> Self {
        Self {
            digest: 0,
            lines: is_told.then(VecDeque::new),
        }
    }

    /// Something happened.
    pub(crate) fn mix(&mut self, time: u64, what: u64) {
        let mixed = (self.digest ^ time).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ what;
        self.digest = mixed.rotate_left(29);
    }

    /// Something happened that a reader wants to know.
    pub(crate) fn tell(&mut self, now: u64, line: impl FnOnce() -> String) {
        let Some(lines) = &mut self.lines else { return };
        let line = line();
        let mut digest = 0u64;
        for byte in line.bytes() {
            digest = digest.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte);
        }
        if lines.len() == LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(format!("{now:>7} {line}"));
        self.mix(now, digest);
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &String> {
        self.lines.iter().flatten()
    }
}
