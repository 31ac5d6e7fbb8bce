//! The states of a reliable-connected queue pair, and what each change of state needs.

use std::fmt;

use rdma_sys::ibv_qp_attr_mask as mask;
use rdma_sys::ibv_qp_state as state;

use super::error::VerbsError;

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairState {
    /// Made, nothing set.
    Reset,
    /// Bound to a port; takes receive requests.
    Init,
    /// Ready to receive.
    ReadyToReceive,
    /// Ready to send, the working state.
    ReadyToSend,
    /// Send queue drained or draining. Not used here.
    SendQueueDrained,
    /// Send queue in error; reliable-connected queue pairs do not have it.
    SendQueueError,
    /// Everything posted and everything that will be posted is flushed. The only way on is to be destroyed.
    Error,
    /// A state that this program does not know.
    Unknown(u32),
}

impl From<u32> for QueuePairState {
    fn from(number: u32) -> Self {
        match number {
            state::IBV_QPS_RESET => Self::Reset,
            state::IBV_QPS_INIT => Self::Init,
            state::IBV_QPS_RTR => Self::ReadyToReceive,
            state::IBV_QPS_RTS => Self::ReadyToSend,
            state::IBV_QPS_SQD => Self::SendQueueDrained,
            state::IBV_QPS_SQE => Self::SendQueueError,
            state::IBV_QPS_ERR => Self::Error,
            other => Self::Unknown(other),
        }
    }
}

impl QueuePairState {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Reset => state::IBV_QPS_RESET,
            Self::Init => state::IBV_QPS_INIT,
            Self::ReadyToReceive => state::IBV_QPS_RTR,
            Self::ReadyToSend => state::IBV_QPS_RTS,
            Self::SendQueueDrained => state::IBV_QPS_SQD,
            Self::SendQueueError => state::IBV_QPS_SQE,
            Self::Error => state::IBV_QPS_ERR,
            Self::Unknown(number) => number,
        }
    }
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset => f.write_str("RESET"),
            Self::Init => f.write_str("INIT"),
            Self::ReadyToReceive => f.write_str("RTR"),
            Self::ReadyToSend => f.write_str("RTS"),
            Self::SendQueueDrained => f.write_str("SQD"),
            Self::SendQueueError => f.write_str("SQE"),
            Self::Error => f.write_str("ERR"),
            Self::Unknown(number) => write!(f, "state {number}"),
        }
    }
}

macro_rules! attributes {
    ($($name:ident = $bit:ident, $words:literal;)*) => {
        /// Something that is set when a queue pair changes its state.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Attribute {
            $(
                #[doc = concat!("The ", $words, ".")]
                $name,
            )*
        }

        impl Attribute {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name),*];

            fn bit(self) -> u32 {
                match self {
                    $(Self::$name => mask::$bit.0,)*
                }
            }
        }

        impl fmt::Display for Attribute {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $words,)*
                })
            }
        }
    };
}

attributes! {
    PartitionIndex = IBV_QP_PKEY_INDEX, "partition index";
    Port = IBV_QP_PORT, "port";
    Access = IBV_QP_ACCESS_FLAGS, "access that peers get";
    Path = IBV_QP_AV, "path to the peer";
    PathMtu = IBV_QP_PATH_MTU, "path MTU";
    RemoteNumber = IBV_QP_DEST_QPN, "peer's queue pair number";
    ReceiveSequence = IBV_QP_RQ_PSN, "peer's first packet sequence number";
    ReadsAsTarget = IBV_QP_MAX_DEST_RD_ATOMIC, "number of reads served at once";
    NotReadyTimer = IBV_QP_MIN_RNR_TIMER, "pause for a peer without a receive request";
    Timeout = IBV_QP_TIMEOUT, "acknowledgement timeout";
    Retries = IBV_QP_RETRY_CNT, "retries after a timeout";
    NotReadyRetries = IBV_QP_RNR_RETRY, "retries after not-ready answers";
    SendSequence = IBV_QP_SQ_PSN, "own first packet sequence number";
    ReadsAsInitiator = IBV_QP_MAX_QP_RD_ATOMIC, "number of reads under way at once";
}

/// A change of state that this program makes, and the attributes that it needs: exactly these.
struct Transition {
    from: QueuePairState,
    to: QueuePairState,
    needs: &'static [Attribute],
}

