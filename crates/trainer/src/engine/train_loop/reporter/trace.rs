//! The trace of a run: each rank records events, and rank 0 merges them.

use crate::engine::TrainError;
use crate::engine::distributed::{Distributed, World};
use phalanx_config::Config;
use phalanx_run::write_aside;
use phalanx_run::{RunError, RunFolder};
use phalanx_trace::chrome::{self, RankFacts};
use phalanx_trace::clock::{Alignment, Offset};
use phalanx_trace::{Recorder, TraceSteps};

/// The trace of a run.
#[derive(Debug, Default)]
pub(in crate::engine::train_loop) struct RunTrace {
    /// This rank's part, while it records.
    recording: Option<Recording>,
    /// True on rank 0 once the trace is written.
    is_written: bool,
}

/// The part of one rank in the trace of a run.
#[derive(Debug)]
struct Recording {
    recorder: &'static Recorder,
    steps: TraceSteps,
    /// The offset of each rank's clock from rank 0's at the start, by the rank's number when the run began.
    start: Vec<Offset>,
}

/// Starts to record before the first step, if all of the run is traced.
///
/// # Errors
/// [`TrainError::Setup`] if a trace is wanted and no subscriber collects it.
pub(in crate::engine::train_loop) fn prepare(config: &Config) -> Result<(), TrainError> {
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

/// Writes the events of a rank whose run has failed, next to its log and by its own clock.
pub(in crate::engine::train_loop) fn write_partial(config: &Config, folder: &RunFolder, world: &World) {
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
        Ok(()) => tracing::info!("wrote the events of this rank to {}", path.display()),
        Err(error) => tracing::warn!("cannot write {}: {error}", path.display()),
    }
}

impl RunTrace {
    /// Starts to record, if the run is traced. All ranks call this together.
    pub(in crate::engine::train_loop) fn begin(
        &mut self,
        config: &Config,
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        let steps = config.log.trace;
        let Some(recorder) = Recorder::installed().filter(|_| !steps.is_none()) else { return Ok(()) };
        self.recording = Some(Recording { recorder, steps, start: distributed.clock_offsets()? });
        Ok(())
    }

    /// Turns recording on or off for a step, counted from 1.
    pub(in crate::engine::train_loop) fn begin_step(&self, step: u64) {
        if let Some(recording) = &self.recording {
            recording.recorder.record(recording.steps.covers(step));
        }
    }

    /// Writes the trace of all ranks, if the run is traced. All ranks call this together.
    pub(in crate::engine::train_loop) fn write(
        &mut self,
        folder: &RunFolder,
        distributed: &Distributed,
        complete: bool,
    ) -> Result<(), TrainError> {
        let Some(recording) = self.recording.take() else { return Ok(()) };
        let Some(text) = recording.merge(distributed, complete)? else { return Ok(()) };
        let path = folder.trace();
        write_aside(&path, text.as_bytes()).map_err(RunError::io("write", &path))?;
        self.is_written = true;
        Ok(())
    }

    /// True on rank 0 once the trace is written.
    pub(in crate::engine::train_loop) fn is_written(&self) -> bool {
        self.is_written
    }
}

impl Recording {
    /// Merges the events of all ranks. Returns the file on rank 0. All ranks call this together.
    fn merge(self, distributed: &Distributed, complete: bool) -> Result<Option<String>, TrainError> {
        self.recorder.record(false);
        let end = distributed.clock_offsets()?;
        let rank = distributed.rank();
        // After ranks were lost, a rank's number in the world differs from its number when the run began.
        let number = distributed.roster().number_of(rank);
        let (_, host) = distributed.host();
        let recorded = self.recorder.take(number, rank == 0 || distributed.is_first_of_process());
        let start_of = |number: usize| self.start.get(number).copied().unwrap_or_default();
        let start = start_of(number).seen_from(&start_of(distributed.roster().number_of(0)));
        let alignment = Alignment { start, end: end[rank] };
        // The first event of all ranks is the origin. The sum of one-hot vectors is a gather.
        let mut firsts = vec![0.0; distributed.size()];
        firsts[rank] = chrome::first_of(&recorded, &alignment).unwrap_or(f64::MAX);
        distributed.exchange().sum(&mut firsts)?;
        let origin = firsts.iter().copied().fold(f64::MAX, f64::min);
        let facts = RankFacts { rank: number, host, alignment, left_out: recorded.left_out };
        let events = chrome::events_json(recorded, &facts, origin);
        let own = format!("{}\n{}\n{}", facts_line(&facts)?, facts.host, events);
        let all = distributed.exchange().gather_bytes(own.into_bytes())?;
        if rank > 0 {
            return Ok(None);
        }
        let ranks = all.into_iter().map(parse_rank).collect::<Result<Vec<_>, TrainError>>()?;
        Ok(Some(chrome::file(&ranks, self.start.len(), complete)))
    }
}

fn facts_line(facts: &RankFacts) -> Result<String, TrainError> {
    serde_json::to_string(&(facts.rank, facts.alignment, facts.left_out)).map_err(|error| malformed(&error))
}

/// Reads the facts and the events of a rank.
fn parse_rank(bytes: Vec<u8>) -> Result<(RankFacts, String), TrainError> {
    let text = String::from_utf8(bytes).map_err(|error| malformed(&error))?;
    let mut lines = text.splitn(3, '\n');
    let mut next = || lines.next().unwrap_or_default();
    let (facts, host, events) = (next(), next().to_owned(), next().to_owned());
    let (rank, alignment, left_out) = serde_json::from_str(facts).map_err(|error| malformed(&error))?;
    Ok((RankFacts { rank, host, alignment, left_out }, events))
}

fn malformed(error: &dyn std::error::Error) -> TrainError {
    TrainError::Setup(format!("malformed events of a rank: {error}"))
}
