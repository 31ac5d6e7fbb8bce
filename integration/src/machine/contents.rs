//! What is in the machine: the host's shell and network tools, busybox for the rest, the verbs libraries, and the programs under test.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::Archive;
use super::error::MachineError;
use super::host_files::{LIBRARY_DIR, file, files_named, libraries, output_of, program};
use super::kernel::Kernel;

/// Programs of the host that every machine has, with the packages they are of. The shell is the host's because busybox's would run
/// its own `ip`.
const HOST_PROGRAMS: [(&str, &str); 9] = [
    ("sh", "dash"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("rdma", "iproute2"),
    ("setpriv", "util-linux"),
    ("ib_read_bw", "perftest"),
    ("ib_read_lat", "perftest"),
    ("ib_write_bw", "perftest"),
    ("ib_write_lat", "perftest"),
];

/// Libraries that programs open while they run, so that nothing is linked with them.
const OPENED_LIBRARIES: [(&str, &str); 2] = [("libibverbs.so.1", "libibverbs1"), ("libgcc_s.so.1", "libgcc-s1")];

const DRIVER_FILE: &str = "/etc/libibverbs.d/rxe.driver";

/// Collects what the machine's first file system holds, all but the kernel's modules.
pub(super) fn collect(programs: &[PathBuf]) -> Result<Archive, MachineError> {
    let mut archive = Archive::default();
    for dir in ["dev", "etc", "proc", "root", "run/netns", "share", "sys", "tmp", "var"] {
        archive.directory(dir);
    }
    archive.bytes("init", include_bytes!("init.sh"));
    let mut linked = BTreeSet::from([add_busybox(&mut archive)?]);
    for (name, package) in HOST_PROGRAMS {
        let path = program(name, package)?;
        archive.file(format!("bin/{name}"), &path);
        linked.insert(path);
    }
    for path in programs {
        let name = path.file_name().filter(|_| path.is_file());
        let name = name.ok_or_else(|| MachineError::NoProgram { path: path.clone() })?;
        archive.file(Path::new("bin").join(name), path);
        linked.insert(path.clone());
    }
    add_verbs(&mut archive, &mut linked)?;
    for path in &linked {
        for library in libraries(path)? {
            archive.file(&library, &library);
        }
    }
    Ok(archive)
}

/// Writes it with the modules of a kernel.
pub(super) fn write(mut archive: Archive, kernel: &Kernel, to: &Path) -> Result<(), MachineError> {
    for path in files_named(&kernel.modules_dir(), "", "") {
        let name = path.file_name().unwrap_or_default();
        archive.file(Path::new("modules").join(name), &path);
    }
    let file = File::create(to).map_err(MachineError::io("make", to))?;
    let mut output = BufWriter::new(file);
    let written = archive.write(&mut output).and_then(|()| output.flush());
    written.map_err(MachineError::io("write", to))
}

/// Adds busybox and a link for each of its commands; returns where it is.
fn add_busybox(archive: &mut Archive) -> Result<PathBuf, MachineError> {
    let busybox = program("busybox", "busybox-static")?;
    let names = output_of(Command::new(&busybox).arg("--list"))?;
    for name in String::from_utf8_lossy(&names).lines() {
        archive.link(&format!("bin/{name}"), "busybox");
    }
    archive.file("bin/busybox", &busybox);
    Ok(busybox)
}

fn add_verbs(archive: &mut Archive, linked: &mut BTreeSet<PathBuf>) -> Result<(), MachineError> {
    for (name, package) in OPENED_LIBRARIES {
        linked.insert(file(Path::new(LIBRARY_DIR).join(name), package)?);
    }
    let provider = files_named(&Path::new(LIBRARY_DIR).join("libibverbs"), "librxe-rdmav", ".so").pop();
    linked.insert(provider.ok_or_else(|| MachineError::Missing {
        what: format!("{LIBRARY_DIR}/libibverbs/librxe-rdmav*.so"),
        package: "ibverbs-providers",
    })?);
    for path in linked.iter().filter(|path| path.starts_with(LIBRARY_DIR)) {
        archive.file(path, path);
    }
    archive.file(DRIVER_FILE, file(DRIVER_FILE, "ibverbs-providers")?);
    Ok(())
}
