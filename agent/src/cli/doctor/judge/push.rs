//! Whether peers may write over a device themselves, and what keeps them to their windows.

use super::super::facts::{DeviceDetails, Known, WindowsSeen};
use crate::cli::doctor::finding::{Finding, Section, Verdict};
use tenon_transport::verbs::Windows;
use tenon_transport::verbs::engine::PushPolicy;

const PUSH: (Section, &str) = (Section::Rdma, "rdma.push");

/// `None` if there was no port to try windows on, which has a finding of its own. `push` is `None` if the configuration
/// cannot be used.
pub(super) fn judge(device: &str, details: &DeviceDetails, push: Option<PushPolicy>) -> Option<Finding> {
    let finding = |verdict, message: String| Finding::new(PUSH, verdict, device, message);
    let windows = match details.windows.as_ref()? {
        Known::Yes(WindowsSeen(windows)) => *windows,
        Known::No { not_read } => {
            let message = format!("memory windows cannot be tried: {not_read}");
            return Some(finding(Verdict::Warning, message).advise("puts are pulled, which needs none"));
        }
    };
    let seen = match windows {
        Windows::None => "no memory windows".to_owned(),
        Windows::Seen(_) => format!("memory windows are {windows}"),
    };
    let go = |way: &str| format!("{seen}: puts are {way}");
    Some(match (push.unwrap_or_default(), windows) {
        (PushPolicy::Off, _) => finding(Verdict::Ok, format!("{} (rdma.push is off)", go("pulled"))),
        (PushPolicy::Probed, windows) if !windows.are_enforced() => {
            finding(Verdict::Warning, go("pulled, whatever rdma.push says")).advise("rdma.push = \"off\" says the same")
        }
        (PushPolicy::Trusted, Windows::None) => {
            finding(Verdict::Warning, go("pulled, whatever rdma.push says")).advise("rdma.push = \"off\" says the same")
        }
        (PushPolicy::Trusted, windows) if !windows.are_enforced() => {
            let message = go("pushed, because rdma.push trusts whoever may put");
            finding(Verdict::Warning, message)
                .advise("rdma.push = \"probed\" keeps peers from writing where a device does not hold them to a window")
        }
        (PushPolicy::Probed | PushPolicy::Trusted, _) => finding(Verdict::Ok, go("pushed")),
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use tenon_transport::verbs::Enforced;

    fn verdict(push: PushPolicy, windows: Windows) -> (Verdict, String) {
        let mut facts = samples::good_host();
        let details = match &mut facts.rdma.devices[0].details {
            Known::Yes(details) => details,
            Known::No { .. } => panic!("the sample's device is open"),
        };
        details.windows = Some(Known::Yes(WindowsSeen(windows)));
        let finding = judge("mlx5_0", details, Some(push)).unwrap();
        (finding.verdict, finding.message)
    }

    #[test]
    fn what_a_device_does_not_enforce_is_named_and_a_warning_where_push_is_asked_for() {
        let seen = |bounds| {
            Windows::Seen(Enforced {
                bounds,
                key: true,
                invalidation: true,
            })
        };
        let cases = [
            (PushPolicy::Off, seen(false), Verdict::Ok, "pulled"),
            (PushPolicy::Off, seen(true), Verdict::Ok, "pulled"),
            (PushPolicy::Probed, seen(false), Verdict::Warning, "pulled"),
            (PushPolicy::Probed, Windows::None, Verdict::Warning, "pulled"),
            (PushPolicy::Probed, seen(true), Verdict::Ok, "pushed"),
            (PushPolicy::Trusted, seen(false), Verdict::Warning, "pushed"),
            (PushPolicy::Trusted, Windows::None, Verdict::Warning, "pulled"),
            (PushPolicy::Trusted, seen(true), Verdict::Ok, "pushed"),
        ];
        for (push, windows, expected, way) in cases {
            let (found, message) = verdict(push, windows);
            assert_eq!(found, expected, "{push} {message}");
            assert!(message.contains(way), "{push} {message}");
            assert_eq!(
                message.contains("not enforced (bounds)"),
                windows == seen(false),
                "{message}"
            );
        }
    }

    #[test]
    fn windows_that_could_not_be_tried_are_a_finding_and_no_port_is_none() {
        let mut facts = samples::good_host();
        let Known::Yes(details) = &mut facts.rdma.devices[0].details else {
            panic!("the sample's device is open");
        };
        details.windows = Some(Known::No {
            not_read: "no more queue pairs".to_owned(),
        });
        let finding = judge("mlx5_0", details, None).unwrap();
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(finding.message.contains("no more queue pairs"));
        details.windows = None;
        assert!(judge("mlx5_0", details, None).is_none());
    }
}
