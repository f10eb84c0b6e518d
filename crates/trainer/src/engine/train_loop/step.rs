//! One step of the training loop.

use std::time::Instant;

use phalanx_tensor::loss::Over;
use phalanx_tensor::{Session, Tape};

use super::Run;
use super::after::tell_saved;
use super::meter::{Spent, timed};
use crate::engine::checkpoint::TOLD;
use crate::engine::data::{Feed, MicroBatch};
use crate::engine::{Observer, StepReport, TrainError, precision};
use crate::launch::StopFlag;
use crate::run::resident_memory;

impl Run<'_> {
    /// One step: its report without rates, and whether any rank was asked to stop.
    pub(super) fn step(
        &mut self,
        feed: &mut Feed,
        stop: &StopFlag,
        observer: &mut dyn Observer,
    ) -> Result<(StepReport, bool), TrainError> {
        let begun = Instant::now();
        let mut spent = Spent::default();
        let step = self.state.step;
        let task = &self.state.task;
        task.store().zero_grads();
        let share = timed(&mut spent.data, || feed.next())?;
        // Batches that come from another rank count as data.
        let before = self.distributed.traffic();
        // The loss, the task's measures, the requests to stop, and how far saving is, summed over micro-batches and then ranks.
        let mut sums = vec![0.0; 2 + task.measures().len() + TOLD];
        let last = share.pieces.len().saturating_sub(1);
        // The last batch of an epoch may leave ranks without images in some micro-batch; they then cannot gather parameters
        // block by block together.
        let uneven = share.pieces.iter().any(|piece| piece.ranks < self.distributed.size());
        if uneven {
            self.distributed.summon()?;
        }
        for (index, MicroBatch { batch, offset, ranks }) in share.pieces.iter().enumerate() {
            if *ranks == 0 {
                continue;
            }
            // Those who have images of it normalise and contrast them together; the others wait at what comes after.
            let batch_group = self.distributed.batch_group(*ranks)?;
            if batch.is_empty() {
                continue;
            }
            let session = Session {
                context: self.context.clone(),
                training: true,
                key: self.key.stream("train").step(step),
                sample_offset: *offset,
                listener: self.distributed.listener(),
                batch_group,
                recompute: precision::recompute(self.config),
                precision: precision::precision(self.config),
            };
            // Gradients travel once they are complete, with the last micro-batch: on all ranks the same, also those that have
            // no image of it.
            self.distributed.accumulate(index != last);
            let tape = Tape::recording(session);
            let outcome = task.loss(&tape, batch, Over::Count(share.global), step)?;
            sums[0] += f64::from(outcome.loss.tensor()?.to_scalar::<f32>()?);
            for (sum, measure) in sums[1..].iter_mut().zip(&outcome.measures) {
                *sum += measure;
            }
            tape.backward_scaled(&outcome.loss, self.state.loss_scale())?;
        }
        self.distributed.accumulate(false);
        if uneven {
            self.distributed.dismiss()?;
        }
        let stops = sums.len() - 1 - TOLD;
        sums[stops] = f64::from(u8::from(stop.is_raised()));
        sums[stops + 1..].copy_from_slice(&self.saver.tell());
        self.distributed.finish_gradients()?;
        self.distributed.sum(&mut sums)?;
        if let Some(saved) = self.saver.hear(self.distributed, &sums[stops + 1..])? {
            tell_saved(observer, saved);
        }
        let loss = sums[0];
        if !loss.is_finite() {
            return Err(TrainError::NotFinite { step: step + 1, loss, elsewhere: !self.is_first() });
        }
        let measures =
            task.measures().iter().map(|name| (*name).to_owned()).zip(sums[1..stops].to_vec()).collect();
        let learning_rate = self.state.learning_rate();
        let update = self.state.update(self.distributed)?;
        spent.steps = begun.elapsed();
        // The communicator counts all waiting, also that of batch norms in the middle of the model.
        let traffic = self.distributed.traffic();
        spent.communication = traffic.exposed.saturating_sub(before.exposed);
        spent.busy = traffic.busy.saturating_sub(before.busy);
        spent.sent = traffic.bytes_sent.saturating_sub(before.bytes_sent);
        spent.images = share.global;
        self.meter.add(&spent);
        let report = StepReport {
            step: step + 1,
            total: self.plan.stop,
            epoch: self.plan.place(step).0,
            loss,
            measures,
            learning_rate,
            gradient_norm: update.norm,
            loss_scale: update.loss_scale,
            left_out: update.left_out,
            images_per_second: spent.rate(),
            memory_bytes: resident_memory(),
            data_share: spent.share(spent.data),
            communication_share: spent.share(spent.communication),
        };
        Ok((report, sums[stops] > 0.0))
    }
}
