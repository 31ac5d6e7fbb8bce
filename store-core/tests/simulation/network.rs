//! Links between hosts, and what travels over them.
//!
//! A link has two directions, and each loses, delays and repeats packets by itself. Packets overtake each other.

use crate::message::{Packet, Party};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;

/// One direction between two hosts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Link {
    /// How many faults cut it now.
    pub(crate) cuts: u32,
    /// Of 1,000 packets so many are lost.
    pub(crate) lost_permille: u32,
    /// Packets take up to so much longer than usual.
    pub(crate) delay_ms: u64,
}

/// All links.
#[derive(Debug)]
pub(crate) struct Network {
    nodes: usize,
    links: Vec<Link>,
    /// Of 1,000 packets so many are delivered twice, everywhere.
    pub(crate) repeated_permille: u32,
    /// Of 1,000 packets so many take up to 200 ms longer, everywhere.
    pub(crate) late_permille: u32,
}

impl Network {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            links: vec![Link::default(); nodes * nodes],
            repeated_permille: 0,
            late_permille: 0,
        }
    }

    pub(crate) fn link(&mut self, from: usize, to: usize) -> &mut Link {
        &mut self.links[from * self.nodes + to]
    }

    /// When a packet arrives, in ms from now: not at all, once, or twice.
    pub(crate) fn arrivals(&self, rng: &mut ChaCha8Rng, packet: &Packet) -> Vec<u64> {
        let (from, to) = (packet.from.host(), packet.to.host());
        if from == to {
            return vec![rng.random_range(0..=1)];
        }
        let link = self.links[from * self.nodes + to];
        let is_client = matches!(packet.from, Party::Client(_)) || matches!(packet.to, Party::Client(_));
        let copies = if is_client {
            1
        } else {
            1 + u32::from(chance(rng, self.repeated_permille))
        };
        let mut arrivals = Vec::new();
        for _ in 0..copies {
            if link.cuts > 0 || chance(rng, link.lost_permille) {
                continue;
            }
            let mut delay = rng.random_range(1..=4) + rng.random_range(0..=link.delay_ms);
            if chance(rng, self.late_permille) {
                delay += rng.random_range(0..=200);
            }
            arrivals.push(delay);
        }
        arrivals
    }

    /// When a host notices that a process on another one is gone; `None` if that does not get through.
    pub(crate) fn news(&self, rng: &mut ChaCha8Rng, from: usize, to: usize) -> Option<u64> {
        let link = self.links[from * self.nodes + to];
        (link.cuts == 0).then(|| rng.random_range(1..=4) + rng.random_range(0..=link.delay_ms))
    }
}

/// True in so many of 1,000 cases.
pub(crate) fn chance(rng: &mut ChaCha8Rng, permille: u32) -> bool {
    permille > 0 && rng.next_u32() % 1_000 < permille
}
