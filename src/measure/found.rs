//! What a benchmark has found so far.

use super::disk::Reading;
use super::report::{Cache, Failure, Limits, Run, Settings, SweepPoint};
use super::run::{Measured, RunFailure, RunSpec, Vary};
use super::stop::Stop;
use super::{marks, summary};
use crate::Backend;

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) disk: Vec<Reading>,
    pub(super) fio: Vec<Reading>,
    pub(super) limits: Limits,
    pub(super) runs: Vec<Run>,
    /// Those of sweeps, with what was varied.
    pub(super) varied: Vec<(Vary, Run)>,
    pub(super) settings: Option<Settings>,
    pub(super) failures: Vec<Failure>,
    /// Backends that failed, with what was varied then, if anything was: they are not tried again.
    pub(super) given_up: Vec<(Backend, Option<Vary>)>,
    /// Why there is no limit, in words.
    pub(super) remarks: Vec<String>,
}

impl Found {
    pub(super) fn take(
        &mut self,
        spec: &RunSpec,
        outcome: Result<Measured, RunFailure>,
        fingerprint: &str,
        stop: &Stop,
    ) {
        let error = match outcome {
            Ok(measured) if measured.fingerprint != fingerprint => {
                "the dataset is another one than when the benchmark began".to_string()
            }
            Ok(Measured { run, settings, .. }) => {
                match spec.vary {
                    None => self.runs.push(run),
                    Some(vary) => self.varied.push((vary, run)),
                }
                if spec.vary.is_none() {
                    self.settings.get_or_insert(settings);
                }
                return;
            }
            // Also where only the run was asked to: somebody wants it to end.
            Err(RunFailure::Stopped) => return stop.stop_if_not_asked(),
            Err(RunFailure::Setup(error) | RunFailure::Epoch(error)) => error,
        };
        let began = self.runs.iter().any(|run| run.backend == spec.backend.name());
        let error = match spec.vary {
            Some(vary) => format!("with {} {vary}: {error}", vary.setting()),
            None => error,
        };
        let cache = (began || spec.vary.is_some()).then_some(spec.cache);
        self.failures.push(Failure { backend: spec.backend.name().into(), cache, error });
        self.given_up.push((spec.backend, spec.vary));
    }

    /// Whether the run is of no use, since one like it failed.
    pub(super) fn gave_up(&self, spec: &RunSpec) -> bool {
        self.given_up
            .iter()
            .any(|(backend, vary)| *backend == spec.backend && (vary.is_none() || *vary == spec.vary))
    }

    pub(super) fn remark(&mut self, remark: String) {
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }

    pub(super) fn point(&self, backend: Backend, cache: Cache, vary: Vary) -> Option<SweepPoint> {
        let of_point =
            |run: &&(Vary, Run)| run.0 == vary && run.1.backend == backend.name() && run.1.cache == cache;
        let runs: Vec<Run> = self.varied.iter().filter(of_point).map(|(_, run)| run.clone()).collect();
        let failed = self.given_up.contains(&(backend, Some(vary)));
        if runs.is_empty() && !failed {
            return None;
        }
        let mut point = summary::point(vary.to_string(), &runs);
        if failed {
            point.marks.push(marks::mark("failed", "a run failed; its error is among the failures"));
        }
        Some(point)
    }
}
