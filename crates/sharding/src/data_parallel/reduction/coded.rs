//! Reduction of gradients by a codec, bucket by bucket. It runs on a background thread, on a device on a separate stream.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_collectives::{CommStats, Communicator, ReduceOp};
use phalanx_tensor::{FlatStorage, ParamBucket};

use super::{BucketGradients, BucketReduction, RunningReduction};
use crate::Result;
use crate::background::{Pending, Worker};
use phalanx_codecs::buffer::with_singles;
use phalanx_codecs::{
    BucketSum, CodecState, CodecVerdict, CodecWhen, FlatSlice, GradCodec, Peers, PendingWork, ReductionRoute,
    SumMode, SumTimer, Trial,
};

/// The reduction of all buckets by a codec.
#[derive(Debug)]
pub(in super::super) struct CodecReduction {
    shared: Arc<Shared>,
    worker: Worker,
    /// The total time that the training thread has waited.
    waited: Mutex<Duration>,
}

/// The ranks that sums by a codec go over. Use them for gradients only: other operations on them would break the issue order.
#[derive(Debug)]
pub(in super::super) struct CodecLinks {
    /// The ranks of the first sum: those between which state is sharded, or this rank's group.
    pub(in super::super) shards: Communicator,
    /// The ranks of the second sum: those with the same shards, or with the same position in other groups.
    pub(in super::super) replicas: Option<Communicator>,
    /// The ranks that hold the other parts of the model for the same samples. They decide alike where a codec is used, since they hold
    /// whole parameters alike.
    pub(in super::super) model: Option<Communicator>,
}

impl CodecLinks {
    /// The number of ranks that decide together.
    fn deciders(&self, route: &ReductionRoute) -> usize {
        route.ranks() * self.model.as_ref().map_or(1, Communicator::world_size)
    }
}

/// State that both threads share.
#[derive(Debug)]
struct Shared {
    codec: Arc<dyn GradCodec>,
    route: ReductionRoute,
    links: CodecLinks,
    /// The sums of each bucket, in order.
    sums: Vec<Vec<BucketSum>>,
    /// The measurement, unless the codec is always used.
    trial: Option<Mutex<Trial>>,
}

/// A bucket that the background thread has reduced. On a device the work may still run.
#[derive(Debug)]
pub(in super::super) struct CodedBucket {
    bucket: usize,
    way: SumMode,
    working: PendingWork,
    /// The timer and the bytes sent, if a device measures the sum.
    measured: Option<(SumTimer, u64)>,
}

impl CodecReduction {
    /// Starts the background thread.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub(in super::super) fn new(
        codec: Arc<dyn GradCodec>,
        route: ReductionRoute,
        links: CodecLinks,
        params: &[ParamBucket],
        (when, background): (CodecWhen, bool),
    ) -> Result<Self> {
        let sums = params.iter().map(|param| route.sums(param, params.len())).collect();
        let trial = (when == CodecWhen::Auto).then(|| Mutex::new(Trial::new(params.len())));
        let shared = Shared { codec, route, links, sums, trial };
        Ok(Self {
            shared: Arc::new(shared),
            worker: Worker::start("codec", background)?,
            waited: Mutex::default(),
        })
    }

    /// Returns the codec.
    pub(in super::super) fn codec(&self) -> &dyn GradCodec {
        &*self.shared.codec
    }

    /// Waits for a bucket and records the waiting time.
    ///
    /// # Errors
    /// Errors of the codec and of communication.
    fn wait(&self, pending: Pending<CodedBucket>) -> Result<()> {
        let start = Instant::now();
        let CodedBucket { bucket, way, working, measured } = pending.wait()?;
        if let Some((watch, _)) = &measured {
            watch.note_computing()?;
        }
        working.arrive()?;
        let waited = start.elapsed();
        *lock(&self.waited) += waited;
        let Some(trial) = &self.shared.trial else { return Ok(()) };
        match measured {
            None => lock(trial).waited(way, waited),
            Some((watch, sent)) => {
                watch.note_computing()?;
                lock(trial).measure(bucket, way, sent, watch);
            }
        }
        Ok(())
    }

    /// Returns decisions that were not reported yet.
    pub(in super::super) fn verdicts(&self) -> Vec<CodecVerdict> {
        self.shared.trial.as_ref().map_or_else(Vec::new, |trial| lock(trial).news())
    }

    /// Returns the codec's state, and the decision where to use it.
    ///
    /// # Errors
    /// If a device fails.
    pub(in super::super) fn state(&self) -> Result<CodecState> {
        let mut state = self.codec().state()?;
        state.extend(self.shared.trial.iter().flat_map(|trial| lock(trial).state()));
        Ok(state)
    }

    /// Restores the result of [`CodecReduction::state`].
    ///
    /// # Errors
    /// If it is the state of another codec.
    pub(in super::super) fn load_state(&self, mut state: CodecState) -> Result<()> {
        match &self.shared.trial {
            Some(trial) => lock(trial).load(&mut state)?,
            // The codec is always used; an earlier decision is dropped.
            None => Trial::forget(&mut state),
        }
        Ok(self.codec().load_state(state)?)
    }

    /// Returns the bytes of the messages of a bucket.
    fn message_bytes(&self, bucket: usize) -> u64 {
        self.shared.sums[bucket].iter().map(|sum| sum.bytes(self.codec()).message).sum()
    }

    /// Returns the bytes of the codec's state of these buckets.
    pub(in super::super) fn state_bytes(&self, buckets: &[usize]) -> u64 {
        let sums = buckets.iter().flat_map(|bucket| &self.shared.sums[*bucket]);
        sums.map(|sum| sum.bytes(self.codec()).state).sum()
    }
}

