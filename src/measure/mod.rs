//! The benchmark as a library: what was measured, how it is put together, and how it is told.

mod bench;
mod caches;
mod child;
mod conclusion;
mod disk;
mod fio;
mod found;
mod html;
mod link;
mod machine;
mod marks;
mod report;
mod run;
mod stop;
mod summary;
mod tune;
mod tune_run;

pub use bench::{Bench, Progress};
pub use child::run_in_child;
pub use html::render as render_html;
pub use report::{
    BenchReport, Cache, DataInfo, Failure, Limit, Limits, Machine, Mark, Quantiles, Run, Settings, Spread,
    Summary, Sweep, SweepPoint,
};
pub use run::{Measured, RunFailure, RunSpec, Vary};
pub use stop::Stop;
pub use tune::{Candidate, Tuning, Tunings, tune};
pub use tune_run::{tune_loader, tuning_key};
