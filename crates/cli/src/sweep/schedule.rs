//! The order in which the runs of a sweep begin, and the trials of its searches as earlier ones end.

use std::collections::VecDeque;
use std::time::Duration;

use super::file::SweepFile;
use super::outcome::Outcome;
use super::place::SweepFolder;
use super::search::{
    Observation, Peer, RecordedEnd, RecordedTrial, Rungs, Search, SearchKey, SearchRecord, StopDecision, draw,
};
use super::trials::{Run, Trials};
use super::watch::PruneWatch;
use phalanx_config::Resolved;
use phalanx_run::{RunError, RunFolder, read_whole_metrics};

/// A run with its configuration.
#[derive(Debug, Clone)]
pub struct PlannedRun {
    /// The run.
    pub run: Run,
    /// Its configuration; of a trial of a search, the reason why it cannot be trained.
    pub resolved: Result<Resolved, String>,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum TrainingEnd {
    /// It had finished before.
    FinishedBefore,
    /// It has finished now, after this time.
    Finished(Duration),
    /// A rule of the search stopped it.
    Pruned(StopDecision),
    /// It failed.
    Failed(String),
    /// It was asked to stop. It leaves a checkpoint if it saves any.
    Stopped,
}

/// Makes the configurations of runs that a search draws.
pub trait Configure: Sync {
    /// Returns the configuration of a run.
    ///
    /// # Errors
    /// The reason why it cannot be trained.
    fn configure(&self, run: &Run) -> Result<Resolved, String>;
}

/// The work of a thread.
#[derive(Debug)]
pub enum Next {
    /// Train this run.
    Train(Box<Job>),
    /// Wait until other runs have ended.
    Wait,
    /// All runs have begun.
    Done,
}

/// A run to train.
#[derive(Debug)]
pub struct Job {
    /// Its number.
    pub at: usize,
    /// The run.
    pub run: Run,
    /// Its configuration.
    pub resolved: Result<Resolved, String>,
    /// Its end, if an earlier call has recorded it.
    pub ended: Option<TrainingEnd>,
    /// The rule that may stop it.
    pub watch: Option<PruneWatch>,
}

/// A run, or a trial of a search, in the order in which they begin.
#[derive(Debug, Clone, Copy)]
enum Start {
    Run(usize),
    Trial(TrialId),
}

/// A trial, by the numbers of its search and its own.
#[derive(Debug, Clone, Copy)]
struct TrialId {
    search: usize,
    number: usize,
}

/// A trial that has begun.
#[derive(Debug, Clone, Default)]
struct TrialState {
    /// Its values at the steps of decisions.
    rungs: Rungs,
    /// Its end.
    end: Option<RecordedEnd>,
}

/// A run and its state.
#[derive(Debug)]
struct RunState {
    planned: PlannedRun,
    /// True once a thread trains it, or has.
    begun: bool,
    end: Option<TrainingEnd>,
    /// The trial that has drawn it first.
    trial: Option<TrialId>,
}

/// The runs of a sweep, as they begin and end.
pub struct Schedule<'a> {
    file: &'a SweepFile,
    place: SweepFolder<'a>,
    configure: &'a dyn Configure,
    /// The number of runs that train at once.
    parallel: usize,
    trials: Trials,
    runs: Vec<RunState>,
    starts: VecDeque<Start>,
    /// Runs that begin next.
    queue: VecDeque<usize>,
    /// The trials of each search that have begun.
    states: Vec<Vec<TrialState>>,
    record: SearchRecord,
}

impl std::fmt::Debug for Schedule<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schedule").field("trials", &self.trials).finish_non_exhaustive()
    }
}

/// The sweep before its runs.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The runs and tables, with the trials that are drawn.
    pub trials: Trials,
    /// The runs with their configurations.
    pub runs: Vec<PlannedRun>,
    /// The trials that an earlier call has drawn.
    pub record: SearchRecord,
}

