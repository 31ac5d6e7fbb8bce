//! Where tests of RDMA run: in the machine, or on the host itself.

use super::devices::{Device, MACHINE_DEVICES};
use super::error::MachineError;
use super::guest::{Machine, MachineOptions};
use super::job::{Job, JobOutput};
use super::native::Native;
use super::test_binary::test_binary;
use crate::binaries::binaries;

/// Memory for several agents, and what they hold.
const MIB_WITH_AGENTS: u32 = 2048;

/// The variable that says where: `machine`, which is the default, or `native`.
pub const PLACE_VARIABLE: &str = "TENON_RDMA";

/// Where jobs with RDMA devices run.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it in a test")]
pub enum RdmaPlace {
    /// In a machine with devices made of software.
    Machine(Machine),
    /// On this host, with its devices.
    Native(Native),
}

impl RdmaPlace {
    /// The place that [`PLACE_VARIABLE`] names, with these programs in its PATH.
    pub fn start(options: &MachineOptions) -> Result<Self, MachineError> {
        match std::env::var(PLACE_VARIABLE).as_deref() {
            Err(_) | Ok("" | "machine") => Machine::boot(options).map(Self::Machine),
            Ok("native") => Native::prepare(options).map(Self::Native),
            Ok(value) => Err(MachineError::UnknownPlace {
                value: value.to_owned(),
            }),
        }
    }

    /// The same with the agent's programs, and a test of this package that starts agents: the place, and the name of the test's program.
    pub fn with_agents(test: &str) -> Result<(Self, String), MachineError> {
        let test = test_binary("tenon-integration", test)?;
        let name = test.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let binaries = binaries();
        let options = MachineOptions {
            programs: vec![binaries.tenond.clone(), binaries.tenon.clone(), test],
            memory_mib: MIB_WITH_AGENTS,
            ..MachineOptions::default()
        };
        Ok((Self::start(&options)?, name))
    }

    /// Runs a job to its end.
    pub fn run(&mut self, job: &Job) -> Result<JobOutput, MachineError> {
        match self {
            Self::Machine(machine) => machine.run(job),
            Self::Native(native) => native.run(job),
        }
    }

    /// The devices: hosts A and B on the first rail, A and B on the second. Natively there may be fewer.
    pub fn devices(&self) -> Vec<Device> {
        match self {
            Self::Machine(_) => MACHINE_DEVICES.map(Device::from).to_vec(),
            Self::Native(native) => native.devices().to_vec(),
        }
    }

    /// Whether jobs may take links down and make networks lossy: the machine is ours, a host is not.
    pub fn may_be_disturbed(&self) -> bool {
        matches!(self, Self::Machine(_))
    }
}
