//! What the facts come to: one verdict each, and what to do.

use serde::Serialize;

/// How grave something is, the gravest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// The node serves as configured, but not as well as it could, or not all could be seen.
    Warning,
    /// It keeps what is configured from working.
    Problem,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// What a finding is about, in the order of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Section {
    Configuration,
    Agent,
    Rdma,
    Memory,
    Peers,
}

impl Section {
    pub(super) const ALL: [Self; 5] = [Self::Configuration, Self::Agent, Self::Rdma, Self::Memory, Self::Peers];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Configuration => "Configuration",
            Self::Agent => "Agent",
            Self::Rdma => "RDMA",
            Self::Memory => "Memory",
            Self::Peers => "Peers",
        }
    }
}

/// One verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) section: Section,
    pub(super) verdict: Verdict,
    /// What was judged, for programs. Codes never change their meaning.
    pub(super) code: &'static str,
    /// What it is about, such as the name of a device.
    pub(super) subject: String,
    pub(super) message: String,
    /// What to do about it.
    pub(super) advice: Option<String>,
    /// Rows that people see under it; programs find them among the facts.
    #[serde(skip)]
    pub(super) rows: Vec<Vec<String>>,
}

impl Finding {
    pub(super) fn new(
        (section, code): (Section, &'static str),
        verdict: Verdict,
        subject: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            section,
            verdict,
            code,
            subject: subject.into(),
            message: message.into(),
            advice: None,
            rows: Vec::new(),
        }
    }

    #[must_use]
    pub(super) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    #[must_use]
    pub(super) fn with_rows(mut self, rows: Vec<Vec<String>>) -> Self {
        self.rows = rows;
        self
    }
}
