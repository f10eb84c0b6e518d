//! Batches made ahead of time on worker threads, and delivered strictly in order.
//!
//! The consumer hands out numbered jobs, never more than `prefetch` at a time; each worker makes a
//! whole batch; the consumer keeps what comes early until its turn. So the batches are the same, in
//! the same order, with any number of workers, and memory is bounded by `prefetch` batches.

use crate::error::{DataError, Result};
use crate::sampler::DistributedSampler;
use crate::source::BatchSource;
use crate::step_batch::{BatchMaker, StepBatch};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a [`Loader`] works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderConfig {
    /// Threads that make batches; 0 makes each in the consumer's thread when it is asked for.
    pub workers: usize,
    /// Batches made or in the making at any time; at least 1. Without workers it does nothing.
    pub prefetch: usize,
}

impl Default for LoaderConfig {
    /// Two workers, four batches.
    fn default() -> Self {
        Self { workers: 2, prefetch: 4 }
    }
}

/// A batch to be made: its number since the loader began, its epoch, and its step.
type Job = (u64, u64, usize);
/// A batch that was made, with its number.
type Made = (u64, Result<StepBatch>);

/// The threads and the way to and from them.
struct Workers {
    /// `None` once no more jobs will come, which ends the threads.
    jobs: Option<Sender<Job>>,
    made: Receiver<Made>,
    threads: Vec<JoinHandle<()>>,
}

