//! Requests that the run has not taken yet.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::model::Status;
use phalanx_run::{Refusal, Request, RunError, RunFolder, RunState};

/// The time after which a pending request is reported to the user.
const SLOW: Duration = Duration::from_secs(5);

/// The pending requests, and the rule by which a strategy refuses requests.
#[derive(Debug)]
pub(super) struct PendingRequests {
    refusal: Refusal,
    requests: Vec<PendingRequest>,
}

#[derive(Debug)]
struct PendingRequest {
    request: Request,
    file: PathBuf,
    since: Instant,
    complained: bool,
}

impl PendingRequests {
    /// Creates an empty list.
    pub(super) fn new(refusal: Refusal) -> Self {
        Self { refusal, requests: Vec::new() }
    }

    /// Sends a request to the run. Returns a message for the user: `Err` if the request is refused.
    ///
    /// # Errors
    /// If the request cannot be written.
    pub(super) fn send(
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
        self.requests.push(PendingRequest { request, file, since: Instant::now(), complained: false });
        Ok(Ok(format!("requested: {name}; the run acts on it after the current step")))
    }

    /// Returns true if no request is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns messages about requests since the last poll: `Ok` for requests that were taken, `Err` for others.
    pub(super) fn poll(&mut self, status: &Status) -> Vec<Result<String, String>> {
        let mut replies = Vec::new();
        self.requests.retain_mut(|pending| {
            let name = pending.request.name();
            if !pending.file.exists() {
                replies.push(Ok(format!("the run took the request: {name}")));
                return false;
            }
            if status.is_over() {
                // Otherwise a resumed run would execute it.
                let _ = std::fs::remove_file(&pending.file);
                replies.push(Err(format!("`{name}` was not taken: the run is over")));
                return false;
            }
            if pending.since.elapsed() > SLOW && !pending.complained {
                pending.complained = true;
                replies.push(Err(format!("`{name}` is not taken yet; the current step may be slow")));
            }
            true
        });
        replies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_and_lost_requests_are_reported() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), "run").expect("new");
        let mut pending = PendingRequests::new(|_, _| None);
        let ended = Status::Ended("finished".to_owned());
        let refused = pending.send(&folder, Request::Save, &ended).expect("nothing is written");
        assert!(refused.is_err_and(|why| why.contains("the run is over")) && pending.is_empty());
        assert!(
            pending.send(&folder, Request::Save, &Status::Starting).expect("nothing is written").is_err()
        );
        assert!(Request::take(&folder.requests()).is_empty());

        pending
            .send(&folder, Request::Save, &Status::Training)
            .expect("writes")
            .expect("the run is training");
        assert!(pending.poll(&Status::Training).is_empty() && !pending.is_empty());
        assert_eq!(Request::take(&folder.requests()), [Ok(Request::Save)]);
        assert_eq!(pending.poll(&Status::Training), [Ok("the run took the request: save".to_owned())]);

        pending
            .send(&folder, Request::Pause, &Status::Training)
            .expect("writes")
            .expect("the run is training");
        let replies = pending.poll(&Status::Gone);
        assert_eq!(replies, [Err("`pause` was not taken: the run is over".to_owned())]);
        assert!(pending.is_empty() && Request::take(&folder.requests()).is_empty());
    }
}
