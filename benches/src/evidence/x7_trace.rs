//! Requests for cache blocks: those of a trace file, or a generated look-alike.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

/// What the look-alike has in common with a published trace of conversations: its number of requests, the share of those that go on with an earlier
/// one, and how many blocks are new in both kinds.
const REQUESTS: usize = 12_031;
const GOES_ON: f64 = 0.39;
const NEW_BLOCKS_FIRST: f64 = 20.0;
const NEW_BLOCKS_LATER: f64 = 7.7;
/// Conversations that may still go on.
const OPEN_MAX: usize = 1500;
/// Longest request in blocks.
const BLOCKS_MAX: usize = 250;

/// The blocks of each request in order; the same number is the same block.
#[derive(Debug)]
pub(super) struct Trace {
    /// Where it is from.
    pub(super) source: &'static str,
    pub(super) requests: Vec<Vec<u32>>,
    /// One more than the highest number.
    pub(super) blocks: usize,
}

impl Trace {
    /// Reads lines of JSON with `hash_ids`, compressed if the name ends in `.gz`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let open = || format!("cannot read the trace {}", path.display());
        let requests = if path.extension().is_some_and(|extension| extension == "gz") {
            let mut unpacking = Command::new("gzip")
                .arg("-dc")
                .arg(path)
                .stdout(Stdio::piped())
                .spawn()
                .with_context(open)?;
            let requests = parse(unpacking.stdout.take().context("a pipe")?).with_context(open)?;
            ensure!(unpacking.wait()?.success(), "gzip cannot unpack {}", path.display());
            requests
        } else {
            parse(File::open(path).with_context(open)?).with_context(open)?
        };
        Ok(Self::new("trace", requests))
    }

    /// A look-alike: each request begins with a block that all share; some go on with an earlier conversation, whose blocks they repeat.
    pub(super) fn generated(requests: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut open: VecDeque<Vec<u32>> = VecDeque::new();
        let mut next = 1;
        let mut all = Vec::with_capacity(requests);
        for _ in 0..requests {
            let goes_on = !open.is_empty() && rng.random_bool(GOES_ON);
            let (mut blocks, mean) = if goes_on {
                let which = rng.random_range(0..open.len());
                (open.remove(which).expect("it was drawn"), NEW_BLOCKS_LATER)
            } else {
                (vec![0], NEW_BLOCKS_FIRST)
            };
            // Exponential: most are short, few very long.
            let drawn = -mean * (1.0 - rng.random_range(0.0..1.0_f64)).ln();
            let new = (1..BLOCKS_MAX)
                .find(|&count| count as f64 >= drawn)
                .unwrap_or(BLOCKS_MAX);
            for _ in 0..new.min(BLOCKS_MAX.saturating_sub(blocks.len())) {
                blocks.push(next);
                next += 1;
            }
            all.push(blocks.clone());
            open.push_back(blocks);
            if open.len() > OPEN_MAX {
                open.pop_front();
            }
        }
        Self::new("generated", all)
    }

    /// As long as the published one.
    pub(super) fn generated_whole(seed: u64) -> Self {
        Self::generated(REQUESTS, seed)
    }

    fn new(source: &'static str, requests: Vec<Vec<u32>>) -> Self {
        let highest = requests.iter().flatten().copied().max();
        Self {
            source,
            blocks: highest.map_or(0, |highest| highest as usize + 1),
            requests,
        }
    }

    /// References to blocks, those repeated included.
    pub(super) fn references(&self) -> usize {
        self.requests.iter().map(Vec::len).sum()
    }

    /// Different blocks.
    pub(super) fn distinct(&self) -> usize {
        let mut is_seen = vec![false; self.blocks];
        let blocks = self.requests.iter().flatten();
        blocks
            .filter(|&&block| !std::mem::replace(&mut is_seen[block as usize], true))
            .count()
    }
}

fn parse(from: impl Read) -> Result<Vec<Vec<u32>>> {
    let lines = BufReader::new(from).lines();
    lines.map(|line| blocks(&serde_json::from_str(&line?)?)).collect()
}

fn blocks(line: &Value) -> Result<Vec<u32>> {
    let ids = line["hash_ids"].as_array().context("a request has hash_ids")?;
    let block = |id: &Value| Ok(u32::try_from(id.as_u64().context("an id is a number")?)?);
    ids.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_line_by_line() {
        let text = "{\"timestamp\": 0, \"hash_ids\": [0, 1, 2]}\n{\"hash_ids\": [0, 5], \"output_length\": 3}\n";
        let trace = Trace::new("trace", parse(text.as_bytes()).unwrap());
        assert_eq!((trace.references(), trace.distinct(), trace.blocks), (5, 4, 6));
        assert!(parse(&b"{}\n"[..]).is_err());
    }

    #[test]
    fn the_look_alike_repeats_about_as_much_as_what_it_looks_like() {
        let trace = Trace::generated_whole(1);
        let repeated = 1.0 - trace.distinct() as f64 / trace.references() as f64;
        assert!((0.3..0.45).contains(&repeated), "{repeated}");
        let other = Trace::generated_whole(1);
        assert_eq!(trace.requests, other.requests, "a seed reproduces it");
    }
}
