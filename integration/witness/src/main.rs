//! Prints as JSON what the crate `ibverbs` says of this host's RDMA devices, their ports and addresses.
//!
//! It stands outside of the workspace and shares no code with it: it is a second, independent view, which tests hold
//! beside what `tenon doctor --json` says. The crate opens a device only if its first port is active or armed, and knows a
//! port otherwise by the addresses in its table; `opens` says the first, `ports` has the second.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::process::ExitCode;

use ibverbs::{Device, GidEntry};
use serde_json::{Value, json};

fn main() -> ExitCode {
    match ibverbs::devices() {
        Ok(list) => {
            let devices: Vec<Value> = list.iter().map(|found| device(&found)).collect();
            println!("{}", json!({ "devices": devices }));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tenon-witness: cannot list devices: {error}");
            ExitCode::FAILURE
        }
    }
}

fn device(found: &Device<'_>) -> Value {
    let name = found.name().map(|name| name.to_string_lossy().into_owned());
    match found.open() {
        Ok(open) => json!({ "name": name, "opens": true, "ports": ports(open.gid_table()) }),
        Err(error) => json!({ "name": name, "opens": false, "said": error.to_string(), "ports": [] }),
    }
}

fn ports(table: &[GidEntry]) -> Vec<Value> {
    let mut by_port: BTreeMap<u32, Vec<Value>> = BTreeMap::new();
    for entry in table {
        by_port.entry(entry.port_num).or_default().push(gid(entry));
    }
    let port = |(number, gids)| json!({ "number": number, "gids": gids });
    by_port.into_iter().map(port).collect()
}

fn gid(entry: &GidEntry) -> Value {
    let high = u128::from(entry.gid.subnet_prefix()) << 64;
    let address = Ipv6Addr::from(high | u128::from(entry.gid.interface_id()));
    // The numbers of the kernel's interface: enum ibv_gid_type.
    let kind = match entry.gid_type {
        0 => "infiniband".to_owned(),
        1 => "roce_v1".to_owned(),
        2 => "roce_v2".to_owned(),
        other => format!("unknown_{other}"),
    };
    json!({
        "index": entry.gid_index,
        "gid": address.to_string(),
        "kind": kind,
        "interface_index": entry.ndev_ifindex,
    })
}
