//! The batches of a rank: read by itself, or read by the first rank for all and scattered.

use std::sync::Arc;

use phalanx_collectives::Communicator;
use phalanx_data::{ArrayData, ElementType, Loader, MicroBatchRange, StepBatch, StepHeader};
use phalanx_sharding::VirtualRanks;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Batch;
use super::kept_set::KeptSet;
use crate::engine::TrainError;
use crate::engine::distributed::Distributed;

/// The rank that reads for all, where one does.
const READER: usize = 0;

/// The training batches of one rank, cut into micro-batches.
pub(in crate::engine) enum Feed {
    Samples(Source),
    /// Of a rank that has none.
    Nothing,
}

/// A rank's samples of one step.
pub(in crate::engine) struct StepSamples {
    /// Those of each logical rank of this rank after those of the one before, as many for each; without logical ranks as many on
    /// every rank.
    pub(in crate::engine) micro_batches: Vec<MicroBatch>,
    /// Samples of the step over all ranks.
    pub(in crate::engine) global_samples: usize,
    /// The sum of their weights: what losses are divided by.
    pub(in crate::engine) global_weight: f64,
}

/// A rank's samples of one micro-batch.
pub(in crate::engine) struct MicroBatch {
    /// The samples, perhaps none.
    pub(in crate::engine) batch: Batch,
    /// The position of the first in the global batch.
    pub(in crate::engine) offset: usize,
    /// How many ranks, from the first, have samples of this micro-batch.
    pub(in crate::engine) ranks: usize,
}

/// A rank's samples of one batch of the test split.
pub(in crate::engine) struct TestBatch {
    /// The samples; where there is none for this rank, one that does not count, so that the rank can compute what the others
    /// compute.
    pub(in crate::engine) batch: Batch,
    /// Whether they count.
    pub(in crate::engine) counts: bool,
}

/// What steps of the same work have alike: sizes, places in the global batch, and how much samples count.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine) struct StepShape {
    micro_batches: Vec<MicroBatchShape>,
    global_weight: f64,
}

/// The position of the first sample, how many ranks have some, the samples' weights, and the arrays' dimensions.
type MicroBatchShape = (usize, usize, Vec<f32>, Vec<Vec<usize>>);

impl StepSamples {
    /// What other steps of the same work have like this one.
    pub(in crate::engine) fn shape(&self) -> StepShape {
        let of = |MicroBatch { batch, offset, ranks }: &MicroBatch| {
            (*offset, *ranks, batch.weights().to_vec(), batch.shapes())
        };
        StepShape {
            micro_batches: self.micro_batches.iter().map(of).collect(),
            global_weight: self.global_weight,
        }
    }
}

impl Feed {
    /// What `loaders` read: this rank's samples, or, where the first rank reads for all, there those of all ranks and elsewhere
    /// none. `kept` has the images that stay in a device's memory, if any do.
    /// `placed` says which logical ranks are of which rank; a loader is of one of them.
    pub(super) fn new(
        loaders: Vec<Loader>,
        distributed: &Distributed,
        kept: Option<Arc<KeptSet>>,
        placed: VirtualRanks,
    ) -> Self {
        match distributed.is_server() {
            true => Self::Nothing,
            false => Self::Samples(Source::new(loaders, distributed, kept, placed)),
        }
    }

