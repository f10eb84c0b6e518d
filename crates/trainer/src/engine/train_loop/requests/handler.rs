//! Rank 0's side of the requests of users.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::engine::TrainError;
use crate::engine::distributed::{AgreedAction, Distributed, Job, StopReason};
use crate::engine::observer::{Event, Observer, Started};
use crate::engine::refusal::refusal;
use phalanx_run::{JoinCandidates, Request, RunActivity, RunError, RunFolder, RunState, host_name};

/// The period of looking for requests.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// The period of writing the last step to the run's state.
const WRITE: Duration = Duration::from_secs(1);

/// Receives the requests of users on rank 0, and writes the state of the run for them.
#[derive(Debug)]
pub(in crate::engine::train_loop) struct RequestHandler {
    folder: RunFolder,
    state: RunState,
    looked: Instant,
    written: Instant,
    /// True if the last request was a pause, not a resume.
    pause_wanted: bool,
    /// Requests that are not done. They are sent again after the world has changed.
    open: Vec<Request>,
    /// Ranks that wait to join.
    waiting: JoinCandidates,
    /// True if ranks were invited and have not joined yet.
    has_invited: bool,
    /// Ranks that are to leave.
    leaving: Vec<usize>,
    /// True if a rank was told to leave and has not left yet.
    is_one_leaving: bool,
}

impl RequestHandler {
    /// Starts to receive the requests for a run that begins or resumes. Drops requests for an earlier attempt.
    pub(in crate::engine::train_loop) fn open(
        folder: &RunFolder,
        started: &Started,
    ) -> Result<Self, RunError> {
        Request::take(&folder.requests());
        let handler = Self::new(folder, started, 0, false);
        handler.state.write(&folder.state())?;
        Ok(handler)
    }

    /// Takes over from the rank 0 that was lost, in the world of this number. Receives the requests that the old rank 0 has not.
    /// Requests a pause again if the run was `paused`.
    ///
    /// # Errors
    /// [`TrainError::LeftBehind`] if others have continued without this rank.
    pub(in crate::engine::train_loop) fn take_over(
        folder: &RunFolder,
        started: &Started,
        meetings: u64,
        paused: bool,
    ) -> Result<Self, TrainError> {
        let was_paused =
            state_before(folder, meetings)?.is_some_and(|before| before.doing == RunActivity::Paused);
        let mut handler = Self::new(folder, started, meetings, paused || was_paused);
        handler.write()?;
        Ok(handler)
    }

    /// Continues in the world of this number, with `ranks` ranks that train.
    ///
    /// # Errors
    /// [`TrainError::LeftBehind`] if others have continued without this rank.
    pub(in crate::engine::train_loop) fn enter_world(
        &mut self,
        meetings: u64,
        ranks: usize,
    ) -> Result<(), TrainError> {
        state_before(&self.folder, meetings)?;
        (self.state.meetings, self.state.world_size) = (meetings, ranks);
        (self.has_invited, self.is_one_leaving) = (false, false);
        Ok(self.write()?)
    }

    fn new(folder: &RunFolder, started: &Started, meetings: u64, pause_wanted: bool) -> Self {
        let state = RunState {
            doing: RunActivity::Training,
            step: started.steps.done,
            total: started.steps.total,
            steps_per_epoch: started.steps.per_epoch,
            model: started.model.clone(),
            parameters: started.parameters,
            data: started.data.clone(),
            world_size: started.ranks.training,
            servers: started.ranks.servers,
            threads: started.ranks.threads,
            device: started.device.clone(),
            strategy: started.ranks.strategy.clone(),
            headline: started.headline.as_ref().map(|name| format!("test_{name}")),
            host: host_name(),
            process: std::process::id(),
            meetings,
            members: BTreeMap::new(),
        };
        let (now, waiting) = (Instant::now(), JoinCandidates::at(&folder.joins()));
        Self {
            folder: folder.clone(),
            state,
            looked: now,
            written: now,
            pause_wanted,
            open: Vec::new(),
            waiting,
            has_invited: false,
            leaving: Vec::new(),
            is_one_leaving: false,
        }
    }

    /// Writes the state, unless others have continued without this rank and write theirs.
    fn write(&mut self) -> Result<(), RunError> {
        let path = self.folder.state();
        let is_theirs = RunState::read(&path).is_ok_and(|there| there.meetings > self.state.meetings);
        if is_theirs { Ok(()) } else { self.state.write(&path) }
    }

