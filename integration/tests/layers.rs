//! Who may know whom: the dependency table of ARCHITECTURE.md, held against every crate's manifest.

use std::collections::BTreeSet;
use std::path::Path;

use tenon_integration::binaries::workspace_dir;

/// A crate, the crates of ours it may use, and the outside crates it must never know.
struct Layer {
    crate_dir: &'static str,
    may_use: &'static [&'static str],
    never: &'static [&'static str],
}

/// What opens sockets, waits, or speaks HTTP.
const IO_CRATES: &[&str] = &["tokio", "socket2", "nix", "libc", "memmap2", "axum", "hyper", "ureq"];
const HTTP_CRATES: &[&str] = &["axum", "hyper", "ureq"];

const TABLE: &[Layer] = &[
    Layer {
        crate_dir: "protocol",
        may_use: &[],
        never: IO_CRATES,
    },
    Layer {
        crate_dir: "store-core",
        may_use: &["tenon-protocol"],
        never: IO_CRATES,
    },
    Layer {
        crate_dir: "transport",
        may_use: &[],
        never: HTTP_CRATES,
    },
    Layer {
        crate_dir: "client",
        may_use: &["tenon-protocol", "tenon-transport"],
        never: HTTP_CRATES,
    },
    Layer {
        crate_dir: "agent",
        may_use: &["tenon-protocol", "tenon-store-core", "tenon-transport", "tenon-client"],
        never: &[],
    },
    // The harness uses what a program outside may use; the daemon it meets as a process only.
    Layer {
        crate_dir: "integration",
        may_use: &["tenon-protocol", "tenon-transport", "tenon-client"],
        never: &[],
    },
];

fn manifest(path: &Path) -> toml::Table {
    let text = std::fs::read_to_string(path).expect("a manifest can be read");
    toml::from_str(&text).expect("a manifest is TOML")
}

/// The names of all dependencies, those of tests and build scripts among them.
fn dependencies(crate_dir: &str) -> BTreeSet<String> {
    let manifest = manifest(&workspace_dir().join(crate_dir).join("Cargo.toml"));
    ["dependencies", "dev-dependencies", "build-dependencies"]
        .iter()
        .filter_map(|kind| manifest.get(*kind)?.as_table())
        .flat_map(|table| table.keys().cloned())
        .collect()
}

#[test]
fn every_crate_uses_only_what_its_layer_may() {
    for layer in TABLE {
        for dependency in dependencies(layer.crate_dir) {
            // A crate may be its own dependency, for tests with more of its features.
            let itself = dependency == format!("tenon-{}", layer.crate_dir);
            if dependency.starts_with("tenon-") && !itself {
                assert!(
                    layer.may_use.contains(&dependency.as_str()),
                    "{} must not use {dependency}: move what is shared down, or what uses it up",
                    layer.crate_dir
                );
            }
            assert!(
                !layer.never.contains(&dependency.as_str()),
                "{} must never know {dependency}",
                layer.crate_dir
            );
        }
    }
}

#[test]
fn every_member_has_its_row_in_the_table() {
    let root = manifest(&workspace_dir().join("Cargo.toml"));
    let members = root["workspace"]["members"].as_array().expect("a list of members");
    for member in members.iter().filter_map(|member| member.as_str()) {
        // The benches measure every layer and nothing builds on them.
        assert!(
            member == "benches" || TABLE.iter().any(|layer| layer.crate_dir == member),
            "{member} has no row in the table"
        );
    }
}

#[test]
fn every_crate_inherits_the_workspace_lints_and_forbids_unsafe_code() {
    for layer in TABLE {
        let dir = workspace_dir().join(layer.crate_dir);
        let manifest = manifest(&dir.join("Cargo.toml"));
        assert_eq!(
            manifest["lints"]["workspace"].as_bool(),
            Some(true),
            "{} must inherit the lints",
            layer.crate_dir
        );
        let lib = std::fs::read_to_string(dir.join("src/lib.rs")).expect("a crate has a lib.rs");
        let wanted = match layer.crate_dir {
            "transport" => "#![deny(unsafe_code)]",
            _ => "#![forbid(unsafe_code)]",
        };
        assert!(lib.contains(wanted), "{}/src/lib.rs lacks {wanted}", layer.crate_dir);
        assert!(
            lib.starts_with("//! "),
            "{}/src/lib.rs must say what the crate is for",
            layer.crate_dir
        );
    }
}
