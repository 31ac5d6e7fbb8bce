//! Errors as people and programs see them.

use super::exit::Exit;
use serde_json::{Value, json};
use std::fmt::Display;
use std::io;
use std::path::Path;
use tenon_client::ClientError;
use tenon_protocol::error::{ErrorCode, NoSpace, ServiceError};
use tenon_protocol::ids::NodeId;
use tenon_transport::link::Endpoint;

/// Why a command did not do all that it should: one line for people, a code for programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// How the process ends.
    pub(super) exit: Exit,
    code: String,
    message: String,
    node: Option<NodeId>,
    no_space: Option<Box<NoSpace>>,
}

impl Failure {
    /// A failure with a code of the service.
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            exit: Exit::of(code),
            code: code.as_str().to_owned(),
            message: message.into(),
            node: None,
            no_space: None,
        }
    }

    /// A failure that only a command line has.
    fn own(exit: Exit, code: &str, message: String) -> Self {
        Self {
            exit,
            code: code.to_owned(),
            ..Self::new(ErrorCode::Internal, message)
        }
    }

    /// There is no such object.
    pub(super) fn miss(namespace: &str, key: &str) -> Self {
        Self::new(
            ErrorCode::NotFound,
            format!("no object {key:?} in namespace {namespace:?}"),
        )
    }

    /// The command line makes no sense.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::own(Exit::Usage, "usage", message.into())
    }

    /// The input cannot be read.
    pub(super) fn input(what: &Path, error: &dyn Display) -> Self {
        Self::own(
            Exit::Invalid,
            "input",
            format!("cannot read {}: {error}", what.display()),
        )
    }

    /// The output cannot be written.
    pub(super) fn output(what: &Path, error: &io::Error) -> Self {
        Self::own(
            Exit::Internal,
            "output",
            format!("cannot write {}: {error}", what.display()),
        )
    }

    /// The host has problems.
    pub(super) fn unfit(message: String) -> Self {
        Self::own(Exit::Unfit, "unfit", message)
    }

    /// A signal came.
    pub(super) fn interrupted() -> Self {
        Self::own(
            Exit::Interrupted,
            "interrupted",
            "interrupted; nothing was left behind".to_owned(),
        )
    }

    /// The agent could not be reached or refused us: says what to do about it. `cluster`: the name of the one that was expected there.
    pub(super) fn connecting(error: ClientError, endpoint: &Endpoint, cluster: &str) -> Self {
        let failure = Self::from(error);
        let because = |words| failure.message.contains(words);
        let advice = match (failure.exit, endpoint) {
            (Exit::Unavailable, Endpoint::Unix(_)) => {
                "is tenond running? (systemctl status tenond; --connect names another agent)"
            }
            (Exit::Unavailable, Endpoint::Tcp(_)) => "is tenond running there? (--connect names another agent)",
            (Exit::Refused, _) if because("does not speak this protocol") => {
                "--connect names a unix socket or the address of a link (listen.link), not that of HTTP"
            }
            (Exit::Refused, _) if because("protocol version") => {
                "it is of another build than this command: use the one that came with it"
            }
            (Exit::Refused, _) if because("belong to cluster") => {
                let message = format!("the agent at {endpoint} does not belong to cluster {cluster:?}");
                return Self { message, ..failure }.with_advice("--cluster names its cluster");
            }
            (Exit::Refused, Endpoint::Tcp(_)) => "--secret-file names the file with its cluster's secret",
            _ => return failure,
        };
        failure.with_advice(advice)
    }

    fn with_advice(self, advice: &str) -> Self {
        Self {
            message: format!("{}: {advice}", self.message),
            ..self
        }
    }

    /// The same with what was being done in front.
    #[must_use]
    pub(super) fn while_doing(self, doing: impl Display) -> Self {
        Self {
            message: format!("{doing}: {}", self.message),
            ..self
        }
    }

    /// The line for people.
    pub(super) fn line(&self) -> String {
        self.message.replace(['\n', '\r'], " ")
    }

    /// For programs: what stands under `error`.
    pub(super) fn json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(node) = self.node {
            error["node"] = json!(node);
        }
        if let Some(numbers) = &self.no_space {
            error["no_space"] = json!(numbers);
        }
        error
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        Self {
            node: error.node,
            no_space: error.no_space,
            ..Self::new(error.code, error.message)
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        ServiceError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_does_not_answer_is_named_with_what_to_do() {
        let endpoint: Endpoint = "unix:/run/tenon/tenon.sock".parse().unwrap();
        let message = format!("no agent answers at {endpoint}: No such file or directory (os error 2)");
        let error = ClientError::Unavailable { node: None, message };
        let failure = Failure::connecting(error, &endpoint, "tenon");
        assert_eq!(failure.exit, Exit::Unavailable);
        assert_eq!(
            failure.line(),
            "no agent answers at unix:/run/tenon/tenon.sock: No such file or directory (os error 2): is tenond running? (systemctl status tenond; \
             --connect names another agent)"
        );
    }

    #[test]
    fn a_line_is_one_line_and_json_keeps_node_and_numbers() {
        let node = NodeId::from_bytes([7; 16]);
        let failure = Failure::from(ServiceError::unavailable(node, "two\nlines"));
        assert!(!failure.line().contains('\n'));
        assert_eq!(failure.json()["code"], "unavailable");
        assert_eq!(failure.json()["node"], node.to_string());

        let numbers = NoSpace {
            asked_bytes: 9,
            free_bytes: 8,
            largest_free_bytes: 7,
            evictable_bytes: 6,
            held_bytes: 5,
            largest_segment_bytes: 10,
            entries_looked_at: 4,
            stop_reason: "all looked at".into(),
        };
        let failure = Failure::from(ServiceError::no_space(numbers));
        assert_eq!(
            (failure.exit, failure.json()["no_space"]["free_bytes"].as_u64()),
            (Exit::NoSpace, Some(8))
        );
    }

    #[test]
    fn a_miss_names_key_and_namespace() {
        let failure = Failure::miss("default", "a \"b\"");
        assert_eq!(failure.exit, Exit::Miss);
        assert_eq!(failure.line(), r#"no object "a \"b\"" in namespace "default""#);
        assert_eq!(failure.json()["code"], "not_found");
    }
}
