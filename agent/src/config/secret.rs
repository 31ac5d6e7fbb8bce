//! The cluster's secret: where it lies, and reading it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::limits::{SECRET_LEN_BYTES_MAX, SECRET_LEN_BYTES_MIN};

const CREDENTIAL_PREFIX: &str = "credential:";
/// Permission bits of everybody who is neither owner nor group.
const MODE_OTHERS: u32 = 0o007;

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It is not there, or not ours to read.
    #[error("cannot read the secret {}: {source}", path.display())]
    Read {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory, a device, a pipe.
    #[error("the secret {} is not a regular file", path.display())]
    NotAFile {
        /// Where.
        path: PathBuf,
    },
    /// Anybody on the host can read or change it.
    #[error(
        "the secret {} has mode {mode:04o}: take the rights of others away (chmod o= {})",
        path.display(),
        path.display()
    )]
    OpenToOthers {
        /// Where.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Nothing in it.
    #[error("the secret {} is empty", path.display())]
    Empty {
        /// Where.
        path: PathBuf,
    },
    /// It could be guessed.
    #[error("the secret {} has {len_bytes} bytes, at least {SECRET_LEN_BYTES_MIN} are needed", path.display())]
    TooShort {
        /// Where.
        path: PathBuf,
        /// Its length without trailing line ends.
        len_bytes: usize,
    },
    /// Some other file.
    #[error("the secret {} has more than {SECRET_LEN_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// Where.
        path: PathBuf,
    },
    /// Not absolute, and no credential.
    #[error("expected an absolute path or credential:NAME")]
    NotALocation,
    /// A credential that could leave its directory.
    #[error("a credential's name has no slash and is not empty")]
    CredentialName,
    /// Not started by systemd with credentials.
    #[error("there is no CREDENTIALS_DIRECTORY: credentials come from systemd (LoadCredential=)")]
    NoCredentials,
}

/// The cluster's secret. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The secret's bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Reads a secret from a regular file that is closed to others. Line ends at its end do not belong to it.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let refused = |source| SecretError::Read {
            path: path.to_owned(),
            source,
        };
        // Not blocking, or opening a pipe would wait for its writer.
        let file = File::options()
            .read(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(path)
            .map_err(refused)?;
        let metadata = file.metadata().map_err(refused)?;
        if !metadata.is_file() {
            return Err(SecretError::NotAFile { path: path.to_owned() });
        }
        let mode = metadata.mode() & 0o7777;
        if mode & MODE_OTHERS != 0 {
            return Err(SecretError::OpenToOthers {
                path: path.to_owned(),
                mode,
            });
        }
        let mut bytes = Vec::new();
        // One byte over the limit tells that there is more.
        file.take(SECRET_LEN_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(refused)?;
        Self::check(bytes, path)
    }

    fn check(mut bytes: Vec<u8>, path: &Path) -> Result<Self, SecretError> {
        if bytes.len() > SECRET_LEN_BYTES_MAX {
            return Err(SecretError::TooLong { path: path.to_owned() });
        }
        while matches!(bytes.last(), Some(b'\n' | b'\r')) {
            bytes.pop();
        }
        match bytes.len() {
            0 => Err(SecretError::Empty { path: path.to_owned() }),
            len_bytes if len_bytes < SECRET_LEN_BYTES_MIN => Err(SecretError::TooShort {
                path: path.to_owned(),
                len_bytes,
            }),
            _ => Ok(Self(bytes)),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Where a secret lies: `text` is an absolute path, or `credential:NAME` for a credential that systemd passes in
/// `credentials_dir`.
pub(super) fn locate(text: &str, credentials_dir: Option<&Path>) -> Result<PathBuf, SecretError> {
    match text.strip_prefix(CREDENTIAL_PREFIX) {
        Some(name) if name.is_empty() || name.contains('/') || name == ".." || name == "." => {
            Err(SecretError::CredentialName)
        }
        Some(name) => Ok(credentials_dir.ok_or(SecretError::NoCredentials)?.join(name)),
        None if text.starts_with('/') => Ok(text.into()),
        None => Err(SecretError::NotALocation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn written(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn a_secret_is_its_file_without_trailing_line_ends() {
        let (_dir, path) = written(b" 0123456789abcdef\r\n\n", 0o640);
        assert_eq!(Secret::read(&path).unwrap().expose(), b" 0123456789abcdef");
    }

    #[test]
    fn empty_short_and_endless_secrets_are_refused() {
        let (_dir, path) = written(b"\n", 0o600);
        assert!(matches!(Secret::read(&path), Err(SecretError::Empty { .. })));
        let (_dir, path) = written(b"0123456789abcde\n", 0o600);
        assert!(matches!(
            Secret::read(&path),
            Err(SecretError::TooShort { len_bytes: 15, .. })
        ));
        let (_dir, path) = written(&[b'x'; SECRET_LEN_BYTES_MAX + 1], 0o600);
        assert!(matches!(Secret::read(&path), Err(SecretError::TooLong { .. })));
    }

    #[test]
    fn a_secret_that_others_may_read_or_write_is_refused() {
        for mode in [0o604, 0o602, 0o644] {
            let (_dir, path) = written(b"0123456789abcdef", mode);
            let error = Secret::read(&path).unwrap_err();
            assert!(error.to_string().contains(&format!("{mode:04o}")), "{error}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Secret::read(dir.path()), Err(SecretError::NotAFile { .. })));
        let missing = dir.path().join("missing");
        assert!(
            Secret::read(&missing)
                .unwrap_err()
                .to_string()
                .contains(missing.to_str().unwrap())
        );
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(matches!(Secret::read(&pipe), Err(SecretError::NotAFile { .. })));
    }

    #[test]
    fn a_credential_lies_in_the_credentials_directory() {
        let dir = Path::new("/run/credentials/tenond.service");
        assert_eq!(locate("credential:secret", Some(dir)).unwrap(), dir.join("secret"));
        assert!(matches!(
            locate("credential:secret", None),
            Err(SecretError::NoCredentials)
        ));
        for text in ["credential:", "credential:..", "credential:a/b"] {
            assert!(matches!(locate(text, Some(dir)), Err(SecretError::CredentialName)));
        }
        assert!(matches!(locate("secret", Some(dir)), Err(SecretError::NotALocation)));
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret(b"0123456789abcdef".to_vec());
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
