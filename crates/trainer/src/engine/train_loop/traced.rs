//! Recording a run for its trace, and bringing together what all ranks have recorded.

use super::Run;
use crate::config::Config;
use crate::engine::TrainError;
use crate::engine::distributed::{Distributed, World};
use phalanx_run::write_aside;
use phalanx_run::{RunError, RunFolder};
use phalanx_trace::chrome::{self, RankFacts};
use phalanx_trace::clock::{Alignment, Offset};
use phalanx_trace::{Recorder, TraceSteps};

/// A rank's part in the trace of a run.
#[derive(Debug)]
pub(super) struct Traced {
    recorder: &'static Recorder,
    steps: TraceSteps,
    /// By how much each rank's clock was ahead of rank 0's at the start, by number when the run began.
    start: Vec<Offset>,
}

/// Begins to record, if all of the run is to be: with what comes before its first step.
///
/// # Errors
/// [`TrainError::Setup`] if a trace is wanted that nobody collects.
pub(super) fn prepare(config: &Config) -> Result<(), TrainError> {
    let steps = config.log.trace;
    if steps.is_none() {
        return Ok(());
    }
    let missing = || {
        TrainError::Setup(
            "log.trace is set, but no `phalanx_trace::layer()` is among the subscriber's layers".to_owned(),
        )
    };
    Recorder::installed().ok_or_else(missing)?.record(steps == TraceSteps::All);
    Ok(())
}

/// Writes what a rank of `world` has recorded of a run that fails beside its log, by its own clock.
pub(super) fn give_up(config: &Config, folder: &RunFolder, world: &World) {
    let Some(recorder) = Recorder::installed().filter(|_| !config.log.trace.is_none()) else { return };
    let rank = world.rank();
    let recorded = recorder.take(rank, rank == 0);
    let alignment = Alignment::default();
    let Some(origin) = chrome::first_of(&recorded, &alignment) else { return };
    let host = phalanx_run::host_name();
    let facts = RankFacts { rank, host, alignment, left_out: recorded.left_out };
    let events = chrome::events_json(recorded, &facts, origin);
    let path = folder.trace_of_rank(rank);
    match write_aside(&path, chrome::file(&[(facts, events)], world.size(), false).as_bytes()) {
        Ok(()) => tracing::info!("wrote what this rank has recorded to {}", path.display()),
        Err(error) => tracing::warn!("cannot write {}: {error}", path.display()),
    }
}

impl Traced {
    /// The part of this rank, if the run is to be traced. Every rank calls this at the same place.
    pub(super) fn begin(config: &Config, distributed: &Distributed) -> Result<Option<Self>, TrainError> {
        let steps = config.log.trace;
        let Some(recorder) = Recorder::installed().filter(|_| !steps.is_none()) else { return Ok(None) };
        Ok(Some(Self { recorder, steps, start: distributed.clock_offsets()? }))
    }

    /// Records from now on, or no longer, before step `step`, counted from 1, and what follows it.
    pub(super) fn before_step(&self, step: u64) {
        self.recorder.record(self.steps.covers(step));
    }

    /// Brings together what all ranks have recorded: the file, on rank 0. Every rank calls this at the same place.
    fn end(self, distributed: &Distributed, complete: bool) -> Result<Option<String>, TrainError> {
        self.recorder.record(false);
        let end = distributed.clock_offsets()?;
        let rank = distributed.rank();
        // Those who are left of a world that has lost ranks have other numbers in it than when the run began.
        let number = distributed.first_number(rank);
        let (_, host) = distributed.host();
        let recorded = self.recorder.take(number, rank == 0 || distributed.is_first_of_process());
        let start_of = |number: usize| self.start.get(number).copied().unwrap_or_default();
        let start = start_of(number).seen_from(&start_of(distributed.first_number(0)));
        let alignment = Alignment { start, end: end[rank] };
        // The first event of all is the origin; a sum is how ranks tell each other numbers.
        let mut firsts = vec![0.0; distributed.size()];
        firsts[rank] = chrome::first_of(&recorded, &alignment).unwrap_or(f64::MAX);
        distributed.sum(&mut firsts)?;
        let origin = firsts.iter().copied().fold(f64::MAX, f64::min);
        let facts = RankFacts { rank: number, host, alignment, left_out: recorded.left_out };
        let events = chrome::events_json(recorded, &facts, origin);
        let told = format!("{}\n{}\n{}", facts_line(&facts)?, facts.host, events);
        let all = distributed.gather_bytes(told.into_bytes())?;
        if rank > 0 {
            return Ok(None);
        }
        let ranks = all.into_iter().map(read_told).collect::<Result<Vec<_>, TrainError>>()?;
        Ok(Some(chrome::file(&ranks, self.start.len(), complete)))
    }
}

fn facts_line(facts: &RankFacts) -> Result<String, TrainError> {
    serde_json::to_string(&(facts.rank, facts.alignment, facts.left_out)).map_err(|error| garbled(&error))
}

/// A rank's facts and events, from what it has told.
fn read_told(told: Vec<u8>) -> Result<(RankFacts, String), TrainError> {
    let told = String::from_utf8(told).map_err(|error| garbled(&error))?;
    let mut lines = told.splitn(3, '\n');
    let mut next = || lines.next().unwrap_or_default();
    let (facts, host, events) = (next(), next().to_owned(), next().to_owned());
    let (rank, alignment, left_out) = serde_json::from_str(facts).map_err(|error| garbled(&error))?;
    Ok((RankFacts { rank, host, alignment, left_out }, events))
}

fn garbled(error: &dyn std::error::Error) -> TrainError {
    TrainError::Setup(format!("what a rank has recorded is garbled: {error}"))
}

impl Run<'_> {
    /// Writes the trace of all ranks, if the run is traced; on rank 0, whether there is one. Every rank calls this at the same
    /// place.
    pub(super) fn write_trace(&mut self, complete: bool) -> Result<bool, TrainError> {
        let Some(traced) = self.traced.take() else { return Ok(false) };
        let Some(text) = traced.end(&self.distributed, complete)? else { return Ok(false) };
        let path = self.folder.trace();
        write_aside(&path, text.as_bytes()).map_err(RunError::io("write", &path))?;
        Ok(true)
    }
}
