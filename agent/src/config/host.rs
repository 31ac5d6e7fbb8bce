//! What the host has, as far as the configuration depends on it.

use nix::unistd::{SysconfVar, sysconf};

/// Page size of every architecture this runs on, should the system not say.
const PAGE_BYTES_FALLBACK: u64 = 4096;

/// Facts about the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// All memory.
    pub ram_bytes: u64,
    /// An ordinary page.
    pub page_bytes: u64,
    /// A huge page of the default size, if the host has such pages.
    pub huge_page_bytes: Option<u64>,
}

impl Host {
    /// Asks the system.
    pub fn probe() -> Self {
        let ram_bytes = nix::sys::sysinfo::sysinfo().map_or(u64::MAX, |info| info.ram_total());
        let page_bytes = sysconf(SysconfVar::PAGE_SIZE)
            .ok()
            .flatten()
            .and_then(|bytes| u64::try_from(bytes).ok())
            .unwrap_or(PAGE_BYTES_FALLBACK);
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            ram_bytes,
            page_bytes,
            huge_page_bytes: huge_page_bytes(&meminfo),
        }
    }
}

/// What programs may still take of the memory, as the system estimates it.
pub(crate) fn available_bytes() -> Option<u64> {
    field_bytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

fn huge_page_bytes(meminfo: &str) -> Option<u64> {
    field_bytes(meminfo, "Hugepagesize:")
}

fn field_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_memory_in_whole_pages() {
        let host = Host::probe();
        assert!(host.ram_bytes >= 64 << 20 && host.ram_bytes < u64::MAX, "{host:?}");
        assert!(host.page_bytes.is_power_of_two(), "{host:?}");
    }

    #[test]
    fn the_size_of_huge_pages_is_read_if_there_are_any() {
        assert_eq!(
            huge_page_bytes("MemTotal: 1 kB\nHugepagesize:       2048 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(huge_page_bytes("MemTotal: 1 kB\n"), None);
    }
}
