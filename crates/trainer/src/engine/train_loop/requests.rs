//! What users ask a run for while it goes on: rank 0, or whoever has taken over from it, hears it, and all ranks do it between the
//! same two steps.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Run;
use crate::engine::TrainError;
use crate::engine::distributed::{Agreed, Distributed, Interlude, Job, StopReason};
use crate::engine::observer::{Event, Observer, Started};
use crate::engine::refusal::refusal;
use phalanx_run::{Doing, MetricsWriter, Request, RunError, RunFolder, RunState, Waiting, host_name};

/// How often rank 0 looks whether somebody has asked for something.
const LOOK: Duration = Duration::from_millis(100);

/// How often rank 0 writes down which step was done last.
const WRITE: Duration = Duration::from_secs(1);

/// Where rank 0 hears users, and tells them what the run does.
#[derive(Debug)]
pub(super) struct Desk {
    folder: RunFolder,
    state: RunState,
    looked: Instant,
    written: Instant,
    /// Whether the last that users wanted of the two was a pause.
    pause_wanted: bool,
    /// What was asked for and is not done yet: it is asked for again in a world that follows.
    open: Vec<Request>,
    /// Who waits to be let in, and whether some were asked in and have not come yet.
    waiting: Waiting,
    are_asked_in: bool,
    /// Ranks that are to leave, and whether one was told to and has not left yet.
    leaving: Vec<usize>,
    is_one_leaving: bool,
}

/// Why no further step is begun in this world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Break {
    /// The run stops.
    Stop(StopReason),
    /// It goes on in another world, for this reason.
    World(Interlude),
}

impl Desk {
    /// Opens the desk of a run that begins or goes on. What was asked of an earlier attempt, and not heard, is not meant
    /// for this one.
    pub(super) fn open(folder: &RunFolder, started: &Started) -> Result<Self, RunError> {
        Request::take(&folder.requests());
        let desk = Self::new(folder, started, 0, false);
        desk.state.write(&folder.state())?;
        Ok(desk)
    }

    /// Takes the desk over that the dead rank 0 had, as the first of those who are left, when they have met so many times. What
    /// users have asked for, and rank 0 has not heard, is heard now. If the run `pauses`, or rank 0 has said so, the pause is
    /// asked for again.
    ///
    /// # Errors
    /// [`TrainError::LeftBehind`] if others have gone on without this rank.
    pub(super) fn take_over(
        folder: &RunFolder,
        started: &Started,
        meetings: u64,
        pauses: bool,
    ) -> Result<Self, TrainError> {
        let paused = before(folder, meetings)?.is_some_and(|before| before.doing == Doing::Paused);
        let mut desk = Self::new(folder, started, meetings, pauses || paused);
        desk.write()?;
        Ok(desk)
    }

    /// Stays at the desk, when those who are left have met so many times, and so many train.
    ///
    /// # Errors
    /// [`TrainError::LeftBehind`] if others have gone on without this rank.
    pub(super) fn go_on(&mut self, meetings: u64, ranks: usize) -> Result<(), TrainError> {
        before(&self.folder, meetings)?;
        (self.state.meetings, self.state.world_size) = (meetings, ranks);
        (self.are_asked_in, self.is_one_leaving) = (false, false);
        Ok(self.write()?)
    }

    fn new(folder: &RunFolder, started: &Started, meetings: u64, pause_wanted: bool) -> Self {
        let state = RunState {
            doing: Doing::Training,
            step: started.done,
            total: started.total,
            steps_per_epoch: started.steps_per_epoch,
            model: started.model.clone(),
            parameters: started.parameters,
            data: started.data.clone(),
            world_size: started.world_size,
            servers: started.servers,
            threads: started.threads,
            device: started.device.clone(),
            strategy: started.strategy.clone(),
            host: host_name(),
            process: std::process::id(),
            meetings,
            members: BTreeMap::new(),
        };
        let (now, waiting) = (Instant::now(), Waiting::at(&folder.joins()));
        Self {
            folder: folder.clone(),
            state,
            looked: now,
            written: now,
            pause_wanted,
            open: Vec::new(),
            waiting,
            are_asked_in: false,
            leaving: Vec::new(),
            is_one_leaving: false,
        }
    }

    /// Writes the state, unless others have gone on without this rank and write theirs.
    fn write(&mut self) -> Result<(), RunError> {
        let path = self.folder.state();
        let theirs = RunState::read(&path).is_ok_and(|there| there.meetings > self.state.meetings);
        if theirs { Ok(()) } else { self.state.write(&path) }
    }

