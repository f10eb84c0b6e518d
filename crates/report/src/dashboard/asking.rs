//! Requests to a run, until it has heard them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::model::Status;
use phalanx_run::{Refusal, Request, RunError, RunFolder, RunState};

/// The time after which the user is told that a request has not been taken.
const LONG: Duration = Duration::from_secs(5);

/// Requests that the run has not heard yet, and the rule that says which a strategy refuses.
#[derive(Debug)]
pub(super) struct Asking {
    refusal: Refusal,
    open: Vec<Asked>,
}

#[derive(Debug)]
struct Asked {
    request: Request,
    file: PathBuf,
    since: Instant,
    complained: bool,
}

impl Asking {
    /// Without requests.
    pub(super) fn new(refusal: Refusal) -> Self {
        Self { refusal, open: Vec::new() }
    }

    /// Asks a run; what is to be told of that.
    ///
    /// # Errors
    /// If the request cannot be written.
    pub(super) fn ask(
        &mut self,
        folder: &RunFolder,
        request: Request,
        status: &Status,
    ) -> Result<Result<String, String>, RunError> {
        let name = request.name();
        if status.is_over() {
            return Ok(Err(format!("`{name}` is not possible: the run is over")));
        }
        if *status == Status::Starting {
            return Ok(Err(format!("`{name}` is not possible: the run has not begun yet")));
        }
        let strategy = RunState::read(&folder.state()).map(|state| state.strategy).unwrap_or_default();
        if let Some(why) = (self.refusal)(request, &strategy) {
            return Ok(Err(why));
        }
        let file = request.post(&folder.requests())?;
        self.open.push(Asked { request, file, since: Instant::now(), complained: false });
        Ok(Ok(format!("asked the run: {name}; it hears between two steps")))
    }

    /// Returns true if no request is open.
    pub(super) fn is_done(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the results of requests since the last look: `Ok` for those that were taken, `Err` for others.
    pub(super) fn look(&mut self, status: &Status) -> Vec<Result<String, String>> {
        let mut told = Vec::new();
        self.open.retain_mut(|asked| {
            let name = asked.request.name();
            if !asked.file.exists() {
                told.push(Ok(format!("the run has heard: {name}")));
                return false;
            }
            if status.is_over() {
                // Otherwise a resumed run would find it.
                let _ = std::fs::remove_file(&asked.file);
                told.push(Err(format!("`{name}` was not taken: the run is over")));
                return false;
            }
            if asked.since.elapsed() > LONG && !asked.complained {
                asked.complained = true;
                told.push(Err(format!("`{name}` is not taken yet; the step may be a long one")));
            }
            true
        });
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_heard_and_what_never_will_be_is_told() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), "run").expect("new");
        let mut asking = Asking::new(|_, _| None);
        let ended = Status::Ended("finished".to_owned());
        let refused = asking.ask(&folder, Request::Save, &ended).expect("nothing is written");
        assert!(refused.is_err_and(|why| why.contains("the run is over")) && asking.is_done());
        assert!(asking.ask(&folder, Request::Save, &Status::Starting).expect("nothing is written").is_err());
        assert!(Request::take(&folder.requests()).is_empty());

        asking.ask(&folder, Request::Save, &Status::Training).expect("writes").expect("the run is training");
        assert!(asking.look(&Status::Training).is_empty() && !asking.is_done());
        assert_eq!(Request::take(&folder.requests()), [Ok(Request::Save)]);
        assert_eq!(asking.look(&Status::Training), [Ok("the run has heard: save".to_owned())]);

        asking.ask(&folder, Request::Pause, &Status::Training).expect("writes").expect("the run is training");
        let told = asking.look(&Status::Gone);
        assert_eq!(told, [Err("`pause` was not taken: the run is over".to_owned())]);
        assert!(asking.is_done() && Request::take(&folder.requests()).is_empty());
    }
}
