//! Gradients by a codec: bucket by bucket, on a thread beside the one that trains, or where they lie in a device's memory by that
//! device beside what it computes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_collectives::{CommStats, Communicator, ReduceOp};
use phalanx_tensor::{FlatStorage, ParamBucket};

use crate::Result;
use crate::beside::{Pending, Worker};
use crate::buffer::with_singles;
use crate::codec::{
    CodecState, CodecVerdict, CodecWhen, GradCodec, Numbers, Peers, Route, Sum, Trial, Watch, Way, Working,
};

/// A codec, and the ranks that it sums over.
#[derive(Debug)]
pub(super) struct Coding {
    shared: Arc<Shared>,
    worker: Worker,
    /// How long the thread that trains has waited.
    waited: Mutex<Duration>,
}

/// What both threads know.
#[derive(Debug)]
struct Shared {
    codec: Arc<dyn GradCodec>,
    route: Route,
    /// The ranks that share what is sharded, and those of other groups that hold the same shards; or those of this rank's group,
    /// and those with its place in others.
    shards: Communicator,
    replicas: Option<Communicator>,
    /// By bucket.
    sums: Vec<Vec<Sum>>,
    /// What is measured, unless the codec is used whatever it costs.
    trial: Option<Mutex<Trial>>,
}

/// A bucket that has gone by a codec, or on a device is on its way.
#[derive(Debug)]
pub(super) struct Coded {
    bucket: usize,
    way: Way,
    working: Working,
    /// What measures it and the bytes that it sends, if a device is to measure it.
    measured: Option<(Watch, u64)>,
}

impl Coding {
    /// `shards` and `replicas` are for gradients alone, so that nothing else comes between them.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub(super) fn new(
        codec: Arc<dyn GradCodec>,
        route: Route,
        (shards, replicas): (Communicator, Option<Communicator>),
        params: &[ParamBucket],
        (when, beside): (CodecWhen, bool),
    ) -> Result<Self> {
        let sums = params.iter().map(|param| route.sums(param, params.len())).collect();
        let trial = (when == CodecWhen::Auto).then(|| Mutex::new(Trial::new(params.len())));
        let shared = Shared { codec, route, shards, replicas, sums, trial };
        Ok(Self {
            shared: Arc::new(shared),
            worker: Worker::start("codec", beside)?,
            waited: Mutex::default(),
        })
    }

    /// The codec.
    pub(super) fn codec(&self) -> &dyn GradCodec {
        &*self.shared.codec
    }

    /// Sums a bucket's gradients: into `shard`, the elements that this rank owns, or where they lie.
    pub(super) fn start(
        &self,
        bucket: usize,
        full: FlatStorage,
        shard: Option<FlatStorage>,
    ) -> Pending<Coded> {
        let shared = self.shared.clone();
        self.worker.run(move || shared.sum(bucket, &full, shard.as_ref()))
    }

    /// Waits for a bucket.
    ///
    /// # Errors
    /// The codec's and those of communication.
    pub(super) fn wait(&self, pending: Pending<Coded>) -> Result<()> {
        let start = Instant::now();
        let Coded { bucket, way, working, measured } = pending.wait()?;
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

    /// What was decided and not told yet.
    pub(super) fn verdicts(&self) -> Vec<CodecVerdict> {
        self.shared.trial.as_ref().map_or_else(Vec::new, |trial| lock(trial).news())
    }

    /// What the codec keeps, and where it was decided to be used.
    ///
    /// # Errors
    /// If a device fails.
    pub(super) fn state(&self) -> Result<CodecState> {
        let mut state = self.codec().state()?;
        state.extend(self.shared.trial.iter().flat_map(|trial| lock(trial).state()));
        Ok(state)
    }

    /// Takes over what [`Coding::state`] has given.
    ///
    /// # Errors
    /// If it is not this codec's.
    pub(super) fn load_state(&self, mut state: CodecState) -> Result<()> {
        match &self.shared.trial {
            Some(trial) => lock(trial).load(&mut state)?,
            // Nothing is decided any more: the codec is used whatever was found.
            None => Trial::forget(&mut state),
        }
        self.codec().load_state(state)
    }

    /// Bytes of the messages of a bucket.
    pub(super) fn message_bytes(&self, bucket: usize) -> u64 {
        self.shared.sums[bucket].iter().map(|sum| sum.bytes(self.codec()).message).sum()
    }

    /// Bytes that the codec keeps for buckets.
    pub(super) fn state_bytes(&self, buckets: &[usize]) -> u64 {
        let sums = buckets.iter().flat_map(|bucket| &self.shared.sums[*bucket]);
        sums.map(|sum| sum.bytes(self.codec()).state).sum()
    }

    /// What communication has cost. Exposed is what the thread that trains has waited; the codec's thread waits beside it.
    pub(super) fn stats(&self) -> CommStats {
        let shards = self.shared.shards.stats();
        let all = self.shared.replicas.iter().map(Communicator::stats).fold(shards, |sum, part| sum + part);
        let waited = *lock(&self.waited);
        CommStats { seconds_exposed: waited.as_secs_f64(), ..all }
    }
}

