//! Placement: the phases of each strategy, and the fit-aware fallback in cases whose answer is known exactly.

mod baselines;
mod fit_aware;
mod indexed;
mod pools;
mod statistics;
mod strategies;
