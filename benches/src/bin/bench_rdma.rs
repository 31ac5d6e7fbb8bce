//! Put and get over RDMA, and the engine beneath, beside perftest on the same two devices.
//!
//! Workload: in the machine with devices made of software, or with `TENON_RDMA=native` on this host's own, the first rail that
//! `TENON_RDMA_DEVICES` names: its first device is ours, its second the owner's. Transfers of 4 KiB, 64 KiB, 1 MiB and 16 MiB; of each
//! size all subjects have equally many under way, at the port's MTU. In each round all subjects of a size take turns; the order rotates.
//!
//! * `perftest_read`, and `perftest_read_events`, in which both ends sleep until a completion tells of itself: `ib_read_bw`, from and to
//!   one buffer, as it has it; `perftest_read_best` is the one with the higher median. `perftest_write`: `ib_write_bw`, which knows no events.
//!   Whichever takes more than a minute for a run is left out, as polling may where it shares a processor with whom it waits for.
//! * `engine_read`, `engine_write`: batches of transfers to another process, two under way. Writes are pulled by it, and it computes
//!   their checksums, as that is how the engine writes.
//! * `store_get`: objects from a `tenond` on the owner's device, located by another on ours, checked by generation alone;
//!   `store_get_checked` by their checksums; `store_put` to the same, where the holder always checks. The removal of what was put is
//!   outside of the timing. Everything is compared byte by byte once per size, also outside of the timing.
//! * `tcp_get`: the same objects over TCP between the same addresses, checked. In the machine TCP does not cross the rail, as RDMA does.
//! * `engine_read_latency`: one read of 4 KiB at a time, beside `perftest_read_latency`, `ib_read_lat` with events.
//!
//! The program's memory is used again and again and is registered before, as perftest's is.
//!
//! Units: `mb_per_s` in 10^6 B/s of payload, median over rounds, and its least and most; `ratio_to_perftest` the median over rounds of the ratio to the
//! better perftest of that direction within a round; `cpu_s_per_gb` in seconds of all processors of the host, the kernel's own
//! work among it, per 10^9 B: for perftest less what a run of few bytes costs, since it starts anew in each round. `us` in microseconds, median
//! over rounds of medians.
//!
//! Not measured: several rails, several peers, memory that is not registered, and real devices unless it runs on some. In the machine one
//! emulated processor does everything, so throughput is what all of it costs; absolute figures say nothing of real hosts: compare ratios.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use tenon_benches::cluster::{Cluster, Segment, Site};
use tenon_benches::rdma::End;
use tenon_benches::rdma::engine::{self, Engine};
use tenon_benches::rdma::perftest::{ITERATIONS_MIN, Program, RUN_TIMEOUT, Run};
use tenon_benches::rdma::sizes::Size;
use tenon_benches::report::{Report, Samples};
use tenon_benches::transfer::buffers::Buffers;
use tenon_benches::transfer::cpu::used_by_host;
use tenon_benches::transfer::objects::Objects;
use tenon_client::{Check, RdmaPolicy, Transports};
use tenon_integration::machine::{Job, MachineOptions, RdmaPlace};
use tenon_transport::Op;
use tokio::runtime::Runtime;

/// The node that is asked, on our device, and the one that holds.
const COORDINATOR: usize = 0;
const HOLDER: usize = 1;
const LATENCY_BYTES: u64 = 4 << 10;
/// How single reads are named among the subjects.
const LATENCY: &str = "latency";
const LATENCY_ROUNDS: usize = 5;
const MACHINE_MIB: u32 = 1536;
const TIMEOUT: Duration = Duration::from_secs(2 * 3600);

