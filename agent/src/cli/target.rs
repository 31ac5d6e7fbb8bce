//! Where the bytes of a get go: a file that appears only when all of it is verified, or a stream that gets each verified piece.

use super::failure::Failure;
use bytes::Bytes;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The destination of one object.
#[derive(Debug)]
pub(super) struct Target {
    file: Arc<File>,
    named: PathBuf,
    temporary: Option<Temporary>,
}

/// A file under a name of its own in the destination's folder; removed unless it is kept.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    destination: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // It is gone already if it was kept.
        let _ = fs::remove_file(&self.path);
    }
}

impl Target {
    /// Opens standard output for `-`; else a file. A destination that exists and is no regular file (a pipe, a device) is written as a
    /// stream.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        if path.as_os_str() == "-" {
            let named = PathBuf::from("standard output");
            let file = duplicate_stdout().map_err(|error| Failure::output(&named, &error))?;
            return Ok(Self {
                file: Arc::new(file),
                named,
                temporary: None,
            });
        }
        let refused = |error: io::Error| Failure::output(path, &error);
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Err(refused(io::ErrorKind::IsADirectory.into())),
            Ok(metadata) if !metadata.is_file() => Ok(Self {
                file: Arc::new(File::options().write(true).open(path).map_err(refused)?),
                named: path.to_owned(),
                temporary: None,
            }),
            // Through a link, the file that it leads to is replaced.
            Ok(_) => Self::beside(&fs::canonicalize(path).map_err(refused)?).map_err(refused),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::beside(path).map_err(refused),
            Err(error) => Err(refused(error)),
        }
    }

    fn beside(destination: &Path) -> io::Result<Self> {
        let mut name = std::ffi::OsString::from(".");
        name.push(destination.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
        name.push(format!(".{:016x}.partial", rand::random::<u64>()));
        let path = destination.with_file_name(name);
        let file = File::options().write(true).create_new(true).open(&path)?;
        Ok(Self {
            file: Arc::new(file),
            named: destination.to_owned(),
            temporary: Some(Temporary {
                path,
                destination: destination.to_owned(),
            }),
        })
    }

    /// Whether each piece is visible to others as soon as it is written.
    pub(super) fn is_stream(&self) -> bool {
        self.temporary.is_none()
    }

    /// Writes verified bytes, off the threads that move others.
    pub(super) async fn write(&self, bytes: Bytes) -> Result<(), Failure> {
        let file = Arc::clone(&self.file);
        let writing = tokio::task::spawn_blocking(move || (&*file).write_all(&bytes));
        let written = writing.await.map_err(io::Error::other).and_then(|written| written);
        written.map_err(|error| Failure::output(&self.named, &error))
    }

    /// All is verified and written: the file takes its name.
    pub(super) fn keep(self) -> Result<(), Failure> {
        match &self.temporary {
            None => Ok(()),
            Some(temporary) => fs::rename(&temporary.path, &temporary.destination)
                .map_err(|error| Failure::output(&self.named, &error)),
        }
    }
}

/// Standard output without the line buffer that `std` puts before it.
fn duplicate_stdout() -> io::Result<File> {
    use std::os::fd::AsFd;
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

#[cfg(test)]
mod tests {
    use super::super::exit::Exit;
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn a_file_appears_when_it_is_kept_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, b"old").unwrap();
        let target = Target::open(&path).unwrap();
        assert!(!target.is_stream());
        target.write(Bytes::from_static(b"new ")).await.unwrap();
        target.write(Bytes::from_static(b"bytes")).await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        target.keep().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new bytes");
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[tokio::test]
    async fn what_is_not_kept_leaves_the_old_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, b"old").unwrap();
        let target = Target::open(&path).unwrap();
        target.write(Bytes::from_static(b"half")).await.unwrap();
        assert_eq!(names(dir.path()).len(), 2);
        drop(target);
        assert_eq!(names(dir.path()), ["out"]);
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[tokio::test]
    async fn a_link_still_leads_to_the_file_and_a_device_is_written_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, b"old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let target = Target::open(&link).unwrap();
        target.write(Bytes::from_static(b"new")).await.unwrap();
        target.keep().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");

        let target = Target::open(Path::new("/dev/null")).unwrap();
        assert!(target.is_stream());
        target.write(Bytes::from_static(b"new")).await.unwrap();
        target.keep().unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path().to_owned(), dir.path().join("none/out")] {
            let failure = Target::open(&path).unwrap_err();
            assert_eq!(failure.exit, Exit::Internal);
            assert!(failure.line().contains(path.to_str().unwrap()), "{}", failure.line());
        }
    }
}
