//! Every rule of the configuration, by what it refuses and how it says so.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use tenon_protocol::ids::NodeId;
use tenon_transport::HugePages;

use super::{Backing, Config, Environment, Flags, Host, LogFormat, ViewConfig};
use crate::limits::SEGMENTS_MAX;

const HOST: Host = Host {
    ram_bytes: 16 << 30,
    page_bytes: 4096,
    huge_page_bytes: Some(2 << 20),
};
const ID_1: &str = "0123456789abcdef0123456789abcdef";
const ID_2: &str = "00000000000000000000000000000002";

struct Case {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Case {
    fn new(toml: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tenond.toml");
        fs::write(&path, toml).unwrap();
        Self { dir, path }
    }

    fn load_with(&self, flags: &[&str], environment: &Environment) -> Result<Config, String> {
        let path = self.path.to_str().unwrap();
        let arguments = ["tenond", "--config", path];
        let flags = Flags::try_parse_from(arguments.iter().chain(flags)).map_err(|error| error.to_string())?;
        Config::load(&flags, environment, &HOST).map_err(|error| error.to_string())
    }

    fn load(&self) -> Result<Config, String> {
        self.load_with(&[], &Environment::default())
    }

    fn secret(&self, content: &[u8]) -> PathBuf {
        let path = self.dir.path().join("secret");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

fn loaded(toml: &str) -> Config {
    Case::new(toml).load().unwrap()
}

/// Checks that a file is refused on `line` because of `key` with a message that has all `parts`.
#[track_caller]
fn assert_refused(toml: &str, line: usize, key: &str, parts: &[&str]) {
    let case = Case::new(toml);
    let error = case.load().unwrap_err();
    let start = format!("{}:{line}: {key}", case.path.display());
    let found = error.lines().find(|message| message.starts_with(&start));
    let message = found.unwrap_or_else(|| panic!("no line of {error:?} starts with {start:?}"));
    for part in parts {
        assert!(message.contains(part), "{part:?} is missing in {message:?}");
    }
}

fn members(second_id: &str, second_endpoint: &str) -> String {
    format!(
        "[cluster]\nview = \"static\"\n\
         [[cluster.members]]\nid = \"{ID_1}\"\nendpoint = \"127.0.0.1:7601\"\n\
         [[cluster.members]]\nid = \"{second_id}\"\nendpoint = \"{second_endpoint}\"\n"
    )
}

#[test]
fn nothing_needs_to_be_configured() {
    let config = loaded("");
    assert_eq!(config.state_dir, Path::new("/var/lib/tenon"));
    assert_eq!(config.cluster.name, "tenon");
    assert!(config.cluster.secret.is_none());
    assert_eq!(config.cluster.view, ViewConfig::Standalone);
    assert_eq!(config.listen.http.to_string(), "127.0.0.1:7600");
    assert_eq!(config.listen.link.to_string(), "127.0.0.1:7601");
    assert_eq!(config.listen.unix.as_deref(), Some(Path::new("/run/tenon/tenon.sock")));
    assert_eq!(config.timeouts.reservation_ttl.as_secs(), 30);
    assert_eq!(config.timeouts.heartbeat.as_secs(), 1);
    assert_eq!(config.timeouts.unreachable_after.as_secs(), 3);
    assert_eq!(config.timeouts.drain.as_secs(), 10);
    let [segment] = &config.segments[..] else {
        panic!("one segment")
    };
    assert_eq!(segment.len_bytes, 1 << 30);
    assert_eq!(segment.slots, 16384);
    assert_eq!(segment.backing, Backing::Memfd(HugePages::Prefer));
}

#[test]
fn a_small_host_gives_a_quarter_of_its_memory() {
    let host = Host {
        ram_bytes: 2 << 30,
        ..HOST
    };
    let case = Case::new("");
    let flags = Flags {
        config: Some(case.path.clone()),
        ..Flags::default()
    };
    let config = Config::load(&flags, &Environment::default(), &host).unwrap();
    assert_eq!(config.segments[0].len_bytes, 512 << 20);
}

#[test]
fn a_flag_goes_before_the_file() {
    let case = Case::new(
        "[node]\nstate_dir = \"/a\"\n[listen]\nhttp = \"127.0.0.1:1\"\nlink = \"127.0.0.1:2\"\nunix = \"/a.sock\"\n\
         [[segments]]\nsize = \"8MiB\"\n[[segments]]\nsize = \"8MiB\"\n",
    );
    let flags = "--state-dir /b --http 127.0.0.1:3 --link 127.0.0.1:4 --unix off --segment-size 16MiB";
    let flags: Vec<&str> = flags.split(' ').collect();
    let config = case.load_with(&flags, &Environment::default()).unwrap();
    assert_eq!(config.state_dir, Path::new("/b"));
    assert_eq!(config.listen.http.port(), 3);
    assert_eq!(config.listen.link.port(), 4);
    assert_eq!(config.listen.unix, None);
    assert_eq!(config.segments.len(), 1);
    assert_eq!(config.segments[0].len_bytes, 16 << 20);
    assert_eq!(config.segments[0].slots, 256);
}

#[test]
fn an_error_of_a_flag_names_the_flag() {
    let case = Case::new("");
    let error = case
        .load_with(&["--segment-size", "1GB"], &Environment::default())
        .unwrap_err();
    assert!(
        error.contains("flag --segment-size: segments[0].size = \"1GB\"") && error.contains("1GiB"),
        "{error}"
    );
    let error = case
        .load_with(&["--http", "0.0.0.0:7600"], &Environment::default())
        .unwrap_err();
    assert!(
        error.contains("flag --http: listen.http = \"0.0.0.0:7600\"") && error.contains("loopback"),
        "{error}"
    );
}

#[test]
fn the_environment_names_the_file_unless_a_flag_does() {
    let (flagged, ambient) = (
        Case::new("[cluster]\nname = \"flagged\""),
        Case::new("[cluster]\nname = \"ambient\""),
    );
    let environment = Environment {
        config: Some(ambient.path.clone()),
        ..Environment::default()
    };
    let config = Config::load(&Flags::default(), &environment, &HOST).unwrap();
    assert_eq!(config.cluster.name, "ambient");
    let config = flagged.load_with(&[], &environment).unwrap();
    assert_eq!(config.cluster.name, "flagged");
}

#[test]
fn all_errors_are_told_at_once() {
    let error = Case::new("[node]\nstate_dir = \"state\"\n[listen]\nlink = \"7601\"\n[log]\nlevel = \"loud\"\n")
        .load()
        .unwrap_err();
    assert_eq!(error.lines().count(), 3, "{error}");
}

#[test]
fn names_that_stand_for_nothing_are_refused_with_those_that_do() {
    for (section, key, allowed) in [
        ("cluster", "view", "standalone, static"),
        ("placement", "strategy", "free_ratio_first"),
        ("placement", "fallback", "fit_aware"),
        ("log", "format", "text, json"),
        ("log", "level", "error, warn, info, debug, trace"),
    ] {
        assert_refused(
            &format!("[{section}]\n{key} = \"nonsense\"\n"),
            2,
            &format!("{section}.{key} = \"nonsense\""),
            &[allowed],
        );
    }
    assert_refused(
        "[[segments]]\nsize = \"1MiB\"\nhuge_pages = \"yes\"\n",
        3,
        "segments[0].huge_pages = \"yes\"",
        &["require, prefer, off"],
    );
}

#[test]
fn every_listed_name_is_taken() {
    for strategy in ["random", "free_ratio_first"] {
        for fallback in ["blind", "fit_aware"] {
            let text = format!("[placement]\nstrategy = \"{strategy}\"\nfallback = \"{fallback}\"\n");
            assert!(loaded(&text).to_toml().contains(strategy));
        }
    }
    assert_eq!(loaded("[log]\nformat = \"json\"").log.format, LogFormat::Json);
}

#[test]
fn relative_paths_are_refused() {
    assert_refused(
        "[node]\nstate_dir = \"state\"\n",
        2,
        "node.state_dir = \"state\"",
        &["absolute"],
    );
    assert_refused(
        "[listen]\nunix = \"tenon.sock\"\n",
        2,
        "listen.unix = \"tenon.sock\"",
        &["absolute"],
    );
    assert_refused(
        "[[segments]]\nsize = \"1MiB\"\nfile = \"f\"\n",
        3,
        "segments[0].file = \"f\"",
        &["absolute"],
    );
}

#[test]
fn a_socket_path_that_the_system_cannot_bind_is_refused() {
    let path = format!("/{}", "s".repeat(107));
    assert_refused(
        &format!("[listen]\nunix = \"{path}\"\n"),
        2,
        "listen.unix",
        &["107", "108"],
    );
    let longest = &path[..107];
    assert!(Case::new(&format!("[listen]\nunix = \"{longest}\"\n")).load().is_ok());
}

#[test]
fn a_cluster_has_a_name() {
    assert_refused("[cluster]\nname = \"\"\n", 2, "cluster.name = \"\"", &["1 to 128"]);
    assert_refused("[cluster]\nname = \"a\\nb\"\n", 2, "cluster.name", &["control"]);
    let name = "n".repeat(129);
    assert_refused(&format!("[cluster]\nname = \"{name}\"\n"), 2, "cluster.name", &["128"]);
}

#[test]
fn addresses_are_literal() {
    for address in ["localhost:7600", "127.0.0.1", ":7600", "127.0.0.1:70000"] {
        assert_refused(
            &format!("[listen]\nhttp = \"{address}\"\n"),
            2,
            "listen.http",
            &[address, "127.0.0.1:7601"],
        );
    }
}

#[test]
fn http_off_loopback_is_refused_even_with_a_secret() {
    let case = Case::new("");
    let secret = case.secret(b"0123456789abcdef").display().to_string();
    for address in ["0.0.0.0:7600", "[::]:7600", "10.0.0.7:7600"] {
        let text = format!("[cluster]\nsecret_file = \"{secret}\"\n[listen]\nhttp = \"{address}\"\n");
        assert_refused(&text, 4, "listen.http", &[address, "loopback"]);
    }
    for address in ["127.0.0.9:7600", "[::1]:7600"] {
        assert!(Case::new(&format!("[listen]\nhttp = \"{address}\"\n")).load().is_ok());
    }
}

#[test]
fn nothing_is_off_loopback_without_a_secret() {
    for address in ["0.0.0.0:7601", "10.0.0.7:7601", "[::]:7601"] {
        assert_refused(
            &format!("[listen]\nadvertise = \"127.0.0.1:7601\"\nlink = \"{address}\"\n"),
            3,
            "listen.link",
            &[address, "secret_file"],
        );
    }
    assert_refused(
        &members(ID_2, "10.0.0.7:7601"),
        8,
        "cluster.members[1].endpoint",
        &["10.0.0.7:7601", "secret_file"],
    );
}

#[test]
fn with_a_secret_the_link_may_be_anywhere() {
    let case = Case::new("");
    let secret = case.secret(b"0123456789abcdef\n").display().to_string();
    let text = format!("[cluster]\nsecret_file = \"{secret}\"\n[listen]\nlink = \"10.0.0.7:7601\"\n");
    let config = loaded(&text);
    assert_eq!(config.cluster.secret.unwrap().secret.expose(), b"0123456789abcdef");
}

#[test]
fn two_listeners_do_not_share_an_address() {
    assert_refused(
        "[listen]\nlink = \"127.0.0.1:7600\"\n",
        2,
        "listen.link",
        &["listen.http"],
    );
    assert!(
        Case::new("[listen]\nhttp = \"127.0.0.1:0\"\nlink = \"127.0.0.1:0\"\n")
            .load()
            .is_ok()
    );
}

#[test]
fn a_secret_that_cannot_be_used_is_refused() {
    let case = Case::new("");
    for (content, reason) in [
        (&b""[..], "empty"),
        (b"short", "at least 16"),
        (&[b'x'; 5000][..], "more than 4096"),
    ] {
        let secret = case.secret(content).display().to_string();
        let text = format!("[cluster]\nsecret_file = \"{secret}\"\n");
        assert_refused(&text, 2, "cluster.secret_file", &[&secret, reason]);
    }
    let secret = case.secret(b"0123456789abcdef");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let text = format!("[cluster]\nsecret_file = \"{}\"\n", secret.display());
    assert_refused(&text, 2, "cluster.secret_file", &["0644", "chmod"]);
    assert_refused(
        "[cluster]\nsecret_file = \"/nonexistent/secret\"\n",
        2,
        "cluster.secret_file",
        &["No such file"],
    );
    assert_refused(
        "[cluster]\nsecret_file = \"secret\"\n",
        2,
        "cluster.secret_file",
        &["credential:NAME"],
    );
    assert_refused(
        "[cluster]\nsecret_file = \"credential:x\"\n",
        2,
        "cluster.secret_file",
        &["LoadCredential"],
    );
}

#[test]
fn a_secret_may_be_a_systemd_credential() {
    let case = Case::new("[cluster]\nsecret_file = \"credential:secret\"\n");
    case.secret(b"0123456789abcdef");
    let environment = Environment {
        credentials_dir: Some(case.dir.path().to_owned()),
        ..Environment::default()
    };
    let config = case.load_with(&[], &environment).unwrap();
    assert!(config.to_toml().contains("secret_file = \"credential:secret\""));
}

#[test]
fn the_advertised_address_can_be_dialled() {
    for address in ["0.0.0.0:7601", "127.0.0.1:0"] {
        assert_refused(
            &format!("[listen]\nadvertise = \"{address}\"\n"),
            2,
            "listen.advertise",
            &[address, "dial"],
        );
    }
    for address in ["nowhere.invalid:7601", "127.0.0.1"] {
        assert_refused(
            &format!("[listen]\nadvertise = \"{address}\"\n"),
            2,
            "listen.advertise",
            &[address, "cannot be resolved"],
        );
    }
    let config = loaded("[listen]\nadvertise = \"localhost:7601\"\n");
    assert!(config.listen.advertise.unwrap().ip().is_loopback());
}

#[test]
fn a_link_on_every_address_needs_one_that_others_dial() {
    let case = Case::new("");
    let secret = case.secret(b"0123456789abcdef").display().to_string();
    let text = format!("[cluster]\nsecret_file = \"{secret}\"\n[listen]\nlink = \"0.0.0.0:7601\"\n");
    assert_refused(&text, 4, "listen.link", &["0.0.0.0:7601", "listen.advertise"]);
    assert!(
        Case::new(&format!("{text}advertise = \"10.0.0.7:7601\"\n"))
            .load()
            .is_ok()
    );
}

#[test]
fn what_is_advertised_is_the_setting_else_the_member_list_else_the_link() {
    let node: NodeId = ID_1.parse().unwrap();
    let bound: SocketAddr = "127.0.0.1:4444".parse().unwrap();
    assert_eq!(loaded("").advertised(node, bound), bound);
    let listed = loaded(&members(ID_2, "127.0.0.2:7601"));
    assert_eq!(listed.advertised(node, bound).to_string(), "127.0.0.1:7601");
    let set = loaded("[listen]\nadvertise = \"127.0.0.7:1\"\n");
    assert_eq!(set.advertised(node, bound).to_string(), "127.0.0.7:1");
}

#[test]
fn sizes_of_segments_are_whole_pages_of_at_least_a_piece() {
    for (size, reason) in [
        ("\"1GB\"", "1GiB"),
        ("\"\"", "1GiB"),
        ("-1", "1GiB"),
        ("4096", "at least 1MiB"),
        ("0", "at least 1MiB"),
        ("1048577", "4096"),
        ("\"16777216TiB\"", "2^64"),
    ] {
        assert_refused(
            &format!("[[segments]]\nsize = {size}\n"),
            2,
            "segments[0].size = ",
            &[reason],
        );
    }
    assert_refused(
        "[[segments]]\nsize = \"3MiB\"\nhuge_pages = \"require\"\n",
        2,
        "segments[0].size",
        &["2097152"],
    );
    for size in ["1048576", "\"1MiB\"", "\"1 GiB\""] {
        assert!(
            Case::new(&format!("[[segments]]\nsize = {size}\n")).load().is_ok(),
            "{size}"
        );
    }
}

#[test]
fn segments_and_tables_fit_in_memory_unless_they_are_files() {
    assert_refused(
        "[[segments]]\nsize = \"16GiB\"\n",
        1,
        "segments",
        &[&HOST.ram_bytes.to_string()],
    );
    assert_refused(
        "[[segments]]\nsize = \"1GiB\"\nslots = 67108864\n",
        1,
        "segments",
        &["tables"],
    );
    assert!(
        Case::new("[[segments]]\nsize = \"1TiB\"\nfile = \"/dev/hugepages/tenon\"\nslots = 1024\n")
            .load()
            .is_ok()
    );
}

#[test]
fn slots_have_a_range() {
    for slots in ["0", "67108865"] {
        assert_refused(
            &format!("[[segments]]\nsize = \"1GiB\"\nslots = {slots}\n"),
            3,
            "segments[0].slots",
            &[slots, "1 to 67108864"],
        );
    }
    assert_eq!(
        loaded("[[segments]]\nsize = \"1MiB\"\nslots = 1\n").segments[0].slots,
        1
    );
}

#[test]
fn a_list_of_segments_is_neither_empty_nor_endless() {
    assert_refused("segments = []\n", 1, "segments = a list of 0", &["at least one"]);
    let many = "[[segments]]\nsize = \"1MiB\"\nslots = 1\n".repeat(SEGMENTS_MAX + 1);
    assert_refused(&many, 1, "segments = a list of 1025", &["at most 1024"]);
}

#[test]
fn a_file_holds_one_segment_and_decides_its_pages() {
    let one = "[[segments]]\nsize = \"1MiB\"\nfile = \"/dev/shm/a\"\n";
    assert_refused(
        &one.repeat(2),
        6,
        "segments[1].file",
        &["/dev/shm/a", "segments[0].file"],
    );
    assert_refused(
        &format!("{one}huge_pages = \"prefer\"\n"),
        4,
        "segments[0].huge_pages",
        &["file system"],
    );
    let config = loaded(one);
    assert_eq!(config.segments[0].backing, Backing::File("/dev/shm/a".into()));
}

#[test]
fn timeouts_are_positive_and_in_order() {
    for key in ["reservation_ttl_ms", "heartbeat_ms", "unreachable_after_ms", "drain_ms"] {
        assert_refused(
            &format!("[timeouts]\n{key} = 0\n"),
            2,
            &format!("timeouts.{key} = 0"),
            &["from 1 to"],
        );
        assert_refused(
            &format!("[timeouts]\n{key} = 3600001\n"),
            2,
            &format!("timeouts.{key} = 3600001"),
            &["from 1 to"],
        );
    }
    assert_refused(
        "[timeouts]\nheartbeat_ms = 3000\n",
        2,
        "timeouts.heartbeat_ms",
        &["unreachable_after_ms (3000)"],
    );
}

#[test]
fn a_static_view_needs_a_list_and_a_list_a_static_view() {
    assert_refused(
        "[cluster]\nview = \"static\"\n",
        2,
        "cluster.view = \"static\"",
        &["[[cluster.members]]"],
    );
    assert_refused(
        "[cluster]\nview = \"static\"\nmembers = []\n",
        3,
        "cluster.members",
        &["[[cluster.members]]"],
    );
    let unused = members(ID_2, "127.0.0.2:7601").replace("\"static\"", "\"standalone\"");
    assert_refused(&unused, 3, "cluster.members = a list of 2", &["standalone", "static"]);
}

#[test]
fn members_have_ids_and_addresses_that_differ() {
    assert_refused(
        &members("12", "127.0.0.2:7601"),
        7,
        "cluster.members[1].id = \"12\"",
        &["32 hexadecimal"],
    );
    assert_refused(
        &members(ID_1, "127.0.0.2:7601"),
        7,
        "cluster.members[1].id",
        &["cluster.members[0].id"],
    );
    assert_refused(
        &members(ID_2, "127.0.0.1:7601"),
        8,
        "cluster.members[1].endpoint",
        &["cluster.members[0].endpoint"],
    );
    for endpoint in ["host:7601", "127.0.0.1:0", "0.0.0.0:7601"] {
        assert_refused(&members(ID_2, endpoint), 8, "cluster.members[1].endpoint", &[endpoint]);
    }
}

#[test]
fn a_list_has_at_most_as_many_members_as_a_cluster_may_have() {
    let mut text = String::from("[cluster]\nview = \"static\"\n");
    for index in 1..=1025 {
        let endpoint = format!("127.0.0.1:{index}");
        text += &format!("[[cluster.members]]\nid = \"{index:032x}\"\nendpoint = \"{endpoint}\"\n");
    }
    assert_refused(&text, 3, "cluster.members = a list of 1025", &["at most 1024"]);
}

#[test]
fn a_node_that_is_not_in_its_own_list_is_refused() {
    let case = Case::new(&members(ID_2, "127.0.0.2:7601"));
    let config = case.load().unwrap();
    config.check_membership(Some(ID_1.parse().unwrap())).unwrap();
    config.check_membership(Some(ID_2.parse().unwrap())).unwrap();
    let stranger = "ffffffffffffffffffffffffffffffff";
    let error = config.check_membership(Some(stranger.parse().unwrap())).unwrap_err();
    assert!(
        error.to_string().contains(stranger) && error.to_string().contains("tenond.toml:3: cluster.members"),
        "{error}"
    );
    let error = config.check_membership(None).unwrap_err();
    assert!(error.to_string().contains("tenond --init"), "{error}");
    loaded("").check_membership(None).unwrap();
}

#[test]
fn the_advertised_address_agrees_with_the_list() {
    let text = members(ID_2, "127.0.0.2:7601") + "[listen]\nadvertise = \"127.0.0.9:7601\"\n";
    let error = loaded(&text).check_membership(Some(ID_1.parse().unwrap())).unwrap_err();
    assert!(
        error.to_string().contains("127.0.0.1:7601") && error.to_string().contains("127.0.0.9:7601"),
        "{error}"
    );
}

#[test]
fn what_would_be_used_is_itself_a_configuration_that_gives_the_same() {
    let case = Case::new("");
    let secret = case.secret(b"0123456789abcdef0123456789").display().to_string();
    let text = members(ID_2, "10.0.0.7:7601").replace(
        "view = \"static\"\n",
        &format!("view = \"static\"\nname = \"a \\\" b\"\nsecret_file = \"{secret}\"\n"),
    ) + "[listen]\nadvertise = \"127.0.0.1:7601\"\nunix = \"off\"\n\
         [[segments]]\nsize = \"3MiB\"\nhuge_pages = \"off\"\n[[segments]]\nsize = \"1TiB\"\nfile = \"/dev/hugepages/f\"\nslots = 7\n\
         [placement]\nstrategy = \"random\"\nfallback = \"blind\"\n[timeouts]\ndrain_ms = 17\n[log]\nformat = \"json\"\nlevel = \"trace\"\n";
    for text in [&text, ""] {
        let first = loaded(text).to_toml();
        let second = loaded(&first).to_toml();
        assert_eq!(first, second);
        assert!(
            !first.contains("0123456789abcdef0123456789\""),
            "the secret is shown: {first}"
        );
    }
    let shown = loaded(&text).to_toml();
    for part in [
        "drain_ms = 17",
        "size = \"3MiB\"",
        "slots = 48",
        "slots = 7",
        "off",
        &secret,
    ] {
        assert!(shown.contains(part), "{part:?} is missing in {shown}");
    }
}

#[test]
fn a_file_that_is_named_must_be_there() {
    let flags = Flags {
        config: Some("/nonexistent/tenond.toml".into()),
        ..Flags::default()
    };
    let error = Config::load(&flags, &Environment::default(), &HOST).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/tenond.toml"), "{error}");
}

#[test]
fn the_state_directory_is_known_before_the_members_are() {
    let case = Case::new("[node]\nstate_dir = \"/a\"\n[cluster]\nview = \"static\"\n");
    let flags = |arguments: &[&str]| Flags {
        config: Some(case.path.clone()),
        ..Flags::try_parse_from(["tenond"].iter().chain(arguments)).unwrap()
    };
    assert!(Config::load(&flags(&[]), &Environment::default(), &HOST).is_err());
    let state_dir = |arguments| Config::load_state_dir(&flags(arguments), &Environment::default());
    assert_eq!(state_dir(&[]).unwrap(), Path::new("/a"));
    assert_eq!(state_dir(&["--state-dir", "/b"]).unwrap(), Path::new("/b"));
    let error = state_dir(&["--state-dir", "b"]).unwrap_err();
    assert!(
        error.to_string().contains("flag --state-dir: node.state_dir = \"b\""),
        "{error}"
    );
}
