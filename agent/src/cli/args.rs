//! The command line of `tenon`.

use super::exit::HELP;
use super::limits::{KEYS_MAX, LIST_ENTRIES_DEFAULT, TIMEOUT_MS_MAX};
use crate::fingerprint::Fingerprint;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use tenon_client::RdmaPolicy;
use tenon_protocol::ids::{NodeId, PutId};
use tenon_protocol::limits::{REPLICAS_MAX, RESERVATION_TTL_MS_MAX, SOFT_PIN_MS_MAX};
use tenon_protocol::name::Namespace;
use tenon_protocol::segments::HugePageUse;
use tenon_transport::link::Endpoint;

/// Put objects into the cluster's memory, get them back, and see where they lie.
#[derive(Debug, Clone, Parser)]
#[command(name = "tenon", version, after_help = HELP)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// What holds for every command.
#[derive(Debug, Clone, Args)]
pub(super) struct Global {
    /// The agent to talk to: unix:/path/to/socket, or address:port [default: unix:/run/tenon/tenon.sock]
    #[arg(long, global = true, value_name = "ENDPOINT")]
    pub(super) connect: Option<Endpoint>,
    /// The file with the cluster's secret; not needed for the agent's unix socket
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) secret_file: Option<PathBuf>,
    /// The cluster's name [default: whichever the agent at the unix socket belongs to, over TCP "tenon"]
    #[arg(long, global = true, value_name = "NAME")]
    pub(super) cluster: Option<String>,
    /// Whether transfers may, must or must not go over RDMA
    #[arg(long, global = true, value_name = "prefer|require|forbid", default_value_t)]
    pub(super) rdma: RdmaPolicy,
    /// The namespace of the keys
    #[arg(long, global = true, value_name = "NAME", default_value = Namespace::DEFAULT)]
    pub(super) namespace: String,
    /// Give up after this long [default: 5 s, and 1 s more per 8 MiB]
    #[arg(long, global = true, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=TIMEOUT_MS_MAX))]
    pub(super) timeout_ms: Option<u64>,
    /// Print one JSON document, also for errors
    #[arg(long, global = true)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub(super) enum Command {
    /// Put a file; a key that has an object already keeps it
    Put(Put),
    /// Get an object
    Get(Get),
    /// List keys
    Ls(Ls),
    /// Remove objects
    Rm(Rm),
    /// Mark objects as used, as a get does
    Touch(Keys),
    /// Keep objects from being evicted
    Pin(PinKeys),
    /// Let objects be evicted again
    Unpin(Keys),
    /// Show what is known of an object and where it lies
    Stat {
        /// Its key
        key: String,
    },
    /// Show the members of the cluster
    Nodes,
    /// Show the memory segments
    Segments {
        /// Of this node only
        #[arg(long, value_name = "ID")]
        node: Option<NodeId>,
    },
    /// Mount, drain or unmount a memory segment
    Segment {
        #[command(subcommand)]
        command: SegmentCommand,
    },
    /// Look at this host: RDMA devices, memory, the agent and the ways to its peers, and say what to do
    Doctor(Doctor),
}

#[derive(Debug, Clone, Subcommand)]
pub(super) enum SegmentCommand {
    /// Contribute memory, and wait until it is in use
    Mount(MountSegment),
    /// Place nothing in a segment any more; what is there stays, as far as it is not moved to other nodes
    Drain(DrainSegment),
    /// Drain a segment, give its memory back, and wait for that; objects that are only there are lost
    Unmount(UnmountSegment),
}

#[derive(Debug, Clone, Args)]
pub(super) struct MountSegment {
    /// How much, such as 64GiB: whole pages
    #[arg(long, value_name = "SIZE")]
    pub(super) size: Size,
    /// On this node [default: that of the agent that is asked]
    #[arg(long, value_name = "ID")]
    pub(super) node: Option<NodeId>,
    /// Descriptors in its table, each for one object [default: one per 64 KiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) slots: Option<u32>,
    /// Whether huge pages back it [default: prefer]
    #[arg(long, value_name = "require|prefer|off", conflicts_with = "file")]
    pub(super) huge_pages: Option<HugePageChoice>,
    /// The absolute path of a file on tmpfs or hugetlbfs that backs it; it is created or emptied
    #[arg(long, value_name = "FILE")]
    pub(super) file: Option<String>,
    /// Do not wait until it is in use
    #[arg(long)]
    pub(super) no_wait: bool,
}

