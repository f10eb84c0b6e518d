//! The batches of a rank: loaded by each rank, or loaded by the first rank for all and scattered.

use std::sync::Arc;

use phalanx_collectives::Communicator;
use phalanx_data::{ArrayData, ElementType, Loader, MicroBatchRange, StepBatch, StepHeader};
use phalanx_sharding::VirtualRanks;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::TrainError;
use crate::engine::distributed::Distributed;
use phalanx_batches::{Batch, DeviceCache};

/// The rank that loads for all, under strategies where one does.
const READER: usize = 0;

/// The training batches of one rank, cut into micro-batches.
pub(in crate::engine) enum Feed {
    Samples(Source),
    /// The feed of a server.
    Nothing,
}

/// A rank's samples of one step.
pub(in crate::engine) struct StepSamples {
    /// The micro-batches, equally many on all ranks; with virtual ranks those of each one after the other, equally many for each.
    pub(in crate::engine) micro_batches: Vec<MicroBatch>,
    /// Samples of the step over all ranks.
    pub(in crate::engine) global_samples: usize,
    /// The sum of their weights: the divisor of losses.
    pub(in crate::engine) global_weight: f64,
}

/// A rank's samples of one micro-batch.
pub(in crate::engine) struct MicroBatch {
    /// The samples; possibly empty.
    pub(in crate::engine) batch: Batch,
    /// The position of the first sample in the global batch.
    pub(in crate::engine) offset: usize,
    /// The number of ranks, from the first, that have samples of this micro-batch.
    pub(in crate::engine) ranks: usize,
}

/// A rank's samples of one batch of the test split.
pub(in crate::engine) struct TestBatch {
    /// The samples. A rank without samples has one that does not count, so that it can compute with the others.
    pub(in crate::engine) batch: Batch,
    /// The position of each sample among all test samples of this pass.
    pub(in crate::engine) positions: Vec<usize>,
    /// True if they count.
    pub(in crate::engine) counts: bool,
}

/// The shape of a step: sizes, positions in the global batch, and weights. Steps of the same shape run the same operations.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine) struct StepShape {
    micro_batches: Vec<MicroBatchShape>,
    global_weight: f64,
    /// True if parameters are frozen that are trained later.
    frozen: bool,
}

/// The shape of a micro-batch.
#[derive(Debug, Clone, PartialEq)]
struct MicroBatchShape {
    offset: usize,
    ranks: usize,
    weights: Vec<f32>,
    dims: Vec<Vec<usize>>,
}

impl StepSamples {
    /// The shape of the step, in which parameters that are trained later are `frozen` or not.
    pub(in crate::engine) fn shape(&self, frozen: bool) -> StepShape {
        let of = |MicroBatch { batch, offset, ranks }: &MicroBatch| {
            let (weights, dims) = (batch.weights().to_vec(), batch.shapes());
            MicroBatchShape { offset: *offset, ranks: *ranks, weights, dims }
        };
        StepShape {
            micro_batches: self.micro_batches.iter().map(of).collect(),
            global_weight: self.global_weight,
            frozen,
        }
    }
}

impl Feed {
    /// Creates the feed of a rank. `loaders` load its samples, one for each of its virtual ranks as `placed` says; if the first rank
    /// loads for all, it has the loaders of all ranks and the others have none. `cache` holds images on the device, if any.
    pub(super) fn new(
        loaders: Vec<Loader>,
        distributed: &Distributed,
        cache: Option<Arc<DeviceCache>>,
        placed: VirtualRanks,
    ) -> Self {
        match distributed.is_server() {
            true => Self::Nothing,
            false => Self::Samples(Source::new(loaders, distributed, cache, placed)),
        }
    }

    /// Returns the samples of the next step.
    pub(in crate::engine) fn next(&mut self) -> Result<StepSamples, TrainError> {
        let Self::Samples(source) = self else {
            return Ok(StepSamples { micro_batches: Vec::new(), global_samples: 0, global_weight: 1.0 });
        };
        let (mut micro_batches, mut whole) = (Vec::new(), (0, 1.0));
        for of_shard in source.next()? {
            let StepBatch { batch, valid, micro_batches: ranges, global_samples, global_weight, .. } =
                of_shard;
            let batch = Batch::new(batch, source.cache.as_ref())?;
            // Padding comes last and is left out: means are over true samples.
            let mut left = 0..valid;
            for MicroBatchRange { positions, ranks } in ranges {
                let own = left.start..(left.start + positions.len()).min(left.end);
                left.start = own.end;
                micro_batches.push(MicroBatch { batch: batch.narrow(&own)?, offset: positions.start, ranks });
            }
            whole = (global_samples, global_weight);
        }
        let (global_samples, global_weight) = whole;
        Ok(StepSamples { micro_batches, global_samples, global_weight })
    }
}

