//! Segments.

use super::{Case, HOST, assert_refused, loaded};
use crate::config::{Backing, Config, Environment, Flags, Host};
use crate::limits::SEGMENTS_MAX;

#[test]
fn a_small_host_gives_a_quarter_of_its_memory() {
    let host = Host {
        ram_bytes: 2 << 30,
        ..HOST
    };
    let case = Case::new("");
    let flags = Flags {
        config: Some(case.path.clone()),
        ..Flags::default()
    };
    let config = Config::load(&flags, &Environment::default(), &host).unwrap();
    assert_eq!(config.segments[0].len_bytes, 512 << 20);
}

#[test]
fn sizes_of_segments_are_whole_pages_of_at_least_a_piece() {
    for (size, reason) in [
        ("\"1GB\"", "1GiB"),
        ("\"\"", "1GiB"),
        ("-1", "1GiB"),
        ("4096", "at least 1MiB"),
        ("0", "at least 1MiB"),
        ("1048577", "4096"),
        ("\"16777216TiB\"", "2^64"),
    ] {
        assert_refused(
            &format!("[[segments]]\nsize = {size}\n"),
            2,
            "segments[0].size = ",
            &[reason],
        );
    }
    assert_refused(
        "[[segments]]\nsize = \"3MiB\"\nhuge_pages = \"require\"\n",
        2,
        "segments[0].size",
        &["2097152"],
    );
    for size in ["1048576", "\"1MiB\"", "\"1 GiB\""] {
        assert!(
            Case::new(&format!("[[segments]]\nsize = {size}\n")).load().is_ok(),
            "{size}"
        );
    }
}

#[test]
fn segments_and_tables_fit_in_memory_unless_they_are_files() {
    assert_refused(
        "[[segments]]\nsize = \"16GiB\"\n",
        1,
        "segments",
        &[&HOST.ram_bytes.to_string()],
    );
    assert_refused(
        "[[segments]]\nsize = \"1GiB\"\nslots = 67108864\n",
        1,
        "segments",
        &["tables"],
    );
    assert!(
        Case::new("[[segments]]\nsize = \"1TiB\"\nfile = \"/dev/hugepages/tenon\"\nslots = 1024\n")
            .load()
            .is_ok()
    );
}

#[test]
fn slots_have_a_range() {
    for slots in ["0", "67108865"] {
        assert_refused(
            &format!("[[segments]]\nsize = \"1GiB\"\nslots = {slots}\n"),
            3,
            "segments[0].slots",
            &[slots, "1 to 67108864"],
        );
    }
    assert_eq!(
        loaded("[[segments]]\nsize = \"1MiB\"\nslots = 1\n").segments[0].slots,
        1
    );
}

#[test]
fn a_list_of_segments_is_neither_empty_nor_endless() {
    assert_refused("segments = []\n", 1, "segments = a list of 0", &["at least one"]);
    let many = "[[segments]]\nsize = \"1MiB\"\nslots = 1\n".repeat(SEGMENTS_MAX + 1);
    assert_refused(&many, 1, "segments = a list of 1025", &["at most 1024"]);
}

#[test]
fn a_file_holds_one_segment_and_decides_its_pages() {
    let one = "[[segments]]\nsize = \"1MiB\"\nfile = \"/dev/shm/a\"\n";
    assert_refused(
        &one.repeat(2),
        6,
        "segments[1].file",
        &["/dev/shm/a", "segments[0].file"],
    );
    assert_refused(
        &format!("{one}huge_pages = \"prefer\"\n"),
        4,
        "segments[0].huge_pages",
        &["file system"],
    );
    let config = loaded(one);
    assert_eq!(config.segments[0].backing, Backing::File("/dev/shm/a".into()));
}
