//! Bits that flip on the wire: other bytes than those that were put are never delivered and never stored.

use tenon_integration::account::{assert_accounts, assert_empty};
use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::http::Http;
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::proxy::{Fault, Toward};

const LENGTH: usize = (8 << 20) + 4321;
/// Beyond anything that a control call or a handshake carries, within the first piece of a lane.
const IN_PAYLOAD: u64 = 300_000;
/// Exit code of `tenon` for bytes that could not be read rightly.
const EXIT_FAILED_READ: i32 = 5;

/// Two nodes; the second is reached through a proxy only.
fn pair() -> Cluster {
    Cluster::start_with(&ClusterOptions {
        nodes: 2,
        proxied: vec![1],
        ..ClusterOptions::default()
    })
}

#[test]
fn a_get_whose_bytes_are_damaged_each_time_fails_and_delivers_none_of_them() {
    let cluster = pair();
    let bytes = payload(1, LENGTH);
    cluster[1].http().put_object("damaged", &bytes);
    let proxy = cluster[1].proxy();
    proxy.set(Toward::Dialler, Fault::FlipEvery(IN_PAYLOAD));

    let dir = tempfile::tempdir().expect("a temporary directory");
    let copy = dir.path().join("copy");
    let get = cluster[0].tenon(&["get", "damaged", "-o", copy.to_str().expect("a path in UTF-8")]);
    assert_eq!(get.status.code(), Some(EXIT_FAILED_READ), "{get:?}");
    assert!(!copy.exists(), "a file that is not the object was left behind");
    let by_command_line = proxy.flipped_bits();
    assert!(by_command_line > 0, "nothing was damaged, so nothing was shown");

    // Over HTTP the answer may have begun when the damage is met: then the body breaks off, and what came before it is right.
    let got = cluster[0].http().get_object("damaged");
    match (got.status, &got.body) {
        (200, Ok(_)) => panic!("a whole body was delivered"),
        (200, Err(_)) => {}
        _ => drop(got.expect_error(502, "failed_read")),
    }
    assert!(proxy.flipped_bits() > by_command_line);

    proxy.heal();
    assert_same(
        cluster[0].http().get_object("damaged").expect(200).bytes(),
        &bytes,
        "after the damage",
    );
    assert_accounts(&cluster);
}

#[test]
fn one_flipped_bit_in_a_get_is_read_again_or_fails_and_is_never_delivered() {
    let cluster = pair();
    let bytes = payload(2, LENGTH);
    cluster[1].http().put_object("hurt once", &bytes);
    let proxy = cluster[1].proxy();
    for offset in [IN_PAYLOAD, IN_PAYLOAD + (1 << 20), 3 << 20] {
        let before = proxy.flipped_bits();
        proxy.set(Toward::Dialler, Fault::FlipAt(offset));
        let get = cluster[0].tenon(&["get", "hurt once"]);
        match get.status.code() {
            Some(0) => assert_same(&get.stdout, &bytes, "a get that succeeded"),
            Some(EXIT_FAILED_READ) => {}
            _ => panic!("{:?}: {}", get.status, String::from_utf8_lossy(&get.stderr)),
        }
        assert!(
            proxy.flipped_bits() > before,
            "nothing was damaged at {offset}, so nothing was shown"
        );
    }
    proxy.heal();
    assert_accounts(&cluster);
}

#[test]
fn a_put_whose_bytes_are_damaged_fails_and_stores_nothing() {
    let cluster = pair();
    let bytes = payload(3, LENGTH);
    let node = cluster[1].id();
    let proxy = cluster[1].proxy();
    proxy.set(Toward::Node, Fault::FlipEvery(IN_PAYLOAD));
    let path = format!("{}?node={node}", Http::object_path("never"));
    let put = cluster[0].http().put(&path, &bytes);
    assert!(put.status >= 400, "{put:?}");
    assert_eq!(put.code(), "checksum_mismatch");
    assert!(proxy.flipped_bits() > 0, "nothing was damaged, so nothing was shown");
    assert_empty(&cluster);

    proxy.heal();
    cluster[0].http().get_object("never").expect_error(404, "not_found");
    cluster[0].http().put_object_on("never", &bytes, node);
    assert_same(
        cluster[0].http().get_object("never").expect(200).bytes(),
        &bytes,
        "after the damage",
    );
    assert_accounts(&cluster);
}

#[test]
fn lanes_that_are_cut_in_the_middle_of_transfers_cost_no_correctness() {
    let cluster = pair();
    let bytes = payload(4, LENGTH);
    cluster[1].http().put_object("cut", &bytes);
    let proxy = cluster[1].proxy();
    for round in 0..10u64 {
        let got = std::thread::scope(|scope| {
            let get = scope.spawn(|| cluster[0].tenon(&["get", "cut"]));
            std::thread::sleep(std::time::Duration::from_millis(5 * round));
            proxy.cut();
            get.join().expect("the get")
        });
        match got.status.code() {
            Some(0) => assert_same(&got.stdout, &bytes, "a get that succeeded"),
            // Unavailable within its deadline is an answer too; anything else is not.
            Some(3) => {}
            _ => panic!("{:?}: {}", got.status, String::from_utf8_lossy(&got.stderr)),
        }
    }
    cluster.wait_all_alive();
    assert_same(
        cluster[0].http().get_object("cut").expect(200).bytes(),
        &bytes,
        "when all is well again",
    );
    assert_accounts(&cluster);
}
