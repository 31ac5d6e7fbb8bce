//! Private networks: a namespace for each node, all joined by a bridge in another one, whose links can be cut without a word.
//!
//! Nothing of it has a name outside: a namespace ends with the last process and the last descriptor in it, so nothing stays behind, however a
//! test ends.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace, which is there as long as this or a process in it.
#[derive(Debug, Clone)]
pub struct Namespace(Arc<File>);

impl Namespace {
    /// A new one in which nothing is up. `Err` if this process may not make one.
    fn create() -> Result<Self, Errno> {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(File::open("/proc/thread-self/ns/net").expect("a thread's own namespace"))
        });
        let file = made.join().expect("the thread that makes a namespace")?;
        Ok(Self(Arc::new(file)))
    }

    /// Does something in the namespace: sockets and processes that are made meanwhile belong to it.
    pub fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let within = || {
            setns(&*self.0, CloneFlags::CLONE_NEWNET).expect("the namespace can be entered");
            work()
        };
        let done = std::thread::scope(|scope| scope.spawn(within).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs lines of `ip` in the namespace.
    fn ip(&self, lines: &[String]) {
        let output = self.enter(|| {
            let mut ip = Command::new("ip")
                .args(["-batch", "-"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("ip starts");
            let mut input = ip.stdin.take().expect("its input is a pipe");
            input.write_all(lines.join("\n").as_bytes()).expect("ip reads");
            drop(input);
            ip.wait_with_output().expect("ip ends")
        });
        assert!(output.status.success(), "ip, told {lines:#?}: {output:?}");
    }

    /// A path to it for as long as this process has it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// A namespace for each node, and links between any two.
#[derive(Debug)]
pub struct Network {
    nodes: Vec<Namespace>,
    _bridge: Namespace,
}

impl Network {
    /// Makes the namespaces and joins them. `Err` says what is missing if this process may not do that, or has no `ip` to do it with.
    pub fn create(nodes: usize) -> Result<Arc<Self>, String> {
        match Command::new("ip").arg("-Version").output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err("there is no command ip (package iproute2)".into());
            }
            tried => tried.expect("ip starts"),
        };
        let create = || match Namespace::create() {
            Err(Errno::EPERM) => Err("network namespaces need CAP_SYS_ADMIN and CAP_NET_ADMIN".to_owned()),
            made => Ok(made.unwrap_or_else(|error| panic!("cannot make a network namespace: {error}"))),
        };
        let bridge = create()?;
        bridge.ip(&["link add bridge type bridge".into(), "link set bridge up".into()]);
        let network = Self {
            nodes: (0..nodes).map(|_| create()).collect::<Result<_, _>>()?,
            _bridge: bridge.clone(),
        };
        for (index, node) in network.nodes.iter().enumerate() {
            bridge.ip(&[
                format!(
                    "link add port{index} type veth peer name link{index} address {}",
                    mac(index)
                ),
                format!("link set port{index} master bridge up"),
                format!("link set link{index} netns {}", node.path()),
            ]);
            let address = Self::address(index);
            let mut lines = vec![
                "link set lo up".to_owned(),
                format!("address add {address}/24 dev link{index}"),
                format!("link set link{index} up"),
            ];
            lines.extend(
                (0..nodes)
                    .filter(|&other| other != index)
                    .map(|other| neighbour(index, other, &mac(other))),
            );
            node.ip(&lines);
        }
        Ok(Arc::new(network))
    }

    /// Where a node is, within the network.
    pub fn address(node: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, u8::try_from(node + 1).expect("few nodes"))
    }

    /// The namespace of a node.
    pub fn namespace(&self, node: usize) -> Namespace {
        self.nodes[node].clone()
    }

    /// From here on nothing that one of the two sends to the other arrives, and neither is told.
    pub fn cut(&self, one: usize, other: usize) {
        self.join_as(one, other, NOBODY);
        self.join_as(other, one, NOBODY);
    }

    /// Cuts every link between nodes of `part` and nodes that are not.
    pub fn cut_off(&self, part: &[usize]) {
        let rest = (0..self.nodes.len()).filter(|node| !part.contains(node));
        for other in rest {
            for &one in part {
                self.cut(one, other);
            }
        }
    }

    /// All links carry again.
    pub fn heal(&self) {
        for one in 0..self.nodes.len() {
            for other in (0..self.nodes.len()).filter(|&other| other != one) {
                self.join_as(one, other, &mac(other));
            }
        }
    }

    fn join_as(&self, from: usize, to: usize, mac: &str) {
        self.nodes[from].ip(&[neighbour(from, to, mac)]);
    }
}

/// Frames to this go to nobody.
const NOBODY: &str = "02:77:00:00:ff:ff";

fn mac(node: usize) -> String {
    format!("02:77:00:00:00:{node:02x}")
}

/// What makes a node send to another under a hardware address, without asking for it.
fn neighbour(from: usize, to: usize, mac: &str) -> String {
    format!(
        "neighbour replace {} lladdr {mac} dev link{from} nud permanent",
        Network::address(to)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::Duration;

    const BRIEFLY: Duration = Duration::from_millis(300);

    #[test]
    fn a_link_that_is_cut_carries_nothing_and_all_of_it_once_it_is_healed() {
        let network = match Network::create(3) {
            Ok(network) => network,
            Err(missing) => return eprintln!("skipped: {missing}"),
        };
        let listener = network
            .namespace(0)
            .enter(|| TcpListener::bind((Network::address(0), 7)).expect("a listener"));
        let address: SocketAddr = listener.local_addr().expect("its address");
        let dial = |from: usize| {
            network
                .namespace(from)
                .enter(|| TcpStream::connect_timeout(&address, BRIEFLY))
        };
        let mut sender = dial(1).expect("a link");
        let (mut receiver, _) = listener.accept().expect("a connection");
        receiver.set_read_timeout(Some(BRIEFLY)).expect("a time-out");

        network.cut(0, 1);
        sender.write_all(b"x").expect("the socket takes it");
        let mut byte = [0];
        assert!(receiver.read(&mut byte).is_err(), "a cut link carries");
        assert!(dial(1).is_err_and(|error| error.kind() == ErrorKind::TimedOut));
        dial(2).expect("the other link");

        network.heal();
        receiver
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a time-out");
        receiver.read_exact(&mut byte).expect("what was sent meanwhile");
        assert_eq!(&byte, b"x");
        dial(1).expect("the healed link");
    }
}
