//! The text of the project itself, for the tests that hold its habits.

use std::path::{Path, PathBuf};

use crate::binaries::workspace_dir;

/// A file of the project.
#[derive(Debug)]
pub struct Source {
    /// Relative to the root.
    pub path: String,
    /// All of it.
    pub text: String,
}

/// A function of a Rust file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The line it begins on, counted from 1.
    pub line: usize,
    /// From its first line to its closing brace.
    pub lines: usize,
}

/// Every file of the project with this extension, build products and hidden directories left out.
pub fn sources(extension: &str) -> Vec<Source> {
    let mut found = Vec::new();
    collect(workspace_dir(), extension, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(dir: &Path, extension: &str, found: &mut Vec<Source>) {
    let entries = std::fs::read_dir(dir).expect("a directory of the project can be read");
    for path in entries.map(|entry| entry.expect("an entry can be read").path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with('.') || name.starts_with("target") {
            continue;
        }
        if path.is_dir() {
            collect(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(Source {
                path: relative(&path),
                text: std::fs::read_to_string(&path).expect("a source is UTF-8"),
            });
        }
    }
}

fn relative(path: &Path) -> String {
    let path: PathBuf = path
        .strip_prefix(workspace_dir())
        .expect("a path in the project")
        .into();
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// The functions of a file that rustfmt has formatted: a function ends at the first closing brace with its own indentation.
pub fn functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let at_own_indent = |line: &str| line.starts_with(indent) && !line[indent.len()..].starts_with([' ', '\t']);
        let end = lines[index..].iter().position(|line| {
            let own = at_own_indent(line) && !line.trim().is_empty();
            own && (line.trim_start().starts_with('}') || line.ends_with(';') || line.ends_with('}'))
        });
        found.push(Function {
            name: name.to_owned(),
            line: index + 1,
            lines: end.unwrap_or(lines.len() - index) + 1,
        });
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut words = line.trim_start();
    loop {
        if let Some(rest) = words.strip_prefix("fn ") {
            let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
            return Some(&rest[..end]);
        }
        let (word, rest) = words.split_once(' ')?;
        let qualifies =
            matches!(word, "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"") || word.starts_with("pub(");
        if !qualifies {
            return None;
        }
        words = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured_from_signature_to_closing_brace() {
        let text = "pub(crate) async fn long(\n    a: u8,\n) -> u8 {\n    a\n}\n\nimpl X {\n    fn one() {}\n    fn wide(\n        a: u8,\n    );\n}\n";
        let measured: Vec<_> = functions(text)
            .into_iter()
            .map(|function| (function.name, function.line, function.lines))
            .collect();
        assert_eq!(
            measured,
            [
                ("long".to_owned(), 1, 5),
                ("one".to_owned(), 8, 1),
                ("wide".to_owned(), 9, 3)
            ]
        );
    }
}
