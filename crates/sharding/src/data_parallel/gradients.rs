//! Reduces gradients while backward runs, from the last bucket to the first.

use std::collections::VecDeque;

use phalanx_tensor::FlatStorage;

use super::DataParallel;
use super::reduction::{BucketGradients, RunningReduction};
use crate::Result;

/// The progress of the reductions of a step.
#[derive(Debug)]
pub(super) struct Reductions {
    /// For each bucket, true if its gradients are complete.
    pub(super) ready: Vec<bool>,
    /// The number of buckets, in the order of reduction, that have started.
    pub(super) started: usize,
    /// The running reductions.
    pub(super) running: VecDeque<Reduction>,
    /// The shards that are summed between groups.
    pub(super) crossing: Vec<Reduction>,
    /// The buckets whose sums are copied to the host, the oldest first.
    leaving: VecDeque<usize>,
    /// True if more micro-batches come before the reduction.
    pub(super) accumulating: bool,
}

impl Reductions {
    pub(super) fn new(buckets: usize) -> Self {
        let (running, crossing, leaving) = (VecDeque::new(), Vec::new(), VecDeque::new());
        let ready = vec![false; buckets];
        Self { ready, started: 0, running, crossing, leaving, accumulating: false }
    }

    /// Returns the bytes of messages under way, without the gradients themselves.
    pub(super) fn wire_bytes(&self) -> u64 {
        self.running.iter().chain(&self.crossing).map(|reduction| reduction.running.wire_bytes()).sum()
    }
}

/// A running reduction of a bucket's gradients.
#[derive(Debug)]
pub(super) struct Reduction {
    bucket: usize,
    /// The destination of the sum: the gradients themselves, or the memory of this rank's shard.
    sum: FlatStorage,
    running: Box<dyn RunningReduction>,
    /// True for the sum between groups of ranks.
    between: bool,
}

impl Reduction {
    pub(super) fn is_done(&self) -> bool {
        self.running.is_done()
    }
}

impl DataParallel {
    /// True if gradients of virtual ranks lie on a device. Then buckets are finished in an order that depends on their
    /// numbers alone: ranks have different numbers of virtual ranks, and all must give their devices the same operations.
    pub(super) fn sums_on_device(&self) -> bool {
        self.reducer.virtual_sum.is_some() && self.params.iter().any(|param| !param.device().is_host())
    }

    /// Starts the reduction of the next bucket in order. Frozen buckets are passed over.
    pub(super) fn start(&self, step: &mut Reductions) -> Result<()> {
        if self.params[self.order[step.started]].is_frozen() {
            step.started += 1;
            return Ok(());
        }
        while self.sums_on_device() && step.running.len() > self.options.prefetch.max(1) {
            let Some(oldest) = step.running.pop_front() else { break };
            self.finish(step, oldest)?;
        }
        let (bucket, layout) = (self.order[step.started], self.strategy.layout);
        let param = &self.params[bucket];
        // Operations inside of the span belong to this bucket.
        let _ready = tracing::trace_span!(
            target: "phalanx_trace::gradients",
            "gradients ready",
            bucket = bucket as u64,
            block = param.blocks().next(),
        )
        .entered();
        let (full, shard) = param.begin_reduce(layout.scatters())?;
        let label = &self.labels[bucket];
        let gradients = BucketGradients { index: bucket, param, label, full, shard };
        let running = self.reducer.by.clone().start(&gradients)?;
        let sum = gradients.into_sum();
        step.running.push_back(Reduction { bucket, sum, running, between: false });
        step.started += 1;
        Ok(())
    }

    /// Waits for a reduction and keeps the summed gradients that the strategy assigns to this rank. If the reduction
    /// has not summed over all groups, it first starts the sum between groups.
    pub(super) fn finish(&self, step: &mut Reductions, reduction: Reduction) -> Result<()> {
        let Reduction { bucket, sum, running, between } = reduction;
        let (param, layout) = (&self.params[bucket], self.strategy.layout);
        running.finish()?;
        let replicas = self.replicas.as_ref().filter(|_| layout.scatters() && !between);
        let next = replicas.map(|replicas| self.reducer.by.start_between(param, &sum, replicas));
        if let Some(running) = next.transpose()?.flatten() {
            step.crossing.push(Reduction { bucket, sum, running, between: true });
            return Ok(());
        }
        param.end_reduce(layout.keeps_gradients(self.shards.rank()))?;
        self.bring_home(step, bucket)
    }

    /// Copies summed gradients to the host if the host keeps the parameters. A few buckets are copied at a time, to
    /// limit device memory; the training thread waits for earlier ones.
    fn bring_home(&self, step: &mut Reductions, bucket: usize) -> Result<()> {
        if !self.params[bucket].is_offloaded() {
            return Ok(());
        }
        self.params[bucket].begin_grad_offload()?;
        step.leaving.push_back(bucket);
        while step.leaving.len() > self.options.prefetch.max(1) {
            let Some(oldest) = step.leaving.pop_front() else { break };
            self.params[oldest].finish_grad_offload()?;
        }
        Ok(())
    }
}