impl BucketReduction for CodecReduction {
    fn start(self: Arc<Self>, gradients: &BucketGradients<'_>) -> Result<Box<dyn RunningReduction>> {
        let (bucket, full, shard) = (gradients.index, gradients.full.clone(), gradients.shard.clone());
        let (shared, wire_bytes) = (self.shared.clone(), self.message_bytes(bucket));
        let pending = self.worker.run(move || shared.sum(bucket, &full, shard.as_ref()));
        Ok(Box::new(Running { coded: self, pending, wire_bytes }))
    }

    fn stats(&self) -> CommStats {
        let links = &self.shared.links;
        let shards = links.shards.stats();
        let all = links
            .replicas
            .iter()
            .chain(&links.model)
            .map(Communicator::stats)
            .fold(shards, |sum, part| sum + part);
        // The codec's thread waits in the background; exposed is the wait of the thread that trains.
        let waited = *lock(&self.waited);
        CommStats { seconds_exposed: waited.as_secs_f64(), ..all }
    }
}

/// A bucket whose reduction runs.
#[derive(Debug)]
struct Running {
    coded: Arc<CodecReduction>,
    pending: Pending<CodedBucket>,
    wire_bytes: u64,
}

impl RunningReduction for Running {
    fn is_done(&self) -> bool {
        self.pending.is_done()
    }

    fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.coded.wait(self.pending)
    }
}

impl Shared {
    /// Reduces a bucket in `full` and copies this rank's part to `shard`.
    fn sum(&self, bucket: usize, full: &FlatStorage, shard: Option<&FlatStorage>) -> Result<CodedBucket> {
        let way = self.way(bucket, full)?;
        let (start, before, mut moving) = (Instant::now(), self.bytes_sent(), Duration::ZERO);
        if full.array().is_host() {
            let sum = |gradients: &mut [f32]| {
                self.sum_numbers((bucket, way), gradients.into(), shard, (&mut moving, None))
            };
            with_singles(full, sum)??;
            if let Some(trial) = &self.trial {
                let sent = self.bytes_sent() - before;
                lock(trial).note(bucket, way, start.elapsed(), (moving, sent));
            }
            return Ok(CodedBucket { bucket, way, working: PendingWork::over(), measured: None });
        }
        let (gradients, background) = FlatSlice::on_device(full)?;
        let watch = if way.counts { Some(SumTimer::start(&background)?) } else { None };
        self.sum_numbers((bucket, way), gradients, shard, (&mut moving, watch.as_ref()))?;
        if let Some(watch) = &watch {
            watch.note()?;
        }
        let measured = watch.map(|watch| (watch, self.bytes_sent() - before));
        Ok(CodedBucket { bucket, way, working: background.end()?, measured })
    }

