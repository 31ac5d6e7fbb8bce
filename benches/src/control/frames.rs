//! How many calls members make of each other, by their own metrics.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cluster::Cluster;
use crate::metrics;

/// The counters of all nodes of a cluster in which nothing but what is measured goes on beside heartbeats.
#[derive(Debug)]
pub struct Frames {
    nodes: Vec<SocketAddr>,
    heartbeats_per_s: f64,
}

/// All calls between members up to a moment.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    at: Instant,
    calls: f64,
}

impl Frames {
    /// Counts heartbeats for a while, during which nobody may ask the cluster anything.
    pub async fn of(cluster: &Cluster, idle: Duration) -> Result<Self> {
        let mut frames = Self {
            nodes: (0..cluster.size()).map(|at| cluster.http(at)).collect(),
            heartbeats_per_s: 0.0,
        };
        let before = frames.mark().await?;
        tokio::time::sleep(idle).await;
        let after = frames.mark().await?;
        let elapsed_s = after.at.duration_since(before.at).as_secs_f64();
        frames.heartbeats_per_s = (after.calls - before.calls) / elapsed_s;
        Ok(frames)
    }

    /// What was counted so far.
    pub async fn mark(&self) -> Result<Mark> {
        let mut calls = 0.0;
        for node in &self.nodes {
            calls += member_calls(&metrics::of(*node).await?);
        }
        Ok(Mark {
            at: Instant::now(),
            calls,
        })
    }

    /// Calls between members since then, without the heartbeats that fell into that time.
    pub async fn since(&self, mark: Mark) -> Result<f64> {
        let now = self.mark().await?;
        let elapsed_s = now.at.duration_since(mark.at).as_secs_f64();
        Ok((now.calls - mark.calls - elapsed_s * self.heartbeats_per_s).max(0.0))
    }
}

fn member_calls(metrics: &str) -> f64 {
    let lines = metrics.lines();
    lines
        .filter(|line| line.starts_with("tenon_calls_total{") && line.contains("verb=\"member\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_between_members_are_added_up_whatever_came_of_them() {
        let text = "tenon_calls_total{result=\"ok\",verb=\"member\"} 5\n\
                    tenon_calls_total{result=\"ok\",verb=\"exists\"} 7\n\
                    tenon_calls_total{result=\"overloaded\",verb=\"member\"} 2\n\
                    tenon_call_duration_seconds_count{verb=\"member\"} 9\n";
        assert_eq!(member_calls(text), 7.0);
    }
}
