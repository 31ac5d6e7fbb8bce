//! Secret, view and members.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{Case, HOST, ID_1, ID_2, assert_refused, loaded, members};
use crate::config::{Config, Environment, Flags};

#[test]
fn a_cluster_has_a_name() {
    assert_refused("[cluster]\nname = \"\"\n", 2, "cluster.name = \"\"", &["1 to 128"]);
    assert_refused("[cluster]\nname = \"a\\nb\"\n", 2, "cluster.name", &["control"]);
    let name = "n".repeat(129);
    assert_refused(&format!("[cluster]\nname = \"{name}\"\n"), 2, "cluster.name", &["128"]);
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
fn who_only_looks_may_do_without_a_secret_that_is_not_theirs_to_read() {
    let looked_at = |toml: &str| {
        let case = Case::new(toml);
        let flags = Flags {
            config: Some(case.path.clone()),
            ..Flags::default()
        };
        Config::load_to_look_at(&flags, &Environment::default(), &HOST)
    };
    let (config, error) = looked_at("[cluster]\nsecret_file = \"credential:secret\"\n").unwrap();
    assert!(config.cluster.secret.is_none());
    assert!(error.unwrap().to_string().contains("CREDENTIALS_DIRECTORY"));
    let errors = looked_at("[cluster]\nsecret_file = \"/no/such/secret\"\n").unwrap_err();
    assert_eq!(errors.0.len(), 1);
    let errors = looked_at("[cluster]\nsecret_file = \"credential:secret\"\nname = \"\"\n").unwrap_err();
    assert_eq!(
        errors.0.len(),
        2,
        "the secret is told beside what else is wrong: {errors}"
    );
}
