//! The machine's kernel: Debian's own, taken out of its package and never installed.
//!
//! The package has about 100 MB; what is needed of it is kept in a cache, made once per set of modules. Runs that meet wait for each other, and a
//! run that dies leaves nothing that another would take for whole.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::fcntl::{Flock, FlockArg};

use super::error::MachineError;
use super::host_files::{files_named, output_of, program, target_dir};

/// Packages that depend on the newest kernel of a line, best first. Both have rdma_rxe; the `cloud` flavours have not.
const KERNEL_PACKAGES: [&str; 2] = ["linux-image-6.12-amd64", "linux-image-amd64"];

/// The modules that the machine loads, apart from those that they need.
const MODULES: [&str; 8] = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "crc32_generic",
    "veth",
    "rdma_rxe",
    "sch_netem",
];

/// How the names of directories in the cache begin in which a kernel is being made.
const UNFINISHED: &str = "new-";

/// A kernel in the cache.
#[derive(Debug)]
pub(super) struct Kernel {
    dir: PathBuf,
}

impl Kernel {
    /// The newest kernel in the cache; if there is none, one is downloaded.
    pub(super) fn prepare() -> Result<Self, MachineError> {
        let cache = target_dir().join("machine");
        fs::create_dir_all(&cache).map_err(MachineError::io("make", &cache))?;
        let _lock = lock(&cache)?;
        let mut hasher = DefaultHasher::new();
        MODULES.hash(&mut hasher);
        let suffix = format!("-{:016x}", hasher.finish());
        if let Some(dir) = cached(&cache, &suffix) {
            return Ok(Self { dir });
        }
        remove_unfinished(&cache);
        let package = newest_package()?;
        let version = package.trim_start_matches("linux-image-");
        let work = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempdir_in(&cache)
            .map_err(MachineError::io("make a directory in", &cache))?;
        let root = unpack(&package, work.path())?;
        let made = work.path().join("made");
        extract_modules(&root, version, &made.join("modules"))?;
        extract_image(
            &root.join("boot").join(format!("vmlinuz-{version}")),
            &made.join("vmlinux"),
        )?;
        let dir = cache.join(format!("{version}{suffix}"));
        fs::rename(&made, &dir).map_err(MachineError::io("move the kernel to", &dir))?;
        Ok(Self { dir })
    }

    /// The uncompressed kernel, which needs no unpacking in the machine.
    pub(super) fn image(&self) -> PathBuf {
        self.dir.join("vmlinux")
    }

    /// The directory of its modules, and of `order`, which names them in the order of loading.
    pub(super) fn modules_dir(&self) -> PathBuf {
        self.dir.join("modules")
    }
}

/// Removes what runs left that died. Called under the lock, so none is at work.
fn remove_unfinished(cache: &Path) {
    for dir in files_named(cache, UNFINISHED, "") {
        let _ = fs::remove_dir_all(dir);
    }
}

/// Waits for other runs that prepare a kernel.
fn lock(cache: &Path) -> Result<Flock<File>, MachineError> {
    let path = cache.join("lock");
    let file = File::create(&path).map_err(MachineError::io("open", &path))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| MachineError::io("lock", path)(error.into()))
}

fn cached(cache: &Path, suffix: &str) -> Option<PathBuf> {
    let whole = |dir: &PathBuf| dir.join("vmlinux").is_file();
    let modified = |dir: &PathBuf| fs::metadata(dir).and_then(|found| found.modified()).ok();
    let entries = fs::read_dir(cache).ok()?.flatten().map(|entry| entry.path());
    entries
        .filter(|dir| dir.to_string_lossy().ends_with(suffix) && whole(dir))
        .max_by_key(modified)
}

/// The name of the package of the newest kernel that apt knows.
fn newest_package() -> Result<String, MachineError> {
    let apt_cache = program("apt-cache", "apt")?;
    for line in KERNEL_PACKAGES {
        let Ok(text) = output_of(Command::new(&apt_cache).args(["depends", line])) else {
            continue;
        };
        let text = String::from_utf8_lossy(&text);
        let depends = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        if let Some(package) = depends.into_iter().find(|name| name.starts_with("linux-image-")) {
            return Ok(package.to_owned());
        }
    }
    Err(MachineError::NoKernelPackage {
        packages: KERNEL_PACKAGES.to_vec(),
    })
}

/// Downloads a package and unpacks it. Returns the directory that has what would be in the root directory.
fn unpack(package: &str, work: &Path) -> Result<PathBuf, MachineError> {
    let apt_get = program("apt-get", "apt")?;
    // As root, apt would download as a user of its own, who may not write here.
    let arguments = ["-qq", "-o", "APT::Sandbox::User=root", "download", package];
    let downloaded = output_of(Command::new(apt_get).args(arguments).current_dir(work));
    downloaded.map_err(|error| MachineError::Download {
        package: package.to_owned(),
        said: error.to_string(),
    })?;
    let archive = files_named(work, package, ".deb").pop();
    let archive = archive.ok_or_else(|| MachineError::Download {
        package: package.to_owned(),
        said: "apt left no file".to_owned(),
    })?;
    let root = work.join("root");
    output_of(
        Command::new(program("dpkg-deb", "dpkg")?)
            .arg("-x")
            .args([&archive, &root]),
    )?;
    // Whether `lib` is a directory of its own depends on the release, and what kmod expects too.
    let (old, new) = (root.join("lib"), root.join("usr/lib"));
    let (link, target) = match old.exists() {
        true => (new.join("modules"), "../../lib/modules"),
        false => (old, "usr/lib"),
    };
    if !link.exists() {
        fs::create_dir_all(&new).map_err(MachineError::io("make", &new))?;
        std::os::unix::fs::symlink(target, &link).map_err(MachineError::io("make the link", &link))?;
    }
    Ok(root)
}