    /// Passes on what was asked for since the last look, unless that was a moment ago, and tells how far the run is.
    fn attend(
        &mut self,
        step: u64,
        distributed: &Distributed,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        let (job, room) = (distributed.job(), distributed.room());
        self.tell_members(distributed)?;
        if room > 0 && !self.are_asked_in {
            let mut come = self.waiting.look()?;
            come.truncate(room);
            if !come.is_empty() {
                self.are_asked_in = true;
                job.request(Interlude::Join(come))?;
            }
        }
        for request in Request::take(&self.folder.requests()) {
            let request = match request {
                Ok(request) => request,
                Err(text) => {
                    let problem =
                        format!("asked for `{text}`; a run knows pause, resume, save, stop and leave N");
                    tracing::warn!("{problem}");
                    observer.event(&Event::Note(format!("warning: {problem}")));
                    continue;
                }
            };
            let refusal = refusal(request, &self.state.strategy);
            if let Some(why) = refusal.or_else(|| self.refuses_to_leave(request, distributed)) {
                tracing::warn!("{why}");
                observer.event(&Event::Note(format!("warning: {why}")));
                continue;
            }
            tracing::info!("asked to {} after step {step}", request.name());
            match request {
                Request::Leave(number) => self.leaving.push(number),
                other => {
                    self.pause_wanted = match other {
                        Request::Pause => true,
                        Request::Resume => false,
                        _ => self.pause_wanted,
                    };
                    self.open.push(other);
                    pass_on(other, job)?;
                }
            }
        }
        self.have_one_leave(distributed)?;
        if self.written.elapsed() >= WRITE && self.state.step != step {
            self.tell(self.state.doing, step)?;
        }
        Ok(())
    }

    /// Says who takes part, once it has changed.
    fn tell_members(&mut self, distributed: &Distributed) -> Result<(), RunError> {
        if !distributed.is_elastic() {
            return Ok(());
        }
        let numbers = distributed.numbers();
        if !numbers.iter().eq(self.state.members.keys()) {
            let hosts = numbers.iter().map(|number| (*number, distributed.host_of(*number)));
            self.state.members = hosts.collect();
            self.write()?;
        }
        Ok(())
    }

    /// Why a rank is not told to leave, if that is what is asked for and it cannot.
    fn refuses_to_leave(&self, request: Request, distributed: &Distributed) -> Option<String> {
        let Request::Leave(number) = request else { return None };
        if !distributed.is_elastic() {
            return Some("a rank can leave where the world may change (train --elastic MIN:MAX)".to_owned());
        }
        if !distributed.numbers().contains(&number) || self.leaving.contains(&number) {
            return Some(format!("rank {number} does not take part, or leaves already"));
        }
        let left = distributed.data_size().saturating_sub(self.leaving.len() + 1);
        (left < distributed.least()).then(|| {
            format!("without rank {number} {left} would be left, and elastic.min = {}", distributed.least())
        })
    }

    /// Has ranks leave, one after the other: each time all others meet again. The one at the desk is the last.
    fn have_one_leave(&mut self, distributed: &Distributed) -> Result<(), TrainError> {
        self.leaving.retain(|number| distributed.numbers().contains(number));
        let own = distributed.number();
        let next = self.leaving.iter().copied().min_by_key(|number| (*number == own, *number));
        if let Some(number) = next.filter(|_| !self.is_one_leaving) {
            self.is_one_leaving = true;
            distributed.job().request(Interlude::Leave(number))?;
        }
        Ok(())
    }

    fn tell(&mut self, doing: Doing, step: u64) -> Result<(), RunError> {
        (self.state.doing, self.state.step, self.written) = (doing, step, Instant::now());
        self.write()
    }

    /// Asks again for what was wanted in a world that is over: the pause that there was, and what was not done.
    pub(super) fn ask_again(&self, job: &Job) -> Result<(), TrainError> {
        let again = |request: &&Request| !matches!(request, Request::Pause | Request::Resume);
        self.open.iter().filter(again).try_for_each(|request| pass_on(*request, job))?;
        if self.pause_wanted { pass_on(Request::Pause, job) } else { Ok(()) }
    }

    /// What was asked for is done.
    fn is_done(&mut self, request: Request) {
        if let Some(at) = self.open.iter().position(|open| *open == request) {
            self.open.remove(at);
        }
    }

    /// Leaves it to whoever takes over, without a word.
    pub(super) fn hand_over(self) {
        // The run has neither ended nor failed.
        let _kept = std::mem::ManuallyDrop::new(self);
    }