const TRANSITIONS: &[Transition] = &[
    Transition {
        from: QueuePairState::Reset,
        to: QueuePairState::Init,
        needs: &[Attribute::PartitionIndex, Attribute::Port, Attribute::Access],
    },
    Transition {
        from: QueuePairState::Init,
        to: QueuePairState::ReadyToReceive,
        needs: &[
            Attribute::Path,
            Attribute::PathMtu,
            Attribute::RemoteNumber,
            Attribute::ReceiveSequence,
            Attribute::ReadsAsTarget,
            Attribute::NotReadyTimer,
        ],
    },
    Transition {
        from: QueuePairState::ReadyToReceive,
        to: QueuePairState::ReadyToSend,
        needs: &[
            Attribute::Timeout,
            Attribute::Retries,
            Attribute::NotReadyRetries,
            Attribute::SendSequence,
            Attribute::ReadsAsInitiator,
        ],
    },
];

/// The mask of a change of state with these attributes.
pub(super) fn transition_mask(
    from: QueuePairState,
    to: QueuePairState,
    given: &[Attribute],
) -> Result<u32, VerbsError> {
    // Every state but RESET leads to ERR, and nothing is needed for it.
    let known = TRANSITIONS
        .iter()
        .find(|transition| (transition.from, transition.to) == (from, to));
    let needs = match known {
        Some(transition) => transition.needs,
        None if to == QueuePairState::Error && from != QueuePairState::Reset => &[],
        None => return Err(VerbsError::NoTransition { from, to }),
    };
    if let Some(&attribute) = needs.iter().find(|attribute| !given.contains(attribute)) {
        return Err(VerbsError::MissingAttribute { from, to, attribute });
    }
    if let Some(&attribute) = given.iter().find(|attribute| !needs.contains(attribute)) {
        return Err(VerbsError::NeedlessAttribute { from, to, attribute });
    }
    Ok(needs
        .iter()
        .fold(mask::IBV_QP_STATE.0, |all, attribute| all | attribute.bit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transition_names_the_attribute_that_it_lacks() {
        for transition in TRANSITIONS {
            let (from, to) = (transition.from, transition.to);
            assert!(transition_mask(from, to, transition.needs).is_ok());
            for &left_out in transition.needs {
                let given: Vec<_> = transition
                    .needs
                    .iter()
                    .copied()
                    .filter(|given| *given != left_out)
                    .collect();
                let error = transition_mask(from, to, &given).unwrap_err();
                assert!(
                    matches!(error, VerbsError::MissingAttribute { attribute, .. } if attribute == left_out),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn an_attribute_that_a_transition_does_not_take_is_refused() {
        let given = [
            Attribute::PartitionIndex,
            Attribute::Port,
            Attribute::Access,
            Attribute::Timeout,
        ];
        let error = transition_mask(QueuePairState::Reset, QueuePairState::Init, &given).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a queue pair takes no acknowledgement timeout on its way from RESET to INIT"
        );
    }

    #[test]
    fn states_do_not_skip_and_all_but_reset_lead_to_error() {
        let states = (0..8).map(QueuePairState::from);
        for from in states {
            assert_eq!(
                transition_mask(from, QueuePairState::Error, &[]).is_ok(),
                from != QueuePairState::Reset,
                "{from}"
            );
            assert!(transition_mask(from, QueuePairState::Reset, &[]).is_err());
        }
        let error = transition_mask(QueuePairState::Init, QueuePairState::ReadyToSend, &[]).unwrap_err();
        assert_eq!(error.to_string(), "a queue pair does not go from INIT to RTS");
    }

    #[test]
    fn every_attribute_has_a_bit_of_its_own_and_is_needed_once() {
        for &attribute in Attribute::ALL {
            let needed = TRANSITIONS
                .iter()
                .filter(|transition| transition.needs.contains(&attribute))
                .count();
            assert_eq!(needed, 1, "{attribute}");
        }
        let all = Attribute::ALL.iter().fold(0, |all, attribute| all | attribute.bit());
        assert_eq!(usize::try_from(all.count_ones()).unwrap(), Attribute::ALL.len());
    }

    #[test]
    fn states_keep_their_numbers() {
        for number in (0..10).chain([u32::MAX]) {
            assert_eq!(QueuePairState::from(number).number(), number);
        }
    }
}
