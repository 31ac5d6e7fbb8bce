//! What is put through one node is read through every other, byte for byte. With five nodes most keys have neither their homes nor their
//! holder at the node that is asked.

use std::collections::BTreeSet;

use tenon_integration::account::assert_accounts;
use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::http::Http;
use tenon_integration::payload::{LARGE_LENGTH, SMALL_LENGTHS, assert_same, payload};

/// Keys that a path, a query, a shell or a terminal would like to change.
fn odd_keys() -> Vec<String> {
    let plain = [
        "with/slash",
        "/leading",
        "trailing/",
        "two//slashes",
        "a/../b",
        "./c",
        "100%",
        "%2F",
        "%",
        "two words",
        " spaces around ",
        "question?mark=1&more",
        "hash#tag",
        "plus+sign",
        "quote\"and'apostrophe",
        "back\\slash",
        "schlüssel",
        "鍵/ключ",
        "🗝",
        "e\u{301} is not \u{e9}",
        "é is not e\u{301}",
    ];
    let longest = ["x".repeat(1024), "é".repeat(512)];
    plain.into_iter().map(str::to_owned).chain(longest).collect()
}

#[test]
fn objects_of_every_length_put_through_any_node_come_back_through_every_other() {
    let cluster = Cluster::start(5);
    let lengths = SMALL_LENGTHS.into_iter().chain([(1 << 20) + 1, (5 << 20) - 3]);
    let objects: Vec<_> = lengths
        .enumerate()
        .flat_map(|(row, len)| {
            (0..5).map(move |writer| (writer, format!("{len} bytes through {writer}"), row * 5 + writer, len))
        })
        .map(|(writer, key, seed, len)| (writer, key, payload(seed as u64, len)))
        .collect();
    for (writer, key, bytes) in &objects {
        let put = cluster[*writer].http().put_object(key, bytes);
        assert_eq!(put["outcome"], "stored", "{key}: {put}");
    }
    for (writer, key, bytes) in &objects {
        for reader in cluster.others(&[*writer]) {
            let got = reader.http().get_object(key).expect(200);
            assert_same(got.bytes(), bytes, &format!("{key} from node {}", reader.id()));
        }
    }
    assert_accounts(&cluster);
}

#[test]
fn a_large_object_comes_back_through_every_other_node_by_http_and_by_command_line() {
    let cluster = Cluster::start_with(&ClusterOptions {
        nodes: 5,
        segments_bytes: vec![256 << 20],
        ..ClusterOptions::default()
    });
    let bytes = payload(1, LARGE_LENGTH);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (file, copy) = (dir.path().join("file"), dir.path().join("copy"));
    std::fs::write(&file, &bytes).expect("the file can be written");
    let path = |path: &std::path::Path| path.to_str().expect("a path in UTF-8").to_owned();

    let put = cluster[0].tenon(&["put", "large", &path(&file)]);
    assert!(put.status.success(), "{put:?}");
    for reader in cluster.others(&[0]) {
        assert_same(reader.http().get_object("large").expect(200).bytes(), &bytes, "by HTTP");
        let get = reader.tenon(&["get", "large", "-o", &path(&copy)]);
        assert!(get.status.success(), "{get:?}");
        assert_same(
            &std::fs::read(&copy).expect("the copy can be read"),
            &bytes,
            "by command line",
        );
    }
    assert_accounts(&cluster);
}

