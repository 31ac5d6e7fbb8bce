//! A small machine with RDMA devices, for hosts that have none.
//!
//! It is a QEMU machine with Debian's kernel, which has soft-RoCE (`rdma_rxe`), and a file system in memory with what it is given: programs of
//! the host and the libraries they need. Nothing is installed for it and no privilege is needed. [`RdmaPlace`] runs the same jobs on
//! the host itself if that has devices of its own.
//!
//! The machine stands for two hosts, A and B, joined by two rails:
//!
//! | host | rail | device | netdev | address |
//! |---|---|---|---|---|
//! | A | 1 | `rxe0` | `rail1a` | 10.77.0.1/24 |
//! | B | 1 | `rxe1` | `rail1b` | 10.77.0.2/24 |
//! | A | 2 | `rxe2` | `rail2a` | 10.78.0.1/24 |
//! | B | 2 | `rxe3` | `rail2b` | 10.78.0.2/24 |
//!
//! Every job finds them in the variable `TENON_RDMA_DEVICES`, in this order, as `rxe0:10.77.0.1,rxe1:10.77.0.2,…`. A rail is a veth pair with an
//! MTU of 9000. RDMA between the two devices of a rail crosses it: `tc qdisc add dev rail1a root netem loss 1%` and `ip link set rail1a down`
//! do to it what they say. TCP between the same addresses does not cross it: all lie in one namespace, where the kernel takes the short way.
//!
//! Jobs are run as root, one after another, by `sh`. The machine has busybox's commands, the host's `ip`, `tc`, `rdma` and `setpriv`, and of
//! perftest `ib_read_bw`, `ib_read_lat`, `ib_write_bw` and `ib_write_lat`. It has no other network and no disk.
//!
//! ```no_run
//! use tenon_integration::machine::{Job, MachineOptions, RdmaPlace, test_binary};
//!
//! let test = test_binary("tenon-transport", "conformance").expect("it builds");
//! let name = test.file_name().expect("a file").to_str().expect("UTF-8").to_owned();
//! let options = MachineOptions { programs: vec![test], ..MachineOptions::default() };
//! let mut place = RdmaPlace::start(&options).expect("a place with RDMA devices");
//! let output = place.run(&Job::program(&name, ["--nocapture"]).locked_memory_kib(65536)).expect("an end");
//! println!("{}", output.expect_success());
//! ```

mod archive;
mod contents;
mod devices;
mod error;
mod guest;
mod host_files;
mod job;
mod kernel;
mod native;
mod place;
mod qemu;
mod streams;
mod test_binary;
mod witness;

pub use devices::{DEVICES_VARIABLE, Device, MACHINE_DEVICES, MachineDevice, parse_devices};
pub use error::{MachineError, Remains};
pub use guest::{Machine, MachineOptions};
pub use job::{Job, JobOutput};
pub use native::Native;
pub use place::{PLACE_VARIABLE, RdmaPlace};
pub use streams::Captured;
pub use test_binary::test_binary;
pub use witness::{WITNESS, witness_binary};
