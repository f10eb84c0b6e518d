//! Prefetching of batches on worker threads, with delivery strictly in order.
//!
//! The consumer hands out numbered jobs, at most `prefetch` at a time. Each worker makes a whole batch; batches that
//! arrive early wait for their turn. So the batches and their order are the same with any number of workers, and memory
//! is bounded by `prefetch` batches.

use crate::error::{DataError, Result};
use crate::mix::Mixing;
use crate::sampler::DistributedSampler;
use crate::source::BatchSource;
use crate::step_batch::{BatchMaker, StepBatch};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The settings of a [`Loader`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoaderConfig {
    /// The number of worker threads. With 0, the consumer's thread makes each batch on request.
    pub workers: usize,
    /// The number of batches that are made ahead, at least 1. Ignored without workers.
    pub prefetch: usize,
    /// The mixture of images and labels; `None` leaves samples as they are. See [`mix`](crate::mix).
    pub mixing: Option<Mixing>,
}

impl Default for LoaderConfig {
    /// Two workers, four batches, no mixture.
    fn default() -> Self {
        Self { workers: 2, prefetch: 4, mixing: None }
    }
}

/// A batch to make.
#[derive(Debug, Clone, Copy)]
struct Job {
    /// The number since the loader was started.
    number: u64,
    epoch: u64,
    step: usize,
}

/// A finished batch and its number.
type NumberedBatch = (u64, Result<StepBatch>);

/// The worker threads and their channels.
struct Workers {
    /// `None` once no more jobs follow, which ends the threads.
    jobs: Option<Sender<Job>>,
    made: Receiver<NumberedBatch>,
    threads: Vec<JoinHandle<()>>,
}

/// An endless iterator over batches, epoch after epoch.
///
/// An error takes the place of its batch, and then the loader ends. Dropping the loader stops and joins its threads.
pub struct Loader {
    maker: Arc<BatchMaker>,
    config: LoaderConfig,
    workers: Option<Workers>,
    /// The batches that arrived before their turn.
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
    /// Starts the threads, which immediately begin with the batch at `start` = (epoch, step).
    ///
    /// A step beyond the end of its epoch counts into the following epochs, so (0, total steps) is valid.
    ///
    /// # Errors
    /// If `prefetch` is 0 with workers, the lengths of sampler and source differ, the mixture is invalid, or a thread
    /// cannot be started.
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
        let mixing = config.mixing;
        mixing.map_or(Ok(()), |mixing| mixing.validate())?;
        let steps = sampler.steps_per_epoch();
        let first = Job { number: 0, epoch: start.0 + (start.1 / steps) as u64, step: start.1 % steps };
        let maker = Arc::new(BatchMaker { source, sampler, mixing, stopped: AtomicBool::new(false) });
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

    /// Returns the total time that the consumer has waited for batches. Without workers this is the time of making
    /// them.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns the (epoch, step) of the next batch, from which a new loader would continue.
    #[must_use]
    pub fn position(&self) -> (u64, usize) {
        (self.next.epoch, self.next.step)
    }

    /// Returns the steps per epoch, which are the same on all ranks.
    #[must_use]
    pub fn steps_per_epoch(&self) -> usize {
        self.maker.sampler.steps_per_epoch()
    }

    fn start_threads(&mut self) -> Result<()> {
        // Neither channel is bounded, so sending never blocks; `hand_out` bounds both.
        let (jobs, jobs_out) = unbounded::<Job>();
        let (made_in, made) = unbounded::<NumberedBatch>();
        // Stored in `self` first, so that a failure midway joins the threads that run.
        let workers = self.workers.insert(Workers { jobs: Some(jobs), made, threads: Vec::new() });
        for worker in 0..self.config.workers {
            let (maker, jobs, made) = (Arc::clone(&self.maker), jobs_out.clone(), made_in.clone());
            // The span of the owner, for traces.
            let owner = tracing::Span::current();
            let thread = std::thread::Builder::new()
                .name(format!("phalanx-data-{worker}"))
                .spawn(move || {
                    for Job { number, epoch, step } in jobs {
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

    /// Hands out jobs until `prefetch` batches are in progress or wait for their turn.
    fn hand_out(&mut self) {
        let Some(jobs) = self.workers.as_ref().and_then(|workers| workers.jobs.as_ref()) else { return };
        let steps = self.maker.sampler.steps_per_epoch();
        while self.next_job.number - self.next.number < self.config.prefetch as u64 {
            // Without receivers the threads have ended, which `receive` reports.
            if jobs.send(self.next_job).is_err() {
                return;
            }
            self.next_job = after(self.next_job, steps);
        }
    }

    /// Receives the next batch from the threads.
    fn receive(&mut self) -> Result<StepBatch> {
        let Job { number, epoch, step } = self.next;
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

    /// Stops and joins the threads.
    fn stop(&mut self) {
        self.ended = true;
        self.maker.stopped.store(true, Ordering::Relaxed);
        self.early.clear();
        if let Some(mut workers) = self.workers.take() {
            workers.jobs = None;
            for thread in workers.threads {
                // Panics in datasets are caught, so a thread returns nothing of interest.
                let _ = thread.join();
            }
        }
    }
}

/// Returns the job that follows another.
fn after(Job { number, epoch, step }: Job, steps: usize) -> Job {
    let (epoch, step) = if step + 1 < steps { (epoch, step + 1) } else { (epoch + 1, 0) };
    Job { number: number + 1, epoch, step }
}

impl Iterator for Loader {
    type Item = Result<StepBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let began = Instant::now();
        let batch = if self.config.workers == 0 {
            // Only `stop` stops a maker, and `ended` is false here.
            self.maker.make(self.next.epoch, self.next.step)?
        } else {
            self.hand_out();
            self.receive()
        };
        self.waited += began.elapsed();
        if batch.is_err() {
            self.stop();
        } else {
            self.next = after(self.next, self.maker.sampler.steps_per_epoch());
            // Refill now, so that the threads work while the consumer uses this batch.
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