    /// Passes on new requests to all ranks and writes the last step, at most once in [`LOOK`].
    pub(super) fn poll(
        &mut self,
        step: u64,
        distributed: &Distributed,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        self.write_members(distributed)?;
        self.invite(distributed)?;
        for request in Request::take(&self.folder.requests()) {
            match self.accept(request, distributed) {
                Ok(request) => self.pass_on(request, step, distributed.job())?,
                Err(problem) => {
                    tracing::warn!("{problem}");
                    observer.event(&Event::Note(format!("warning: {problem}")));
                }
            }
        }
        self.have_one_leave(distributed)?;
        if self.written.elapsed() >= WRITE && self.state.step != step {
            self.set(self.state.doing, step)?;
        }
        Ok(())
    }

    /// Returns a request that can be met, or the reason why it cannot.
    fn accept(&self, request: Result<Request, String>, distributed: &Distributed) -> Result<Request, String> {
        let unknown = |text| format!("asked for `{text}`; a run knows pause, resume, save, stop and leave N");
        let request = request.map_err(unknown)?;
        let refused = refusal(request, &self.state.strategy);
        refused.or_else(|| self.refuses_to_leave(request, distributed)).map_or(Ok(request), Err)
    }

    /// Sends a request to all ranks.
    fn pass_on(&mut self, request: Request, step: u64, job: &Job) -> Result<(), TrainError> {
        tracing::info!("asked to {} after step {step}", request.name());
        match request {
            Request::Leave(number) => {
                self.leaving.push(number);
                return Ok(());
            }
            Request::Pause => self.pause_wanted = true,
            Request::Resume => self.pause_wanted = false,
            _ => {}
        }
        self.open.push(request);
        send(request, job)
    }

    /// Invites ranks that wait to join, as many as there is room for.
    fn invite(&mut self, distributed: &Distributed) -> Result<(), TrainError> {
        let room = distributed.room();
        if room == 0 || self.has_invited {
            return Ok(());
        }
        let mut waiting = self.waiting.poll()?;
        waiting.truncate(room);
        if waiting.is_empty() {
            return Ok(());
        }
        self.has_invited = true;
        distributed.job().request(AgreedAction::Join(waiting))
    }

    /// Writes the members of the world, if they have changed.
    fn write_members(&mut self, distributed: &Distributed) -> Result<(), RunError> {
        if !distributed.roster().is_elastic() {
            return Ok(());
        }
        let numbers = distributed.roster().numbers();
        if !numbers.iter().eq(self.state.members.keys()) {
            let hosts = numbers.iter().map(|number| (*number, distributed.roster().host_of(*number)));
            self.state.members = hosts.collect();
            self.write()?;
        }
        Ok(())
    }

    /// Returns the reason why a rank cannot leave, if that is the request.
    fn refuses_to_leave(&self, request: Request, distributed: &Distributed) -> Option<String> {
        let Request::Leave(number) = request else { return None };
        if !distributed.roster().is_elastic() {
            return Some("a rank can leave where the world may change (train --elastic MIN:MAX)".to_owned());
        }
        if !distributed.roster().numbers().contains(&number) || self.leaving.contains(&number) {
            return Some(format!("rank {number} does not take part, or leaves already"));
        }
        let left = distributed.data_size().saturating_sub(self.leaving.len() + 1);
        (left < distributed.roster().min_ranks()).then(|| {
            format!(
                "without rank {number} {left} would be left, and elastic.min = {}",
                distributed.roster().min_ranks()
            )
        })
    }

    /// Has ranks leave one after the other: each time all others meet again. This rank is the last.
    fn have_one_leave(&mut self, distributed: &Distributed) -> Result<(), TrainError> {
        self.leaving.retain(|number| distributed.roster().numbers().contains(number));
        let own = distributed.roster().number();
        let next = self.leaving.iter().copied().min_by_key(|number| (*number == own, *number));
        if let Some(number) = next.filter(|_| !self.is_one_leaving) {
            self.is_one_leaving = true;
            distributed.job().request(AgreedAction::Leave(number))?;
        }
        Ok(())
    }

    /// Writes the activity of the run and its last step.
    pub(super) fn set(&mut self, doing: RunActivity, step: u64) -> Result<(), RunError> {
        (self.state.doing, self.state.step, self.written) = (doing, step, Instant::now());
        self.write()
    }

    /// Re-sends pending requests after the world was rebuilt.
    pub(in crate::engine::train_loop) fn resend(&self, job: &Job) -> Result<(), TrainError> {
        let again = |request: &&Request| !matches!(request, Request::Pause | Request::Resume);
        self.open.iter().filter(again).try_for_each(|request| send(*request, job))?;
        if self.pause_wanted { send(Request::Pause, job) } else { Ok(()) }
    }

    /// Removes a request that is done.
    pub(super) fn remove(&mut self, request: Request) {
        if let Some(at) = self.open.iter().position(|open| *open == request) {
            self.open.remove(at);
        }
    }

