//! Verdicts on RDMA, from made-up hosts.

use super::super::samples;
use super::*;
use tenon_transport::verbs::PortState;

fn findings(change: impl FnOnce(&mut Rdma)) -> Vec<Finding> {
    let mut facts = samples::good_host();
    change(&mut facts.rdma);
    judge(&facts.rdma, &facts.configuration)
}

#[track_caller]
fn only_warning(findings: &[Finding]) -> &Finding {
    let [warning] = findings
        .iter()
        .filter(|finding| finding.verdict != Verdict::Ok)
        .collect::<Vec<_>>()[..]
    else {
        panic!("one warning is expected: {findings:#?}")
    };
    assert_eq!(warning.verdict, Verdict::Warning);
    warning
}

fn first_port(rdma: &mut Rdma) -> &mut PortDetails {
    let Known::Yes(device) = &mut rdma.devices[0].details else {
        panic!("it was read")
    };
    let Known::Yes(port) = &mut device.ports[0].details else {
        panic!("it was read")
    };
    port
}

/// A host without devices, of which these modules are loaded.
fn without_devices(library: Library, loaded: &[&str]) -> Vec<Finding> {
    findings(|rdma| {
        rdma.library = library;
        rdma.devices.clear();
        rdma.kernel_devices = Known::Yes(Vec::new());
        let Known::Yes(modules) = &mut rdma.modules else {
            panic!("they were read")
        };
        for module in modules {
            module.state = match loaded.contains(&module.name) {
                true => ModuleState::Loaded,
                false => ModuleState::Absent,
            };
        }
    })
}

#[test]
fn without_devices_the_first_missing_part_is_named() {
    for (library, loaded, code, said) in [
        (Library::NotInstalled, &[][..], "rdma.library", "libibverbs1"),
        (Library::Answers, &[], "rdma.modules", "modprobe ib_uverbs"),
        (Library::Answers, &["ib_uverbs"], "rdma.modules", "modprobe mlx5_ib"),
        (
            Library::Answers,
            &["ib_uverbs", "rdma_rxe"],
            "rdma.modules",
            "rdma link add",
        ),
        (Library::Answers, &["ib_uverbs", "mlx5_ib"], "rdma.modules", "lspci"),
    ] {
        let findings = without_devices(library, loaded);
        let finding = findings.iter().find(|finding| finding.code == code).unwrap();
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(finding.advice.as_deref().unwrap().contains(said), "{finding:?}");
    }
    let findings = without_devices(Library::NoKernelSupport("ENOSYS".into()), &[]);
    assert!(findings[0].message.contains("ENOSYS"), "{findings:?}");
}

#[test]
fn a_port_without_link_is_told_with_its_netdev() {
    let findings = findings(|rdma| first_port(rdma).state = PortState::Down);
    let warning = only_warning(&findings);
    assert_eq!((warning.code, warning.subject.as_str()), ("rdma.port", "mlx5_0 port 1"));
    assert!(warning.message.starts_with("down"), "{warning:?}");
    assert!(
        warning.advice.as_deref().unwrap().contains("ip link set eth0 up"),
        "{warning:?}"
    );
}

#[test]
fn a_small_mtu_is_told_with_the_one_that_it_could_be() {
    let findings = findings(|rdma| first_port(rdma).active_mtu_bytes = 1024);
    let warning = only_warning(&findings);
    assert_eq!(warning.code, "rdma.mtu");
    assert!(warning.message.contains("1024 bytes of at most 4096"), "{warning:?}");
}

#[test]
fn a_port_shows_every_address_and_why_one_was_chosen() {
    let findings = findings(|_| ());
    let port = findings.iter().find(|finding| finding.code == "rdma.port").unwrap();
    assert!(port.message.ends_with("GID 1 (10.0.0.7)"), "{port:?}");
    let reasons: Vec<_> = port.rows.iter().map(|row| row[4].as_str()).collect();
    assert_eq!(port.rows.len(), 2);
    assert!(
        reasons[0].starts_with("not used: link-local") && reasons[1].starts_with("chosen"),
        "{reasons:?}"
    );
}

#[test]
fn addresses_that_no_router_carries_and_empty_tables_are_warnings() {
    let with_gids = |gids: Known<Vec<Gid>>| findings(|rdma| first_port(rdma).gids = gids);
    for (gids, said) in [
        (vec![samples::gid(0, "fe80::1", GidKind::RoceV2, true)], "link-local"),
        (
            vec![samples::gid(0, "::ffff:10.0.0.7", GidKind::RoceV1, true)],
            "RoCE v1",
        ),
        (Vec::new(), "no address can be used"),
    ] {
        let findings = with_gids(Known::Yes(gids));
        let warning = only_warning(&findings);
        assert_eq!(warning.code, "rdma.gid");
        assert!(warning.message.contains(said), "{warning:?}");
    }
    let not_read = "cannot read the GID table".to_owned();
    assert_eq!(only_warning(&with_gids(Known::No { not_read })).code, "rdma.gid");
}

#[test]
fn segments_that_a_device_cannot_register_are_told() {
    let mut facts = samples::good_host();
    let longest = facts.configuration.longest_bytes().unwrap();
    // More than one part of what is registered.
    let longest = longest.min(VERBS_REGION_BYTES + VERBS_READ_BYTES_MAX);
    for (max_region_bytes, is_enough) in [(longest, true), (longest - 1, false)] {
        if let Known::Yes(device) = &mut facts.rdma.devices[0].details {
            device.max_region_bytes = max_region_bytes;
        }
        let findings = judge(&facts.rdma, &facts.configuration);
        let found = findings.iter().any(|finding| finding.code == "rdma.region_size");
        assert_eq!(found, !is_enough);
    }
}

#[test]
fn a_device_that_only_the_kernel_knows_is_told() {
    let findings = findings(|rdma| rdma.kernel_devices = Known::Yes(vec!["mlx5_0".into(), "mlx5_9".into()]));
    assert_eq!(only_warning(&findings).subject, "mlx5_9");
}

#[test]
fn devices_of_which_no_port_can_be_used_leave_tcp() {
    let findings = findings(|rdma| {
        rdma.devices.truncate(1);
        rdma.kernel_devices = Known::Yes(vec!["mlx5_0".into()]);
        first_port(rdma).state = PortState::Down;
    });
    let usable = findings.iter().find(|finding| finding.code == "rdma.usable").unwrap();
    assert_eq!(usable.verdict, Verdict::Warning);
    assert!(usable.message.ends_with("payload goes over TCP"), "{usable:?}");
}

#[test]
fn what_is_required_and_cannot_be_had_is_a_problem_and_what_is_forbidden_is_not_looked_at() {
    let mut facts = samples::good_host();
    for empty in [false, true] {
        if empty {
            facts.rdma.devices.clear();
        } else {
            first_port(&mut facts.rdma).state = PortState::Down;
            facts.rdma.devices.truncate(1);
        }
        facts.configuration.rdma = Some(Wish::Require);
        let required = judge(&facts.rdma, &facts.configuration);
        let problems = required.iter().filter(|finding| finding.verdict == Verdict::Problem);
        assert_eq!(problems.count(), 1, "{required:#?}");
        facts.configuration.rdma = Some(Wish::Off);
        let forbidden = judge(&facts.rdma, &facts.configuration);
        assert!(
            forbidden.len() == 1 && forbidden[0].verdict == Verdict::Ok,
            "{forbidden:#?}"
        );
    }
}
