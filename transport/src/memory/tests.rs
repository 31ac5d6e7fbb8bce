use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::*;
use crate::checksum::{Crc64, crc64};

fn shared(memory: Memory) -> Arc<Memory> {
    Arc::new(memory)
}

#[test]
fn copies_words_and_checksums_see_the_same_bytes() {
    for memory in [
        Memory::anonymous(10_000).unwrap(),
        Memory::memfd("test", 10_000, HugePages::Off).unwrap(),
        Memory::from_vec(vec![0; 10_000]),
    ] {
        let bytes: Vec<u8> = (0..9_000_u32)
            .map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1])
            .collect();
        memory.copy_in(1_000, &bytes).unwrap();
        assert_eq!(memory.crc64(1_000..10_000).unwrap(), crc64(&bytes));
        memory.copy_within(1_000..2_000, &memory, 1_500).unwrap();
        let mut back = vec![0; 1_000];
        memory.copy_out(1_500, &mut back).unwrap();
        assert_eq!(back, bytes[..1_000]);
        memory.store_u64(16, 0x0123_4567_89ab_cdef, Release).unwrap();
        assert_eq!(memory.load_u64(16, Acquire).unwrap(), 0x0123_4567_89ab_cdef);
    }
}

#[test]
fn checksums_of_long_ranges_are_those_of_their_bytes_wherever_they_start() {
    let bytes: Vec<u8> = (0..70_000_u32)
        .map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes()[3])
        .collect();
    let memory = Memory::from_vec(bytes.clone());
    for start in [0, 1, 63, 64, 1_000] {
        for len in [0, 1, 255, 2_047, 2_048, 2_111, 2_303, 2_304, 4_096, 65_536, 68_999] {
            let mut crc = Crc64::new();
            crc.update(b"before");
            let (from, to) = (to_u64(start), to_u64(start + len));
            memory.crc64_into(&mut crc, from..to).unwrap();
            let expected = [b"before", &bytes[start..start + len]].concat();
            assert_eq!(crc.value(), crc64(&expected), "{len} bytes from {start} on");
        }
    }
}

#[test]
fn what_lies_outside_is_refused() {
    let memory = shared(Memory::anonymous(4096).unwrap());
    let mut byte = [0];
    assert!(matches!(
        memory.copy_out(4096, &mut byte),
        Err(MemoryError::OutOfRange { offset_bytes: 4096, .. })
    ));
    assert!(matches!(
        memory.copy_in(u64::MAX, &byte),
        Err(MemoryError::OutOfRange { .. })
    ));
    assert!(matches!(
        memory.load_u64(4089, Relaxed),
        Err(MemoryError::OutOfRange { .. })
    ));
    assert!(matches!(
        memory.load_u64(4, Relaxed),
        Err(MemoryError::Misaligned { offset_bytes: 4 })
    ));
    assert!(memory.crc64(1..4098).is_err());
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let backwards = memory.slice(9..8);
    assert!(backwards.is_err());
    let slice = memory.slice(100..200).unwrap();
    assert!(slice.copy_in(99, &[1, 2]).is_err());
    assert!(slice.copy_out(u64::MAX, &mut byte).is_err());
    assert!(slice.subslice(0..101).is_err());
    assert!(matches!(
        Memory::anonymous(0),
        Err(MemoryError::Length { len_bytes: 0 })
    ));
    assert!(Memory::anonymous(u64::MAX).is_err());
}

#[test]
fn a_subslice_counts_from_its_slice() {
    let memory = shared(Memory::from_vec((0..=255).collect()));
    let slice = memory.slice(10..20).unwrap().subslice(5..8).unwrap();
    assert_eq!(slice.to_vec(), [15, 16, 17]);
    assert_eq!(slice.crc64(), crc64(&[15, 16, 17]));
    slice.copy_in(1, &[0]).unwrap();
    assert_eq!(slice.to_vec(), [15, 0, 17]);
}

#[test]
fn only_the_last_reference_to_private_memory_becomes_bytes() {
    let memory = shared(Memory::from_vec(vec![7; 100]));
    let slice = memory.slice(50..60).unwrap();
    let slice = slice.into_bytes().unwrap_err();
    drop(memory);
    let bytes = slice.into_bytes().unwrap();
    assert_eq!(bytes, vec![7; 10]);

    let memory = shared(Memory::memfd("test", 100, HugePages::Off).unwrap());
    let slice = memory.slice(0..100).unwrap();
    drop(memory);
    assert!(slice.into_bytes().is_err(), "another process may have it mapped");
}