/// Copies the modules that are wanted, and those that they need, uncompressed and with the order to load them in.
fn extract_modules(root: &Path, version: &str, modules: &Path) -> Result<(), MachineError> {
    fs::create_dir_all(modules).map_err(MachineError::io("make", modules))?;
    output_of(
        Command::new(program("depmod", "kmod")?)
            .arg("-b")
            .arg(root)
            .arg(version),
    )?;
    let modprobe = program("modprobe", "kmod")?;
    let mut order: Vec<String> = Vec::new();
    for module in MODULES {
        let arguments = ["--show-depends", "--set-version", version, "--dirname"];
        let text = output_of(Command::new(&modprobe).args(arguments).arg(root).arg(module))?;
        // Lines of `insmod PATH`, and of `builtin NAME` for what the kernel has already.
        for line in String::from_utf8_lossy(&text).lines() {
            let Some(path) = line.trim().strip_prefix("insmod ") else {
                continue;
            };
            let path = Path::new(path.trim());
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.trim_end_matches(".xz").to_owned();
            if !order.contains(&name) {
                uncompress(path, &modules.join(&name))?;
                order.push(name);
            }
        }
    }
    let path = modules.join("order");
    fs::write(&path, order.join("\n") + "\n").map_err(MachineError::io("write", path))
}

fn uncompress(module: &Path, to: &Path) -> Result<(), MachineError> {
    if module.extension().is_some_and(|extension| extension == "xz") {
        let bytes = output_of(Command::new(program("xz", "xz-utils")?).arg("-dc").arg(module))?;
        return fs::write(to, bytes).map_err(MachineError::io("write", to));
    }
    fs::copy(module, to)
        .map(|_| ())
        .map_err(MachineError::io("copy", module))
}

/// Takes the uncompressed kernel out of its image: unpacking it is slow in an emulated machine, and need not be done at every start.
fn extract_image(image: &Path, to: &Path) -> Result<(), MachineError> {
    let bytes = fs::read(image).map_err(MachineError::io("read", image))?;
    let payload = payload(&bytes).map_err(|reason| MachineError::KernelImage {
        path: image.to_path_buf(),
        reason,
    })?;
    let mut unpacker = match payload {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Command::new(program("zstd", "zstd")?),
        [0xfd, b'7', b'z', ..] => Command::new(program("xz", "xz-utils")?),
        _ => {
            return Err(MachineError::KernelImage {
                path: image.to_path_buf(),
                reason: "it is packed neither with zstd nor with xz",
            });
        }
    };
    let output = File::create(to).map_err(MachineError::io("make", to))?;
    let mut child = unpacker
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(output)
        .spawn()
        .map_err(MachineError::io("run", unpacker.get_program()))?;
    let mut input = child.stdin.take().expect("its input is a pipe");
    let written = input.write_all(payload);
    drop(input);
    let status = child
        .wait()
        .map_err(MachineError::io("wait for", unpacker.get_program()))?;
    written.map_err(MachineError::io("unpack", image))?;
    match status.success() {
        true => Ok(()),
        false => Err(MachineError::KernelImage {
            path: image.to_path_buf(),
            reason: "what is packed in it does not unpack",
        }),
    }
}

/// The packed kernel in a bzImage, found through the fields of the x86 boot protocol (2.08 and later).
fn payload(image: &[u8]) -> Result<&[u8], &'static str> {
    const SETUP_SECTORS_AT: usize = 0x1f1;
    const MAGIC_AT: usize = 0x202;
    const PAYLOAD_OFFSET_AT: usize = 0x248;
    const PAYLOAD_LEN_AT: usize = 0x24c;
    /// The length of what was packed stands behind it.
    const SIZE_LEN: usize = 4;
    let word = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(MAGIC_AT..MAGIC_AT + 4) != Some(b"HdrS") {
        return Err("it lacks the header of the x86 boot protocol");
    }
    let setup_len_bytes = (usize::from(image[SETUP_SECTORS_AT]) + 1) * 512;
    let offset = word(PAYLOAD_OFFSET_AT).ok_or("its header is cut short")?;
    let len = word(PAYLOAD_LEN_AT).ok_or("its header is cut short")?;
    let begin = setup_len_bytes + offset;
    image
        .get(begin..(begin + len).saturating_sub(SIZE_LEN))
        .ok_or("its payload lies outside of it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_what_the_header_points_at() {
        let mut image = vec![0; 2048];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&100u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&9u32.to_le_bytes());
        image[1124..1129].copy_from_slice(b"hello");
        assert_eq!(payload(&image), Ok(&b"hello"[..]));
        image[0x24c..0x250].copy_from_slice(&4096u32.to_le_bytes());
        payload(&image).expect_err("it would end behind the file");
        payload(b"no kernel").expect_err("no header");
    }
}