/// Returns the batches of one pass over `loaders`; see [`Feed::new`]. All ranks have equally many, of which the last may not count. All
/// ranks call this together and take all batches.
pub(super) fn once(
    loaders: Vec<Loader>,
    distributed: &Distributed,
    cache: Option<Arc<DeviceCache>>,
    placed: VirtualRanks,
) -> Result<impl Iterator<Item = Result<TestBatch, TrainError>>, TrainError> {
    let own = loaders.first().map(Loader::steps_per_epoch);
    let steps = match (own, distributed.fed()) {
        (Some(steps), Some(fed)) => send(fed, &steps).map(|()| steps)?,
        (Some(steps), None) => steps,
        (None, Some(fed)) => receive(fed)?,
        (None, None) => 0,
    };
    let mut source = Source::new(loaders, distributed, cache, placed);
    Ok((0..steps).map(move |_| {
        let none = || TrainError::Setup("there is no loader of batches".to_owned());
        let StepBatch { batch, valid, mut indices, .. } = source.next()?.pop().ok_or_else(none)?;
        let whole = Batch::new(batch, source.cache.as_ref())?;
        let batch = if valid > 0 { whole.narrow(&(0..valid))? } else { whole };
        indices.truncate(valid);
        Ok(TestBatch { batch, positions: indices, counts: valid > 0 })
    }))
}

/// The source of batches.
pub(in crate::engine) struct Source {
    /// The loaders of this rank's virtual ranks, of all, or none.
    loaders: Vec<Loader>,
    /// The virtual ranks of each rank; without any, each rank is its own.
    placed: VirtualRanks,
    /// The ranks that batches are scattered to.
    fed: Option<Communicator>,
    /// The images that are cached on the device.
    cache: Option<Arc<DeviceCache>>,
}

impl Source {
    fn new(
        loaders: Vec<Loader>,
        distributed: &Distributed,
        cache: Option<Arc<DeviceCache>>,
        placed: VirtualRanks,
    ) -> Self {
        Self { loaders, placed, fed: distributed.fed().cloned(), cache }
    }

    /// Returns the next batches of this rank's virtual ranks, in order.
    fn next(&mut self) -> Result<Vec<StepBatch>, TrainError> {
        let mut read = Vec::with_capacity(self.loaders.len());
        for loader in &mut self.loaders {
            // A loader is infinite: it ends after an error.
            let batch = loader.next();
            let ended = || TrainError::Setup("the loader of batches has ended".to_owned());
            read.push(Some(batch.ok_or_else(ended)??));
        }
        let Some(fed) = &self.fed else { return Ok(read.into_iter().flatten().collect()) };
        let (placed, own) = (self.placed, self.placed.of(fed.rank()));
        let mut own_batches = Vec::with_capacity(own.len());
        for round in 0..placed.most() {
            // A rank with one virtual rank less gets its last batch again and drops it.
            let mut sent = Vec::with_capacity(placed.ranks());
            for of_rank in (0..placed.ranks()).map(|rank| placed.of(rank)) {
                let again = round + 1 < placed.most() && round + 1 >= of_rank.len();
                if let Some(batch) = read.get_mut((of_rank.start + round).min(of_rank.end - 1)) {
                    sent.extend(if again { batch.clone() } else { batch.take() });
                }
            }
            let batch = scatter(fed, sent)?;
            if round < own.len() {
                own_batches.push(batch);
            }
        }
        Ok(own_batches)
    }
}

/// Scatters the batches that the first rank has, one for each rank: headers as JSON, arrays as they are.
fn scatter(fed: &Communicator, batches: Vec<StepBatch>) -> Result<StepBatch, TrainError> {
    let mut headers = Vec::with_capacity(batches.len());
    // The arrays of all ranks, by array.
    let mut types: Vec<ElementType> = Vec::new();
    let mut arrays: Vec<Vec<ArrayData>> = Vec::new();
    for batch in batches {
        let (header, own) = batch.into_parts();
        let of_rank: Vec<ElementType> = header.element_types().collect();
        if headers.is_empty() {
            arrays.resize_with(of_rank.len(), Vec::new);
            types = of_rank;
        } else if of_rank != types {
            let problem = format!("the batches of one step have arrays of {types:?} and of {of_rank:?}");
            return Err(TrainError::Setup(problem));
        }
        headers.push(encode(&header)?);
        for (all, own) in arrays.iter_mut().zip(own) {
            all.push(own);
        }
    }
    let header: StepHeader = decode(&fed.scatterv(&headers, READER)?)?;
    let mut arrays = arrays.into_iter();
    let data = header.element_types().map(|element_type| {
        let own = arrays.next().unwrap_or_default();
        scatter_array(fed, element_type, own)
    });
    let data = data.collect::<Result<_, _>>()?;
    Ok(StepBatch::from_parts(header, data)?)
}

