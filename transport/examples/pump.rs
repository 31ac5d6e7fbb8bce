//! Throughput of the tcp engine beside a bare pump, between two processes over loopback.
//!
//! Moves 64 MiB of memory on each side round and round for a fixed time, alternating the cases so that the machine's
//! mood meets all of them: a bare tokio pump of 1, 2 and 4 connections with frames of the same bytes, and reads and
//! writes of the engine, batched, several batches under way, with the checksums of the receiving side. Prints medians,
//! ratios to the best pump, and the processor time of both ends per gigabyte, which a busy machine disturbs less. It
//! does not measure placement, control calls, checksums of the sending side, or a real network.
//!
//! `cargo run --release -p tenon-transport --example pump [seconds per case [prefix of the cases' names]]`

#![allow(clippy::unwrap_used, reason = "a probe may fail anywhere")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenon_transport::link::{
    AdmitAll, BoxFuture, Endpoint, Identity, Listener, NoSecret, Role, Service, Serving, Session,
};
use tenon_transport::tcp::{TcpConnection, TcpOptions};
use tenon_transport::{
    ClusterId, Connection, Export, Exports, Memory, Op, PeerId, RemoteKey, Rights, Scope, SessionId, Slice, Transfer,
    Unguarded,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;

const MIB: usize = 1 << 20;
/// Bytes of memory on each side.
const SET_BYTES: usize = 64 * MIB;
const ROUNDS: usize = 7;
/// Batches under way at once, and bytes of each.
const BATCHES: usize = 4;
const BATCH_BYTES: usize = 16 * MIB;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

fn identity(peer: u8) -> Identity {
    Identity {
        cluster: ClusterId([1; 16]),
        role: Role::Member,
        peer: PeerId([peer; 16]),
        incarnation: 1,
        session: SessionId([1; 16]),
        features: 0,
        context: [0; 32],
    }
}

/// Answers nothing: there are no calls here.
struct Silent;

impl Service for Silent {
    fn call(
        &self,
        _: Arc<Session>,
        _: tokio::time::Instant,
        request: bytes::Bytes,
    ) -> BoxFuture<'static, bytes::Bytes> {
        Box::pin(std::future::ready(request))
    }
}

fn memory() -> Slice {
    let memory = Memory::anonymous(SET_BYTES as u64).unwrap();
    let bytes: Vec<u8> = (0..SET_BYTES)
        .map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[2])
        .collect();
    memory.copy_in(0, &bytes).unwrap();
    Arc::new(memory).whole()
}

/// The child: prints the pump's address, the engine's endpoint and two keys, and serves until its input ends.
fn serve() {
    let runtime = runtime();
    let (pump, endpoint, keys, _shutdown) = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pump = listener.local_addr().unwrap();
        tokio::spawn(pump_out(listener));
        let exports = Arc::new(Exports::new());
        let memory = memory();
        let export = |rights| {
            let guard = Arc::new(Unguarded);
            exports
                .add(Export {
                    memory: memory.clone(),
                    rights,
                    scope: Scope::AnySession,
                    guard,
                })
                .unwrap()
        };
        let keys = (export(Rights::Read), export(Rights::Write));
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let endpoint = listener.local_endpoint().clone();
        let serving = Serving {
            identity: Arc::new(identity(1)),
            auth: Arc::new(NoSecret),
            admission: Arc::new(AdmitAll),
            service: Arc::new(Silent),
            exports,
            rdma: None,
            data_runtime: Handle::current(),
        };
        let (shutdown, receiver) = watch::channel(false);
        tokio::spawn(listener.serve(serving, receiver));
        (pump, endpoint, keys, shutdown)
    });
    println!("{pump} {endpoint} {} {}", keys.0.0, keys.1.0);
    _ = std::io::stdin().read_line(&mut String::new());
}

