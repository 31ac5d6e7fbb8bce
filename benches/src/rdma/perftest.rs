//! The limit to compare with: the programs of perftest, a server and a client for each run, on the same two devices.

use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::time::timeout;

use crate::rdma::End;

/// The fewest transfers of a run.
pub const ITERATIONS_MIN: u64 = 5;

/// How long a run may take.
pub const RUN_TIMEOUT: Duration = Duration::from_secs(60);

const TRIES_MAX: u32 = 5;
const PORT_MIN: u16 = 18_600;
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
const LISTEN_POLL: Duration = Duration::from_millis(10);
/// Bytes of the MiB that its figures count in.
const MIB: f64 = 1_048_576.0;

/// What it measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Throughput of READs.
    ReadBandwidth,
    /// Throughput of WRITEs.
    WriteBandwidth,
    /// Latency of one READ at a time.
    ReadLatency,
}

impl Program {
    const fn name(self) -> &'static str {
        match self {
            Self::ReadBandwidth => "ib_read_bw",
            Self::WriteBandwidth => "ib_write_bw",
            Self::ReadLatency => "ib_read_lat",
        }
    }

    /// Its columns, counted from 0, that say how many bytes, and how fast.
    const fn columns(self) -> (usize, usize) {
        match self {
            // Bytes, iterations, peak, average, messages per second.
            Self::ReadBandwidth | Self::WriteBandwidth => (0, 3),
            // Bytes, iterations, least, most, median, …
            Self::ReadLatency => (0, 4),
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Which program.
    pub program: Program,
    /// Both ends sleep until a completion tells of itself; else they poll.
    pub with_events: bool,
    /// Length of one transfer.
    pub len_bytes: u64,
    /// Transfers.
    pub iterations: u64,
    /// Transfers under way at once.
    pub depth: u64,
}

impl Run {
    /// Runs it between two ends; returns what it says: 10^6 bytes per second, or the median in microseconds. Where the processor is busy with
    /// other work it may fail to find out how fast its clock ticks, and is asked again. `None` if it takes longer than [`RUN_TIMEOUT`].
    pub async fn measure(&self, ends: &[End; 2]) -> Result<Option<f64>> {
        for _ in 0..TRIES_MAX {
            let figure = self.try_measure(ends).await?;
            if figure.is_none_or(f64::is_normal) {
                return Ok(figure);
            }
        }
        bail!("{} gave no finite figure in {TRIES_MAX} runs", self.program.name());
    }

    async fn try_measure(&self, [ours, theirs]: &[End; 2]) -> Result<Option<f64>> {
        let port = PORT_MIN + rand::random_range(0..1000);
        let server = self.command(theirs, port, None).spawn();
        let mut server = Server(server.context("cannot start perftest's server")?);
        server.wait_listening(port)?;
        let mut client = tokio::process::Command::from(self.command(ours, port, Some(theirs.address)));
        let Ok(output) = timeout(RUN_TIMEOUT, client.kill_on_drop(true).output()).await else {
            return Ok(None);
        };
        let output = output.context("cannot run perftest's client")?;
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{} failed: {said}{errors}",
            self.program.name()
        );
        let figure = figure(&said, self.program.columns(), self.len_bytes)
            .with_context(|| format!("{} gave no figure:\n{said}{errors}", self.program.name()))?;
        Ok(Some(match self.program {
            Program::ReadBandwidth | Program::WriteBandwidth => figure * MIB / 1e6,
            Program::ReadLatency => figure,
        }))
    }

    fn command(&self, end: &End, port: u16, server: Option<Ipv4Addr>) -> Command {
        let mut command = Command::new(self.program.name());
        let numbers = [
            ("-x", u64::from(end.gid_index)),
            ("-p", port.into()),
            ("-s", self.len_bytes),
            ("-n", self.iterations),
        ];
        command.args(["-F", "-d", &end.device]);
        for (flag, number) in numbers {
            command.args([flag, &number.to_string()]);
        }
        if self.program != Program::ReadLatency {
            command.args(["-N", "-t", &self.depth.to_string()]);
        }
        if self.with_events {
            command.arg("-e");
        }
        command.args(server.map(|address| address.to_string()));
        command.stdin(Stdio::null());
        if server.is_none() {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        command
    }
}

/// The serving end, which ends with its client, or when this is dropped.
struct Server(Child);

impl Server {
    /// Connecting to see whether it listens would take the place of the client.
    fn wait_listening(&mut self, port: u16) -> Result<()> {
        let give_up = Instant::now() + LISTEN_TIMEOUT;
        while Instant::now() < give_up {
            let table = |path| std::fs::read_to_string(path).unwrap_or_default();
            let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(table);
            if tables.iter().any(|table| listens(table, port)) {
                return Ok(());
            }
            if let Some(status) = self.0.try_wait()? {
                bail!("perftest's server ended with {status}");
            }
            std::thread::sleep(LISTEN_POLL);
        }
        bail!("perftest's server does not listen");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let give_up = Instant::now() + Duration::from_secs(1);
        while Instant::now() < give_up && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(LISTEN_POLL);
        }
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a table of the system's sockets has one that listens on a port.
fn listens(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let local = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|address| address.ends_with(&local)) && words.nth(1) == Some(LISTEN)
    })
}

/// The figure in the row for a length.
fn figure(said: &str, (bytes_at, figure_at): (usize, usize), len_bytes: u64) -> Option<f64> {
    said.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_row = words.get(bytes_at)?.parse::<u64>().ok()? == len_bytes && words.len() > figure_at;
        is_row.then(|| words[figure_at].parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_stands_in_the_row_of_the_length() {
        let said = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n\
                    Conflicting CPU frequency values detected\n 65536      64             0.00               32.79  \t\t   0.000525\n";
        assert_eq!(figure(said, Program::ReadBandwidth.columns(), 65536), Some(32.79));
        assert_eq!(figure(said, Program::ReadBandwidth.columns(), 4096), None);
        let said = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]\n\
                    4096    50          90.11          2000.5       101.22      \t   130.1\n";
        assert_eq!(figure(said, Program::ReadLatency.columns(), 4096), Some(101.22));
    }

    #[test]
    fn a_listening_port_is_told_from_a_connection() {
        let table =
            "  sl  local_address rem_address   st tx_queue\n   0: 0100007F:48A8 00000000:0000 0A 00000000:00000000\n";
        assert!(listens(table, 0x48a8) && !listens(table, 0x48a9));
        assert!(!listens(&table.replace(" 0A ", " 01 "), 0x48a8));
    }
}