    /// Runs all sums of a bucket. Adds the time of communication to `moving`.
    fn sum_numbers(
        &self,
        (bucket, way): (usize, SumMode),
        mut gradients: FlatSlice<'_>,
        shard: Option<&FlatStorage>,
        (moving, watch): (&mut Duration, Option<&SumTimer>),
    ) -> Result<()> {
        let [first, between @ ..] = self.sums[bucket].as_slice() else { return Ok(()) };
        let inside = self.route.groups.map_or(self.route.shard, |groups| groups.inside);
        let len = gradients.len();
        *moving += self.run(first, gradients.part(0..len)?, (&self.links.shards, watch), way)?;
        let mut own = first.among.keeps.part(len, inside.1, inside.0);
        for (sum, replicas) in between.iter().zip(&self.links.replicas) {
            *moving += self.run(sum, gradients.part(own.clone())?, (replicas, watch), way)?;
        }
        if self.route.groups.is_some() {
            let mut peers = Peers::new(&self.links.shards, self.route.algorithm).watched(watch);
            peers.bring_together(&mut gradients)?;
            *moving += peers.moving();
            let (rank, ranks) = self.route.shard;
            own = self.route.keeps.part(len, ranks, rank);
        }
        match shard {
            None => Ok(()),
            Some(shard) => Ok(gradients.part(own)?.copy_to(shard)?),
        }
    }

    /// Returns the bytes that this rank has sent for gradients so far.
    fn bytes_sent(&self) -> u64 {
        let between = self.links.replicas.as_ref().map_or(0, |replicas| replicas.stats().bytes_sent);
        self.links.shards.stats().bytes_sent + between
    }

    /// Runs one sum. Returns the time of communication.
    fn run(
        &self,
        sum: &BucketSum,
        mut gradients: FlatSlice<'_>,
        (comm, watch): (&Communicator, Option<&SumTimer>),
        way: SumMode,
    ) -> Result<Duration> {
        let mut peers = Peers::new(comm, self.route.algorithm).watched(watch);
        let keeps = sum.among.keeps;
        if gradients.is_empty() && matches!(gradients, FlatSlice::Device(_)) {
            // It is empty on all ranks of this sum.
            return Ok(peers.moving());
        }
        match (sum.coded, way.coded) {
            (true, true) => self.codec.reduce(&sum.bucket, gradients, keeps, &mut peers)?,
            (true, false) => {
                let all = 0..gradients.len();
                self.codec.flush(&sum.bucket, &sum.among, gradients.part(all)?)?;
                peers.add(&mut gradients, keeps)?;
            }
            (false, _) => peers.add(&mut gradients, keeps)?,
        }
        Ok(peers.moving())
    }

    /// Returns the mode of a bucket's next sum. When a decision is due, all ranks sum their measurements and decide alike;
    /// only then does the host wait for measurements on a device.
    fn way(&self, bucket: usize, gradients: &FlatStorage) -> Result<SumMode> {
        let Some(trial) = &self.trial else { return Ok(SumMode { coded: true, counts: false }) };
        let mut trial = lock(trial);
        let due = trial.is_due(bucket);
        trial.collect(due)?;
        if due {
            let mut all = trial.measured();
            let CodecLinks { shards, replicas, model } = &self.links;
            for among in [Some(shards), replicas.as_ref(), model.as_ref()].into_iter().flatten() {
                among.all_reduce(all.as_mut_slice(), ReduceOp::Sum)?;
            }
            let elements = |sums: &Vec<BucketSum>| sums.first().map_or(0, |sum| sum.bucket.len);
            trial.decide(
                &all,
                self.links.deciders(&self.route),
                &self.sums.iter().map(elements).collect::<Vec<_>>(),
            );
        }
        if let (Some(device), Some(branch)) = (gradients.array().device_backend(), trial.branch(bucket)) {
            device.branch(branch)?;
        }
        Ok(trial.way(bucket))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