/// Scatters one array, of the same type on all ranks.
fn scatter_array(
    fed: &Communicator,
    element_type: ElementType,
    arrays: Vec<ArrayData>,
) -> Result<ArrayData, TrainError> {
    macro_rules! scatter_as {
        ($variant:ident) => {{
            let own = arrays.into_iter().filter_map(|array| match array {
                ArrayData::$variant(values) => Some(values),
                _ => None,
            });
            ArrayData::$variant(fed.scatterv(&own.collect::<Vec<_>>(), READER)?)
        }};
    }
    Ok(match element_type {
        ElementType::F32 => scatter_as!(F32),
        ElementType::F64 => scatter_as!(F64),
        ElementType::U8 => scatter_as!(U8),
        ElementType::I64 => scatter_as!(I64),
        ElementType::U32 => {
            // The communicator has signed integers only; the bits are the same.
            let own = arrays.into_iter().filter_map(|array| match array {
                ArrayData::U32(values) => Some(values.into_iter().map(u32::cast_signed).collect()),
                _ => None,
            });
            let own: Vec<i32> = fed.scatterv(&own.collect::<Vec<_>>(), READER)?;
            ArrayData::U32(own.into_iter().map(i32::cast_unsigned).collect())
        }
    })
}

/// Sends a value from the first rank to all others; see [`receive`].
pub(in crate::engine) fn send<T: Serialize>(fed: &Communicator, fact: &T) -> Result<(), TrainError> {
    let fact = encode(fact)?;
    fed.scatterv(&vec![fact; fed.world_size()], READER)?;
    Ok(())
}

/// Receives a value of [`send`].
pub(in crate::engine) fn receive<T: DeserializeOwned>(fed: &Communicator) -> Result<T, TrainError> {
    decode(&fed.scatterv::<u8>(&[], READER)?)
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, TrainError> {
    serde_json::to_vec(value).map_err(|error| malformed(&error))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, TrainError> {
    serde_json::from_slice(bytes).map_err(|error| malformed(&error))
}

fn malformed(error: &serde_json::Error) -> TrainError {
    TrainError::Setup(format!("malformed header of a batch: {error}"))
}

#[cfg(test)]
mod tests {
    use phalanx_collectives::threads;

    use super::*;

    /// A batch with an array of each type, of a length that depends on the rank.
    fn batch_of(rank: usize) -> StepBatch {
        let number = rank + 1;
        let numbers = |from: u32| (0..).map(move |more| from + more).take(2 * number);
        let batch = phalanx_data::Batch::new(number)
            .with("images", [number, 2], numbers(1).map(|n| n as f32 / 3.0).collect::<Vec<f32>>())
            .and_then(|batch| batch.with("times", [number, 2], numbers(2).map(f64::from).collect::<Vec<_>>()))
            .and_then(|batch| {
                batch.with("valid", [number, 2], numbers(3).map(|n| n as u8).collect::<Vec<_>>())
            })
            .and_then(|batch| batch.with("tokens", [number, 2], numbers(u32::MAX - 9).collect::<Vec<_>>()))
            .and_then(|batch| {
                batch.with("ids", [number, 2], numbers(4).map(|n| -i64::from(n)).collect::<Vec<_>>())
            })
            .and_then(|batch| batch.with_texts("captions", vec![format!("\"rank\" {rank}"); number]))
            .and_then(|batch| batch.with_weights(vec![0.1; number]));
        StepBatch {
            batch: batch.expect("sound"),
            indices: (0..number).collect(),
            valid: number,
            micro_batches: vec![MicroBatchRange { positions: rank..rank + number, ranks: 3 }],
            global_samples: 6,
            global_weight: 0.1,
            epoch: 3,
            step: 4,
        }
    }

    #[test]
    fn every_rank_gets_its_own_batch_to_the_bit() {
        let ranks = threads(3).expect("a world").into_iter().map(|fed| {
            std::thread::spawn(move || {
                let read = if fed.rank() == READER { (0..3).map(batch_of).collect() } else { Vec::new() };
                assert_eq!(scatter(&fed, read).expect("sound"), batch_of(fed.rank()));
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            rank.join().expect("no panic");
        }
    }

    #[test]
    fn batches_of_other_types_are_not_sent() {
        let alone = threads(1).expect("a world").remove(0);
        let other = StepBatch { batch: phalanx_data::Batch::new(1), ..batch_of(0) };
        let error = scatter(&alone, vec![batch_of(0), other]).expect_err("they differ").to_string();
        assert!(error.contains("F32"), "{error}");
    }
}
