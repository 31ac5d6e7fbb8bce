//! What is to run, and what came of it.

use std::fmt::Write as _;
use std::time::Duration;

use super::streams::Captured;

/// How long a job may take if it says nothing.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A shell script or a program to run as root, with environment and limits of its own.
#[derive(Debug, Clone)]
pub struct Job {
    script: String,
    environment: Vec<(String, String)>,
    locked_memory_kib: Option<u64>,
    timeout: Duration,
    is_heard: bool,
}

impl Job {
    /// A script for `sh`.
    pub fn script(script: impl Into<String>) -> Self {
        Self {
            script: script.into(),
            environment: Vec::new(),
            locked_memory_kib: None,
            timeout: TIMEOUT,
            is_heard: false,
        }
    }

    /// A program, found by its path or in the machine's PATH, with its arguments.
    pub fn program<'a>(program: &str, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut script = format!("exec {}", quoted(program));
        for argument in arguments {
            script.push(' ');
            script.push_str(&quoted(argument));
        }
        Self::script(script)
    }

    /// With an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// With a bound on locked memory, and without the capability (CAP_IPC_LOCK) that would make it void.
    #[must_use]
    pub fn locked_memory_kib(mut self, kib: u64) -> Self {
        self.locked_memory_kib = Some(kib);
        self
    }

    /// With a time-out of its own; without, a minute. A job that exceeds it is killed, and the machine with it.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What it writes to its standard error is kept, and written to this process's own as it comes: how far long work is.
    #[must_use]
    pub fn heard(mut self) -> Self {
        self.is_heard = true;
        self
    }

    /// With a variable that a variable of the job's own under the same name replaces.
    pub(super) fn env_first(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(0, (name.to_owned(), value.to_owned()));
        self
    }

    /// How long it may take.
    pub(super) fn bound(&self) -> Duration {
        self.timeout
    }

    /// See [`Self::heard`].
    pub(super) fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// What it says it runs, for messages.
    pub(super) fn name(&self) -> String {
        self.script.clone()
    }

    /// All of it as one script.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.environment {
            let _ = writeln!(text, "export {name}={}", quoted(value));
        }
        match self.locked_memory_kib {
            None => text.push_str(&self.script),
            Some(kib) => {
                let _ = write!(
                    text,
                    "ulimit -l {kib}\njob={}\n\
                     [ \"$(id -u)\" -ne 0 ] || exec setpriv --inh-caps=-ipc_lock --bounding-set=-ipc_lock sh -c \"$job\"\n\
                     exec sh -c \"$job\"",
                    quoted(&self.script)
                );
            }
        }
        text.push('\n');
        text
    }
}

/// One word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// How a job ended.
#[derive(Debug, Clone)]
pub struct JobOutput {
    /// Its exit status; 128 and the number of the signal if one ended it.
    pub status: i32,
    /// What it wrote to its standard output.
    pub stdout: Captured,
    /// What it wrote to its standard error.
    pub stderr: Captured,
}

impl JobOutput {
    /// Its standard output as text, if it succeeded; panics with all it wrote if not.
    #[track_caller]
    pub fn expect_success(&self) -> String {
        let Self { status, stdout, stderr } = self;
        assert_eq!(
            *status, 0,
            "the job failed; its output:\n{stdout}\nits errors:\n{stderr}"
        );
        stdout.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn arguments_and_variables_reach_the_program_as_they_are() {
        let odd = "a 'b' \"c\" $d `e`\n*";
        let job = Job::program("sh", ["-c", r#"printf %s "$1$ODD""#, "sh", odd]).env("ODD", odd);
        let output = Command::new("sh").args(["-c", &job.text()]).output().expect("sh runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), odd.repeat(2));
    }
}
