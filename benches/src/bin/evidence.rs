//! Experiments about placement: runs them, judges them by the gates they name, writes their records.
//!
//! The full form writes to `docs/evidence`, the quick one to `target/evidence/quick`; raw samples go to `target/evidence`. The last line is
//! `RESULT` and a JSON object. A missed gate is a finding, not an error of the program.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Parser;
use tenon_benches::evidence::{Conditions, EXPERIMENTS, Effort, machine, record};
use tenon_benches::report::Report;

/// Runs experiments about placement; the last line is `RESULT` and a JSON object.
#[derive(Debug, Parser)]
struct Arguments {
    /// Less of everything: shows that the experiments work, their figures mean little.
    #[arg(long)]
    quick: bool,
    /// Only these, such as `X1,X10`.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The trace that X7 replays, lines of JSON, packed by gzip or not; without it a generated look-alike.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// The first of the seeds of X8, to see how it comes out with others; name another place for its record then.
    #[arg(long, default_value_t = 0, requires = "out")]
    first_seed: u64,
    /// Where records go instead.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    for name in &arguments.only {
        ensure!(
            EXPERIMENTS.iter().any(|experiment| experiment.id == name),
            "there is no experiment {name:?}"
        );
    }
    let effort = if arguments.quick { Effort::Quick } else { Effort::Full };
    let conditions = Conditions {
        effort,
        trace: arguments.trace,
        first_seed: arguments.first_seed,
    };
    let raw = PathBuf::from("target/evidence");
    let out = (arguments.out).unwrap_or_else(|| effort.pick(raw.join("quick"), PathBuf::from("docs/evidence")));
    let mut report = Report::new("evidence");
    for experiment in &EXPERIMENTS {
        let is_wanted = arguments.only.is_empty() || arguments.only.iter().any(|name| name == experiment.id);
        let (true, Some(run)) = (is_wanted, experiment.run) else {
            continue;
        };
        println!("{} {}\n  gate: {}", experiment.id, experiment.title, experiment.gate);
        let machine = machine::describe();
        let findings = run(&conditions)?;
        record::write(
            experiment,
            &findings,
            &machine,
            &out.join(experiment.id),
            &raw.join(experiment.id),
        )?;
        for row in &findings.rows {
            println!("  {:44} {:28} {:>14.4} {}", row.case, row.metric, row.value, row.unit);
            report.push(&row.case, row.metric, row.value, row.unit);
        }
        for verdict in &findings.verdicts {
            println!("  {}: {}", if verdict.held { "held" } else { "MISSED" }, verdict.text);
        }
        report.push(experiment.id, "gate_held", f64::from(u8::from(findings.holds())), "1");
    }
    write_table(&out)?;
    println!("{}", report.line());
    Ok(())
}

fn write_table(out: &Path) -> Result<()> {
    std::fs::write(out.join("README.md"), record::table(&EXPERIMENTS, out)?)?;
    Ok(())
}
