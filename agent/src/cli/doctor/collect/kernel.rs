//! Files of the kernel.

use std::fs;
use std::io;
use std::path::Path;

use crate::cli::doctor::facts::{Known, Module, ModuleState, Purpose};

/// The modules that are looked for. Other drivers exist; what they drive shows among the devices.
const MODULES: [(&str, Purpose); 12] = [
    ("ib_uverbs", Purpose::Verbs),
    ("mlx5_ib", Purpose::Driver),
    ("mlx4_ib", Purpose::Driver),
    ("irdma", Purpose::Driver),
    ("bnxt_re", Purpose::Driver),
    ("ionic_rdma", Purpose::Driver),
    ("efa", Purpose::Driver),
    ("erdma", Purpose::Driver),
    ("hns_roce_hw_v2", Purpose::Driver),
    ("iw_cxgb4", Purpose::Driver),
    ("siw", Purpose::Driver),
    ("rdma_rxe", Purpose::Driver),
];

/// A file of one line, without its end.
pub(super) fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let path = path.as_ref();
    let text = fs::read_to_string(path).map_err(|error| named(path, &error))?;
    Ok(text.trim().to_owned())
}

/// A file that holds a number.
pub(super) fn number(path: impl AsRef<Path>) -> io::Result<u64> {
    let path = path.as_ref();
    let text = text(path)?;
    text.parse()
        .map_err(|_| io::Error::other(format!("{} holds {text:?} instead of a number", path.display())))
}

/// The names in a directory, sorted; none if it is not there.
pub(super) fn names(path: &str) -> io::Result<Vec<String>> {
    let path = Path::new(path);
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| named(path, &error))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| named(path, &error))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
}

/// Which of the modules are there. A kernel without modules has no list of them.
pub(super) fn modules() -> Known<Vec<Module>> {
    let loaded = match fs::read_to_string("/proc/modules") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read.map_err(|error| named(Path::new("/proc/modules"), &error)),
    };
    let built_in = names("/sys/module");
    let both = loaded.and_then(|loaded| Ok(states(&loaded, &built_in?)));
    Known::from_result(both)
}

/// The states of the modules by the text of /proc/modules and the names in /sys/module, which has those that are built
/// in, too.
fn states(loaded: &str, known: &[String]) -> Vec<Module> {
    let is_loaded = |name| loaded.lines().any(|line| line.split_whitespace().next() == Some(name));
    let state = |name| match known.iter().any(|known| known == name) {
        _ if is_loaded(name) => ModuleState::Loaded,
        true => ModuleState::BuiltIn,
        false => ModuleState::Absent,
    };
    let module = |(name, purpose)| Module {
        name,
        purpose,
        state: state(name),
    };
    MODULES.into_iter().map(module).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_and_built_in_modules_are_told_apart() {
        let loaded = "rdma_rxe 180224 0 - Live 0x0000000000000000\nib_core 520192 2 rdma_rxe,ib_uverbs, Live 0x0\n";
        let known = ["ib_uverbs", "kernel", "rdma_rxe"].map(str::to_owned);
        let states = states(loaded, &known);
        let of = |name| states.iter().find(|module| module.name == name).unwrap().state;
        assert_eq!(of("rdma_rxe"), ModuleState::Loaded);
        assert_eq!(of("ib_uverbs"), ModuleState::BuiltIn);
        assert_eq!(of("mlx5_ib"), ModuleState::Absent);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let error = text("/proc/no such file").unwrap_err().to_string();
        assert!(error.contains("/proc/no such file"), "{error}");
        assert_eq!(names("/no such directory").unwrap(), Vec::<String>::new());
        let error = number("/proc/version").unwrap_err().to_string();
        assert!(error.contains("/proc/version holds"), "{error}");
    }
}