/// The sweep after its runs.
#[derive(Debug)]
pub struct Ended {
    /// The runs and tables, with all trials that were drawn.
    pub trials: Trials,
    /// The runs with their configurations.
    pub runs: Vec<PlannedRun>,
    /// The ends of the runs.
    pub ends: Vec<TrainingEnd>,
    /// The errors of searches of which every trial has failed: the first of each.
    pub failed_searches: Vec<String>,
}

impl<'a> Schedule<'a> {
    /// A schedule of the runs of `planned`, of which `parallel` train at once.
    pub fn new(
        file: &'a SweepFile,
        place: SweepFolder<'a>,
        configure: &'a dyn Configure,
        parallel: usize,
        planned: Planned,
    ) -> Self {
        let Planned { trials, runs, mut record } = planned;
        for recorded in record.searches.values_mut() {
            let failed = |trial: &RecordedTrial| matches!(trial.end, Some(RecordedEnd::Failed(_)) | None);
            // The cause of all failures may be mended. Else a trial that has failed would fail again.
            if recorded.trials.iter().all(failed) {
                recorded.trials.iter_mut().for_each(|trial| trial.end = None);
            }
        }
        let states = vec![Vec::new(); trials.searches.len()];
        let starts = starts(&trials, file.search.as_ref());
        let of = |planned| RunState { planned, begun: false, end: None, trial: None };
        let runs = runs.into_iter().map(of).collect();
        let queue = VecDeque::new();
        Self { file, place, configure, parallel, trials, runs, starts, queue, states, record }
    }

    /// Returns the number of runs that there will be at most.
    pub fn total(&self) -> usize {
        let trained = self.runs.iter().filter(|run| !run.planned.run.predicted).count();
        let trials = self.file.search.as_ref().map_or(0, |search| search.trials);
        let open: usize = self.trials.searches.iter().map(|rows| trials.saturating_sub(rows.drawn)).sum();
        trained + open * self.file.seeds.len()
    }

    /// Returns the next run to train, and draws the trial that it belongs to.
    ///
    /// # Errors
    /// If the record of drawn trials cannot be written.
    pub fn next_job(&mut self) -> Result<Next, RunError> {
        loop {
            if let Some(at) = self.queue.pop_front() {
                return Ok(Next::Train(Box::new(self.job(at))));
            }
            match self.starts.front().copied() {
                None => return Ok(Next::Done),
                Some(Start::Run(at)) => self.enqueue(at, None),
                Some(Start::Trial(id)) if !self.begin(id)? => return Ok(Next::Wait),
                Some(Start::Trial(_)) => {}
            }
            self.starts.pop_front();
        }
    }

    fn enqueue(&mut self, at: usize, trial: Option<TrialId>) {
        let run = &mut self.runs[at];
        if !run.begun && !run.planned.run.predicted {
            (run.begun, run.trial) = (true, trial);
            self.queue.push_back(at);
        }
    }

    /// Begins a trial. Returns false if it must wait for earlier ones.
    fn begin(&mut self, id: TrialId) -> Result<bool, RunError> {
        let Some(search) = &self.file.search else { return Ok(true) };
        let TrialId { search: at, number } = id;
        let recorded = self.recorded(id);
        let depends = search.prune.is_some() || (search.learns() && number >= search.startup);
        let seen = recorded.map_or((number + 1).saturating_sub(self.parallel), |trial| trial.seen);
        let seen = if depends { seen.min(number) } else { 0 };
        if self.states[at][..seen].iter().any(|trial| trial.end.is_none()) {
            return Ok(false);
        }
        if self.trials.searches[at].drawn <= number {
            let values = draw(search, number, &self.observations(search, at, seen));
            self.trials.draw(self.file, at, &values);
            for run in &self.trials.runs[self.runs.len()..] {
                let planned = PlannedRun { run: run.clone(), resolved: self.configure.configure(run) };
                self.runs.push(RunState { planned, begun: false, end: None, trial: None });
            }
        }
        self.states[at].push(TrialState::default());
        if self.recorded(id).is_none() {
            self.record_draw(search, id, seen)?;
        }
        let runs = self.trials.trial(at, number).runs.clone();
        runs.iter().for_each(|run| self.enqueue(*run, Some(id)));
        self.conclude(search, id)?;
        Ok(true)
    }

