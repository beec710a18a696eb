//! The benchmark as a library: what was measured, how it is put together, and how it is told.

mod html;
mod report;
mod tune;

pub use html::render as render_html;
pub use report::{
    BenchReport, Cache, DataInfo, Failure, Limit, Limits, Machine, Mark, Quantiles, Run, Settings, Spread,
    Summary, Sweep, SweepPoint,
};
pub use tune::{Candidate, Tuning, Tunings, tune};
