//! Made-up hosts.

use std::net::Ipv6Addr;

use super::super::facts::{
    Agent, AgentAnswer, AgentState, Backing, Bound, Configuration, Device, DeviceDetails, Facts, Gid, Host,
    HugePagePool, Known, Library, LinkAddress, LockedMemory, Memory, Module, ModuleState, MountedSegment, Outcome,
    Peer, Port, PortDetails, Purpose, RailReach, Rdma, Reach, Segment, WindowsSeen, Wish,
};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::NodeState;
use tenon_transport::verbs::engine::PushPolicy;
use tenon_transport::verbs::{Enforced, GidEntry, GidKind, GidVerdict, LinkLayer, PortState, Windows};

const SELF: NodeId = NodeId::from_bytes([1; 16]);
const PEER: NodeId = NodeId::from_bytes([2; 16]);

/// Two devices with a port each, one peer, and an agent that runs.
pub(in crate::cli::doctor) fn good_host() -> Facts {
    Facts {
        host: Host {
            name: "host-7".into(),
            user: "root".into(),
        },
        configuration: Configuration {
            file: Some("/etc/tenon/tenond.toml".into()),
            errors: Vec::new(),
            is_private: false,
            secret_error: None,
            node: Known::Yes(Some(SELF)),
            membership_error: None,
            members: 2,
            link: Some(LinkAddress {
                listen: "10.0.0.7:7601".parse().unwrap(),
                dialled: Some("10.0.0.7:7601".parse().unwrap()),
                bound: Bound::Taken {
                    said: "Address already in use".into(),
                },
            }),
            rdma: Some(Wish::Prefer),
            push: Some(PushPolicy::Off),
            segments: Some(vec![Segment {
                len_bytes: 64 << 30,
                table_bytes: 1 << 30,
                backing: Backing::Memfd {
                    huge_pages: Wish::Prefer,
                },
            }]),
        },
        rdma: rdma(),
        memory: Memory {
            locked: Known::Yes(LockedMemory {
                agent_pid: Some(4711),
                soft_bytes: None,
                hard_bytes: None,
                is_exempt: false,
            }),
            huge_pages: Known::Yes(Some(HugePagePool {
                page_bytes: 2 << 20,
                total_pages: 40_000,
                free_pages: 40_000,
                reserved_pages: 0,
                overcommit_pages: 0,
                surplus_pages: 0,
            })),
        },
        agent: agent(),
        peers: vec![Peer {
            node: PEER,
            endpoint: "10.0.0.8:7601".into(),
            agent_sees: Some(NodeState::Alive),
            transports: vec![over_tcp(), over_rdma()],
        }],
    }
}

fn over_tcp() -> Reach {
    Reach {
        transport: "tcp",
        outcome: Outcome::Reached {
            connect_us: 900,
            round_trip_us: 120,
            version: Some("0.1.0".into()),
            same_members: true,
            only_there: Vec::new(),
            only_here: Vec::new(),
        },
    }
}

fn over_rdma() -> Reach {
    let rail = |rail: &str, round_trip_us| RailReach {
        rail: rail.into(),
        round_trip_us,
    };
    Reach {
        transport: "rdma",
        outcome: Outcome::ReachedByRails {
            connect_us: 2_000,
            round_trip_us: 9,
            rails: vec![rail("mlx5_0:1", 9), rail("mlx5_1:1", 11)],
            unusable: Vec::new(),
        },
    }
}

fn agent() -> Agent {
    Agent {
        endpoint: Some("unix:/run/tenon/tenon.sock".into()),
        state: AgentState::Answers(AgentAnswer {
            node: Some(SELF),
            version: Some("0.1.0".into()),
            round_trip_us: 80,
            members: vec![(PEER, NodeState::Alive)],
            segments: Known::Yes(vec![MountedSegment {
                len_bytes: 64 << 30,
                page_bytes: 2 << 20,
                backing: "memfd".into(),
            }]),
        }),
    }
}

fn rdma() -> Rdma {
    let module = |name, purpose| Module {
        name,
        purpose,
        state: ModuleState::Loaded,
    };
    Rdma {
        library: Library::Answers,
        devices: vec![device("mlx5_0"), device("mlx5_1")],
        kernel_devices: Known::Yes(vec!["mlx5_0".into(), "mlx5_1".into()]),
        modules: Known::Yes(vec![
            module("ib_uverbs", Purpose::Verbs),
            module("mlx5_ib", Purpose::Driver),
            module("rdma_rxe", Purpose::Driver),
        ]),
        numa_nodes: Known::Yes(2),
    }
}

fn device(name: &str) -> Device {
    let port = PortDetails {
        state: PortState::Active,
        link_layer: LinkLayer::Ethernet,
        active_mtu_bytes: 4096,
        max_mtu_bytes: 4096,
        gids: Known::Yes(vec![
            gid(0, "fe80::7", GidKind::RoceV2, false),
            gid(1, "::ffff:10.0.0.7", GidKind::RoceV2, true),
        ]),
    };
    Device {
        name: name.into(),
        details: Known::Yes(DeviceDetails {
            firmware: "22.31.1014".into(),
            numa_node: Some(1),
            max_region_bytes: u64::MAX,
            windows: Some(Known::Yes(WindowsSeen(Windows::Seen(Enforced {
                bounds: true,
                key: true,
                invalidation: true,
            })))),
            ports: vec![Port {
                number: 1,
                details: Known::Yes(port),
            }],
        }),
    }
}

/// A row of a table, chosen or link-local.
pub(in crate::cli::doctor) fn gid(index: u32, address: &str, kind: GidKind, is_chosen: bool) -> Gid {
    let address: Ipv6Addr = address.parse().unwrap();
    Gid {
        entry: GidEntry {
            port: 1,
            index,
            gid: tenon_transport::verbs::Gid(address.octets()),
            kind,
            interface: 2,
        },
        interface: Some("eth0".into()),
        verdict: match is_chosen {
            true => GidVerdict::Chosen,
            false => GidVerdict::LinkLocal,
        },
    }
}

/// Everything that could not be read was not.
pub(in crate::cli::doctor) fn host_of_which_nothing_can_be_read() -> Facts {
    fn not<T>(what: &str) -> Known<T> {
        Known::No {
            not_read: format!("cannot read {what}: Permission denied"),
        }
    }
    let mut facts = good_host();
    facts.configuration = Configuration {
        errors: vec!["cannot read the configuration: Permission denied".into()],
        is_private: true,
        node: not("node-id"),
        members: 0,
        link: None,
        rdma: None,
        push: None,
        segments: None,
        ..facts.configuration
    };
    facts.rdma = Rdma {
        library: Library::Fails("it fails".into()),
        devices: vec![Device {
            name: "mlx5_0".into(),
            details: not("uverbs0"),
        }],
        kernel_devices: not("/sys/class/infiniband"),
        modules: not("/proc/modules"),
        numa_nodes: not("/sys/devices/system/node"),
    };
    facts.memory = Memory {
        locked: not("/proc/self/status"),
        huge_pages: not("nr_hugepages"),
    };
    facts.agent.state = AgentState::Absent {
        said: "no agent answers".into(),
    };
    facts.peers.clear();
    facts
}
