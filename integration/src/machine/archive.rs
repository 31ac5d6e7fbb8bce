//! The archive from which a kernel fills its first file system: cpio in its "newc" form.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
const TRAILER: &str = "TRAILER!!!";

#[derive(Debug)]
enum Entry {
    Directory,
    Bytes(Vec<u8>),
    /// A file of the host, read when the archive is written.
    File(PathBuf),
    Link(String),
}

/// Files to be, by their paths. Parents come of themselves; what is added later under the same path takes the place of what was there.
#[derive(Debug, Default)]
pub(super) struct Archive {
    entries: BTreeMap<PathBuf, Entry>,
}

impl Archive {
    pub(super) fn directory(&mut self, path: &str) {
        self.insert(Path::new(path), Entry::Directory);
    }

    /// An executable file of these bytes.
    pub(super) fn bytes(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.insert(Path::new(path), Entry::Bytes(bytes.into()));
    }

    /// An executable copy of a file of the host.
    pub(super) fn file(&mut self, path: impl AsRef<Path>, source: impl Into<PathBuf>) {
        self.insert(path.as_ref(), Entry::File(source.into()));
    }

    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.insert(Path::new(path), Entry::Link(target.to_owned()));
    }

    fn insert(&mut self, path: &Path, entry: Entry) {
        let path: PathBuf = path
            .components()
            .filter(|part| matches!(part, Component::Normal(_)))
            .collect();
        for parent in path.ancestors().skip(1).filter(|parent| *parent != Path::new("")) {
            self.entries.entry(parent.to_path_buf()).or_insert(Entry::Directory);
        }
        self.entries.insert(path, entry);
    }

    /// Writes the archive. Paths are in order, so parents come before what is in them.
    pub(super) fn write(&self, output: &mut impl Write) -> io::Result<()> {
        for (index, (path, entry)) in self.entries.iter().enumerate() {
            let name = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
            let inode = u32::try_from(index + 1).map_err(|_| io::ErrorKind::FileTooLarge)?;
            match entry {
                Entry::Directory => member(output, inode, name, DIRECTORY, &[])?,
                Entry::Bytes(bytes) => member(output, inode, name, PROGRAM, bytes)?,
                Entry::File(source) => {
                    let named =
                        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", source.display()));
                    member(output, inode, name, PROGRAM, &std::fs::read(source).map_err(named)?)?;
                }
                Entry::Link(target) => member(output, inode, name, LINK, target.as_bytes())?,
            }
        }
        member(output, 0, TRAILER, 0, &[])
    }
}

/// One member: a header of hexadecimal fields, the name, the content; both are padded to four bytes, together with what goes before.
fn member(output: &mut impl Write, inode: u32, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    const HEADER_LEN: usize = 6 + 13 * 8;
    let content_len = u32::try_from(content.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let name_len = name.len() + 1;
    // The fields: inode, mode, uid, gid, links, mtime, size, device and represented device (two each), name, checksum.
    write!(
        output,
        "070701{inode:08X}{mode:08X}{0:08X}{0:08X}{1:08X}{0:08X}{content_len:08X}{0:08X}{0:08X}{0:08X}{0:08X}{name_len:08X}{0:08X}",
        0, 1
    )?;
    output.write_all(name.as_bytes())?;
    output.write_all(&[0; 4][..1 + padding(HEADER_LEN + name_len)])?;
    output.write_all(content)?;
    output.write_all(&[0; 4][..padding(content.len())])
}

fn padding(len: usize) -> usize {
    len.next_multiple_of(4) - len
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of an archive's members, found by walking its headers.
    fn names(archive: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < archive.len() {
            assert_eq!(&archive[at..at + 6], b"070701", "a header at {at}");
            let field = |index: usize| {
                let text = std::str::from_utf8(&archive[at + 6 + index * 8..][..8]).expect("digits");
                usize::from_str_radix(text, 16).expect("a number")
            };
            let (content_len, name_len) = (field(6), field(11));
            found.push(String::from_utf8_lossy(&archive[at + 110..][..name_len - 1]).into_owned());
            at = (at + 110 + name_len).next_multiple_of(4) + content_len.next_multiple_of(4);
        }
        found
    }

    #[test]
    fn parents_come_before_children_and_the_trailer_last() {
        let mut archive = Archive::default();
        archive.bytes("/usr/lib/x", *b"12345");
        archive.link("/bin/y", "x");
        archive.directory("proc");
        archive.bytes("init", *b"1");
        let mut bytes = Vec::new();
        archive.write(&mut bytes).expect("a vector takes all");
        assert_eq!(
            names(&bytes),
            ["bin", "bin/y", "init", "proc", "usr", "usr/lib", "usr/lib/x", TRAILER]
        );
    }
}