#[derive(Debug, Clone, Args)]
pub(super) struct DrainSegment {
    /// The segment's id on its node; `tenon segments` lists them
    pub(super) segment: u32,
    /// Of this node [default: that of the agent that is asked]
    #[arg(long, value_name = "ID")]
    pub(super) node: Option<NodeId>,
}

#[derive(Debug, Clone, Args)]
pub(super) struct UnmountSegment {
    /// The segment's id on its node; `tenon segments` lists them
    pub(super) segment: u32,
    /// Of this node [default: that of the agent that is asked]
    #[arg(long, value_name = "ID")]
    pub(super) node: Option<NodeId>,
    /// How long puts, transfers and moves to other nodes may take; with 0 nothing moves, and what is there is lost
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=crate::limits::GRACEFUL_MS_MAX))]
    pub(super) graceful_ms: u64,
    /// Also if pinned objects are lost
    #[arg(long)]
    pub(super) force: bool,
    /// Do not wait until it is gone
    #[arg(long)]
    pub(super) no_wait: bool,
}

#[derive(Debug, Clone, Args)]
pub(super) struct Put {
    /// The object's key
    pub(super) key: String,
    /// The file, or - for standard input, which is held in memory (at most 8 GiB)
    pub(super) file: PathBuf,
    /// Place it on this node
    #[arg(long, value_name = "ID")]
    pub(super) node: Option<NodeId>,
    /// The reservation ends this long after the last byte arrived [default: the holder's]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=i64::from(RESERVATION_TTL_MS_MAX)))]
    pub(super) ttl_ms: Option<u32>,
    /// Keep it from being evicted until it is removed or unpinned
    #[arg(long, conflicts_with = "soft_pin_ms")]
    pub(super) pin: bool,
    /// Keep it from being evicted for so long, as long as others can go
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=SOFT_PIN_MS_MAX))]
    pub(super) soft_pin_ms: Option<u64>,
    /// On how many nodes it is to lie, 8 at most; as many as have room get it, which is no failure
    #[arg(long, value_name = "N", conflicts_with = "node", value_parser = clap::value_parser!(u8).range(1..=i64::from(REPLICAS_MAX)))]
    pub(super) replicas: Option<u8>,
    /// Take the place of the object that the key has; its pin, replicas and fingerprint go with it
    #[arg(long)]
    pub(super) replace: bool,
    /// Opaque bytes to store with it, in hexadecimal digits
    #[arg(long, value_name = "HEX")]
    pub(super) fingerprint: Option<Fingerprint>,
    /// Repeat a put of which it is not known whether it is stored, under the id that its error names
    #[arg(long, value_name = "ID")]
    pub(super) put_id: Option<PutId>,
}

#[derive(Debug, Clone, Args)]
pub(super) struct Get {
    /// The object's key
    pub(super) key: String,
    /// The file to write, which appears when all is verified; - for standard output, which gets each piece as it is verified
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(super) output: PathBuf,
    /// An object that was stored with other bytes, or with none, is a miss; in hexadecimal digits
    #[arg(long, value_name = "HEX")]
    pub(super) fingerprint: Option<Fingerprint>,
}

#[derive(Debug, Clone, Args)]
pub(super) struct Ls {
    /// Only keys that begin with this
    #[arg(default_value = "")]
    pub(super) prefix: String,
    /// Only keys after this one
    #[arg(long, value_name = "KEY")]
    pub(super) after: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = LIST_ENTRIES_DEFAULT, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) limit: u64,
}

#[derive(Debug, Clone, Args)]
pub(super) struct Rm {
    /// The objects' keys
    #[arg(required_unless_present_any = ["prefix", "all"], num_args = 1..=KEYS_MAX, value_name = "KEY")]
    pub(super) keys: Vec<String>,
    /// All that begin with this instead
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["keys", "all"], value_parser = a_prefix)]
    pub(super) prefix: Option<String>,
    /// All of the namespace instead
    #[arg(long, conflicts_with = "keys")]
    pub(super) all: bool,
}

/// An empty one is more often a script's unset variable than the wish to remove everything.
fn a_prefix(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err(
            "every object of the namespace begins with an empty prefix; if that is meant, say --all".to_owned(),
        );
    }
    Ok(text.to_owned())
}