#[test]
fn a_slice_keeps_the_mapping_alive() {
    let memory = shared(Memory::anonymous(4096).unwrap());
    memory.copy_in(0, b"still here").unwrap();
    let slice = memory.slice(0..10).unwrap();
    drop(memory);
    assert_eq!(slice.to_vec(), b"still here");
}

#[test]
fn sockets_fill_and_drain_it_without_blocking() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let memory = Memory::anonymous(4096).unwrap();
    assert_eq!(
        memory.recv_from(ours.as_fd(), 0..10).unwrap_err().kind(),
        io_kind("would block")
    );
    theirs.write_all(b"abcdef").unwrap();
    assert_eq!(memory.recv_from(ours.as_fd(), 4..8).unwrap(), 4);
    assert_eq!(memory.send_to(ours.as_fd(), b"head", 4..8).unwrap(), 8);
    let mut seen = [0; 8];
    std::io::Read::read_exact(&mut theirs, &mut seen).unwrap();
    assert_eq!(&seen, b"headabcd");
    assert_eq!(
        memory.recv_from(ours.as_fd(), 4090..4097).unwrap_err().kind(),
        io_kind("invalid")
    );
    drop(theirs);
    assert_eq!(memory.recv_from(ours.as_fd(), 0..2).unwrap(), 2);
    assert_eq!(memory.recv_from(ours.as_fd(), 0..2).unwrap(), 0, "the peer has closed");
    assert_eq!(
        memory.send_to(ours.as_fd(), b"", 0..1).unwrap_err().kind(),
        std::io::ErrorKind::BrokenPipe
    );
}

fn io_kind(name: &str) -> std::io::ErrorKind {
    if name == "invalid" {
        std::io::ErrorKind::InvalidInput
    } else {
        std::io::ErrorKind::WouldBlock
    }
}

#[test]
fn prefaulting_reports_every_byte_and_changes_none() {
    let memory = Memory::memfd("test", 150 << 20, HugePages::Off).unwrap();
    memory.copy_in(70 << 20, b"kept").unwrap();
    let most = AtomicU64::new(0);
    memory
        .prefault(5..150 << 20, &|done_bytes| _ = most.fetch_max(done_bytes, Relaxed))
        .unwrap();
    assert_eq!(most.load(Relaxed), (150 << 20) - 5);
    let mut kept = [0; 4];
    memory.copy_out(70 << 20, &mut kept).unwrap();
    assert_eq!(&kept, b"kept");
    assert!(memory.prefault(0..(150 << 20) + 1, &|_| ()).is_err());
}

#[test]
fn huge_pages_are_had_or_the_lack_of_them_is_named() {
    // Larger than any host's huge page pool: whether it has one or not, requiring fails and preferring falls back.
    let too_many_bytes = 1 << 44;
    let error = Memory::memfd("test", too_many_bytes, HugePages::Require).unwrap_err();
    assert!(
        matches!(error, MemoryError::HugePages { len_bytes, .. } if len_bytes == too_many_bytes),
        "{error}"
    );
    let memory = Memory::memfd("test", 1 << 20, HugePages::Prefer).unwrap();
    assert!(memory.page_bytes() >= 4096);
    assert_eq!(memory.len_bytes(), 1 << 20);
}

#[test]
fn files_are_locked_and_must_lie_in_memory() {
    let folder = std::path::PathBuf::from("/dev/shm");
    let path = folder.join(format!("tenon-transport-test-{}", std::process::id()));
    let memory = Memory::file(&path, 8192).unwrap();
    memory.copy_in(8190, b"xy").unwrap();
    // A second open file description is refused as another process would be.
    assert!(matches!(Memory::file(&path, 8192), Err(MemoryError::InUse { .. })));
    drop(memory);
    let again = Memory::file(&path, 4096).unwrap();
    assert_eq!(
        again.crc64(0..4096).unwrap(),
        crc64(&[0; 4096]),
        "the content of an earlier owner is gone"
    );
    std::fs::remove_file(&path).unwrap();

    let on_proc = Path::new("/proc/tenon-test");
    let error = Memory::file(on_proc, 4096).unwrap_err();
    assert!(error.to_string().contains("lies on proc"), "{error}");
}
