//! On which runtime the parts of a connection run, and what becomes of them when it ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use support::*;
use tenon_transport::link::{NoSecret, Serving};
use tenon_transport::tcp::TcpConnection;
use tenon_transport::{Export, Exports, Guard, Hold, Memory, Op, Refused, Rights, Scope, Transfer, TransferError};

/// Remembers on which threads it was called.
#[derive(Default)]
struct Threads {
    names: parking_lot::Mutex<Vec<String>>,
}

impl Guard for Threads {
    fn begin_read(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        self.names
            .lock()
            .push(std::thread::current().name().unwrap_or_default().to_owned());
        Ok(Hold::new(0))
    }

    fn begin_write(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        Err(Refused {
            code: 1,
            message: "only reads",
        })
    }

    fn wrote(&self, _: u64, _: u64, _: u64) {}
}

#[test]
fn data_lanes_run_on_the_runtime_they_are_given_and_fail_with_it() {
    let build = |name: &str| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_all()
            .build()
            .unwrap()
    };
    let (control, data, ours) = (build("control"), build("data"), build("ours"));
    let threads = Arc::new(Threads::default());
    let exports = Arc::new(Exports::new());
    let memory = Arc::new(Memory::from_vec(vec![1; 100])).whole();
    let export = Export {
        memory,
        rights: Rights::Read,
        scope: Scope::AnySession,
        guard: threads.clone(),
    };
    let key = exports.add(export).unwrap();
    let server = control.block_on(async {
        Server::start(
            &loopback(),
            Serving {
                exports,
                rdma: None,
                data_runtime: data.handle().clone(),
                ..serving()
            },
        )
        .await
    });
    let open = async {
        let identity = client_identity();
        TcpConnection::open(
            &server.endpoint,
            &identity,
            Arc::new(NoSecret),
            None,
            one_lane(),
            soon(),
        )
        .await
        .unwrap()
    };
    let connection = ours.block_on(open);
    let read = || Transfer {
        op: Op::Read,
        key,
        remote_offset_bytes: 0,
        local: vec![local(100)],
        group: 0,
    };
    assert!(control.block_on(one(&connection, read())).is_ok());
    assert_eq!(*threads.names.lock(), ["data"]);
    drop(ours);
    let error = control.block_on(one(&connection, read())).unwrap_err();
    assert!(matches!(error, TransferError::Disconnected { .. }), "{error}");
}
