//! The command line of `tenond`.

use std::path::PathBuf;

use clap::Parser;

use super::size::SizeText;

/// The node agent: contributes this host's memory to the cluster's object store and serves put and get.
#[derive(Debug, Clone, Default, Parser)]
#[command(name = "tenond", version, after_help = AFTER_HELP)]
pub struct Flags {
    /// The configuration [default: TENON_CONFIG, else /etc/tenon/tenond.toml if it exists; none is needed]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the node keeps its id [node.state_dir]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<String>,
    /// Where HTTP is served, on loopback [listen.http]
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
    /// Where other nodes and clients connect [listen.link]
    #[arg(long, value_name = "ADDRESS")]
    pub link: Option<String>,
    /// The unix socket of clients on this host, or "off" [listen.unix]
    #[arg(long, value_name = "PATH")]
    pub unix: Option<String>,
    /// One memory segment of this size, such as 4GiB, instead of those in the file [segments]
    #[arg(long, value_name = "SIZE")]
    pub(super) segment_size: Option<SizeText>,
    /// Check the configuration, print what would be used, and end
    #[arg(long)]
    pub check_config: bool,
    /// Make the state directory and the node's id if they are not there, print the id, and end
    #[arg(long, conflicts_with = "check_config")]
    pub init: bool,
}

const AFTER_HELP: &str = "\
A flag overrides its setting in the file, named in brackets. Port 0 takes any free port: the log and
addresses.json in the state directory tell which.

Signals: SIGTERM and SIGINT have the node move what it alone holds to others and stop within timeouts.drain_ms; a second one stops it at once.

Exit codes:
  0   stopped as asked, or nothing wrong with the configuration
  2   wrong usage, or a configuration that cannot be used
  3   an address cannot be bound or dialled
  4   the memory of a segment cannot be had
  5   the state directory cannot be used, or another agent uses it
  70  a fault of the program itself";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn checking_and_making_an_id_exclude_each_other() {
        assert!(Flags::try_parse_from(["tenond", "--init", "--check-config"]).is_err());
        assert!(Flags::try_parse_from(["tenond", "--init"]).unwrap().init);
    }
}
