//! Put and get node to node over TCP, beside a bare pump of frames and memcpy.
//!
//! Workload: two `tenond` processes with a static view and a secret. This process is the client: it asks the one, and
//! puts to and gets from the other, over TCP on loopback, with every checksum that Tenon computes. Objects of 64 KiB, 1
//! MiB and 16 MiB, all different, travel in batches of which several are under way; the program's own memory for them
//! is used again and again. In each round all objects are put under new keys and removed again, the removal outside of
//! the timing, and others are got that were put before. Once per size, also outside of the timing, everything is got
//! and compared byte by byte with what was put.
//!
//! Beside them, as many bytes each:
//! * `pump_1`, `pump_2`, `pump_4`: a bare tokio pump with that many connections between two processes, which sends
//!   frames of 1 MiB from a buffer of one frame and reads them into a buffer of one frame, without checksums. Its bytes
//!   stay in the cores' caches.
//! * `pump_spread_1` …: the same from and to as much memory as a put has: the program's on one side, all objects' on
//!   the other.
//! * `memcpy`: one thread that copies between the program's buffers.
//!
//! `pump_best` and `pump_spread_best` are those whose medians are highest. In each round all subjects of a size take
//! turns; the order rotates from round to round.
//!
//! Units: `gb_per_s` in 10^9 B/s of payload, median over rounds; `ratio_to_pump` and `ratio_to_pump_spread` the medians
//! over rounds of the ratios to the best pumps within a round; `cpu_s_per_gb` in user and system seconds of all
//! processes that take part (client, holder and the node that is asked, or both ends of a pump) per 10^9 B, median over
//! rounds; `cpu_ratio_to_pump` the median over rounds of the pump's CPU time for the same bytes, divided by the own.
//! Where all cores are busy, the last says how fast a transfer can be beside the pump, and other load moves it less.
//!
//! Not measured: latencies of single operations, page faults of fresh memory (all memory is written before), networks,
//! several clients at once. Absolute figures vary with the machine's load: compare ratios.

#![forbid(unsafe_code)]

use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Parser;
use tenon_benches::cluster::{Cluster, Segment};
use tenon_benches::report::{Report, Samples};
use tenon_benches::transfer::buffers::Buffers;
use tenon_benches::transfer::cpu::CpuClocks;
use tenon_benches::transfer::objects::{Objects, Shape};
use tenon_benches::transfer::pump::{self, Extents, Peer, Pump};
use tokio::runtime::Runtime;

/// The node that is asked, and the one that holds.
const COORDINATOR: usize = 0;
const HOLDER: usize = 1;
const SOURCE_BYTES: u64 = 64 << 20;
/// Names of sizes, and how objects of that size are grouped.
const SIZES: [(&str, Shape); 3] = [
    (
        "64KiB",
        Shape {
            object_bytes: 64 << 10,
            batch: 128,
            in_flight: 4,
        },
    ),
    (
        "1MiB",
        Shape {
            object_bytes: 1 << 20,
            batch: 16,
            in_flight: 4,
        },
    ),
    (
        "16MiB",
        Shape {
            object_bytes: 16 << 20,
            batch: 2,
            in_flight: 4,
        },
    ),
];
const CONNECTIONS: [usize; 3] = [1, 2, 4];

/// Measures transfers; the last line is `RESULT` and a JSON object.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer rounds of fewer bytes: shows that the bench works, its figures mean little.
    #[arg(long)]
    quick: bool,
    /// This many rounds.
    #[arg(long)]
    rounds: Option<usize>,
    /// Only objects of this size.
    #[arg(long, value_parser = SIZES.map(|(name, _)| name))]
    size: Option<String>,
    /// Only these subjects, such as `put,pump_2`: for profiles and comparisons of builds.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Be the receiving end of pumps.
    #[arg(long, hide = true)]
    pump_peer: bool,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Effort {
    rounds: usize,
    /// Bytes that each subject moves in one round.
    round_bytes: u64,
}

