//! A background thread for work between ranks that is more than moving bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::{Result, ShardingError};

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs one after the other in the order in which they were given, on a thread of its own, or at once.
#[derive(Debug)]
pub(crate) struct Worker(Option<Thread>);

#[derive(Debug)]
struct Thread {
    /// `None` once no more jobs come.
    jobs: Option<Sender<Job>>,
    handle: Option<JoinHandle<()>>,
}

impl Drop for Thread {
    /// Waits until what was given is done: other ranks take part in it.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(handle) = self.handle.take() {
            // A job that panicked has reported it to its waiter.
            let _ = handle.join();
        }
    }
}

impl Worker {
    /// Starts a background thread if `background` is set; otherwise jobs run on the caller's thread at once.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub(crate) fn start(name: &str, background: bool) -> Result<Self> {
        if !background {
            return Ok(Self(None));
        }
        let (jobs, coming) = channel::<Job>();
        let handle = std::thread::Builder::new()
            .name(format!("phalanx-{name}"))
            .spawn(move || coming.into_iter().for_each(|job| job()))
            .map_err(|error| ShardingError::codec(name, format!("cannot start a thread: {error}")))?;
        Ok(Self(Some(Thread { jobs: Some(jobs), handle: Some(handle) })))
    }

    /// Gives it a job.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<R> + Send + 'static,
    ) -> Pending<R> {
        let (sender, answer) = channel();
        let done = Arc::new(AtomicBool::new(false));
        let noted = done.clone();
        let job: Job = Box::new(move || {
            // There may be no waiter; then the result is not needed.
            let _ = sender.send(job());
            noted.store(true, Ordering::Release);
        });
        match self.0.as_ref().and_then(|thread| thread.jobs.as_ref()) {
            // If the thread has ended, the sender of the answer is dropped, and the waiter gets an error.
            Some(jobs) => drop(jobs.send(job)),
            None => job(),
        }
        Pending { done, answer }
    }
}

/// A job that was given to a [`Worker`].
#[derive(Debug)]
pub(crate) struct Pending<R> {
    done: Arc<AtomicBool>,
    answer: Receiver<Result<R>>,
}

impl<R> Pending<R> {
    /// True if it is done, with success or not.
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Waits for it.
    ///
    /// # Errors
    /// Its own.
    pub(crate) fn wait(self) -> Result<R> {
        let _waiting =
            tracing::trace_span!(target: "phalanx_trace::waiting", "wait for encoded messages").entered();
        let ended = || Err(ShardingError::Step("the thread that works for it between ranks has ended"));
        self.answer.recv().unwrap_or_else(|_| ended())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_in_order_and_tell_how_they_ended() {
        for background in [false, true] {
            let worker = Worker::start("test", background).expect("a thread");
            let order = Arc::new(std::sync::Mutex::new(Vec::new()));
            let given: Vec<_> = (0..20)
                .map(|at| {
                    let order = order.clone();
                    worker.run(move || {
                        order.lock().expect("no panic").push(at);
                        if at == 7 { Err(ShardingError::Step("seven")) } else { Ok(at) }
                    })
                })
                .collect();
            for (at, pending) in given.into_iter().enumerate() {
                match pending.wait() {
                    Ok(done) => assert_eq!(done, at),
                    Err(error) => assert_eq!((at, error.to_string().as_str()), (7, "step: seven")),
                }
            }
            assert_eq!(*order.lock().expect("no panic"), (0..20).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_job_that_panics_is_told_to_who_waits() {
        let worker = Worker::start("test", true).expect("a thread");
        let broken = worker.run::<()>(|| panic!("on purpose"));
        assert!(broken.wait().is_err());
        let after = worker.run(|| Ok(1));
        assert!(after.wait().expect_err("the thread has ended").to_string().contains("has ended"));
    }
}
