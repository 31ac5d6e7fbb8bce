//! What an experiment found, and the files that say so.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::plot::number;
use super::stats::Interval;
use super::{Experiment, Label, machine};

/// One figure.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured, such as `X1/256/indexed`.
    pub case: String,
    /// By which metric.
    pub metric: &'static str,
    /// The median or the only value.
    pub value: f64,
    /// In which unit.
    pub unit: &'static str,
    /// 95 % interval of a median over pairs.
    pub interval: Option<(f64, f64)>,
}

/// One condition of the gate and whether it held.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The condition, with the figure that it was judged by.
    pub text: String,
    /// Whether it held.
    pub held: bool,
}

/// Everything that a run of an experiment leaves.
#[derive(Debug, Default)]
pub struct Findings {
    /// What was chosen.
    pub parameters: Value,
    /// Figures in the order of the tables.
    pub rows: Vec<Row>,
    /// The conditions of the gate.
    pub verdicts: Vec<Verdict>,
    /// Plots by file name.
    pub plots: Vec<(String, String)>,
    /// What the metrics of a store were at its end, by file name.
    pub snapshots: Vec<(String, String)>,
    /// Raw samples by case and metric.
    pub raw: Vec<(String, &'static str, Vec<f64>)>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// What the command that repeats this needs beside the experiment's name; empty or with a space before it.
    pub flags: &'static str,
}

impl Findings {
    /// Findings of a run with these parameters.
    #[must_use]
    pub fn new(parameters: Value) -> Self {
        Self {
            parameters,
            ..Self::default()
        }
    }

    /// Adds a figure.
    pub fn row(&mut self, case: &str, metric: &'static str, value: f64, unit: &'static str) {
        self.rows.push(Row {
            case: case.to_owned(),
            metric,
            value,
            unit,
            interval: None,
        });
    }

    /// Adds a median with its interval.
    pub fn interval(&mut self, case: &str, metric: &'static str, interval: Interval, unit: &'static str) {
        self.rows.push(Row {
            case: case.to_owned(),
            metric,
            value: interval.median,
            unit,
            interval: Some((interval.low, interval.high)),
        });
    }

    /// Judges a condition of the gate.
    pub fn judge(&mut self, held: bool, text: String) {
        self.verdicts.push(Verdict { text, held });
    }

    /// The figure of a case. Panics if there is none.
    #[must_use]
    pub fn value(&self, case: &str, metric: &str) -> f64 {
        let found = self.rows.iter().find(|row| row.case == case && row.metric == metric);
        found.unwrap_or_else(|| panic!("no {metric} of {case}")).value
    }

    /// Whether all conditions of the gate held.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.held)
    }
}