#[derive(Debug, Clone, Args)]
pub(super) struct Keys {
    /// The objects' keys
    #[arg(required = true, num_args = 1..=KEYS_MAX, value_name = "KEY")]
    pub(super) keys: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(super) struct PinKeys {
    /// The objects' keys
    #[arg(required = true, num_args = 1..=KEYS_MAX, value_name = "KEY")]
    pub(super) keys: Vec<String>,
    /// For so long only, and give them up before others are refused [default: until they are removed or unpinned]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=SOFT_PIN_MS_MAX))]
    pub(super) soft_pin_ms: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub(super) struct Doctor {
    /// The configuration of tenond [default: TENON_CONFIG, else /etc/tenon/tenond.toml if it exists, else the defaults]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

/// Bytes with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size(pub(super) u64);

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::config::parse_size(text)
            .map(Self)
            .map_err(|error| error.to_string())
    }
}

/// Whether huge pages are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HugePageChoice(pub(super) HugePageUse);

impl std::str::FromStr for HugePageChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "require" => Ok(Self(HugePageUse::Require)),
            "prefer" => Ok(Self(HugePageUse::Prefer)),
            "off" => Ok(Self(HugePageUse::Off)),
            _ => Err("expected require, prefer or off".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(arguments: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["tenon"].iter().chain(arguments))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn global_flags_stand_before_or_after_the_command() {
        for arguments in [
            &["--json", "--connect", "127.0.0.1:1", "nodes"][..],
            &["nodes", "--json", "--connect", "127.0.0.1:1"],
        ] {
            let global = parse(arguments).unwrap().global;
            assert!(global.json);
            assert_eq!(global.connect.unwrap().to_string(), "127.0.0.1:1");
        }
        let global = parse(&["nodes"]).unwrap().global;
        assert_eq!((global.connect, global.namespace.as_str()), (None, "default"));
    }

    #[test]
    fn a_put_takes_a_dash_for_standard_input_and_its_options() {
        let node = "0123456789abcdef0123456789abcdef";
        let put = [
            "put",
            "--node",
            node,
            "--ttl-ms",
            "5",
            "--fingerprint",
            "00fF",
            "k",
            "-",
        ];
        let Command::Put(put) = parse(&put).unwrap().command else {
            panic!("a put")
        };
        assert_eq!(
            (put.key.as_str(), put.file.as_os_str().as_encoded_bytes()),
            ("k", b"-".as_slice())
        );
        assert_eq!(put.node.unwrap().to_string(), node);
        assert_eq!(
            (put.ttl_ms, put.fingerprint),
            (Some(5), Some(Fingerprint(vec![0, 0xff])))
        );
    }

    #[test]
    fn keys_may_look_like_flags_after_two_dashes() {
        let Command::Rm(rm) = parse(&["rm", "--", "-k", "--json"]).unwrap().command else {
            panic!("an rm")
        };
        assert_eq!(rm.keys, ["-k", "--json"]);
    }

    #[test]
    fn wrong_usage_is_refused() {
        for arguments in [
            &[][..],
            &["put", "k"],
            &["rm"],
            &["got", "k"],
            &["--connect", "nowhere", "nodes"],
            &["--timeout-ms", "0", "nodes"],
            &["put", "--node", "12", "k", "f"],
            &["put", "--ttl-ms", "600001", "k", "f"],
            &["put", "--fingerprint", "abc", "k", "f"],
            &["put", "--fingerprint", "", "k", "f"],
            &["put", "--fingerprint", "+1", "k", "f"],
            &["put", "--pin", "--soft-pin-ms", "5", "k", "f"],
            &["put", "--soft-pin-ms", "604800001", "k", "f"],
            &["put", "--replicas", "0", "k", "f"],
            &["put", "--replicas", "9", "k", "f"],
            &["pin"],
            &["pin", "--soft-pin-ms", "0", "k"],
            &["touch"],
            &["ls", "--limit", "0"],
            &["segment"],
            &["segment", "mount"],
            &["segment", "mount", "--size", "much"],
            &[
                "segment",
                "mount",
                "--size",
                "1GiB",
                "--file",
                "/f",
                "--huge-pages",
                "off",
            ],
            &["segment", "unmount", "--graceful-ms", "-1", "1"],
            &["segment", "drain", "first"],
        ] {
            assert_eq!(parse(arguments).unwrap_err().exit_code(), 2, "{arguments:?}");
        }
    }

    #[test]
    fn help_explains_exit_codes_and_names_every_command() {
        let help = Arguments::command().render_help().to_string();
        for word in [
            "put",
            "get",
            "ls",
            "rm",
            "touch",
            "pin",
            "unpin",
            "stat",
            "nodes",
            "segments",
            "segment",
            "doctor",
            "Exit codes:",
            "--json",
        ] {
            assert!(help.contains(word), "{word}");
        }
    }
}