    /// The next step's samples.
    pub(in crate::engine) fn next(&mut self) -> Result<StepSamples, TrainError> {
        let Self::Samples(source) = self else {
            return Ok(StepSamples { micro_batches: Vec::new(), global_samples: 0, global_weight: 1.0 });
        };
        let (mut micro_batches, mut whole) = (Vec::new(), (0, 1.0));
        for of_shard in source.next()? {
            let StepBatch { batch, valid, micro_batches: ranges, global_samples, global_weight, .. } =
                of_shard;
            let batch = Batch::new(batch, source.kept.as_ref())?;
            // Samples that only fill places come last and are left out: a mean over true samples needs no others.
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

/// One pass over what `loaders` read, as for [`Feed::new`]: as many batches on every rank, of which the last may not count.
/// Every rank calls this at the same place, and takes all batches.
pub(super) fn once(
    loaders: Vec<Loader>,
    distributed: &Distributed,
    kept: Option<Arc<KeptSet>>,
    placed: VirtualRanks,
) -> Result<impl Iterator<Item = Result<TestBatch, TrainError>>, TrainError> {
    let own = loaders.first().map(Loader::steps_per_epoch);
    let steps = match (own, distributed.fed()) {
        (Some(steps), Some(fed)) => tell(fed, &steps).map(|()| steps)?,
        (Some(steps), None) => steps,
        (None, Some(fed)) => hear(fed)?,
        (None, None) => 0,
    };
    let mut source = Source::new(loaders, distributed, kept, placed);
    Ok((0..steps).map(move |_| {
        let none = || TrainError::Setup("there is no loader of batches".to_owned());
        let StepBatch { batch, valid, .. } = source.next()?.pop().ok_or_else(none)?;
        let whole = Batch::new(batch, source.kept.as_ref())?;
        let batch = if valid > 0 { whole.narrow(&(0..valid))? } else { whole };
        Ok(TestBatch { batch, counts: valid > 0 })
    }))
}

/// Where batches come from.
pub(in crate::engine) struct Source {
    /// Of this rank's logical ranks, of all logical ranks, or of none.
    loaders: Vec<Loader>,
    /// Which logical ranks are of which rank; without any a rank is its own.
    placed: VirtualRanks,
    /// Those among whom the batches are scattered.
    fed: Option<Communicator>,
    /// The images that stay in a device's memory.
    kept: Option<Arc<KeptSet>>,
}

impl Source {
    fn new(
        loaders: Vec<Loader>,
        distributed: &Distributed,
        kept: Option<Arc<KeptSet>>,
        placed: VirtualRanks,
    ) -> Self {
        Self { loaders, placed, fed: distributed.fed().cloned(), kept }
    }

    /// The next step's batches of this rank's logical ranks, in order.
    fn next(&mut self) -> Result<Vec<StepBatch>, TrainError> {
        let mut read = Vec::with_capacity(self.loaders.len());
        for loader in &mut self.loaders {
            // A loader without end that has ended has given its error before.
            let batch = loader.next();
            let ended = || TrainError::Setup("the loader of batches has ended".to_owned());
            read.push(Some(batch.ok_or_else(ended)??));
        }
        let Some(fed) = &self.fed else { return Ok(read.into_iter().flatten().collect()) };
        let (placed, own) = (self.placed, self.placed.of(fed.rank()));
        let mut own_batches = Vec::with_capacity(own.len());
        for round in 0..placed.most() {
            // Who has one less gets its last once more, and leaves it.
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

/// Gives every rank its batch of those that the reader has, one a rank: what is said of it as text, and its numbers as they
/// are.
fn scatter(fed: &Communicator, batches: Vec<StepBatch>) -> Result<StepBatch, TrainError> {
    let mut headers = Vec::with_capacity(batches.len());
    // Of each array those of all ranks.
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

/// Gives every rank its numbers of one array, all of them of one type.
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
            // The communicator moves signed integers; the bits are the same.
            let own = arrays.into_iter().filter_map(|array| match array {
                ArrayData::U32(values) => Some(values.into_iter().map(u32::cast_signed).collect()),
                _ => None,
            });
            let own: Vec<i32> = fed.scatterv(&own.collect::<Vec<_>>(), READER)?;
            ArrayData::U32(own.into_iter().map(i32::cast_unsigned).collect())
        }
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

#[cfg(test)]
mod tests {
    use phalanx_collectives::threads;

    use super::*;

    /// The batch of a rank: an array of each type, of a length that is the rank's own.
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