impl Effort {
    fn of(arguments: &Arguments) -> Self {
        let effort = if arguments.quick {
            Self {
                rounds: 2,
                round_bytes: 64 << 20,
            }
        } else {
            Self {
                rounds: 11,
                round_bytes: 512 << 20,
            }
        };
        Self {
            rounds: arguments.rounds.unwrap_or(effort.rounds),
            ..effort
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Put,
    Get,
    /// With this many connections, by index.
    Pump(usize),
    PumpSpread(usize),
    Memcpy,
}

impl Subject {
    const ALL: [Self; 9] = [
        Self::Put,
        Self::Pump(0),
        Self::PumpSpread(0),
        Self::Get,
        Self::Pump(1),
        Self::PumpSpread(1),
        Self::Memcpy,
        Self::Pump(2),
        Self::PumpSpread(2),
    ];

    fn name(self) -> String {
        match self {
            Self::Put => "put".to_owned(),
            Self::Get => "get".to_owned(),
            Self::Pump(at) => format!("pump_{}", CONNECTIONS[at]),
            Self::PumpSpread(at) => format!("pump_spread_{}", CONNECTIONS[at]),
            Self::Memcpy => "memcpy".to_owned(),
        }
    }
}

/// What one subject did.
#[derive(Clone, Debug)]
struct Series {
    subject: Subject,
    /// One per round.
    gb_per_s: Vec<f64>,
    cpu_s_per_gb: Vec<f64>,
}

impl Series {
    fn new(subject: Subject) -> Self {
        Self {
            subject,
            gb_per_s: Vec::new(),
            cpu_s_per_gb: Vec::new(),
        }
    }

    fn rates(&self) -> Samples {
        Samples::new(self.gb_per_s.clone())
    }

    fn ratios_to(&self, other: &Self) -> Samples {
        let pairs = self.gb_per_s.iter().zip(&other.gb_per_s);
        Samples::new(pairs.map(|(own, other)| own / other).collect())
    }

    /// How much of the own CPU time the other needs.
    fn cpu_ratios_to(&self, other: &Self) -> Samples {
        let pairs = self.cpu_s_per_gb.iter().zip(&other.cpu_s_per_gb);
        Samples::new(pairs.map(|(own, other)| other / own).collect())
    }

    fn print(&self, report: &mut Report, case: &str, ratios: &[(&str, Samples)]) {
        let rates = self.rates();
        let cpu_s_per_gb = Samples::new(self.cpu_s_per_gb.clone()).median();
        print!(
            "{case:22} {:>6.2} ({:>5.2} … {:>5.2}) {cpu_s_per_gb:>8.3}",
            rates.median(),
            rates.min(),
            rates.max()
        );
        report.push(case, "gb_per_s", rates.median(), "GB/s");
        report.push(case, "cpu_s_per_gb", cpu_s_per_gb, "s/GB");
        for (metric, ratios) in ratios {
            print!("   {:.2} ({:.2} … {:.2})", ratios.median(), ratios.min(), ratios.max());
            report.push(case, metric, ratios.median(), "1");
        }
        println!();
    }
}

/// All that takes part.
struct Bench {
    cluster: Cluster,
    objects: Objects,
    buffers: Buffers,
    peer: Peer,
    pumps: Vec<Pump>,
    spread_pumps: Vec<Pump>,
    effort: Effort,
    subjects: Vec<Subject>,
}

impl Bench {
    /// Runs one subject once; returns seconds of wall time and of CPU time.
    async fn run(&mut self, subject: Subject, round: usize) -> Result<(f64, f64)> {
        let processes = match subject {
            Subject::Put | Subject::Get => self.cluster.process_ids(),
            Subject::Pump(_) | Subject::PumpSpread(_) => vec![self.peer.process_id()],
            Subject::Memcpy => Vec::new(),
        };
        let put_prefix = format!("put/{round}");
        let len_bytes = self.effort.round_bytes;
        let clocks = CpuClocks::of_this_and(&processes)?;
        let cpu_before = clocks.used()?;
        let start = Instant::now();
        match subject {
            Subject::Put => self.objects.put(&put_prefix).await?,
            Subject::Get => self.objects.get("get").await?,
            Subject::Pump(at) => self.pumps[at].run(len_bytes).await?,
            Subject::PumpSpread(at) => self.spread_pumps[at].run(len_bytes).await?,
            Subject::Memcpy => self.buffers.copy(len_bytes)?,
        }
        let elapsed = start.elapsed();
        let cpu = clocks.used()?.saturating_sub(cpu_before);
        if subject == Subject::Put {
            self.objects.remove(&put_prefix).await?;
        }
        Ok((elapsed.as_secs_f64(), cpu.as_secs_f64()))
    }

    /// Measures all subjects in turns.
    async fn measure(&mut self) -> Result<Vec<Series>> {
        let mut series: Vec<_> = self.subjects.iter().copied().map(Series::new).collect();
        self.objects.put("get").await?;
        self.objects.verify("get").await?;
        // The first round warms up and does not count.
        for round in 0..=self.effort.rounds {
            for turn in 0..series.len() {
                let series = &mut series[(round + turn) % self.subjects.len()];
                let (wall_s, cpu_s) = self
                    .run(series.subject, round)
                    .await
                    .with_context(|| format!("{} in round {round}", series.subject.name()))?;
                if round > 0 {
                    let gb = self.effort.round_bytes as f64 / 1e9;
                    series.gb_per_s.push(gb / wall_s);
                    series.cpu_s_per_gb.push(cpu_s / gb);
                }
            }
        }
        self.objects.remove("get").await?;
        Ok(series)
    }
}

/// The best pump of those that were measured.
fn best(series: &[Series], is_pump: impl Fn(Subject) -> bool) -> Option<&Series> {
    let pumps = series.iter().filter(|one| is_pump(one.subject));
    pumps.max_by(|a, b| a.rates().median().total_cmp(&b.rates().median()))
}

fn print(report: &mut Report, size: &str, series: &[Series]) {
    let pump = best(series, |subject| matches!(subject, Subject::Pump(_)));
    let spread = best(series, |subject| matches!(subject, Subject::PumpSpread(_)));
    for one in series {
        let case = format!("{}/{size}", one.subject.name());
        let mut ratios = Vec::new();
        if matches!(one.subject, Subject::Put | Subject::Get) {
            ratios.extend(pump.map(|pump| ("ratio_to_pump", one.ratios_to(pump))));
            ratios.extend(spread.map(|spread| ("ratio_to_pump_spread", one.ratios_to(spread))));
            ratios.extend(pump.map(|pump| ("cpu_ratio_to_pump", one.cpu_ratios_to(pump))));
        }
        one.print(report, &case, &ratios);
    }
    for (name, best) in [("pump_best", pump), ("pump_spread_best", spread)] {
        if let Some(best) = best {
            best.print(report, &format!("{name}/{size}"), &[]);
        }
    }
}

/// Those of these names; all if there are none.
fn subjects(names: &[String]) -> Result<Vec<Subject>> {
    if names.is_empty() {
        return Ok(Subject::ALL.to_vec());
    }
    let find = |name: &String| {
        let mut all = Subject::ALL.into_iter();
        all.find(|subject| subject.name() == *name)
            .with_context(|| format!("there is no subject {name:?}"))
    };
    names.iter().map(find).collect()
}

async fn run(arguments: &Arguments) -> Result<()> {
    let effort = Effort::of(arguments);
    let landing_bytes = SIZES.iter().map(|(_, shape)| shape.landing_bytes()).max();
    let buffers = Buffers::new(SOURCE_BYTES, landing_bytes.unwrap_or_default())?;
    // Room for what is got, for what is put, and a third for what alignment and late removals take.
    let segment = Segment {
        bytes: 3 * effort.round_bytes,
        slots: None,
    };
    let cluster = Cluster::start(&[segment, segment])?;
    let client = cluster.connect(COORDINATOR).await?;
    let objects = |shape, buffers, holder| Objects::new(client.clone(), holder, buffers, shape, effort.round_bytes);
    let peer = Peer::start()?;
    let (mut pumps, mut spread_pumps) = (Vec::new(), Vec::new());
    let spread = Extents {
        send_bytes: SOURCE_BYTES,
        receive_bytes: effort.round_bytes,
    };
    for connections in CONNECTIONS {
        pumps.push(peer.connect(connections, Extents::default()).await?);
        spread_pumps.push(peer.connect(connections, spread).await?);
    }
    let mut bench = Bench {
        objects: objects(SIZES[0].1, buffers.clone(), cluster.id(HOLDER))?,
        cluster,
        buffers,
        peer,
        pumps,
        spread_pumps,
        effort,
        subjects: subjects(&arguments.only)?,
    };
    let mut report = Report::new("transfer");
    println!("{effort:?}");
    println!(
        "{:22} {:>6} {:>15} {:>8}   × best pump          × best spread pump   CPU × best pump",
        "case", "GB/s", "(min … max)", "CPU s/GB"
    );
    for (size, shape) in SIZES {
        if arguments.size.as_ref().is_none_or(|only| only == size) {
            bench.objects = objects(shape, bench.buffers.clone(), bench.cluster.id(HOLDER))?;
            let series = bench.measure().await.with_context(|| format!("objects of {size}"))?;
            print(&mut report, size, &series);
        }
    }
    println!("{}", report.line());
    Ok(())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = Runtime::new().context("cannot start worker threads")?;
    if arguments.pump_peer {
        runtime.block_on(pump::serve())
    } else {
        runtime.block_on(run(&arguments))
    }
}
