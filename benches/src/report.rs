//! What every bench prints at its end, and the statistics of its tables.

use serde_json::json;

/// The figures of one bench, printed as its last line for programs to read.
#[derive(Debug)]
pub struct Report {
    bench: &'static str,
    rows: Vec<serde_json::Value>,
}

impl Report {
    /// A report without figures of the bench called `bench`.
    #[must_use]
    pub fn new(bench: &'static str) -> Self {
        Self {
            bench,
            rows: Vec::new(),
        }
    }

    /// Adds one figure: what was measured, by which metric, in which unit.
    pub fn push(&mut self, case: &str, metric: &str, value: f64, unit: &str) {
        self.rows
            .push(json!({ "case": case, "metric": metric, "value": value, "unit": unit }));
    }

    /// The closing line: `RESULT` and a JSON object.
    #[must_use]
    pub fn line(&self) -> String {
        format!("RESULT {}", json!({ "bench": self.bench, "rows": self.rows }))
    }
}

/// Samples in ascending order.
#[derive(Debug)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Sorts the samples. Panics if there are none.
    #[must_use]
    pub fn new(mut samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "no samples");
        samples.sort_unstable_by(f64::total_cmp);
        Self(samples)
    }

    /// The smallest sample that at least the fraction `q` of all samples do not exceed.
    #[must_use]
    pub fn quantile(&self, q: f64) -> f64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank between 0 and the count"
        )]
        let rank = (q.clamp(0.0, 1.0) * self.0.len() as f64).ceil() as usize;
        self.0[rank.max(1) - 1]
    }

    /// The middle sample, the lower of two.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The smallest sample.
    #[must_use]
    pub fn min(&self) -> f64 {
        self.0[0]
    }

    /// The largest sample.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.quantile(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_by_rank() {
        let samples = Samples::new((1..=100).rev().map(f64::from).collect());
        let quantiles = [0.0, 0.01, 0.5, 0.99, 0.991, 1.0].map(|q| samples.quantile(q));
        assert_eq!(quantiles, [1.0, 1.0, 50.0, 99.0, 100.0, 100.0]);
        assert_eq!((samples.min(), samples.median(), samples.max()), (1.0, 50.0, 100.0));
        assert_eq!(Samples::new(vec![7.0]).quantile(0.99), 7.0);
    }

    #[test]
    fn the_closing_line_is_one_json_object_after_a_word() {
        let mut report = Report::new("placement");
        report.push("random/16", "pairs_per_s", 1.5, "1/s");
        let line = report.line();
        let json: serde_json::Value = serde_json::from_str(line.strip_prefix("RESULT ").unwrap()).unwrap();
        assert_eq!(json["bench"], "placement");
        assert_eq!(json["rows"][0]["case"], "random/16");
        assert_eq!(json["rows"][0]["value"], 1.5);
        assert!(!line.contains('\n'));
    }
}