/// Sends frames on every connection until it closes.
async fn pump_out(listener: TcpListener) {
    let set = Arc::new(vec![7_u8; SET_BYTES]);
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let set = Arc::clone(&set);
        tokio::spawn(async move {
            for frame in (0..SET_BYTES / MIB).cycle() {
                if stream.write_all(&set[frame * MIB..(frame + 1) * MIB]).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Receives from so many connections for a while; returns bytes per second.
async fn pump_in(address: SocketAddr, connections: usize, time: Duration) -> f64 {
    let begun = Instant::now();
    let received = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..connections)
        .map(|_| {
            let received = Arc::clone(&received);
            tokio::spawn(async move {
                let mut set = vec![1_u8; SET_BYTES / connections];
                let mut stream = TcpStream::connect(address).await.unwrap();
                for frame in (0..set.len() / MIB).cycle() {
                    if begun.elapsed() > time {
                        return;
                    }
                    stream
                        .read_exact(&mut set[frame * MIB..(frame + 1) * MIB])
                        .await
                        .unwrap();
                    received.fetch_add(MIB as u64, Ordering::Relaxed);
                }
            })
        })
        .collect();
    join_all(tasks).await;
    received.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}

/// Moves transfers of one size for a while; returns bytes per second.
async fn engine(
    connection: &Arc<dyn Connection>,
    ours: &Slice,
    op: Op,
    key: RemoteKey,
    size: usize,
    time: Duration,
) -> f64 {
    let begun = Instant::now();
    let moving = (0..BATCHES).map(|worker| {
        let (connection, ours) = (Arc::clone(connection), ours.clone());
        tokio::spawn(async move {
            let mut moved = 0;
            while begun.elapsed() < time {
                let start = worker * BATCH_BYTES;
                let batch = (start..start + BATCH_BYTES)
                    .step_by(size)
                    .map(|at| Transfer {
                        op,
                        key,
                        remote_offset_bytes: at as u64,
                        local: vec![ours.subslice(at as u64..(at + size) as u64).unwrap()],
                        group: 0,
                    })
                    .collect();
                let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
                for result in connection.submit(batch, deadline).await {
                    moved += result.unwrap().bytes;
                }
            }
            moved
        })
    });
    let moved: u64 = join_all(moving).await.into_iter().map(Result::unwrap).sum();
    moved as f64 / begun.elapsed().as_secs_f64()
}

fn start_child() -> (Child, SocketAddr, Endpoint, RemoteKey, RemoteKey) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let fields: Vec<&str> = line.split_whitespace().collect();
    let key = |text: &str| RemoteKey(text.parse().unwrap());
    let (pump, endpoint) = (fields[0].parse().unwrap(), fields[1].parse().unwrap());
    (child, pump, endpoint, key(fields[2]), key(fields[3]))
}

/// Seconds of processor time that a process has used, to the hundredth.
fn cpu_seconds(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().unwrap())
        .sum();
    ticks as f64 / 100.0
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("serve") {
        return serve();
    }
    let time = Duration::from_secs_f64(argument.map_or(0.5, |seconds| seconds.parse().unwrap()));
    let only = std::env::args().nth(2).unwrap_or_default();
    let (mut child, pump, endpoint, read_key, write_key) = start_child();
    let cases = [
        ("pump/1", None),
        ("pump/2", None),
        ("pump/4", None),
        ("read/64KiB", Some((Op::Read, read_key, 64 << 10))),
        ("read/1MiB", Some((Op::Read, read_key, MIB))),
        ("read/16MiB", Some((Op::Read, read_key, 16 * MIB))),
        ("write/64KiB", Some((Op::Write, write_key, 64 << 10))),
        ("write/1MiB", Some((Op::Write, write_key, MIB))),
        ("write/16MiB", Some((Op::Write, write_key, 16 * MIB))),
    ];
    let mut figures: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    let mut cpu: Vec<(f64, f64)> = vec![(0.0, 0.0); cases.len()];
    let child_id = child.id().to_string();
    let used = || cpu_seconds("self") + cpu_seconds(&child_id);
    runtime().block_on(async {
        let ours = memory();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
        let options = TcpOptions::default();
        let connection = TcpConnection::open(&endpoint, &identity(2), Arc::new(NoSecret), None, options, deadline)
            .await
            .unwrap();
        for _ in 0..ROUNDS {
            for (case, (name, engine_case)) in cases
                .iter()
                .enumerate()
                .filter(|(_, (name, _))| name.starts_with(&only))
            {
                let (cpu_before, begun) = (used(), Instant::now());
                let figure = match *engine_case {
                    None => pump_in(pump, name[5..].parse().unwrap(), time).await,
                    Some((op, key, size)) => engine(&connection, &ours, op, key, size, time).await,
                };
                figures[case].push(figure / 1e9);
                cpu[case].0 += used() - cpu_before;
                cpu[case].1 += figure / 1e9 * begun.elapsed().as_secs_f64();
            }
        }
    });
    drop(child.stdin.take());
    child.wait().unwrap();
    let medians: Vec<f64> = figures.iter_mut().map(|values| median(values)).collect();
    let best = medians[..3].iter().copied().fold(0.0, f64::max);
    for (((name, _), gb_per_s), (cpu_s, gb)) in cases.iter().zip(&medians).zip(&cpu) {
        let (ratio, cpu_ms_per_gb) = (gb_per_s / best, cpu_s / gb * 1e3);
        println!("{name:12} {gb_per_s:6.2} GB/s  {ratio:5.2} of the best pump  {cpu_ms_per_gb:6.0} CPU ms/GB");
    }
}
