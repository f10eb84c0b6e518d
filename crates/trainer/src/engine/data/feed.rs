//! The batches of a rank: read by itself, or read by the first rank for all and scattered.

use candle_core::{Device, Tensor};
use phalanx_collectives::Communicator;
use phalanx_data::batch::Batch as Loaded;
use phalanx_data::loader::Loader;
use phalanx_data::sampler::Piece;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Batch;
use crate::engine::TrainError;
use crate::engine::distributed::Distributed;

/// The rank that reads for all, where one does.
const READER: usize = 0;

/// The training batches of one rank, cut into micro-batches.
pub(in crate::engine) struct Feed(Source);

/// A rank's share of one step.
pub(in crate::engine) struct StepShare {
    /// As many micro-batches on every rank.
    pub(in crate::engine) pieces: Vec<MicroBatch>,
    /// Images of the step over all ranks.
    pub(in crate::engine) global: usize,
}

/// A rank's share of one micro-batch.
pub(in crate::engine) struct MicroBatch {
    /// The images, perhaps none.
    pub(in crate::engine) batch: Batch,
    /// The position of the first in the global batch.
    pub(in crate::engine) offset: usize,
    /// How many ranks, from the first, have images of this micro-batch.
    pub(in crate::engine) ranks: usize,
}

impl Feed {
    /// What `loaders` read: this rank's share, or, where the first rank reads for all, there those of all ranks and elsewhere
    /// none.
    pub(in crate::engine) fn new(loaders: Vec<Loader>, distributed: &Distributed) -> Self {
        Self(Source::new(loaders, distributed))
    }

    /// The next step's share.
    pub(in crate::engine) fn next(&mut self) -> Result<StepShare, TrainError> {
        let loaded = self.0.next()?;
        let whole = convert(&loaded)?;
        let mut left = 0..whole.len();
        let mut pieces = Vec::with_capacity(loaded.pieces.len());
        for Piece { positions, ranks } in loaded.pieces {
            // Images that only pad come last and are left out.
            let own = left.start..(left.start + positions.len()).min(left.end);
            left.start = own.end;
            let batch = Batch {
                images: whole.images.narrow(0, own.start, own.len())?.contiguous()?,
                labels: whole.labels[own.clone()].to_vec(),
                captions: whole.captions[own].to_vec(),
            };
            pieces.push(MicroBatch { batch, offset: positions.start, ranks });
        }
        Ok(StepShare { pieces, global: loaded.global_valid })
    }
}

/// One pass over what `loaders` read, as for [`Feed::new`]: as many batches on every rank, of which the last may be empty.
/// Every rank calls this at the same place, and takes all batches.
pub(in crate::engine) fn once(
    loaders: Vec<Loader>,
    distributed: &Distributed,
) -> Result<impl Iterator<Item = Result<Batch, TrainError>>, TrainError> {
    let own = loaders.first().map(Loader::steps_per_epoch);
    let steps = match (own, distributed.fed()) {
        (Some(steps), Some(fed)) => tell(fed, &steps).map(|()| steps)?,
        (Some(steps), None) => steps,
        (None, Some(fed)) => hear(fed)?,
        (None, None) => 0,
    };
    let mut source = Source::new(loaders, distributed);
    Ok((0..steps).map(move |_| convert(&source.next()?)))
}

/// Where batches come from.
struct Source {
    /// Of this rank, of all ranks, or of none.
    loaders: Vec<Loader>,
    /// Those among whom the batches are scattered.
    fed: Option<Communicator>,
}

impl Source {
    fn new(loaders: Vec<Loader>, distributed: &Distributed) -> Self {
        Self { loaders, fed: distributed.fed().cloned() }
    }

    fn next(&mut self) -> Result<Loaded, TrainError> {
        let mut read = Vec::with_capacity(self.loaders.len());
        for loader in &mut self.loaders {
            // A loader without end that has ended has given its error before.
            let batch = loader.next();
            read.push(batch.ok_or_else(|| TrainError::Setup("the loader of images has ended".to_owned()))??);
        }
        match (&self.fed, read.pop()) {
            (None, Some(batch)) => Ok(batch),
            (None, None) => Err(TrainError::Setup("there is no loader of images".to_owned())),
            (Some(fed), last) => {
                read.extend(last);
                scatter(fed, read)
            }
        }
    }
}

/// What goes with the images of a batch.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    shape: [usize; 4],
    labels: Vec<u32>,
    captions: Vec<String>,
    indices: Vec<usize>,
    valid: usize,
    /// Start, end and ranks of each micro-batch.
    pieces: Vec<(usize, usize, usize)>,
    global_valid: usize,
    epoch: u64,
    step: usize,
}

/// Gives every rank its batch of those that the reader has, one a rank.
fn scatter(fed: &Communicator, batches: Vec<Loaded>) -> Result<Loaded, TrainError> {
    let (mut headers, mut images) = (Vec::new(), Vec::new());
    for batch in batches {
        let pieces = batch.pieces.iter();
        headers.push(encode(&Header {
            shape: batch.shape,
            labels: batch.labels,
            captions: batch.captions,
            indices: batch.indices,
            valid: batch.valid,
            pieces: pieces.map(|piece| (piece.positions.start, piece.positions.end, piece.ranks)).collect(),
            global_valid: batch.global_valid,
            epoch: batch.epoch,
            step: batch.step,
        })?);
        images.push(batch.images);
    }
    let header: Header = decode(&fed.scatterv(&headers, READER)?)?;
    let images = fed.scatterv(&images, READER)?;
    let piece = |(start, end, ranks)| Piece { positions: start..end, ranks };
    Ok(Loaded {
        images,
        shape: header.shape,
        labels: header.labels,
        captions: header.captions,
        indices: header.indices,
        valid: header.valid,
        pieces: header.pieces.into_iter().map(piece).collect(),
        global_valid: header.global_valid,
        epoch: header.epoch,
        step: header.step,
    })
}

/// Tells the other ranks something that the reader knows; they [`hear`] it.
pub(in crate::engine) fn tell<T: Serialize>(fed: &Communicator, fact: &T) -> Result<(), TrainError> {
    let fact = encode(fact)?;
    fed.scatterv(&vec![fact; fed.world_size()], READER)?;
    Ok(())
}

/// What the reader [`tell`]s.
pub(in crate::engine) fn hear<T: DeserializeOwned>(fed: &Communicator) -> Result<T, TrainError> {
    decode(&fed.scatterv::<u8>(&[], READER)?)
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, TrainError> {
    serde_json::to_vec(value).map_err(|error| garbled(&error))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, TrainError> {
    serde_json::from_slice(bytes).map_err(|error| garbled(&error))
}

fn garbled(error: &serde_json::Error) -> TrainError {
    TrainError::Setup(format!("what ranks tell each other of a batch is garbled: {error}"))
}

/// A loader's batch as tensors. Images that only pad it are left out: a mean over true samples needs no others.
fn convert(batch: &Loaded) -> Result<Batch, TrainError> {
    let [_, channels, height, width] = batch.shape;
    let valid = batch.valid;
    let numbers = &batch.images[..valid * channels * height * width];
    Ok(Batch {
        images: Tensor::from_slice(numbers, (valid, channels, height, width), &Device::Cpu)?,
        labels: batch.labels[..valid].to_vec(),
        captions: batch.captions[..valid].to_vec(),
    })
}