/// Writes record, summaries and plots to `dir`, and raw samples to `raw_dir`.
///
/// # Errors
///
/// What could not be written.
pub fn write(experiment: &Experiment, findings: &Findings, machine: &Value, dir: &Path, raw_dir: &Path) -> Result<()> {
    for dir in [dir, raw_dir] {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let put =
        |path: &Path, text: &str| fs::write(path, text).with_context(|| format!("cannot write {}", path.display()));
    put(&dir.join("record.md"), &markdown(experiment, findings, machine))?;
    let summary = serde_json::to_string_pretty(&json_of(experiment, findings, machine))?;
    put(&dir.join("summary.json"), &(summary + "\n"))?;
    put(&dir.join("summary.csv"), &csv(findings))?;
    for (name, svg) in &findings.plots {
        put(&dir.join(name), svg)?;
    }
    for (name, text) in &findings.snapshots {
        put(&dir.join(name), text)?;
    }
    put(&raw_dir.join("samples.csv"), &raw_csv(findings))
}

fn json_of(experiment: &Experiment, findings: &Findings, machine: &Value) -> Value {
    let row = |row: &Row| json!({ "case": row.case, "metric": row.metric, "value": row.value, "unit": row.unit, "interval95": row.interval });
    json!({
        "id": experiment.id,
        "label": experiment.label.name(),
        "machine": machine,
        "peak_rss_mib": machine::peak_rss_mib(),
        "parameters": findings.parameters,
        "gate_held": findings.holds(),
        "verdicts": findings.verdicts.iter().map(|one| json!({ "text": one.text, "held": one.held })).collect::<Vec<_>>(),
        "rows": findings.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn csv(findings: &Findings) -> String {
    let mut text = "case,metric,value,low95,high95,unit\n".to_owned();
    for row in &findings.rows {
        let (low, high) = row
            .interval
            .map_or_else(Default::default, |(low, high)| (low.to_string(), high.to_string()));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{},{},{},{low},{high},{}",
            row.case, row.metric, row.value, row.unit
        );
    }
    text
}

fn raw_csv(findings: &Findings) -> String {
    let mut text = "case,metric,sample,value\n".to_owned();
    for (case, metric, samples) in &findings.raw {
        for (number, value) in samples.iter().enumerate() {
            let _ = writeln!(text, "{case},{metric},{number},{value}");
        }
    }
    text
}

fn markdown(experiment: &Experiment, findings: &Findings, machine: &Value) -> String {
    let Experiment {
        id,
        title,
        label,
        hypothesis,
        gate,
        exit_rule,
        published,
        ..
    } = experiment;
    let flags = findings.flags;
    let mut text = format!(
        "# {id}. {title}\n\nLabel: *{}*. Reproduce: `cargo run --release -p tenon-benches --bin evidence -- \
         --only {id}{flags}`.\n\n\
         ## Said before\n\n* **Hypothesis.** {hypothesis}\n* **Gate.** {gate}\n* **Exit rule.** {exit_rule}\n* \
         **Published.** {published}\n\n\
         ## Judged\n\n",
        label.name()
    );
    for Verdict { text: condition, held } in &findings.verdicts {
        let _ = writeln!(text, "* {}: {condition}", if *held { "held" } else { "**missed**" });
    }
    for note in &findings.notes {
        let _ = write!(text, "\n{note}\n");
    }
    let _ = write!(
        text,
        "\n## Figures\n\n| case | metric | value | 95 % interval | unit |\n|---|---|---|---|---|\n"
    );
    for row in &findings.rows {
        let interval = row
            .interval
            .map_or_else(String::new, |(low, high)| format!("{} … {}", number(low), number(high)));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {interval} | {} |",
            row.case,
            row.metric,
            number(row.value),
            row.unit
        );
    }
    for (name, _) in &findings.plots {
        let _ = write!(text, "\n![{name}]({name})\n");
    }
    for (name, _) in &findings.snapshots {
        let _ = writeln!(text, "\n[{name}]({name})");
    }
    let _ = write!(
        text,
        "\n## Run\n\n```json\n{machine:#}\n{:#}\n```\n",
        findings.parameters
    );
    text
}

/// The table of all experiments, from the summaries that stand in `dir`.
///
/// # Errors
///
/// A summary that cannot be read.
pub fn table(experiments: &[Experiment], dir: &Path) -> Result<String> {
    let mut text = "# Evidence\n\nRegenerated by `make evidence`. Labels: \
     *verified* – a command \
                    reproduces it through the running store; *diagnostic* – a simulation or a micro-benchmark, \
                    never quoted as a gain of the store; \
                    *planned*. Raw samples are written below `target/evidence`.\n\n\
                    X7's trace is `conversation_trace.jsonl` of the traces published with Mooncake at FAST'25 (3,029,533 bytes, SHA-256 \
                    `b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df`; a line of JSON per request, `hash_ids` are its blocks in order); \
                    `make evidence TRACE=FILE` replays a file like it, packed or not.\n\n\
                    | id | experiment | label | gate | commit |\n|---|---|---|---|---|\n"
        .to_owned();
    for experiment in experiments {
        let path = dir.join(experiment.id).join("summary.json");
        let (mut name, mut label, mut gate, mut commit) =
            (experiment.id.to_owned(), Label::Planned.name(), "", String::new());
        if path.exists() {
            let summary: Value = serde_json::from_str(&fs::read_to_string(&path)?)
                .with_context(|| format!("cannot read {}", path.display()))?;
            name = format!("[{0}]({0}/record.md)", experiment.id);
            label = experiment.label.name();
            gate = if summary["gate_held"] == true {
                "held"
            } else {
                "missed in part"
            };
            commit = summary["machine"]["commit"].as_str().unwrap_or_default().to_owned();
        }
        let _ = writeln!(text, "| {name} | {} | {label} | {gate} | {commit} |", experiment.title);
    }
    Ok(text)
}
