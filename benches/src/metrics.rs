//! What nodes tell of themselves by `/metrics`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(10);

/// All metrics of the node that serves HTTP there.
///
/// # Errors
/// If it does not answer 200 within 10 s.
pub async fn of(node: SocketAddr) -> Result<String> {
    let asking = async {
        let mut stream = TcpStream::connect(node).await.context("no HTTP front")?;
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {node}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        ensure!(
            answer.starts_with("HTTP/1.1 200"),
            "/metrics of {node} answers {answer:.60}"
        );
        Ok(answer)
    };
    let answered = timeout(TIMEOUT, asking).await;
    answered.with_context(|| format!("/metrics of {node} does not answer"))?
}

/// The value of a series, by its name and labels as they stand in the text; 0 if it is not there.
#[must_use]
pub fn value(metrics: &str, series: &str) -> f64 {
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_found_by_its_whole_name() {
        let text = "tenon_puts_total{result=\"ok\"} 5\ntenon_puts 7\n";
        let found = ["tenon_puts", "tenon_puts_total{result=\"ok\"}", "tenon"].map(|series| value(text, series));
        assert_eq!(found, [7.0, 5.0, 0.0]);
    }
}