    fn recorded(&self, id: TrialId) -> Option<&RecordedTrial> {
        let name = &self.trials.searches[id.search].name;
        self.record.searches.get(name)?.trials.get(id.number)
    }

    /// Records a trial that was drawn.
    fn record_draw(&mut self, search: &Search, id: TrialId, seen: usize) -> Result<(), RunError> {
        let drawn = &self.trials.trial(id.search, id.number).values;
        let setting =
            |((name, key), value): ((&String, &SearchKey), &f64)| (name.clone(), key.setting(*value));
        let values = search.keys.iter().zip(drawn).map(setting).collect();
        let of = self.record.searches.entry(self.trials.searches[id.search].name.clone()).or_default();
        of.settings = search.settings();
        of.trials.push(RecordedTrial { seen, values, end: None });
        self.record.write(self.place.0)
    }

    /// Returns the outcomes of the first `seen` trials of a search.
    fn observations(&self, search: &Search, at: usize, seen: usize) -> Vec<Observation> {
        let Some(objective) = search.objective() else { return Vec::new() };
        let pruned_by = search.prune.as_ref().map_or(objective, |prune| prune.objective(objective));
        let of = |number: usize| {
            let values = self.trials.trial(at, number).values.clone();
            match *self.states[at][number].end.as_ref()? {
                RecordedEnd::Finished(value) => {
                    Some(Observation { values, cost: objective.1.cost(value?), pruned: None })
                }
                RecordedEnd::Pruned(StopDecision { step, value }) => {
                    Some(Observation { values, cost: pruned_by.1.cost(value), pruned: Some(step) })
                }
                RecordedEnd::Failed(_) => None,
            }
        };
        (0..seen).filter_map(of).collect()
    }

    fn job(&self, at: usize) -> Job {
        let RunState { planned, trial, .. } = &self.runs[at];
        let PlannedRun { run, resolved } = planned.clone();
        let end = trial.and_then(|id| self.recorded(id)?.end.clone());
        let is_open = !matches!(end, Some(RecordedEnd::Finished(_)));
        let ended = match end {
            Some(RecordedEnd::Pruned(decision)) => Some(TrainingEnd::Pruned(decision)),
            // Without its folder it is tried again.
            Some(RecordedEnd::Failed(error)) if self.place.run(&run).exists() => {
                Some(TrainingEnd::Failed(error))
            }
            _ => None,
        };
        let watch = trial.filter(|_| is_open).and_then(|id| self.watch(id));
        Job { at, run, resolved, ended, watch }
    }

    /// Returns the rule that may stop the run of a trial.
    fn watch(&self, id: TrialId) -> Option<PruneWatch> {
        let search = self.file.search.as_ref()?;
        let (prune, objective) = (search.prune.clone()?, search.objective()?);
        let (measure, goal) = prune.objective(objective);
        let seen = self.recorded(id)?.seen;
        let peer = |trial: &TrialState| {
            let finished = match trial.end.as_ref()? {
                RecordedEnd::Finished(_) => true,
                RecordedEnd::Pruned(_) => false,
                RecordedEnd::Failed(_) => return None,
            };
            Some(Peer { rungs: trial.rungs.clone(), finished })
        };
        let peers = self.states[id.search][..seen].iter().filter_map(peer).collect();
        Some(PruneWatch::new(measure.to_owned(), goal, prune, peers))
    }

    /// Records the end of a run.
    ///
    /// # Errors
    /// If the record of trials cannot be written.
    pub fn end(&mut self, at: usize, end: TrainingEnd) -> Result<(), RunError> {
        if end == TrainingEnd::Stopped {
            return Ok(());
        }
        self.runs[at].end = Some(end);
        let Some(search) = &self.file.search else { return Ok(()) };
        for of in 0..self.states.len() {
            for number in 0..self.states[of].len() {
                let is_of_run = self.trials.trial(of, number).runs.contains(&at);
                if is_of_run && self.states[of][number].end.is_none() {
                    self.conclude(search, TrialId { search: of, number })?;
                }
            }
        }
        Ok(())
    }

