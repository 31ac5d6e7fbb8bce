//! Habits of this project's own text, as a ratchet: the lists of exceptions below may only get shorter.

use std::collections::{BTreeMap, BTreeSet};

use tenon_integration::binaries::workspace_dir;
use tenon_integration::sources::{Source, functions, sources};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

/// Files that are longer, with the length they must not exceed.
const LONG_FILES: &[(&str, usize)] = &[];
/// Functions that are longer: file, name, and the length they must not exceed.
const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[];

/// Where `unsafe` may stand: a directory, and the calls into libibverbs.
const UNSAFE_PLACES: &[&str] = &["transport/src/memory/", "transport/src/verbs/raw.rs"];

#[test]
fn files_are_short_enough_to_read() {
    let allowed: BTreeMap<_, _> = LONG_FILES.iter().copied().collect();
    for Source { path, text } in sources("rs") {
        let lines = text.lines().count();
        match allowed.get(path.as_str()) {
            None => assert!(
                lines <= FILE_LINES_MAX,
                "{path} has {lines} lines: split it along what it is about ({FILE_LINES_MAX} are allowed)"
            ),
            Some(&most) => assert!(
                (FILE_LINES_MAX + 1..=most).contains(&lines),
                "{path} has {lines} lines and its exception says {most}: lower or remove the exception, or shorten the file"
            ),
        }
    }
}

#[test]
fn functions_fit_on_a_screen() {
    let mut unused: BTreeSet<_> = LONG_FUNCTIONS.iter().map(|(path, name, _)| (*path, *name)).collect();
    for Source { path, text } in sources("rs") {
        for function in functions(&text) {
            let exception = LONG_FUNCTIONS
                .iter()
                .find(|(file, name, _)| *file == path && *name == function.name);
            let most = exception.map_or(FUNCTION_LINES_MAX, |(_, _, most)| *most);
            assert!(
                function.lines <= most,
                "{path}:{}: {} has {} lines: give its parts names of their own ({most} are allowed)",
                function.line,
                function.name,
                function.lines
            );
            if let Some((file, name, _)) = exception
                && function.lines > FUNCTION_LINES_MAX
            {
                unused.remove(&(*file, *name));
            }
        }
    }
    assert!(
        unused.is_empty(),
        "these functions need no exception any more: {unused:?}"
    );
}

#[test]
fn unsafe_code_lies_in_its_named_place() {
    let marks = [
        "unsafe {",
        "unsafe fn",
        "unsafe impl",
        "unsafe extern",
        "allow(unsafe_code)",
    ];
    let this_file = "integration/tests/tidy.rs";
    for Source { path, text } in sources("rs") {
        if UNSAFE_PLACES.iter().any(|place| path.starts_with(place)) || path == this_file {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            assert!(
                !marks.iter().any(|mark| code.contains(mark)),
                "{path}:{}: unsafe code belongs in {UNSAFE_PLACES:?}, behind a safe interface",
                index + 1
            );
        }
    }
}

/// `[text](target)` of a Markdown text, fenced code left out.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, next)) = after.split_once(')') else {
                break;
            };
            found.push(target.to_owned());
            rest = next;
        }
    }
    found
}

fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return false;
        }
        !fenced
    })
}

/// The anchors of a Markdown text's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    prose(text)
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title
                .chars()
                .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'))
                .map(|letter| if letter == ' ' { '-' } else { letter })
                .collect()
        })
        .collect()
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    for Source { path, text } in sources("md") {
        let dir = workspace_dir().join(&path).parent().expect("a directory").to_path_buf();
        for link in links(&text) {
            if link.starts_with("http://") || link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() {
                workspace_dir().join(&path)
            } else {
                dir.join(file)
            };
            assert!(target.exists(), "{path}: the link {link} leads nowhere");
            if !anchor.is_empty() {
                let target = std::fs::read_to_string(&target).expect("a linked document can be read");
                assert!(
                    anchors(&target).contains(anchor),
                    "{path}: there is no heading #{anchor} behind {link}"
                );
            }
        }
    }
}

/// What stands between single backquotes in a text.
fn quoted(text: &str) -> Vec<String> {
    prose(text)
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

#[test]
fn paths_named_in_the_documents_exist() {
    let documents = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
    for Source { path, text } in sources("md") {
        if !documents.contains(&path.as_str()) && !path.starts_with("docs/") {
            continue;
        }
        for name in quoted(&text) {
            let first = name.split('/').next().unwrap_or_default();
            // What lies in `target` is made by a command, and not there before it; absolute paths are the system's.
            let of_ours = name.contains('/')
                && !first.is_empty()
                && first != "target"
                && workspace_dir().join(first).is_dir()
                && !name.contains([' ', '*', '<', ':']);
            assert!(
                !of_ours || workspace_dir().join(&name).exists(),
                "{path} names {name}, which does not exist"
            );
        }
    }
}

/// Names of metrics in a text, each from `tenon_` to the end of the word.
fn metrics_in(text: &str, before: &str) -> BTreeSet<String> {
    let begin = format!("{before}tenon_");
    let names = text.split(&begin).skip(1).map(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
        format!("tenon_{}", &rest[..end.unwrap_or(rest.len())])
    });
    names.collect()
}

#[test]
fn the_list_of_metrics_is_that_of_the_program() {
    let listed = std::fs::read_to_string(workspace_dir().join("docs/metrics.md")).expect("the list of metrics");
    let listed = metrics_in(&listed, "| `");
    let made: BTreeSet<String> = sources("rs")
        .into_iter()
        .filter(|source| source.path.starts_with("agent/src/metrics/") && !source.path.ends_with("tests.rs"))
        .flat_map(|source| metrics_in(&source.text, "\""))
        .collect();
    // The counters of single strategies get their prefix where they are shown.
    let is_of_a_strategy = |name: &String| name.starts_with("tenon_placement_");
    let missing: Vec<_> = made
        .difference(&listed)
        .filter(|name| !is_of_a_strategy(name))
        .collect();
    let gone: Vec<_> = listed
        .difference(&made)
        .filter(|name| !is_of_a_strategy(name))
        .collect();
    assert!(made.len() > 40, "{made:?}");
    assert!(missing.is_empty(), "docs/metrics.md lacks {missing:?}");
    assert!(gone.is_empty(), "docs/metrics.md names {gone:?}, which are no metrics");
}

#[test]
fn tests_named_in_the_specification_exist() {
    let specification =
        std::fs::read_to_string(workspace_dir().join("docs/SPECIFICATION.md")).expect("the specification");
    let mut named = 0;
    for name in quoted(&specification) {
        let Some((file, test)) = name.split_once("::") else {
            continue;
        };
        let text = std::fs::read_to_string(workspace_dir().join(file))
            .unwrap_or_else(|error| panic!("the specification names {file}: {error}"));
        assert!(
            functions(&text).iter().any(|function| function.name == test),
            "the specification names the test {name}, which does not exist"
        );
        named += 1;
    }
    assert!(named > 0, "the specification names no test");
}