/// Measures transfers over RDMA; the last line is `RESULT` and a JSON object.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer rounds of fewer bytes, and fewer sizes: shows that the bench works, its figures mean little.
    #[arg(long)]
    quick: bool,
    /// This many rounds of each size.
    #[arg(long)]
    rounds: Option<usize>,
    /// Only transfers of these sizes, such as `4KiB,1MiB`.
    #[arg(long, value_delimiter = ',')]
    size: Vec<String>,
    /// Only these subjects, such as `engine_read,perftest_read`; `latency` for single reads.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Be where the devices are, and measure.
    #[arg(long, hide = true)]
    inside: bool,
    /// Be the owner of the memory that the engine transfers.
    #[arg(long, hide = true)]
    owner: bool,
}

/// How much is measured.
#[derive(Debug)]
struct Effort {
    sizes: Vec<Size>,
    /// Reads of one measurement of latency.
    latencies: u64,
    /// Rounds of them that count.
    latency_rounds: usize,
}

impl Effort {
    fn of(arguments: &Arguments) -> Self {
        let named = |size: &Size| match arguments.size.as_slice() {
            [] => !arguments.quick || ["4KiB", "1MiB"].contains(&size.name),
            names => names.iter().any(|name| name == size.name),
        };
        let (shorter_by, latencies) = if arguments.quick { (8, 50) } else { (1, 300) };
        let rounds = |usual| arguments.rounds.unwrap_or(if arguments.quick { 1 } else { usual });
        Self {
            sizes: Size::ALL
                .into_iter()
                .filter(named)
                .map(|size| size.shorter_by(shorter_by).in_rounds(rounds(size.rounds)))
                .collect(),
            latencies,
            latency_rounds: rounds(LATENCY_ROUNDS),
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Perftest { program: Program, with_events: bool },
    Engine(Op),
    StoreGet(Check),
    StorePut,
    TcpGet,
}

impl Subject {
    const ALL: [(&str, Self); 9] = [
        ("perftest_read", Self::perftest(Program::ReadBandwidth, false)),
        ("engine_read", Self::Engine(Op::Read)),
        ("store_get", Self::StoreGet(Check::Generation)),
        ("perftest_read_events", Self::perftest(Program::ReadBandwidth, true)),
        ("store_get_checked", Self::StoreGet(Check::Checksums)),
        ("perftest_write", Self::perftest(Program::WriteBandwidth, false)),
        ("engine_write", Self::Engine(Op::Write)),
        ("store_put", Self::StorePut),
        ("tcp_get", Self::TcpGet),
    ];

    const fn perftest(program: Program, with_events: bool) -> Self {
        Self::Perftest { program, with_events }
    }

    /// The program that does the same without us.
    fn program(self) -> Program {
        match self {
            Self::Perftest { program, .. } => program,
            Self::Engine(Op::Write) | Self::StorePut => Program::WriteBandwidth,
            Self::Engine(Op::Read) | Self::StoreGet(_) | Self::TcpGet => Program::ReadBandwidth,
        }
    }
}

/// What one subject did with one size, one figure per round.
#[derive(Clone, Debug)]
struct Series {
    name: &'static str,
    subject: Subject,
    mb_per_s: Vec<f64>,
    cpu_s_per_gb: Vec<f64>,
}

impl Series {
    fn rates(&self) -> Samples {
        Samples::new(self.mb_per_s.clone())
    }

    fn print(&self, report: &mut Report, case: &str, reference: Option<&Self>) {
        let (rates, cpu) = (self.rates(), Samples::new(self.cpu_s_per_gb.clone()).median());
        let (median, least, most) = (rates.median(), rates.min(), rates.max());
        print!("{case:32} {median:>8.2} ({least:>7.2} … {most:>7.2}) {cpu:>9.2}");
        report.push(case, "mb_per_s", median, "MB/s");
        report.push(case, "mb_per_s_min", least, "MB/s");
        report.push(case, "mb_per_s_max", most, "MB/s");
        report.push(case, "cpu_s_per_gb", cpu, "s/GB");
        if let Some(reference) = reference {
            let ratios = self
                .mb_per_s
                .iter()
                .zip(&reference.mb_per_s)
                .map(|(own, other)| own / other);
            print_ratios(report, case, &Samples::new(ratios.collect()));
        }
        println!();
    }
}

fn print_ratios(report: &mut Report, case: &str, ratios: &Samples) {
    print!("   {:.3} ({:.3} … {:.3})", ratios.median(), ratios.min(), ratios.max());
    report.push(case, "ratio_to_perftest", ratios.median(), "1");
}

/// All that takes part.
struct Bench {
    ends: [End; 2],
    engine: Engine,
    /// By the size of the moment, over RDMA and over TCP.
    objects: Objects,
    objects_over_tcp: Objects,
    /// Seconds of processors that a run of few bytes takes.
    idle_cpu_s: f64,
    subjects: Vec<(&'static str, Subject)>,
    effort: Effort,
}

impl Bench {
    /// Runs one subject once; returns 10^6 bytes per second, and seconds of processors per 10^9 bytes. `None` if perftest takes too long.
    async fn run(&self, subject: Subject, size: Size, round: usize) -> Result<Option<(f64, f64)>> {
        let put_prefix = format!("put/{round}");
        let cpu_before = used_by_host()?;
        let start = Instant::now();
        let mut measured = None;
        match subject {
            Subject::Perftest { program, with_events } => {
                let run = Run {
                    program,
                    with_events,
                    len_bytes: size.len_bytes,
                    iterations: size.perftest_transfers(),
                    depth: size.depth,
                };
                match run.measure(&self.ends).await? {
                    None => return Ok(None),
                    found => measured = found,
                }
            }
            Subject::Engine(op) => self.engine.run(op, size).await?,
            Subject::StoreGet(check) => self.objects.clone().checked_by(check).get("get").await?,
            Subject::StorePut => self.objects.put(&put_prefix).await?,
            Subject::TcpGet => self.objects_over_tcp.get("get").await?,
        }
        let elapsed = start.elapsed();
        let cpu_s = used_by_host()?.saturating_sub(cpu_before).as_secs_f64();
        if subject == Subject::StorePut {
            self.objects.remove(&put_prefix).await?;
        }
        let gb = size.round_bytes as f64 / 1e9;
        Ok(Some(match measured {
            Some(mb_per_s) => {
                let gb = (size.perftest_transfers() * size.len_bytes) as f64 / 1e9;
                (mb_per_s, (cpu_s - self.idle_cpu_s).max(0.0) / gb)
            }
            None => (gb * 1e3 / elapsed.as_secs_f64(), cpu_s / gb),
        }))
    }

    /// The sizes of which anything is measured.
    fn sizes(&self) -> Vec<Size> {
        match self.subjects.is_empty() {
            true => Vec::new(),
            false => self.effort.sizes.clone(),
        }
    }

    /// Measures all subjects in turns.
    async fn measure(&self, report: &mut Report, size: Size) -> Result<Vec<Series>> {
        let series = self.subjects.iter().map(|&(name, subject)| Series {
            name,
            subject,
            mb_per_s: Vec::new(),
            cpu_s_per_gb: Vec::new(),
        });
        let mut series: Vec<_> = series.collect();
        self.objects.put("get").await?;
        for check in [Check::Generation, Check::Checksums] {
            self.objects.clone().checked_by(check).verify("get").await?;
        }
        // The first round warms up and does not count.
        for round in 0..=size.rounds {
            eprintln!("{}: round {round} of {}", size.name, size.rounds);
            let (turns, mut late) = (series.len(), Vec::new());
            for turn in 0..turns {
                let series = &mut series[(round + turn) % turns];
                let figures = self
                    .run(series.subject, size, round)
                    .await
                    .with_context(|| format!("{} in round {round}", series.name))?;
                match figures {
                    None => late.push(series.name),
                    Some((mb_per_s, cpu_s_per_gb)) if round > 0 => {
                        series.mb_per_s.push(mb_per_s);
                        series.cpu_s_per_gb.push(cpu_s_per_gb);
                    }
                    Some(_) => {}
                }
            }
            for name in late {
                let case = format!("{name}/{}", size.name);
                println!("{case:32} left out: a run takes more than {} s", RUN_TIMEOUT.as_secs());
                report.push(&case, "left_out_after_s", RUN_TIMEOUT.as_secs_f64(), "s");
                series.retain(|one| one.name != name);
            }
        }
        self.objects.remove("get").await?;
        Ok(series)
    }

    /// Measures single reads in turns, and prints the pairs.
    async fn measure_latency(&self, report: &mut Report) -> Result<()> {
        let run = Run {
            program: Program::ReadLatency,
            with_events: true,
            len_bytes: LATENCY_BYTES,
            iterations: self.effort.latencies,
            depth: 1,
        };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=self.effort.latency_rounds {
            eprintln!("latency: round {round} of {}", self.effort.latency_rounds);
            let own = self
                .engine
                .read_latencies(LATENCY_BYTES, self.effort.latencies)
                .await?
                .median();
            let other = run.measure(&self.ends).await?.context("ib_read_lat does not end")?;
            if round > 0 {
                ours.push(own);
                theirs.push(other);
            }
        }
        let ratios = ours.iter().zip(&theirs).map(|(own, other)| own / other).collect();
        for (case, latencies, ratios) in [
            ("perftest_read_latency/4KiB", theirs, None),
            ("engine_read_latency/4KiB", ours, Some(Samples::new(ratios))),
        ] {
            let us = Samples::new(latencies);
            print!(
                "{case:32} {:>8.1} ({:>7.1} … {:>7.1}) µs     ",
                us.median(),
                us.min(),
                us.max()
            );
            report.push(case, "us", us.median(), "µs");
            if let Some(ratios) = ratios {
                print_ratios(report, case, &ratios);
            }
            println!();
        }
        Ok(())
    }
}

/// The better one of the runs of a program.
fn best(series: &[Series], wanted: Program) -> Option<&Series> {
    let runs = series
        .iter()
        .filter(|one| matches!(one.subject, Subject::Perftest { program, .. } if program == wanted));
    runs.max_by(|a, b| a.rates().median().total_cmp(&b.rates().median()))
}

fn print(report: &mut Report, size: &str, series: &[Series]) {
    for one in series {
        let is_ours = !matches!(one.subject, Subject::Perftest { .. });
        let reference = best(series, one.subject.program()).filter(|_| is_ours);
        one.print(report, &format!("{}/{size}", one.name), reference);
    }
    if let Some(best) = best(series, Program::ReadBandwidth) {
        best.print(report, &format!("perftest_read_best/{size}"), None);
    }
}

fn is_wanted(name: &str, only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|wanted| wanted == name)
}

/// Those of these names; all if there are none.
fn subjects(names: &[String]) -> Result<Vec<(&'static str, Subject)>> {
    if names.is_empty() {
        return Ok(Subject::ALL.to_vec());
    }
    let find = |name: &String| {
        let mut all = Subject::ALL.into_iter();
        all.find(|(known, _)| known == name)
            .with_context(|| format!("there is no subject {name:?}"))
    };
    names.iter().filter(|name| *name != LATENCY).map(find).collect()
}

async fn measure(arguments: &Arguments) -> Result<()> {
    let effort = Effort::of(arguments);
    let ends = End::pair()?;
    let rails = ends[0].rails()?;
    let buffers = Buffers::new(Size::landing_bytes_max() + (1 << 20), Size::landing_bytes_max())?;
    let _registered = [
        rails.register(buffers.source().memory())?,
        rails.register(buffers.landing().memory())?,
    ];
    let site = |end: &End| Site {
        address: Some(end.address),
        rdma_device: Some(end.device.clone()),
    };
    let segments = [
        Segment {
            bytes: 8 << 20,
            slots: None,
        },
        holding(&effort.sizes)?,
    ];
    let cluster = Cluster::start_at(&[(segments[0], site(&ends[0])), (segments[1], site(&ends[1]))])?;
    let over = |rdma, rails| Transports {
        rdma,
        rails,
        ..Transports::default()
    };
    let client = cluster
        .connect_over(COORDINATOR, &over(RdmaPolicy::Require, Some(rails.clone())))
        .await?;
    let tcp_client = cluster
        .connect_over(COORDINATOR, &over(RdmaPolicy::Forbid, None))
        .await?;
    let objects = |client: &tenon_client::Client, size: Size| {
        Objects::new(
            client.clone(),
            cluster.id(HOLDER),
            buffers.clone(),
            size.shape(),
            size.round_bytes,
        )
    };
    let mut bench = Bench {
        idle_cpu_s: idle_cpu_s(&ends).await?,
        engine: Engine::start(&rails, buffers.clone()).await?,
        objects: objects(&client, effort.sizes[0])?,
        objects_over_tcp: objects(&tcp_client, effort.sizes[0])?,
        ends,
        subjects: subjects(&arguments.only)?,
        effort,
    };
    let mut report = Report::new("rdma");
    println!(
        "{:32} {:>8} {:>19} {:>9}   × perftest",
        "case", "MB/s", "(min … max)", "CPU s/GB"
    );
    for size in bench.sizes() {
        (bench.objects, bench.objects_over_tcp) = (objects(&client, size)?, objects(&tcp_client, size)?);
        let series = bench
            .measure(&mut report, size)
            .await
            .with_context(|| format!("transfers of {}", size.name))?;
        print(&mut report, size.name, &series);
    }
    if is_wanted(LATENCY, &arguments.only) {
        bench.measure_latency(&mut report).await?;
    }
    println!("{}", report.line());
    Ok(())
}

/// The holder's segment: room for what is got, for what is put, and a third for what alignment and late removals take. Objects may be
/// shorter than those that a segment has slots for by default.
fn holding(sizes: &[Size]) -> Result<Segment> {
    let round_bytes = sizes.iter().map(|size| size.round_bytes).max();
    Ok(Segment {
        bytes: 3 * round_bytes.context("there is no such size")?,
        slots: sizes.iter().map(|size| 3 * size.transfers()).max(),
    })
}

/// What starting perftest costs, in seconds of processors: most of a run of few bytes.
async fn idle_cpu_s(ends: &[End; 2]) -> Result<f64> {
    let run = Run {
        program: Program::ReadBandwidth,
        with_events: true,
        len_bytes: LATENCY_BYTES,
        iterations: ITERATIONS_MIN,
        depth: 1,
    };
    let before = used_by_host()?;
    run.measure(ends).await?.context("ib_read_bw does not end")?;
    Ok(used_by_host()?.saturating_sub(before).as_secs_f64())
}

/// Runs this executable again where the devices are.
fn outside() -> Result<()> {
    let this = std::env::current_exe()?;
    let options = MachineOptions {
        programs: vec![this.clone(), this.with_file_name("tenond")],
        memory_mib: MACHINE_MIB,
        ..MachineOptions::default()
    };
    let name = this
        .file_name()
        .and_then(|name| name.to_str())
        .context("the name of this executable")?;
    let given: Vec<String> = std::env::args().skip(1).chain(["--inside".to_owned()]).collect();
    let job = Job::program(name, given.iter().map(String::as_str))
        .timeout(TIMEOUT)
        .heard();
    let output = RdmaPlace::start(&options)?.run(&job)?;
    print!("{}", output.stdout);
    if output.status != 0 {
        bail!("the measurement ended with status {}", output.status);
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if !arguments.inside && !arguments.owner {
        return outside();
    }
    let runtime = Runtime::new().context("cannot start worker threads")?;
    if arguments.owner {
        runtime.block_on(engine::serve())
    } else {
        runtime.block_on(measure(&arguments))
    }
}
