//! Where memory comes from, and giving it back.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{self, FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC};
use nix::unistd::{SysconfVar, sysconf};

use super::{HugePages, MemoryError, to_u64, to_usize};

/// Size and alignment of the huge pages that ordinary ones are put together to. Where the system's are of another size,
/// they stay as they are.
pub(super) const GATHERED_BYTES: u64 = 2 << 20;

/// Bytes that stay at one address until this is dropped.
pub(super) struct Mapping {
    start: *mut u8,
    len_bytes: u64,
    page_bytes: u64,
    /// True if ordinary pages are to be put together to huge ones as they get their memory.
    gathers: bool,
    backing: Backing,
}

/// What the bytes belong to. Never read: it keeps them, and gives them back when dropped.
enum Backing {
    /// Private pages of this process.
    Anonymous(#[expect(dead_code, reason = "unmaps when dropped")] MmapRaw),
    /// Pages that other processes may map as well; the file carries the lock, if there is one.
    Shared(
        #[expect(dead_code, reason = "unmaps when dropped")] MmapRaw,
        Option<Flock<File>>,
    ),
    /// The buffer of a vector with this capacity.
    Vector { capacity_bytes: usize },
}

// SAFETY: a Mapping owns its bytes whatever thread it is on; nothing in it is tied to the thread that made it.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` only the address, the length and the page size can be read, none of which changes.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn anonymous(len_bytes: u64) -> Result<Self, MemoryError> {
        let len = mappable(len_bytes)?;
        let map = MmapMut::map_anon(len).map_err(system("map", "anonymous memory", len_bytes))?;
        let map = MmapRaw::from(map);
        // Without them it works all the same.
        _ = map.advise(Advice::HugePage);
        Ok(Self {
            start: map.as_mut_ptr(),
            len_bytes,
            page_bytes: base_page_bytes(),
            gathers: false,
            backing: Backing::Anonymous(map),
        })
    }

    pub(super) fn memfd(name: &str, len_bytes: u64, huge_pages: HugePages) -> Result<Self, MemoryError> {
        mappable(len_bytes)?;
        let what = format!("memfd {name:?}");
        let c_name = CString::new(name).map_err(|error| system("create", &what, len_bytes)(io::Error::from(error)))?;
        let create = |flags| {
            let fd = memfd_create(c_name.as_c_str(), MFdFlags::MFD_CLOEXEC | flags).map_err(io::Error::from)?;
            Self::of_file(&File::from(fd), len_bytes, huge_pages != HugePages::Off)
        };
        if huge_pages != HugePages::Off {
            match create(MFdFlags::MFD_HUGETLB) {
                Ok(mapping) => return Ok(mapping),
                Err(source) if huge_pages == HugePages::Require => {
                    return Err(MemoryError::HugePages { len_bytes, source });
                }
                Err(_) => {}
            }
        }
        create(MFdFlags::empty()).map_err(system("map", &what, len_bytes))
    }

    pub(super) fn file(path: &Path, len_bytes: u64) -> Result<Self, MemoryError> {
        mappable(len_bytes)?;
        let what = format!("{path:?}");
        let cannot = |operation| {
            let path = path.to_owned();
            move |source| MemoryError::File {
                operation,
                path,
                source,
            }
        };
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let found = statfs::statfs(folder).map_err(|errno| cannot("look up the folder of")(errno.into()))?;
        refuse_disk(path, found.filesystem_type())?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .map_err(cannot("open"))?;
        let found = statfs::fstatfs(&file).map_err(|errno| cannot("look up")(errno.into()))?;
        refuse_disk(path, found.filesystem_type())?;
        // Only the holder of the lock may empty the file: whoever has it mapped would fault.
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => MemoryError::InUse { path: path.to_owned() },
            other => cannot("lock")(other.into()),
        })?;
        file.set_len(0).map_err(system("empty", &what, len_bytes))?;
        let mut mapping = Self::of_file(&file, len_bytes, true).map_err(system("map", &what, len_bytes))?;
        if let Backing::Shared(_, lock) = &mut mapping.backing {
            *lock = Some(file);
        }
        Ok(mapping)
    }

    /// Sizes the file and maps it, in whole pages of its file system.
    fn of_file(file: &File, len_bytes: u64, gathers: bool) -> io::Result<Self> {
        let block_bytes = statfs::fstatfs(file)?.block_size();
        let page_bytes = u64::try_from(block_bytes)
            .map_err(io::Error::other)?
            .max(base_page_bytes());
        let file_bytes = len_bytes
            .checked_next_multiple_of(page_bytes)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        file.set_len(file_bytes)?;
        let gathers = gathers && page_bytes < GATHERED_BYTES && file_bytes >= GATHERED_BYTES;
        let (start, map) = if gathers {
            map_aligned(file, file_bytes)?
        } else {
            let map = MmapOptions::new().len(to_usize(file_bytes)).map_raw(file)?;
            (map.as_mut_ptr(), map)
        };
        Ok(Self {
            start,
            len_bytes,
            page_bytes,
            gathers,
            backing: Backing::Shared(map, None),
        })
    }

    pub(super) fn from_vec(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        Self {
            start: bytes.as_mut_ptr(),
            len_bytes: to_u64(bytes.len()),
            page_bytes: base_page_bytes(),
            gathers: false,
            backing: Backing::Vector {
                capacity_bytes: bytes.capacity(),
            },
        }
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    pub(super) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// True if ordinary pages are to be put together to huge ones as they get their memory.
    pub(super) fn gathers(&self) -> bool {
        self.gathers
    }

    /// True if no other process can have these bytes mapped.
    pub(super) fn is_private(&self) -> bool {
        !matches!(self.backing, Backing::Shared(..))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Backing::Vector { capacity_bytes } = self.backing {
            let len = to_usize(self.len_bytes);
            // SAFETY: `from_vec` took exactly this pointer, length and capacity out of a Vec<u8> that it forgot, and
            // nobody can reach the bytes any more, since this Mapping is being dropped.
            drop(unsafe { Vec::from_raw_parts(self.start, len, capacity_bytes) });
        }
    }
}

