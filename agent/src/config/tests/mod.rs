//! Every rule of the configuration, by what it refuses and how it says so.

mod cluster;
mod listen;
mod segments;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use tenon_transport::HugePages;

use super::file::Document;
use super::{Backing, Config, Environment, Flags, Host, LogFormat, ViewConfig};

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
        ("placement", "fallback", "indexed"),
        ("placement", "affinity", "local, spread"),
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
    for strategy in [
        "random",
        "free_ratio_first",
        "fragmentation_aware",
        "retry_control",
        "best_fit",
    ] {
        let only = format!("[placement]\nstrategy = \"{strategy}\"\n");
        let is_alone = !["free_ratio_first", "fragmentation_aware"].contains(&strategy);
        if is_alone {
            assert!(loaded(&only).to_toml().contains(strategy));
        }
        for fallback in ["blind", "fit_aware", "indexed"] {
            let text = format!("{only}fallback = \"{fallback}\"\n");
            if is_alone {
                let said = [&*format!("no effect with placement.strategy = \"{strategy}\"")];
                assert_refused(&text, 3, &format!("placement.fallback = \"{fallback}\""), &said);
            } else if fallback == "indexed" {
                let said = ["no effect with placement.fallback = \"indexed\""];
                assert_refused(&text, 2, &format!("placement.strategy = \"{strategy}\""), &said);
                assert_refused(&only, 2, &format!("placement.strategy = \"{strategy}\""), &said);
            } else {
                assert!(loaded(&text).to_toml().contains(strategy));
                assert!(loaded(&text).to_toml().contains(fallback));
            }
        }
    }
    for fallback in ["blind", "fit_aware", "indexed"] {
        let text = format!("[placement]\nfallback = \"{fallback}\"\n");
        assert!(loaded(&text).to_toml().contains(fallback));
    }
    assert_refused(
        "[placement]\naffinity = \"spread\"\nlocal_until_percent = 70\n",
        3,
        "placement.local_until_percent = 70",
        &["no effect with placement.affinity = \"spread\""],
    );
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
fn what_would_be_used_is_itself_a_configuration_that_gives_the_same() {
    let case = Case::new("");
    let secret = case.secret(b"0123456789abcdef0123456789").display().to_string();
    let text = members(ID_2, "10.0.0.7:7601").replace(
        "view = \"static\"\n",
        &format!("view = \"static\"\nname = \"a \\\" b\"\nsecret_file = \"{secret}\"\n"),
    ) + "[listen]\nadvertise = \"127.0.0.1:7601\"\nunix = \"off\"\n\
         [[segments]]\nsize = \"3MiB\"\nhuge_pages = \"off\"\n\
         [[segments]]\nsize = \"1TiB\"\nfile = \"/dev/hugepages/f\"\nslots = 7\n\
         [placement]\naffinity = \"spread\"\nstrategy = \"random\"\n\
         [timeouts]\ndrain_ms = 17\n[log]\nformat = \"json\"\nlevel = \"trace\"\n";
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

/// The file that is installed beside the unit.
const EXAMPLE: &str = include_str!("../../../../systemd/tenond.toml");

/// The example with its keys, which stand behind a `#` without a space.
fn example() -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|first: char| first.is_ascii_lowercase() || first == '[') => format!("{key}\n"),
        _ => format!("{line}\n"),
    };
    EXAMPLE.lines().map(line).collect()
}

#[test]
fn the_example_changes_nothing_as_it_is() {
    assert_eq!(loaded(EXAMPLE).to_toml(), loaded("").to_toml());
}

#[test]
fn the_example_shows_every_key() {
    let case = Case::new("");
    let secret = case.secret(b"0123456789abcdef").display().to_string();
    loaded(&example().replace("/etc/tenon/secret", &secret));
    let document = Document::parse(Path::new("tenond.toml"), &example()).unwrap();
    let mut tables = document.tables;
    let segments = format!("{:?}", tables.segments.take());
    for key in ["size", "huge_pages: Some", "file: Some", "slots: Some"] {
        assert!(segments.contains(key), "{key} is missing in {segments}");
    }
    let others = format!("{tables:?}");
    assert_eq!(
        others.matches("None").count(),
        1,
        "only the segments are not here: {others}"
    );
}