    /// Records the end of a trial, if all of its runs have ended.
    fn conclude(&mut self, search: &Search, id: TrialId) -> Result<(), RunError> {
        let runs = &self.trials.trial(id.search, id.number).runs;
        let ends = runs.iter().map(|run| Some((&self.runs[*run].planned.run, self.runs[*run].end.as_ref()?)));
        let Some(ends) = ends.collect::<Option<Vec<(&Run, &TrainingEnd)>>>() else { return Ok(()) };
        let end = self.end_of(search, &ends);
        let rungs = match (&search.prune, search.objective(), ends.first()) {
            (Some(prune), Some(objective), Some((run, _))) => {
                let measure = prune.objective(objective).0;
                self.lines(run).map(|lines| Rungs::of(&lines, prune, measure)).unwrap_or_default()
            }
            _ => Rungs::default(),
        };
        let rungs = match end {
            RecordedEnd::Pruned(decision) => rungs.until(decision.step),
            _ => rungs,
        };
        self.states[id.search][id.number] = TrialState { rungs, end: Some(end.clone()) };
        let name = &self.trials.searches[id.search].name;
        let recorded = self.record.searches.get_mut(name).and_then(|of| of.trials.get_mut(id.number));
        match recorded {
            Some(trial) if trial.end.as_ref() != Some(&end) => {
                trial.end = Some(end);
                self.record.write(self.place.0)
            }
            _ => Ok(()),
        }
    }

    fn lines(&self, run: &Run) -> Option<Vec<phalanx_run::Line>> {
        let folder = RunFolder::open(&self.place.run(run)).ok()?;
        read_whole_metrics(&folder.metrics()).ok()
    }

    /// Returns the end of a trial by the ends of its runs, one for each seed.
    fn end_of(&self, search: &Search, ends: &[(&Run, &TrainingEnd)]) -> RecordedEnd {
        let mut values = Vec::new();
        for (run, end) in ends {
            match end {
                TrainingEnd::Failed(error) => return RecordedEnd::Failed(error.clone()),
                TrainingEnd::Pruned(decision) => return RecordedEnd::Pruned(*decision),
                _ => {}
            }
            let Some(measure) = &search.measure else { continue };
            let outcome = Outcome::read(&self.place.run(run), self.file.target.as_ref());
            match outcome.map(|outcome| outcome.numbers.get(measure).copied()) {
                Ok(Some(value)) => values.push(value),
                Ok(None) => return RecordedEnd::Failed(format!("the run has no `{measure}`")),
                Err(error) => return RecordedEnd::Failed(error.to_string()),
            }
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        RecordedEnd::Finished((!values.is_empty()).then_some(mean))
    }

    /// Returns the sweep after its runs.
    pub fn finish(mut self) -> Ended {
        let failed = |of: &Vec<TrialState>| {
            let error = |trial: &TrialState| match &trial.end {
                Some(RecordedEnd::Failed(error)) => Some(error.clone()),
                _ => None,
            };
            let errors: Option<Vec<String>> = of.iter().map(error).collect();
            errors?.into_iter().next()
        };
        let failed_searches = self.states.iter().filter_map(failed).collect();
        self.trials.leave_out_undrawn();
        let ends = self.runs.iter().map(|run| run.end.clone().unwrap_or(TrainingEnd::Stopped)).collect();
        let runs = self.runs.into_iter().map(|run| run.planned).collect();
        Ended { trials: self.trials, runs, ends, failed_searches }
    }
}

/// Returns all starts, in the order of the tables and their rows.
fn starts(trials: &Trials, search: Option<&Search>) -> VecDeque<Start> {
    let Some(search) = search else { return (0..trials.runs.len()).map(Start::Run).collect() };
    let trials_of =
        |at: usize| (0..search.trials).map(move |number| Start::Trial(TrialId { search: at, number }));
    (0..trials.searches.len()).flat_map(trials_of).collect()
}
