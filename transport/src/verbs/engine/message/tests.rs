use super::*;
use proptest::prelude::*;

fn any_remote() -> impl Strategy<Value = Remote> {
    any::<(u64, u32)>().prop_map(|(address, key)| Remote {
        address,
        key: RegionKey(key),
    })
}

fn any_named() -> impl Strategy<Value = Vec<(u8, Remote)>> {
    proptest::collection::vec((any::<u8>(), any_remote()), 0..4)
}

fn any_named_export() -> impl Strategy<Value = Named> {
    let keys = proptest::collection::vec(any::<u32>().prop_map(RegionKey), 1..4);
    (any::<(u8, u64, u64)>(), 1..=u64::MAX, keys).prop_map(|((path, address, first_bytes), part_bytes, keys)| Named {
        path,
        address,
        first_bytes,
        part_bytes,
        keys,
    })
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    (any::<(u32, u32, [u8; 16], u16, u8)>(), 0..5u32).prop_map(|(numbers, mtu)| Endpoint {
        queue_pair: numbers.0,
        first_packet: numbers.1,
        gid: Gid(numbers.2),
        local_id: numbers.3,
        mtu: Mtu::of_bytes(256 << mtu).unwrap(),
        reads_as_target: numbers.4,
    })
}

fn any_paths() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..VERBS_PATHS_MAX)
}

fn any_keys() -> impl Strategy<Value = Vec<RemoteKey>> {
    proptest::collection::vec(any::<u64>().prop_map(RemoteKey), 0..4)
}

fn any_want() -> impl Strategy<Value = Want> {
    any::<(u64, u64, u64, u8)>().prop_map(|(key, offset_bytes, len_bytes, path)| Want {
        key: RemoteKey(key),
        offset_bytes,
        len_bytes,
        path,
    })
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let offer = (any::<u8>(), any::<u128>(), 0..=128u8, any_endpoint());
    let offer = offer.prop_map(|(path, address, bits, endpoint)| Offer {
        path,
        subnet: Subnet::new(address.into(), bits),
        endpoint,
    });
    let source = (any::<u64>(), any_named()).prop_map(|(len_bytes, from)| Source { len_bytes, from });
    let pull = (any::<(u64, u64, u32)>(), proptest::collection::vec(source, 0..3));
    let pull = pull.prop_map(|((key, offset_bytes, group), sources)| Pull {
        key: RemoteKey(key),
        offset_bytes,
        group,
        sources,
    });
    prop_oneof![
        (any::<bool>(), proptest::collection::vec(offer, 0..4))
            .prop_map(|(any_subnet, offers)| Ask::Connect { any_subnet, offers }),
        any::<u64>().prop_map(|key| Ask::Resolve { key: RemoteKey(key) }),
        proptest::collection::vec(pull, 0..4).prop_map(Ask::Pull),
        any_paths().prop_map(Ask::Rest),
        Just(Ask::Listen),
        any_keys().prop_map(Ask::Forgot),
        proptest::collection::vec(any_want(), 0..4).prop_map(Ask::Grant),
        proptest::collection::vec(any::<(u64, bool)>(), 0..4).prop_map(|settles| {
            let settle = |(grant, landed)| Settle { grant, landed };
            Ask::Settle(settles.into_iter().map(settle).collect())
        }),
    ]
}

fn any_tell() -> impl Strategy<Value = Tell> {
    let accept = (any::<u8>(), any_endpoint(), any_remote(), any::<bool>());
    let accept = accept.prop_map(|(path, endpoint, probe, pushes)| Accept {
        path,
        endpoint,
        probe,
        pushes,
    });
    let given = (any::<u64>(), any_remote()).prop_map(|(grant, to)| Given { grant, to });
    let error = any::<u64>().prop_map(|key| TransferError::UnknownKey { key: RemoteKey(key) });
    let pulled = prop_oneof![any::<u64>().prop_map(Ok), error.clone().prop_map(Err)];
    let granted = prop_oneof![proptest::option::of(given).prop_map(Ok), error.clone().prop_map(Err)];
    let settled = prop_oneof![any::<Option<u64>>().prop_map(Ok), error.clone().prop_map(Err)];
    prop_oneof![
        (proptest::collection::vec(accept, 0..4), "[a-z]{0,20}")
            .prop_map(|(accepted, refused)| Tell::Connected { accepted, refused }),
        (any::<u64>(), proptest::collection::vec(any_named_export(), 0..4))
            .prop_map(|(len_bytes, at)| Tell::Resolved { len_bytes, at }),
        (proptest::collection::vec(pulled, 0..4), any_paths())
            .prop_map(|(results, away)| Tell::Pulled { results, away }),
        Just(Tell::Done),
        (any_paths(), any::<u32>(), any_keys()).prop_map(|(paths, idle_ms, keys)| Tell::Wanted {
            paths,
            idle_ms,
            keys
        }),
        proptest::collection::vec(granted, 0..4).prop_map(Tell::Granted),
        proptest::collection::vec(settled, 0..4).prop_map(Tell::Settled),
        error.prop_map(Tell::Failed),
    ]
}

proptest! {
    #[test]
    fn messages_come_back_and_none_is_read_from_less(ask in any_ask(), tell in any_tell(), cut in any::<prop::sample::Index>()) {
        let bytes = ask.encode();
        prop_assert_eq!(Ask::decode(&bytes), Some(ask));
        prop_assert_eq!(Ask::decode(&bytes[..cut.index(bytes.len())]), None);
        let bytes = tell.encode();
        prop_assert_eq!(Tell::decode(&bytes), Some(tell));
        prop_assert_eq!(Tell::decode(&bytes[..cut.index(bytes.len())]), None);
    }

    #[test]
    fn any_bytes_are_a_message_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Ask::decode(&bytes);
        let _ = Tell::decode(&bytes);
    }
}
