//! The configuration file: TOML in, settings with their places out. Unknown keys and values of the wrong type are
//! refused here.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::size::SizeText;
use super::source::{Origin, Sourced};
use crate::limits::CONFIG_FILE_LEN_BYTES_MAX;

/// The file's tables and keys. Each key may be left out unless its type says otherwise.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tables {
    pub(super) node: NodeTable,
    pub(super) cluster: ClusterTable,
    pub(super) listen: ListenTable,
    pub(super) segments: Option<Spanned<Vec<Spanned<SegmentTable>>>>,
    pub(super) placement: PlacementTable,
    pub(super) eviction: EvictionTable,
    pub(super) rdma: RdmaTable,
    pub(super) timeouts: TimeoutsTable,
    pub(super) log: LogTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NodeTable {
    pub(super) state_dir: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ClusterTable {
    pub(super) name: Option<Spanned<String>>,
    pub(super) secret_file: Option<Spanned<String>>,
    pub(super) view: Option<Spanned<String>>,
    pub(super) members: Option<Spanned<Vec<MemberTable>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemberTable {
    pub(super) id: Spanned<String>,
    pub(super) endpoint: Spanned<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListenTable {
    pub(super) http: Option<Spanned<String>>,
    pub(super) link: Option<Spanned<String>>,
    pub(super) unix: Option<Spanned<String>>,
    pub(super) advertise: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SegmentTable {
    pub(super) size: Spanned<SizeText>,
    pub(super) huge_pages: Option<Spanned<String>>,
    pub(super) file: Option<Spanned<String>>,
    pub(super) slots: Option<Spanned<u64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PlacementTable {
    pub(super) affinity: Option<Spanned<String>>,
    pub(super) local_until_percent: Option<Spanned<u64>>,
    pub(super) strategy: Option<Spanned<String>>,
    pub(super) fallback: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EvictionTable {
    pub(super) policy: Option<Spanned<String>>,
    pub(super) from_percent: Option<Spanned<u64>>,
    pub(super) to_percent: Option<Spanned<u64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RdmaTable {
    pub(super) policy: Option<Spanned<String>>,
    pub(super) devices: Option<Spanned<Vec<String>>>,
    pub(super) gid_index: Option<Spanned<u64>>,
    pub(super) push: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TimeoutsTable {
    pub(super) reservation_ttl_ms: Option<Spanned<u64>>,
    pub(super) heartbeat_ms: Option<Spanned<u64>>,
    pub(super) unreachable_after_ms: Option<Spanned<u64>>,
    pub(super) drain_ms: Option<Spanned<u64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogTable {
    pub(super) format: Option<Spanned<String>>,
    pub(super) level: Option<Spanned<String>>,
}

/// A parsed file that can say on which line a value stands.
#[derive(Debug)]
pub(super) struct Document {
    places: Places,
    pub(super) tables: Tables,
}

impl Document {
    /// No file: nothing is set.
    pub(super) fn empty() -> Self {
        Self {
            places: Places {
                path: Path::new("").into(),
                line_starts: Vec::new(),
            },
            tables: Tables::default(),
        }
    }

    /// Reads and parses a file.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let refused = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(refused)?;
        let mut bytes = Vec::new();
        // One byte over the limit tells that there is more.
        file.take(CONFIG_FILE_LEN_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(refused)?;
        let len_bytes = bytes.len() as u64;
        if len_bytes > CONFIG_FILE_LEN_BYTES_MAX {
            return Err(ConfigError::FileTooLong {
                path: path.to_owned(),
                len_bytes,
            });
        }
        let text = String::from_utf8(bytes)
            .map_err(|error| refused(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error())))?;
        Self::parse(path, &text)
    }

    /// Parses a text as the content of `path`.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let places = Places {
            path: path.into(),
            line_starts: text.match_indices('\n').map(|(at, _)| at + 1).collect(),
        };
        match toml::from_str(text) {
            Ok(tables) => Ok(Self { places, tables }),
            Err(error) => Err(places.explain(text, &error)),
        }
    }

    /// The origin of a value.
    pub(super) fn origin(&self, span: &Range<usize>) -> Origin {
        self.places.origin(span)
    }

    /// A value with its key and origin.
    pub(super) fn sourced<T: Clone>(&self, key: impl Into<String>, value: &Spanned<T>) -> Sourced<T> {
        Sourced {
            key: key.into(),
            value: value.get_ref().clone(),
            origin: self.origin(&value.span()),
        }
    }
}

#[derive(Debug)]
struct Places {
    path: Arc<Path>,
    /// Of every line but the first.
    line_starts: Vec<usize>,
}

impl Places {
    fn origin(&self, span: &Range<usize>) -> Origin {
        Origin::File {
            path: Arc::clone(&self.path),
            line: self.line_starts.partition_point(|&start| start <= span.start) + 1,
        }
    }

    fn explain(&self, text: &str, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or(0..0);
        let written = text.get(span.clone()).unwrap_or_default();
        // Serde names unknown keys, wrong types and missing keys itself, but not always what stood there.
        let reason = match error.message() {
            message if written.is_empty() || written.contains('\n') || message.contains(written) => message.to_owned(),
            message => format!("{written}: {message}"),
        };
        ConfigError::Syntax {
            origin: self.origin(&span),
            key: key_at(text, span.start),
            reason,
        }
    }
}

/// The path of the innermost key or value that stands at `at`, if the text is TOML at all.
fn key_at(text: &str, at: usize) -> Option<String> {
    let table = DeTable::parse(text).ok()?;
    let mut innermost = None;
    search_table(table.get_ref(), at, "", &mut innermost);
    innermost.map(|(_, path)| path)
}

/// The shortest span so far that holds the place, and its path.
type Innermost = Option<(usize, String)>;

fn search_table(table: &DeTable<'_>, at: usize, parent: &str, innermost: &mut Innermost) {
    for (key, value) in table {
        let path = match parent {
            "" => key.get_ref().to_string(),
            parent => format!("{parent}.{}", key.get_ref()),
        };
        consider(key.span(), at, &path, innermost);
        search_value(value, at, &path, innermost);
    }
}

fn search_value(value: &Spanned<DeValue<'_>>, at: usize, path: &str, innermost: &mut Innermost) {
    consider(value.span(), at, path, innermost);
    match value.get_ref() {
        DeValue::Table(table) => search_table(table, at, path, innermost),
        DeValue::Array(array) => {
            for (index, entry) in array.iter().enumerate() {
                search_value(entry, at, &format!("{path}[{index}]"), innermost);
            }
        }
        _ => {}
    }
}

fn consider(span: Range<usize>, at: usize, path: &str, innermost: &mut Innermost) {
    let shorter = innermost.as_ref().is_none_or(|(len, _)| span.len() <= *len);
    if span.contains(&at) && shorter {
        *innermost = Some((span.len(), path.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Document::parse(Path::new("/etc/t.toml"), text).unwrap_err().to_string()
    }

    #[track_caller]
    fn assert_names(error: &str, parts: &[&str]) {
        for part in parts {
            assert!(error.contains(part), "{part:?} is missing in {error:?}");
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_line_and_allowed_keys() {
        assert_names(
            &refusal("[listen]\nhttp = \"127.0.0.1:1\"\nhtpp = \"127.0.0.1:2\"\n"),
            &[
                "/etc/t.toml:3:",
                "listen.htpp",
                "unknown field",
                "`http`",
                "`link`",
                "`unix`",
                "`advertise`",
            ],
        );
        assert_names(&refusal("\n[lisen]\n"), &["/etc/t.toml:2:", "lisen", "`listen`"]);
        assert_names(
            &refusal("[[segments]]\nsize = 1\n[[segments]]\nsize = 1\ncolour = 1\n"),
            &["/etc/t.toml:5:", "segments[1].colour", "`huge_pages`"],
        );
    }

    #[test]
    fn a_value_of_another_type_is_named_with_line_and_expected_type() {
        assert_names(
            &refusal("[timeouts]\ndrain_ms = \"soon\"\n"),
            &["/etc/t.toml:2:", "timeouts.drain_ms", "soon", "u64"],
        );
        assert_names(
            &refusal("[timeouts]\ndrain_ms = -7\n"),
            &["/etc/t.toml:2:", "timeouts.drain_ms", "-7"],
        );
        assert_names(
            &refusal("[[segments]]\nsize = true\n"),
            &["/etc/t.toml:2:", "segments[0].size", "true", "1GiB"],
        );
        assert_names(&refusal("listen = 7\n"), &["/etc/t.toml:1:", "listen", "7"]);
    }

    #[test]
    fn a_key_that_is_needed_is_named_with_its_table() {
        assert_names(
            &refusal("[[segments]]\nslots = 1\n"),
            &["/etc/t.toml:1:", "segments[0]", "missing field `size`"],
        );
        assert_names(
            &refusal("[[cluster.members]]\nid = \"x\"\n"),
            &["/etc/t.toml:1:", "cluster.members[0]", "missing field `endpoint`"],
        );
    }

    #[test]
    fn what_is_no_toml_is_refused_with_its_line() {
        assert_names(&refusal("[log]\nlevel = \n"), &["/etc/t.toml:2:"]);
        assert_names(&refusal("[log]\n[log]\n"), &["/etc/t.toml:2:", "log"]);
    }

    #[test]
    fn unreadable_overlong_and_binary_files_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tenond.toml");
        assert_names(
            &Document::read(&path).unwrap_err().to_string(),
            &["tenond.toml", "No such file"],
        );
        let overlong = usize::try_from(CONFIG_FILE_LEN_BYTES_MAX + 1).unwrap();
        std::fs::write(&path, vec![b'#'; overlong]).unwrap();
        assert!(matches!(Document::read(&path), Err(ConfigError::FileTooLong { .. })));
        std::fs::write(&path, b"\xff").unwrap();
        assert_names(
            &Document::read(&path).unwrap_err().to_string(),
            &["tenond.toml", "utf-8"],
        );
    }
}