impl Shared {
    fn sum(&self, bucket: usize, full: &FlatStorage, shard: Option<&FlatStorage>) -> Result<Coded> {
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
            return Ok(Coded { bucket, way, working: Working::over(), measured: None });
        }
        let (gradients, beside) = Numbers::beside(full)?;
        let watch = if way.counts { Some(Watch::start(&beside)?) } else { None };
        self.sum_numbers((bucket, way), gradients, shard, (&mut moving, watch.as_ref()))?;
        if let Some(watch) = &watch {
            watch.note()?;
        }
        let measured = watch.map(|watch| (watch, self.bytes_sent() - before));
        Ok(Coded { bucket, way, working: beside.end()?, measured })
    }

    /// All sums of a bucket; what communication takes is added to `moving`.
    fn sum_numbers(
        &self,
        (bucket, way): (usize, Way),
        mut gradients: Numbers<'_>,
        shard: Option<&FlatStorage>,
        (moving, watch): (&mut Duration, Option<&Watch>),
    ) -> Result<()> {
        let [first, between @ ..] = self.sums[bucket].as_slice() else { return Ok(()) };
        let inside = self.route.groups.map_or(self.route.shard, |groups| groups.inside);
        let len = gradients.len();
        *moving += self.run(first, gradients.part(0..len)?, (&self.shards, watch), way)?;
        let mut own = first.among.keeps.part(len, inside.1, inside.0);
        for (sum, replicas) in between.iter().zip(&self.replicas) {
            *moving += self.run(sum, gradients.part(own.clone())?, (replicas, watch), way)?;
        }
        if self.route.groups.is_some() {
            let mut peers = Peers::new(&self.shards, self.route.algorithm).watched(watch);
            peers.bring_together(&mut gradients)?;
            *moving += peers.moving();
            let (rank, ranks) = self.route.shard;
            own = self.route.keeps().part(len, ranks, rank);
        }
        match shard {
            None => Ok(()),
            Some(shard) => gradients.part(own)?.copy_to(shard),
        }
    }

    /// Bytes that this rank has sent for gradients so far.
    fn bytes_sent(&self) -> u64 {
        let between = self.replicas.as_ref().map_or(0, |replicas| replicas.stats().bytes_sent);
        self.shards.stats().bytes_sent + between
    }

    /// One sum; how long communication took.
    fn run(
        &self,
        sum: &Sum,
        mut gradients: Numbers<'_>,
        (comm, watch): (&Communicator, Option<&Watch>),
        way: Way,
    ) -> Result<Duration> {
        let mut peers = Peers::new(comm, self.route.algorithm).watched(watch);
        let keeps = sum.among.keeps;
        if gradients.is_empty() && matches!(gradients, Numbers::Device(_)) {
            // All who would take part have as many.
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

    /// Whether the codec is used for a bucket now. When it is time all ranks decide by what they have measured together, so that
    /// they decide alike; only then does the host wait for what a device has still to measure.
    fn way(&self, bucket: usize, gradients: &FlatStorage) -> Result<Way> {
        let Some(trial) = &self.trial else { return Ok(Way { coded: true, counts: false }) };
        let mut trial = lock(trial);
        let due = trial.is_due(bucket);
        trial.collect(due)?;
        if due {
            let mut all = trial.measured();
            self.shards.all_reduce(all.as_mut_slice(), ReduceOp::Sum)?;
            if let Some(replicas) = &self.replicas {
                replicas.all_reduce(all.as_mut_slice(), ReduceOp::Sum)?;
            }
            let elements = |sums: &Vec<Sum>| sums.first().map_or(0, |sum| sum.bucket.len);
            trial.decide(&all, self.route.ranks(), &self.sums.iter().map(elements).collect::<Vec<_>>());
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
