//! Devices and ports that come, go and change their names while the engine uses them; skipped where the environment names
//! no devices, and on devices that are not to be disturbed.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "support/verbs.rs"]
mod devices;
#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::sync::Arc;
use std::time::Duration;

use hosts::{Hosts, devices_of, is_native, paths_up, pattern, read_well, run, set_link, until};
use support::{SESSION, soon};
use tenon_transport::limits::VERBS_LOOK_PERIOD;
use tenon_transport::verbs::engine::{OpenError, Rails, RailsOptions, Registration};
use tenon_transport::{Memory, Rights};
use tokio::runtime::Handle;

/// Of A, the second rail's.
const DEVICE: &str = "rxe2";

fn second_device() -> RailsOptions {
    RailsOptions {
        devices: Some(vec![DEVICE.to_owned()]),
        ..RailsOptions::default()
    }
}

/// The system removes it when nobody uses it any more.
async fn is_let_go() {
    let removing = tokio::task::spawn_blocking(|| run("rdma", &["link", "del", DEVICE]));
    until("the device is let go", || removing.is_finished()).await;
    removing.await.unwrap();
}

/// For the tests that follow.
async fn comes_back() {
    run("rdma", &["link", "add", DEVICE, "type", "rxe", "netdev", "rail2a"]);
    let is_back = || Rails::open(second_device(), &Handle::current()).is_ok();
    until("the device is there again", is_back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_goes_down_is_let_go_without_traffic_and_used_again_when_it_is_active() {
    let Some(hosts) = Hosts::new(2).await.filter(|_| !is_native()) else {
        return;
    };
    let connection = hosts.open(SESSION).await.unwrap();
    assert_eq!((paths_up(&connection), hosts.ours.names().count()), (2, 2));
    set_link("down").await;
    until("the path is closed", || paths_up(&connection) == 1).await;
    assert_eq!(hosts.ours.names().count(), 1);
    assert_eq!(hosts.ours.unused().len(), 1, "{:?}", hosts.ours.unused());
    let (_owner, key) = hosts.export(pattern(1 << 20), Rights::Read);
    read_well(&connection, key, 1 << 20).await;
    set_link("up").await;
    until("the path is there again", || paths_up(&connection) == 2).await;
    assert_eq!(hosts.ours.names().count(), 2);
    read_well(&connection, key, 1 << 20).await;
    let events = hosts.ours.events().named();
    for wanted in ["port_active", "port_error"] {
        assert!(
            events.iter().any(|(name, count)| *name == wanted && *count > 0),
            "{events:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_becomes_active_after_the_start_is_taken_into_use() {
    let (Some(ours), Some(theirs)) = (devices_of(false, 1), devices_of(true, 1)) else {
        return;
    };
    if is_native() {
        return;
    }
    set_link("down").await;
    let port_is_down = || Rails::open(ours.clone(), &Handle::current()).is_err();
    until("a port that is down is no port to start with", port_is_down).await;
    let patient = RailsOptions {
        waits_for_ports: true,
        ..ours.clone()
    };
    let other = RailsOptions {
        waits_for_ports: true,
        ..theirs
    };
    let hosts = Hosts::with(patient, other).await;
    let refused = hosts.open(SESSION).await.unwrap_err();
    assert!(matches!(refused, OpenError::NoPath { .. }), "{refused}");
    let revision = hosts.ours.revision();
    set_link("up").await;
    until("the port is used", || hosts.ours.names().count() == 1).await;
    until("the change is told", || hosts.ours.revision() != revision).await;
    let deadline = soon();
    let connection = loop {
        match hosts.open(SESSION).await {
            Ok(connection) => break connection,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let (_owner, key) = hosts.export(pattern(1 << 20), Rights::Read);
    read_well(&connection, key, 1 << 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_removed_is_let_go_and_the_others_carry() {
    let Some(hosts) = Hosts::new(2).await.filter(|_| !is_native()) else {
        return;
    };
    let (_owner, key) = hosts.export(pattern(1 << 20), Rights::Read);
    let _registered = hosts.ours.register(&Arc::new(Memory::from_vec(vec![0; 4096]))).unwrap();
    let connection = hosts.open(SESSION).await.unwrap();
    read_well(&connection, key, 1 << 20).await;
    assert_eq!((paths_up(&connection), hosts.ours.names().count()), (2, 2));
    is_let_go().await;
    assert_eq!((paths_up(&connection), hosts.ours.names().count()), (1, 1));
    read_well(&connection, key, 1 << 20).await;
    comes_back().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_is_registered_while_its_device_goes_does_not_keep_it() {
    if devices_of(false, 2).is_none() || is_native() {
        return;
    }
    let rails = Rails::open(second_device(), &Handle::current()).unwrap();
    let using = Arc::clone(&rails);
    // Until it is gone; what was being registered then is kept.
    let registering = tokio::task::spawn_blocking(move || {
        let memories = [(); 2].map(|()| Arc::new(Memory::from_vec(vec![0; 32 << 20])));
        let mut kept: Option<Registration> = None;
        for memory in memories.iter().cycle() {
            let registered = using.register(memory).unwrap();
            drop(kept.replace(registered));
            if using.names().next().is_none() {
                break;
            }
        }
        kept
    });
    is_let_go().await;
    let kept = registering.await.unwrap();
    assert!(kept.is_some() && rails.names().next().is_none());
    comes_back().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_gets_another_name_is_used_on() {
    let Some(hosts) = Hosts::new(2).await.filter(|_| !is_native()) else {
        return;
    };
    let (_owner, key) = hosts.export(pattern(1 << 20), Rights::Read);
    let connection = hosts.open(SESSION).await.unwrap();
    for (before, after) in [(DEVICE, "renamed0"), ("renamed0", DEVICE)] {
        run("rdma", &["dev", "set", before, "name", after]);
        // So long that it has been looked for under its old name.
        tokio::time::sleep(VERBS_LOOK_PERIOD + Duration::from_secs(1)).await;
        assert_eq!((paths_up(&connection), hosts.ours.names().count()), (2, 2));
        read_well(&connection, key, 1 << 20).await;
    }
}