#[test]
fn odd_keys_are_kept_as_they_are_by_every_node_and_both_fronts() {
    let cluster = Cluster::start(5);
    let keys = odd_keys();
    for (index, key) in keys.iter().enumerate() {
        cluster[index % 5].http().put_object(key, key.as_bytes());
    }
    for (index, key) in keys.iter().enumerate() {
        for reader in cluster.others(&[index % 5]) {
            assert_same(reader.http().get_object(key).expect(200).bytes(), key.as_bytes(), key);
        }
        let by_command_line = cluster[(index + 1) % 5].tenon(&["get", "--", key]);
        assert!(by_command_line.status.success(), "{key:?}: {by_command_line:?}");
        assert_same(&by_command_line.stdout, key.as_bytes(), key);
    }
    for node in cluster.nodes() {
        let listed = node.http().get("/v1/objects").expect(200).json();
        assert_eq!(listed["complete"], true, "{listed}");
        let entries = listed["entries"].as_array().expect("entries");
        let names: BTreeSet<_> = entries.iter().filter_map(|entry| entry["key"].as_str()).collect();
        assert_eq!(
            names,
            keys.iter().map(String::as_str).collect(),
            "listed by {}",
            node.id()
        );
    }
    assert_accounts(&cluster);
}

#[test]
fn the_same_key_in_two_namespaces_names_two_objects() {
    let cluster = Cluster::start(2);
    let path = |namespace: &str| format!("/v1/namespaces/{namespace}/objects/same");
    for namespace in ["one", "two"] {
        let put = cluster[0].http().put(&path(namespace), namespace.as_bytes());
        assert!(matches!(put.status, 200 | 201), "{put:?}");
    }
    for namespace in ["one", "two"] {
        let got = cluster[1].http().get(&path(namespace)).expect(200);
        assert_same(got.bytes(), namespace.as_bytes(), namespace);
    }
    cluster[1]
        .http()
        .get(&Http::object_path("same"))
        .expect_error(404, "not_found");
    assert_accounts(&cluster);
}

#[test]
fn ranges_of_an_object_on_another_node_are_exact() {
    let cluster = Cluster::start(2);
    let bytes = payload(7, (3 << 20) + 77);
    cluster[0].http().put_object("ranged", &bytes);
    let path = Http::object_path("ranged");
    let last = bytes.len() - 1;
    // One byte, within a piece, across pieces, the last partial piece, the tail by suffix, beyond the end, everything.
    let cases = [
        ("bytes=0-0".to_owned(), 0, 0),
        ("bytes=100-199".to_owned(), 100, 199),
        ("bytes=1048570-2097160".to_owned(), 1_048_570, 2_097_160),
        (format!("bytes={}-", 3 << 20), 3 << 20, last),
        ("bytes=-10".to_owned(), last - 9, last),
        ("bytes=5-99999999".to_owned(), 5, last),
        ("bytes=0-".to_owned(), 0, last),
    ];
    for (range, first, last) in cases {
        let got = cluster[1].http().get_range(&path, &range).expect(206);
        let content_range = format!("bytes {first}-{last}/{}", bytes.len());
        assert_eq!(got.header("content-range"), Some(content_range.as_str()), "{range}");
        assert_same(got.bytes(), &bytes[first..=last], &range);
    }
    let beyond = format!("bytes={}-", bytes.len());
    cluster[1]
        .http()
        .get_range(&path, &beyond)
        .expect_error(416, "range_not_satisfiable");
    assert_accounts(&cluster);
}

#[test]
fn a_removed_object_is_gone_at_every_node_and_its_space_is_free() {
    let cluster = Cluster::start(5);
    for index in 0..5 {
        cluster[index]
            .http()
            .put_object(&format!("key {index}"), &payload(index as u64, 100_000));
    }
    for index in 0..5 {
        let removed = cluster[(index + 1) % 5]
            .http()
            .delete(&Http::object_path(&format!("key {index}")));
        assert!(matches!(removed.status, 200 | 204), "{removed:?}");
        for node in cluster.nodes() {
            node.http()
                .get_object(&format!("key {index}"))
                .expect_error(404, "not_found");
            assert_eq!(
                node.http().head(&Http::object_path(&format!("key {index}"))).status,
                404
            );
        }
    }
    tenon_integration::account::assert_empty(&cluster);
    cluster[0]
        .http()
        .delete(&Http::object_path("key 0"))
        .expect_error(404, "not_found");
}
