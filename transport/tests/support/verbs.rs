//! Two ends on two devices, connected to each other.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use std::collections::VecDeque;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tenon_transport::Memory;
use tenon_transport::verbs::{
    Access, Completion, CompletionChannel, CompletionQueue, Device, GidEntry, Local, MemoryRegion, ProtectionDomain,
    QueuePair, QueuePairOptions, Remote, SendRequest, Status, Timing, choose_gid,
};
use tokio::time::timeout;

/// Longest wait for one completion: devices in software on one busy processor are slow.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of an end's memory.
pub const MEMORY_BYTES: u64 = 4 << 20;

/// A device with its address, as the environment names it.
#[derive(Clone, Debug)]
pub struct Named {
    pub device: String,
    pub address: std::net::Ipv4Addr,
}

/// The devices to test with, two at least; `None`, and a line that says so, if there are none.
pub fn named_devices() -> Option<Vec<Named>> {
    let Ok(list) = std::env::var("TENON_RDMA_DEVICES") else {
        println!("skipped: TENON_RDMA_DEVICES names no devices (device:IPv4,device:IPv4)");
        return None;
    };
    let named = |entry: &str| {
        let (device, address) = entry.split_once(':').expect("device:IPv4");
        Named {
            device: device.to_owned(),
            address: address.parse().expect("an IPv4 address"),
        }
    };
    let named: Vec<_> = list.split(',').map(named).collect();
    assert!(named.len() >= 2, "two devices at least: {list}");
    Some(named)
}

/// One end: everything but a queue pair.
pub struct End {
    pub device: Arc<Device>,
    pub domain: Arc<ProtectionDomain>,
    pub queue: Arc<CompletionQueue<u64>>,
    pub gid: GidEntry,
    pub memory: Arc<Memory>,
    pub region: Arc<MemoryRegion>,
    channel: Option<CompletionChannel<u64>>,
    taken: VecDeque<Completion<u64>>,
}

impl End {
    pub fn new(named: &Named) -> Self {
        let device = Device::open(&named.device).unwrap();
        let domain = ProtectionDomain::new(&device).unwrap();
        let queue = CompletionQueue::new(&device, 1024).unwrap();
        let gid = choose_gid(&device.gids(1).unwrap(), None).expect("a usable address");
        assert_eq!(gid.gid.ipv4(), Some(named.address));
        let memory = Arc::new(Memory::anonymous(MEMORY_BYTES).unwrap());
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::BIND_WINDOWS;
        let region = MemoryRegion::register(&domain, memory.whole(), access).unwrap();
        let channel = CompletionChannel::new(&queue).unwrap();
        Self {
            device,
            domain,
            queue,
            gid,
            memory,
            region,
            channel: Some(channel),
            taken: VecDeque::new(),
        }
    }

    /// A queue pair in INIT.
    pub fn queue_pair(&self, options: QueuePairOptions) -> QueuePair<u64> {
        let queue_pair = QueuePair::new(&self.domain, &self.queue, options).unwrap();
        queue_pair
            .initialise(Access::REMOTE_READ | Access::REMOTE_WRITE)
            .unwrap();
        queue_pair
    }

    /// A part of its memory.
    pub fn part(&self, offset_bytes: u64, len_bytes: u64) -> Local {
        self.region.part(offset_bytes..offset_bytes + len_bytes).unwrap()
    }

    /// A place in its memory, as the other end names it.
    pub fn remote(&self, offset_bytes: u64) -> Remote {
        Remote {
            address: self.region.address() + offset_bytes,
            key: self.region.key(),
        }
    }

    /// Leaves reaping to the caller.
    pub fn take_channel(&mut self) -> CompletionChannel<u64> {
        self.channel.take().expect("taken once")
    }

    /// The next completion, by event.
    pub async fn next(&mut self) -> Completion<u64> {
        while self.taken.is_empty() {
            let mut found = Vec::new();
            let channel = self.channel.as_mut().expect("the channel was not taken");
            let reaped = timeout(PATIENCE, channel.reap(Duration::ZERO, &mut found)).await;
            reaped.expect("a completion in time").unwrap();
            self.taken.extend(found);
        }
        self.taken.pop_front().expect("not empty")
    }

    /// The next completion, which must be this request's success.
    pub async fn success(&mut self, context: u64) -> Completion<u64> {
        let completion = self.next().await;
        assert_eq!(
            (completion.context, completion.status),
            (context, Status::Success),
            "{completion:?}"
        );
        completion
    }

    /// Asserts that nothing is complete that was not taken.
    pub fn nothing_more(&mut self) {
        let mut found = Vec::new();
        self.queue.poll(&mut found).unwrap();
        assert!(self.taken.is_empty() && found.is_empty(), "{:?} {found:?}", self.taken);
    }
}

/// Notices a silent peer within 30 ms by the protocol's own reckoning.
pub const IMPATIENT: Timing = Timing {
    timeout_exponent: 10,
    retries: 6,
    not_ready_retries: 6,
    not_ready_timer: 12,
};

/// Connects two queue pairs in INIT.
pub fn connect(ends: (&End, &End), pairs: (&QueuePair<u64>, &QueuePair<u64>), timing: Timing) {
    let one = pairs.0.endpoint(&ends.0.gid, rand::random()).unwrap();
    let two = pairs.1.endpoint(&ends.1.gid, rand::random()).unwrap();
    pairs.0.connect(&one, &ends.0.gid, &two, timing).unwrap();
    pairs.1.connect(&two, &ends.1.gid, &one, timing).unwrap();
}

/// Two queue pairs, connected.
pub fn pair(a: &End, b: &End, timing: Timing) -> (QueuePair<u64>, QueuePair<u64>) {
    let options = QueuePairOptions {
        receive_requests: 32,
        ..QueuePairOptions::default()
    };
    let pairs = (a.queue_pair(options), b.queue_pair(options));
    connect((a, b), (&pairs.0, &pairs.1), timing);
    pairs
}

/// Posts one request.
pub fn post(queue_pair: &QueuePair<u64>, request: SendRequest<u64>) {
    queue_pair.post_send(vec![request]).unwrap();
}

/// The kernel's own count of objects on these devices; `None` without the tool.
pub fn counted(names: &[&str]) -> Option<Vec<String>> {
    let output = Command::new("rdma").args(["resource", "show"]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let of_ours = |line: &&str| names.iter().any(|name| line.contains(&format!(" {name}:")));
    Some(text.lines().filter(of_ours).map(str::to_owned).collect())
}
