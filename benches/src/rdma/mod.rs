//! What the bench of RDMA moves, between which ends, and beside what.

pub mod engine;
pub mod perftest;
pub mod sizes;

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, ensure};
use tenon_integration::machine::{DEVICES_VARIABLE, parse_devices};
use tenon_transport::verbs::engine::{Rails, RailsOptions};
use tenon_transport::verbs::{Device, choose_gid};
use tokio::runtime::Handle;

/// One end of a rail.
#[derive(Clone, Debug)]
pub struct End {
    /// Name of its device. Its first port is used.
    pub device: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// The row of its GID table that the engine uses.
    pub gid_index: u32,
}

impl End {
    /// The two ends of the first rail that the environment names: the initiator's and the owner's.
    pub fn pair() -> Result<[Self; 2]> {
        let list = std::env::var(DEVICES_VARIABLE).with_context(|| format!("{DEVICES_VARIABLE} names no devices"))?;
        let named = parse_devices(&list)?;
        ensure!(
            named.len() >= 2,
            "two devices are needed, {DEVICES_VARIABLE} names {list:?}"
        );
        let end = |device: &tenon_integration::machine::Device| {
            let gids = Device::open(&device.name)?.gids(1)?;
            let gid = choose_gid(&gids, None).with_context(|| format!("{} has no address that serves", device.name))?;
            anyhow::Ok(Self {
                device: device.name.clone(),
                address: device.address,
                gid_index: gid.index,
            })
        };
        Ok([end(&named[0])?, end(&named[1])?])
    }

    /// The engine's rails on this device alone.
    pub fn rails(&self) -> Result<std::sync::Arc<Rails>> {
        let options = RailsOptions {
            devices: Some(vec![self.device.clone()]),
            ..RailsOptions::default()
        };
        Ok(Rails::open(options, &Handle::current())?)
    }
}
