//! Checkpoints of the state.

use phalanx_checkpoint::{Checkpoint, NewFile, Reader};
use phalanx_sharding::{LocalModel, Partition};
use serde_json::{Map, Value};

use super::TrainState;
use crate::engine::TrainError;
use crate::engine::checkpoint::{CheckpointParts, codec_file, codec_state, own_file, own_state};
use crate::engine::distributed::{Distributed, Network};
use crate::engine::train_loop::trainable::is_optimizers;

impl TrainState {
    /// Copies this rank's part of a checkpoint, and adds to the entries of the index. All ranks call this together.
    pub(in crate::engine::train_loop) fn parts(
        &self,
        distributed: &Distributed,
        state: &mut Map<String, Value>,
    ) -> Result<Vec<NewFile>, TrainError> {
        // All networks are shared alike.
        let role = self.trainables[0].network.role()?;
        let mut parts = CheckpointParts::new(role, distributed.tensor_rank(), distributed.stage_rank());
        for network in self.networks() {
            let store = network.store();
            parts.set_shapes(store, network.parallel()?.params());
            // Replicated parameters may have to be gathered first, by all ranks.
            match role.parameters {
                Partition::Sharded => parts.add_own_values(store)?,
                Partition::Replicated | Partition::Root if network.has_all_on_host() => {
                    parts.add_whole_values(store)?;
                }
                Partition::Replicated | Partition::Root => {
                    network.unshard()?;
                    let copied = parts.add_whole_values(store);
                    network.reshard()?;
                    copied?;
                }
            }
        }
        for trainable in &self.trainables {
            trainable.save(role, |own| trainable.counts(distributed, own), &mut parts, state)?;
        }
        let mut kept = Vec::new();
        for network in self.networks() {
            kept.push((network.name(), network.parallel()?.codec_state()?));
        }
        let mut files = parts.files();
        let owner = distributed.state_owner();
        files.extend(codec_file(kept, owner)?);
        let mut own = Vec::new();
        for trainable in &self.trainables {
            let parallel = trainable.network.parallel()?;
            let mut kept =
                if parallel.local_model() == LocalModel::Own { trainable.own_state()? } else { Vec::new() };
            // Last, because no rank waits after this: if servers update, the next steps of others may change this state.
            kept.extend(parallel.own_state()?);
            own.push((trainable.network.name(), kept));
        }
        files.extend(own_file(own, owner)?);
        state.insert("strategy".to_owned(), Value::from(self.trainables[0].network.parallel()?.name()));
        if distributed.is_duplicate() {
            // Another rank writes the same files.
            files.clear();
        }
        Ok(files)
    }

    /// Loads this rank's part of a checkpoint, saved under any strategy by any number of ranks. Returns the bytes read. All ranks call
    /// this together, and broadcast the state afterwards.
    pub(in crate::engine::train_loop) fn load(
        &mut self,
        distributed: &Distributed,
        checkpoint: &Checkpoint,
    ) -> Result<u64, TrainError> {
        let (reader, step, state) = (checkpoint.reader(), checkpoint.step(), checkpoint.state());
        if self.reset_at != Some(step) {
            self.trainables.iter().try_for_each(|trainable| trainable.check_kinds((step, state), &reader))?;
        }
        self.load_from(distributed, &reader, step, state)
    }

    /// Loads this rank's part of the state after `step`, from files or memory, and the entries of the index.
    pub(in crate::engine::train_loop) fn load_from(
        &mut self,
        distributed: &Distributed,
        reader: &Reader,
        step: u64,
        saved: &Map<String, Value>,
    ) -> Result<u64, TrainError> {
        let owner = distributed.state_owner();
        reader.check_model(self.networks().map(Network::store))?;
        for network in self.networks() {
            reader.read_model(network.store())?;
            if !self.forgets_codecs {
                let kept = codec_state(reader, network.name(), owner)?;
                network.parallel()?.load_codec_state(kept)?;
            }
        }
        let strategy = saved.get("strategy").and_then(Value::as_str);
        for trainable in &mut self.trainables {
            match self.reset_at == Some(step) {
                true => trainable.load_averages((step, saved), reader)?,
                false => trainable.load((step, saved), reader)?,
            }
            trainable.resume_at(step)?;
            trainable.restore_freeze(step)?;
            // The own state of other strategies is of no use: this one begins with the weights of all ranks.
            if strategy == Some(trainable.network.parallel()?.name()) {
                let name = trainable.network.name();
                let own = own_state(reader, name, owner)?;
                if own.is_empty() && trainable.network.parallel()?.local_model() == LocalModel::Own {
                    tracing::warn!(
                        "the checkpoint is of another number of ranks: what {} keeps between meetings begins anew, and all ranks begin \
                         with the weights and the optimizer's state of rank 0",
                        trainable.network.parallel()?.name()
                    );
                }
                if self.reset_at != Some(step) {
                    trainable.load_own_state(&own)?;
                }
                let of_strategy = own.into_iter().filter(|(name, _)| !is_optimizers(name)).collect();
                trainable.network.parallel()?.load_own_state(of_strategy)?;
            }
        }
        self.step = step;
        Ok(reader.bytes_read())
    }
}