    /// Tells that the run has ended after a step and left its summary; without this, that it has failed.
    pub(super) fn close(mut self, step: u64) {
        (self.state.doing, self.state.step) = (Doing::Ended, step);
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if self.state.doing != Doing::Ended {
            self.state.doing = Doing::Failed;
        }
        // If this cannot be written, whoever watches finds out by the process that is gone.
        let _ = self.write();
    }
}

/// Asks all ranks for what users want.
fn pass_on(request: Request, job: &Job) -> Result<(), TrainError> {
    match request {
        Request::Stop => job.request_stop(&StopReason::Asked),
        other => job.request(Interlude::Asked(other)),
    }
}

/// What is written of the run when those who are left have met so many times. Whoever has met others as often has written it, and
/// this rank was not among them.
fn before(folder: &RunFolder, meetings: u64) -> Result<Option<RunState>, TrainError> {
    let there = RunState::read(&folder.state()).ok();
    match &there {
        Some(there) if there.meetings >= meetings => {
            Err(TrainError::LeftBehind { host: there.host.clone(), step: there.step })
        }
        _ => Ok(there),
    }
}

impl Run<'_> {
    /// Begins the next step, after whatever all ranks have agreed to do before it. If they have agreed to take none in this world:
    /// why.
    pub(super) fn begin_step(
        &mut self,
        mut metrics: Option<&mut MetricsWriter>,
        observer: &mut dyn Observer,
    ) -> Result<Option<Break>, TrainError> {
        loop {
            self.attend(observer)?;
            let asked = match self.asked.pop_front() {
                Some(request) => Some(Agreed::Interlude(request)),
                None => self.distributed.job().begin(2 * self.state.step)?,
            };
            match asked {
                None => return Ok(None),
                Some(Agreed::Stop(reason)) => return Ok(Some(Break::Stop(reason))),
                Some(Agreed::Interlude(Interlude::Asked(request))) => {
                    match request {
                        Request::Save => self.save_now(metrics.as_deref_mut(), observer)?,
                        Request::Pause => {
                            if let Some(reason) = self.pause(metrics.as_deref_mut(), observer)? {
                                return Ok(Some(Break::Stop(reason)));
                            }
                        }
                        Request::Resume | Request::Stop | Request::Leave(_) => {}
                    }
                    self.has_done(request);
                }
                Some(Agreed::Interlude(other)) => return Ok(Some(Break::World(other))),
            }
        }
    }

    /// Begins what follows a step. Interludes that were agreed on before it take place after it, when all is told of the
    /// step.
    pub(super) fn begin_following(&mut self) -> Result<Option<StopReason>, TrainError> {
        loop {
            match self.distributed.job().begin(2 * self.state.step - 1)? {
                None => return Ok(None),
                Some(Agreed::Stop(reason)) => return Ok(Some(reason)),
                Some(Agreed::Interlude(request)) => self.asked.push_back(request),
            }
        }
    }

    /// Takes no step until users want the run to go on, or to stop: then why. Nobody waits in an operation meanwhile, and
    /// the control plane goes on giving signs of life, so no rank takes another for dead.
    fn pause(
        &mut self,
        mut metrics: Option<&mut MetricsWriter>,
        observer: &mut dyn Observer,
    ) -> Result<Option<StopReason>, TrainError> {
        let (step, since) = (self.state.step, Instant::now());
        self.pauses = true;
        self.tell_of_all_taken(metrics.as_deref_mut(), observer)?;
        // A checkpoint that was begun is complete before ranks stand still.
        self.settle(observer)?;
        self.note(Doing::Paused, &format!("paused after step {step}"), observer)?;
        let mut changes = false;
        let stopped = loop {
            self.attend(observer)?;
            let asked = match self.asked.pop_front() {
                Some(request) => Some(Agreed::Interlude(request)),
                None => self.distributed.job().next(LOOK)?,
            };
            match asked {
                None
                | Some(Agreed::Interlude(Interlude::Asked(
                    Request::Pause | Request::Stop | Request::Leave(_),
                ))) => {}
                Some(Agreed::Interlude(Interlude::Asked(Request::Resume))) => {
                    self.has_done(Request::Resume);
                    break None;
                }
                Some(Agreed::Interlude(Interlude::Asked(Request::Save))) => {
                    self.save_now(metrics.as_deref_mut(), observer)?;
                    self.settle(observer)?;
                    self.has_done(Request::Save);
                }
                // Whoever is in the next world pauses again, also where another rank has the desk there.
                Some(Agreed::Interlude(other)) => {
                    self.asked.push_front(other);
                    changes = true;
                    break None;
                }
                Some(Agreed::Stop(reason)) => break Some(reason),
            }
        };
        if changes {
            return Ok(None);
        }
        self.pauses = false;
        let paused = since.elapsed().as_secs_f64();
        self.note(Doing::Training, &format!("goes on after a pause of {paused:.1} s"), observer)?;
        Ok(stopped)
    }

    /// What all ranks were asked for is done.
    fn has_done(&mut self, request: Request) {
        if let Some(desk) = &mut self.desk {
            desk.is_done(request);
        }
    }

    /// Begins to save what there is after the last step.
    fn save_now(
        &mut self,
        metrics: Option<&mut MetricsWriter>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        // Nothing is saved of a step whose loss is not finite, so all losses are known before.
        self.tell_of_all_taken(metrics, observer)?;
        self.save(self.state.step, observer)
    }

    /// Hears users, on rank 0.
    fn attend(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Some(desk) = &mut self.desk else { return Ok(()) };
        desk.attend(self.state.step, &self.distributed, observer)
    }

    /// Tells, on rank 0, that the run does something else now.
    fn note(&mut self, doing: Doing, text: &str, observer: &mut dyn Observer) -> Result<(), TrainError> {
        tracing::info!("{text}");
        if let Some(desk) = &mut self.desk {
            desk.tell(doing, self.state.step)?;
            observer.event(&Event::Note(text.to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_is_not_done_is_asked_for_again_in_the_next_world() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), Path::new("runs"), "n").expect("new");
        let mut desk = Desk::open(&folder, &Started::default()).expect("writes");
        let asked = |desk: &Desk| {
            let job = Job::alone();
            desk.ask_again(&job).expect("nobody else is there");
            let next = || job.next(Duration::ZERO).expect("a sound world");
            std::iter::from_fn(next)
                .map(|agreed| match agreed {
                    Agreed::Interlude(Interlude::Asked(request)) => request,
                    Agreed::Interlude(other) => panic!("{other:?}"),
                    Agreed::Stop(reason) => {
                        assert_eq!(reason, StopReason::Asked);
                        Request::Stop
                    }
                })
                .take(4)
                .collect::<Vec<_>>()
        };
        assert_eq!(asked(&desk), []);
        desk.open = vec![Request::Save, Request::Pause];
        desk.pause_wanted = true;
        assert_eq!(asked(&desk), [Request::Save, Request::Pause], "each once");
        desk.is_done(Request::Save);
        assert_eq!(asked(&desk), [Request::Pause], "it goes on");
        (desk.open, desk.pause_wanted) = (vec![Request::Pause, Request::Resume], false);
        assert_eq!(asked(&desk), [], "one takes the other back");
        desk.open = vec![Request::Stop];
        assert_eq!(asked(&desk)[0], Request::Stop);
    }

    #[test]
    fn only_one_group_of_those_who_are_left_keeps_the_desk() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), Path::new("runs"), "n").expect("new");
        let started = Started { done: 3, ..Started::default() };
        let mut first = Desk::open(&folder, &started).expect("writes");
        Request::Pause.post(&folder.requests()).expect("asked");
        first.tell(Doing::Paused, 5).expect("writes");
        let next = Desk::take_over(&folder, &started, 1, false).expect("the first has met nobody again");
        assert!(next.pause_wanted, "it is a pause that goes on");
        assert_eq!(Request::take(&folder.requests()).len(), 1, "what nobody has heard stays");
        // One that was taken for dead wakes up: what it says is not written, and it does not go on.
        first.tell(Doing::Training, 6).expect("nothing to write");
        let there = RunState::read(&folder.state()).expect("reads");
        assert_eq!((there.meetings, there.step), (1, 3));
        for late in [first.go_on(1, 2), Desk::take_over(&folder, &started, 1, true).map(drop)] {
            assert!(matches!(late, Err(TrainError::LeftBehind { step: 3, .. })), "{late:?}");
        }
        drop(first);
        assert_eq!(RunState::read(&folder.state()).expect("reads"), there);
        // Its own group meets again.
        Desk::take_over(&folder, &started, 2, false).expect("met once more").close(9);
        let ended = RunState::read(&folder.state()).expect("reads");
        assert_eq!((ended.doing, ended.step, ended.meetings), (Doing::Ended, 9, 2));
        drop(next);
        assert_eq!(RunState::read(&folder.state()).expect("reads"), ended);
    }
}
