//! The engine alone: reads from and writes to memory that another process exports.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tenon_transport::link::{AdmitAll, Endpoint, Identity, Listener, NoSecret, Role, Serving};
use tenon_transport::verbs::engine::{Rails, RdmaConnection, RdmaTarget};
use tenon_transport::{
    ClusterId, Connection, Export, Exports, Memory, Op, PeerId, RemoteKey, Rights, Scope, SessionId, Transfer,
    Unguarded,
};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::rdma::End;
use crate::rdma::sizes::Size;
use crate::report::Samples;
use crate::transfer::buffers::Buffers;

/// The argument that makes the bench's executable the owner.
pub const OWNER_ARGUMENT: &str = "--owner";

const CLUSTER: ClusterId = ClusterId([0xbe; 16]);
const OWNER: PeerId = PeerId([0x0e; 16]);
const SEED: u64 = 7602;
/// How long a connection or a round may take.
const TIMEOUT: Duration = Duration::from_secs(120);

fn identity(role: Role, peer: PeerId) -> Identity {
    Identity {
        cluster: CLUSTER,
        role,
        peer,
        incarnation: 0,
        session: SessionId(rand::random()),
        features: 0,
        context: [0; 32],
    }
}

fn deadline() -> tokio::time::Instant {
    tokio::time::Instant::now() + TIMEOUT
}

/// The process that exports memory; it ends when this is dropped.
#[derive(Debug)]
struct Owner {
    process: Child,
    endpoint: Endpoint,
    read_key: RemoteKey,
    write_key: RemoteKey,
}

impl Owner {
    /// Starts this executable again.
    fn start() -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(OWNER_ARGUMENT)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the owner")?;
        let stdout = process.stdout.take().context("the owner has an output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let told = || format!("the owner told no address and keys: {line:?}");
        let mut words = line.split_whitespace();
        let mut word = || words.next().with_context(told);
        let endpoint = word()?.parse().with_context(told)?;
        let (read_key, write_key) = (RemoteKey(word()?.parse()?), RemoteKey(word()?.parse()?));
        Ok(Self {
            process,
            endpoint,
            read_key,
            write_key,
        })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The owner: exports memory for reading and for writing, says where, and serves until it is killed.
pub async fn serve() -> Result<()> {
    let [_, end] = End::pair()?;
    let (rails, exports) = (end.rails()?, Arc::new(Exports::new()));
    let mut registrations = Vec::new();
    let mut export = |rights| {
        let memory = Arc::new(Memory::anonymous(Size::landing_bytes_max())?);
        let mut bytes = vec![0; 1 << 20];
        ChaCha8Rng::seed_from_u64(SEED).fill_bytes(&mut bytes);
        for start in (0..memory.len_bytes()).step_by(bytes.len()) {
            memory.copy_in(start, &bytes)?;
        }
        registrations.push(rails.register(&memory)?);
        let key = exports.add(Export {
            memory: memory.whole(),
            rights,
            scope: Scope::AnySession,
            guard: Arc::new(Unguarded),
        })?;
        Ok::<_, anyhow::Error>(key.0)
    };
    let (read_key, write_key) = (export(Rights::Read)?, export(Rights::Write)?);
    let target = Arc::new(RdmaTarget::new(rails, Arc::clone(&exports), Handle::current())?);
    let endpoint = Endpoint::Tcp(SocketAddr::new(end.address.into(), 0));
    let listener = Listener::bind(&endpoint).await?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{} {read_key} {write_key}", listener.local_endpoint())?;
    stdout.flush()?;
    let serving = Serving {
        identity: Arc::new(identity(Role::Member, OWNER)),
        auth: Arc::new(NoSecret),
        admission: Arc::new(AdmitAll),
        // Nobody asks for anything else.
        service: Arc::clone(&target) as _,
        exports,
        rdma: Some(target),
        data_runtime: Handle::current(),
    };
    let (_serves_on, shutdown) = watch::channel(false);
    listener.serve(serving, shutdown).await;
    Ok(())
}

/// A connection to an owner, and memory of this process to transfer from and to.
#[derive(Clone, Debug)]
pub struct Engine {
    connection: Arc<dyn Connection>,
    buffers: Buffers,
    owner: Arc<Owner>,
}

impl Engine {
    /// Starts an owner and connects to it over these rails. The landing memory must hold what is under way of any size.
    pub async fn start(rails: &Arc<Rails>, buffers: Buffers) -> Result<Self> {
        let owner = Owner::start()?;
        let identity = identity(Role::Client, PeerId(rand::random()));
        let opening = RdmaConnection::open(rails, &owner.endpoint, &identity, &NoSecret, Some(OWNER), deadline());
        Ok(Self {
            connection: opening.await?,
            buffers,
            owner: Arc::new(owner),
        })
    }

    /// Moves a round of transfers of a size, in batches that together have as many under way as the size says.
    pub async fn run(&self, op: Op, size: Size) -> Result<()> {
        let shape = size.shape();
        let left = Arc::new(Mutex::new(size.transfers()));
        let mut workers = Vec::new();
        for worker in 0..shape.in_flight {
            let (this, left) = (self.clone(), Arc::clone(&left));
            workers.push(tokio::spawn(async move {
                let start = worker * shape.batch * shape.object_bytes;
                loop {
                    let transfers = {
                        let mut left = left.lock();
                        let taken = shape.batch.min(*left);
                        *left -= taken;
                        taken
                    };
                    if transfers == 0 {
                        return Ok::<(), anyhow::Error>(());
                    }
                    let batch = (0..transfers).map(|at| this.transfer(op, start + at * size.len_bytes, size.len_bytes));
                    let batch = batch.collect::<Result<_>>()?;
                    for result in this.connection.submit(batch, deadline()).await {
                        result?;
                    }
                }
            }));
        }
        for worker in workers {
            worker.await??;
        }
        Ok(())
    }

    /// Microseconds of single reads, one after the other.
    pub async fn read_latencies(&self, len_bytes: u64, reads: u64) -> Result<Samples> {
        let this = self.clone();
        // A task, as a program's reads are: not the thread that waits for the runtime.
        let reading = tokio::spawn(async move {
            let mut latencies_us = Vec::new();
            for _ in 0..reads {
                let batch = vec![this.transfer(Op::Read, 0, len_bytes)?];
                let start = Instant::now();
                for result in this.connection.submit(batch, deadline()).await {
                    result?;
                }
                latencies_us.push(start.elapsed().as_secs_f64() * 1e6);
            }
            Ok::<_, anyhow::Error>(latencies_us)
        });
        Ok(Samples::new(reading.await??))
    }

    /// One range, at the same place of both ends' memory.
    fn transfer(&self, op: Op, offset_bytes: u64, len_bytes: u64) -> Result<Transfer> {
        let (key, local) = match op {
            Op::Read => (self.owner.read_key, self.buffers.landing()),
            Op::Write => (self.owner.write_key, self.buffers.source()),
        };
        Ok(Transfer {
            op,
            key,
            remote_offset_bytes: offset_bytes,
            local: vec![local.subslice(offset_bytes..offset_bytes + len_bytes)?],
            group: 0,
        })
    }
}
