//! Addresses.

use std::net::SocketAddr;

use tenon_protocol::ids::NodeId;

use super::{Case, ID_1, ID_2, assert_refused, loaded, members};

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