/// Maps a file at a multiple of [`GATHERED_BYTES`]: only there can its pages be gathered. The mapping it returns covers
/// the file's and gives both back.
fn map_aligned(file: &File, file_bytes: u64) -> io::Result<(*mut u8, MmapRaw)> {
    let len = to_usize(file_bytes);
    let room = len
        .checked_add(to_usize(GATHERED_BYTES))
        .ok_or(io::ErrorKind::FileTooLarge)?;
    let around = MmapRaw::from(MmapOptions::new().len(room).no_reserve_swap().map_anon()?);
    let start = around.as_mut_ptr();
    let start = start.wrapping_add(start.addr().wrapping_neg() % to_usize(GATHERED_BYTES));
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: what this replaces lies inside `around`, which nobody has touched or knows of; no reference to it exists.
    // When `around` is dropped it unmaps its whole range, and so this too.
    let mapped = unsafe { libc::mmap(start.cast(), len, protection, flags, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok((start, around))
}

/// A length that can be mapped: not zero, and within the address space.
fn mappable(len_bytes: u64) -> Result<usize, MemoryError> {
    if len_bytes == 0 || len_bytes > i64::MAX.unsigned_abs() {
        return Err(MemoryError::Length { len_bytes });
    }
    Ok(to_usize(len_bytes))
}

fn base_page_bytes() -> u64 {
    sysconf(SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|bytes| u64::try_from(bytes).ok())
        .unwrap_or(4096)
}

fn refuse_disk(path: &Path, found: FsType) -> Result<(), MemoryError> {
    if found == TMPFS_MAGIC || found == HUGETLBFS_MAGIC {
        return Ok(());
    }
    Err(MemoryError::FileSystem {
        path: path.to_owned(),
        file_system: file_system_name(found),
    })
}

fn file_system_name(found: FsType) -> String {
    let known = [
        (statfs::EXT4_SUPER_MAGIC, "ext4"),
        (statfs::XFS_SUPER_MAGIC, "xfs"),
        (statfs::BTRFS_SUPER_MAGIC, "btrfs"),
        (statfs::OVERLAYFS_SUPER_MAGIC, "overlayfs"),
        (statfs::NFS_SUPER_MAGIC, "nfs"),
        (statfs::PROC_SUPER_MAGIC, "proc"),
    ];
    known.iter().find(|(magic, _)| *magic == found).map_or_else(
        || format!("a file system of type {:#x}", found.0),
        |(_, name)| (*name).to_owned(),
    )
}

/// Makes a [`MemoryError::System`] of what the system said.
pub(super) fn system(
    operation: &'static str,
    what: &str,
    len_bytes: u64,
) -> impl FnOnce(io::Error) -> MemoryError + use<> {
    let what = what.to_owned();
    move |source| MemoryError::System {
        operation,
        what,
        len_bytes,
        source,
    }
}
