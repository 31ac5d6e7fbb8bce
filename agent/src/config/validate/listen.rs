//! Rules of the addresses.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use super::Check;
use crate::config::ListenConfig;
use crate::config::error::Problem;
use crate::config::source::Sourced;
use crate::limits::SOCKET_PATH_LEN_BYTES_MAX;

/// What `listen.unix` says for no socket.
pub(in crate::config) const NO_SOCKET: &str = "off";

/// Stands for an address that was refused.
const NOWHERE: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0));

impl Check<'_> {
    pub(super) fn listen(&mut self) -> ListenConfig {
        let settings = self.settings;
        let http = self.address(&settings.http).unwrap_or(NOWHERE);
        if !http.ip().is_loopback() {
            self.refuse(&settings.http, Problem::HttpOffLoopback);
        }
        let link = self.address(&settings.link).unwrap_or(NOWHERE);
        if self.no_secret() && !link.ip().is_loopback() {
            self.refuse(&settings.link, Problem::OffLoopbackWithoutSecret);
        }
        if http == link && http.port() != 0 {
            let other = settings.http.key.clone();
            self.refuse(&settings.link, Problem::AddressTaken { other });
        }
        ListenConfig {
            http,
            link,
            unix: self.socket_path(&settings.unix),
            advertise: self.advertise(link),
        }
    }

    fn address(&mut self, setting: &Sourced<String>) -> Option<SocketAddr> {
        let parsed = setting.value.parse().ok();
        if parsed.is_none() {
            self.refuse(setting, Problem::Address);
        }
        parsed
    }

    /// An address that somebody else can dial.
    pub(super) fn dialable(&mut self, setting: &Sourced<String>) -> Option<SocketAddr> {
        let address = self.address(setting)?;
        if !is_dialable(address) {
            self.refuse(setting, Problem::NotDialable);
            return None;
        }
        Some(address)
    }

    fn advertise(&mut self, link: SocketAddr) -> Option<SocketAddr> {
        let Some(setting) = &self.settings.advertise else {
            // In a static view, the member list says it.
            if link.ip().is_unspecified() && self.settings.members.is_none() {
                self.refuse(&self.settings.link, Problem::AdvertiseMissing);
            }
            return None;
        };
        let resolved = setting.value.to_socket_addrs().map(|mut found| found.next());
        match resolved {
            Ok(Some(address)) if is_dialable(address) => Some(address),
            Ok(_) => {
                self.refuse(setting, Problem::NotDialable);
                None
            }
            Err(error) => {
                self.refuse(setting, Problem::Unresolved(error));
                None
            }
        }
    }

    fn socket_path(&mut self, setting: &Sourced<String>) -> Option<PathBuf> {
        if setting.value == NO_SOCKET {
            return None;
        }
        let len_bytes = setting.value.len();
        if len_bytes > SOCKET_PATH_LEN_BYTES_MAX {
            self.refuse(setting, Problem::SocketPathTooLong { len_bytes });
        }
        Some(self.absolute_path(setting))
    }
}

fn is_dialable(address: SocketAddr) -> bool {
    address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast()
}
