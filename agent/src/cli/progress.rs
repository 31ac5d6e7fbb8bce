//! The bar that long transfers show at a terminal.

use super::limits::PROGRESS_LEN_BYTES_MIN;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

/// A bar on standard error that goes away with the transfer, however that ends; or one that is not drawn: for short transfers, and where nobody looks.
pub(super) fn bar(len_bytes: u64, somebody_looks: bool) -> ProgressBar {
    if !somebody_looks || len_bytes < PROGRESS_LEN_BYTES_MIN {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(len_bytes), ProgressDrawTarget::stderr())
        .with_finish(ProgressFinish::AndClear);
    let template = "{bar:32} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// How many there are so far, on standard error, where somebody looks.
pub(super) fn counter(what: &'static str, somebody_looks: bool) -> ProgressBar {
    if !somebody_looks {
        return ProgressBar::hidden();
    }
    let counter =
        ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_finish(ProgressFinish::AndClear);
    if let Ok(style) = ProgressStyle::with_template("{human_pos} {msg}, {per_sec}") {
        counter.set_style(style);
    }
    counter.with_message(what)
}

/// Whether anybody looks at standard error.
pub(super) fn stderr_is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr())
}