/// An iterator over batches without end: epochs follow each other.
///
/// An error comes in the place of its batch, and then the loader ends. Dropping the loader stops
/// and joins its threads.
pub struct Loader {
    maker: Arc<BatchMaker>,
    config: LoaderConfig,
    workers: Option<Workers>,
    /// Batches that came before their turn.
    early: BTreeMap<u64, Result<StepBatch>>,
    /// The next batch to deliver.
    next: Job,
    /// The next batch to hand out to the threads.
    next_job: Job,
    ended: bool,
    waited: Duration,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("source", &self.maker.source.name())
            .field("config", &self.config)
            .field("position", &self.position())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Loader {
    /// Starts the threads, which begin at once with the batch at `start` = (epoch, step).
    ///
    /// A step beyond its epoch's end counts on into the next epochs, so (0, total steps) is a place too.
    ///
    /// # Errors
    /// If `prefetch` is 0 with workers, the sampler was made for another length than the source's,
    /// or a thread cannot be started.
    pub fn new(
        source: Arc<dyn BatchSource>,
        sampler: DistributedSampler,
        config: LoaderConfig,
        start: (u64, usize),
    ) -> Result<Self> {
        if config.workers > 0 && config.prefetch == 0 {
            return Err(DataError::config("loader.prefetch", "workers need at least 1 batch to make"));
        }
        if sampler.config().len != source.len() {
            let reason =
                format!("{} but {} has {} samples", sampler.config().len, source.name(), source.len());
            return Err(DataError::config("sampler.len", reason));
        }
        let steps = sampler.steps_per_epoch();
        let first = (0, start.0 + (start.1 / steps) as u64, start.1 % steps);
        let maker = Arc::new(BatchMaker { source, sampler, stopped: AtomicBool::new(false) });
        let mut loader = Self {
            maker,
            config,
            workers: None,
            early: BTreeMap::new(),
            next: first,
            next_job: first,
            ended: false,
            waited: Duration::ZERO,
        };
        if config.workers > 0 {
            loader.start_threads()?;
            loader.hand_out();
        }
        Ok(loader)
    }

    /// The time that the consumer has spent waiting for batches, in all. Without workers this is the
    /// whole time of making them.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// The (epoch, step) of the batch that comes next: where to start again to go on from here.
    #[must_use]
    pub fn position(&self) -> (u64, usize) {
        (self.next.1, self.next.2)
    }

    /// Steps per epoch, the same on all ranks.
    #[must_use]
    pub fn steps_per_epoch(&self) -> usize {
        self.maker.sampler.steps_per_epoch()
    }

    fn start_threads(&mut self) -> Result<()> {
        // Neither channel is bounded, so no thread ever blocks on sending; `hand_out` bounds both.
        let (jobs, jobs_out) = unbounded::<Job>();
        let (made_in, made) = unbounded::<Made>();
        // Kept in `self` from the first on, so that a failure halfway joins those that run.
        let workers = self.workers.insert(Workers { jobs: Some(jobs), made, threads: Vec::new() });
        for worker in 0..self.config.workers {
            let (maker, jobs, made) = (Arc::clone(&self.maker), jobs_out.clone(), made_in.clone());
            // Whoever traces then knows for whom this thread works.
            let owner = tracing::Span::current();
            let thread = std::thread::Builder::new()
                .name(format!("phalanx-data-{worker}"))
                .spawn(move || {
                    for (number, epoch, step) in jobs {
                        let making = tracing::trace_span!(
                            target: "phalanx_trace::data",
                            parent: &owner,
                            "make a batch",
                            epoch,
                            step = step as u64,
                        );
                        let Some(batch) = making.in_scope(|| maker.make(epoch, step)) else { return };
                        if made.send((number, batch)).is_err() {
                            return;
                        }
                    }
                })
                .map_err(|source| DataError::Thread { worker, source })?;
            workers.threads.push(thread);
        }
        Ok(())
    }

    /// Hands out jobs until `prefetch` batches are in the making or wait for their turn.
    fn hand_out(&mut self) {
        let Some(jobs) = self.workers.as_ref().and_then(|workers| workers.jobs.as_ref()) else { return };
        let steps = self.maker.sampler.steps_per_epoch();
        while self.next_job.0 - self.next.0 < self.config.prefetch as u64 {
            // Without receivers the threads are gone, which `receive` reports.
            if jobs.send(self.next_job).is_err() {
                return;
            }
            self.next_job = after(self.next_job, steps);
        }
    }

    /// The batch whose turn it is, from the threads.
    fn receive(&mut self) -> Result<StepBatch> {
        let (number, epoch, step) = self.next;
        loop {
            if let Some(batch) = self.early.remove(&number) {
                return batch;
            }
            let received = self.workers.as_ref().and_then(|workers| workers.made.recv().ok());
            let Some((made, batch)) = received else {
                return Err(DataError::WorkersGone { workers: self.config.workers, epoch, step });
            };
            self.early.insert(made, batch);
        }
    }

    /// Ends the threads and waits for them.
    fn stop(&mut self) {
        self.ended = true;
        self.maker.stopped.store(true, Ordering::Relaxed);
        self.early.clear();
        if let Some(mut workers) = self.workers.take() {
            workers.jobs = None;
            for thread in workers.threads {
                // Panics in datasets are caught, so a thread has nothing to tell here.
                let _ = thread.join();
            }
        }
    }
}

/// The job after another.
fn after((number, epoch, step): Job, steps: usize) -> Job {
    if step + 1 < steps { (number + 1, epoch, step + 1) } else { (number + 1, epoch + 1, 0) }
}

impl Iterator for Loader {
    type Item = Result<StepBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let began = Instant::now();
        let batch = if self.config.workers == 0 {
            // Only `stop` stops a maker, and `ended` has said that it was not called.
            self.maker.make(self.next.1, self.next.2)?
        } else {
            self.hand_out();
            self.receive()
        };
        self.waited += began.elapsed();
        if batch.is_err() {
            self.stop();
        } else {
            self.next = after(self.next, self.maker.sampler.steps_per_epoch());
            // Refilled now, so that the threads work while the consumer uses this batch.
            self.hand_out();
        }
        Some(batch)
    }
}

impl std::iter::FusedIterator for Loader {}

impl Drop for Loader {
    fn drop(&mut self) {
        self.stop();
    }
}