    /// Leaves the state of the run to the rank that takes over.
    pub(in crate::engine::train_loop) fn hand_over(self) {
        // The run has neither ended nor failed.
        let _kept = std::mem::ManuallyDrop::new(self);
    }

    /// Writes that the run has ended after a step, with a summary. Dropping the handler without this writes that it has failed.
    pub(in crate::engine::train_loop) fn close(mut self, step: u64) {
        (self.state.doing, self.state.step) = (RunActivity::Ended, step);
    }
}

impl Drop for RequestHandler {
    fn drop(&mut self) {
        if self.state.doing != RunActivity::Ended {
            self.state.doing = RunActivity::Failed;
        }
        // If this cannot be written, readers notice that the process is gone.
        let _ = self.write();
    }
}

/// Requests an action, or a stop, of all ranks.
fn send(request: Request, job: &Job) -> Result<(), TrainError> {
    match request {
        Request::Stop => job.request_stop(&StopReason::Asked),
        other => job.request(AgreedAction::Asked(other)),
    }
}

/// Reads the state that the last world has left. A state of this world or a later one is of ranks that have continued without this one.
fn state_before(folder: &RunFolder, meetings: u64) -> Result<Option<RunState>, TrainError> {
    let there = RunState::read(&folder.state()).ok();
    match &there {
        Some(there) if there.meetings >= meetings => {
            Err(TrainError::LeftBehind { host: there.host.clone(), step: there.step })
        }
        _ => Ok(there),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::engine::distributed::Agreed;
    use crate::engine::observer::StepRange;

    #[test]
    fn pending_requests_are_sent_again_in_the_next_world() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), Path::new("runs"), "n").expect("new");
        let mut handler = RequestHandler::open(&folder, &Started::default()).expect("writes");
        let asked = |handler: &RequestHandler| {
            let job = Job::alone();
            handler.resend(&job).expect("the only rank");
            let next = || job.next(Duration::ZERO).expect("a sound world");
            std::iter::from_fn(next)
                .map(|agreed| match agreed {
                    Agreed::Action(AgreedAction::Asked(request)) => request,
                    Agreed::Action(other) => panic!("{other:?}"),
                    Agreed::Stop(reason) => {
                        assert_eq!(reason, StopReason::Asked);
                        Request::Stop
                    }
                })
                .take(4)
                .collect::<Vec<_>>()
        };
        assert_eq!(asked(&handler), []);
        handler.open = vec![Request::Save, Request::Pause];
        handler.pause_wanted = true;
        assert_eq!(asked(&handler), [Request::Save, Request::Pause], "each once");
        handler.remove(Request::Save);
        assert_eq!(asked(&handler), [Request::Pause], "it goes on");
        (handler.open, handler.pause_wanted) = (vec![Request::Pause, Request::Resume], false);
        assert_eq!(asked(&handler), [], "one takes the other back");
        handler.open = vec![Request::Stop];
        assert_eq!(asked(&handler)[0], Request::Stop);
    }

    #[test]
    fn only_one_group_of_survivors_handles_requests() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), Path::new("runs"), "n").expect("new");
        let started = Started { steps: StepRange { done: 3, ..StepRange::default() }, ..Started::default() };
        let mut first = RequestHandler::open(&folder, &started).expect("writes");
        Request::Pause.post(&folder.requests()).expect("asked");
        first.set(RunActivity::Paused, 5).expect("writes");
        let next =
            RequestHandler::take_over(&folder, &started, 1, false).expect("the first has met no other again");
        assert!(next.pause_wanted, "it is a pause that goes on");
        assert_eq!(Request::take(&folder.requests()).len(), 1, "unread requests stay");
        // A rank that was taken for dead wakes up: it writes nothing and does not continue.
        first.set(RunActivity::Training, 6).expect("nothing to write");
        let there = RunState::read(&folder.state()).expect("reads");
        assert_eq!((there.meetings, there.step), (1, 3));
        for late in [first.enter_world(1, 2), RequestHandler::take_over(&folder, &started, 1, true).map(drop)]
        {
            assert!(matches!(late, Err(TrainError::LeftBehind { step: 3, .. })), "{late:?}");
        }
        drop(first);
        assert_eq!(RunState::read(&folder.state()).expect("reads"), there);
        // Its own group meets again.
        RequestHandler::take_over(&folder, &started, 2, false).expect("met once more").close(9);
        let ended = RunState::read(&folder.state()).expect("reads");
        assert_eq!((ended.doing, ended.step, ended.meetings), (RunActivity::Ended, 9, 2));
        drop(next);
        assert_eq!(RunState::read(&folder.state()).expect("reads"), ended);
    }
}
