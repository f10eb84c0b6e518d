//! The batch of one rank and step, and its conversion to and from messages.

use crate::batch::{ArrayData, Batch, BatchArray, BatchParts, ElementType, ImageBytes, ImageRecipe};
use crate::error::{DataError, Result};
use crate::mix::{Mixing, partner};
use crate::sampler::{DistributedSampler, MicroBatchRange, RankSamples};
use crate::source::BatchSource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The batch of one rank in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepBatch {
    /// The samples. Those from `valid` on are padding of weight 0. There is at least one: if an incomplete last batch
    /// has no sample for this rank, a padding sample provides the shapes.
    pub batch: Batch,
    /// The index of each sample in the dataset.
    pub indices: Vec<usize>,
    /// The number of real samples, from the first.
    pub valid: usize,
    /// The samples of this rank in each micro-batch, in order.
    pub micro_batches: Vec<MicroBatchRange>,
    /// The number of real samples in the global batch.
    pub global_samples: usize,
    /// The sum of the weights of the global batch, by which a mean divides.
    pub global_weight: f64,
    /// The epoch.
    pub epoch: u64,
    /// The step in the epoch.
    pub step: usize,
}

impl StepBatch {
    /// Splits the batch, without a copy, into a header and one [`ArrayData`] for each of [`StepHeader::element_types`].
    #[must_use]
    pub fn into_parts(self) -> (StepHeader, Vec<ArrayData>) {
        let BatchParts { arrays: named, texts, images: of_bytes, weights } = self.batch.into_parts();
        let mut arrays = Vec::with_capacity(named.len());
        let mut data = Vec::with_capacity(named.len() + of_bytes.len() + 1);
        for (name, array) in named {
            let element_type = array.element_type();
            let (shape, numbers) = array.into_parts();
            arrays.push(ArrayHeader { name, shape, element_type });
            data.push(numbers);
        }
        let mut images = Vec::with_capacity(of_bytes.len());
        for (name, of_bytes) in of_bytes {
            let (recipe, pixels) = of_bytes.into_parts();
            images.push((name, recipe));
            data.push(ArrayData::U8(pixels));
        }
        data.push(ArrayData::F32(weights));
        let header = StepHeader {
            arrays,
            texts,
            images,
            indices: self.indices,
            valid: self.valid,
            micro_batches: self.micro_batches,
            global_samples: self.global_samples,
            global_weight_bits: self.global_weight.to_bits(),
            epoch: self.epoch,
            step: self.step,
        };
        (header, data)
    }

    /// Joins the parts of [`into_parts`](Self::into_parts), without a copy.
    ///
    /// # Errors
    /// If the data do not match the header.
    pub fn from_parts(header: StepHeader, mut data: Vec<ArrayData>) -> Result<Self> {
        let expected: Vec<ElementType> = header.element_types().collect();
        let found: Vec<ElementType> = data.iter().map(ArrayData::element_type).collect();
        if expected != found {
            let reason = format!("data of types {found:?}; expected {expected:?}");
            return Err(DataError::Batch { name: "arrays".to_owned(), reason });
        }
        let weights = match data.pop() {
            Some(ArrayData::F32(weights)) => weights,
            // The types were compared, and the last is f32.
            _ => Vec::new(),
        };
        let mut batch = Batch::new(weights.len()).with_weights(weights)?;
        let pixels = data.split_off(header.arrays.len());
        for (ArrayHeader { name, shape, .. }, numbers) in header.arrays.into_iter().zip(data) {
            batch = batch.with_array(name, BatchArray::new(shape, numbers)?)?;
        }
        for ((name, recipe), pixels) in header.images.into_iter().zip(pixels) {
            // The types were compared, and those of images are u8.
            let pixels = if let ArrayData::U8(pixels) = pixels { pixels } else { Vec::new() };
            batch = batch.with_images(name, ImageBytes::new(recipe, pixels)?)?;
        }
        for (name, texts) in header.texts {
            batch = batch.with_texts(name, texts)?;
        }
        Ok(Self {
            batch,
            indices: header.indices,
            valid: header.valid,
            micro_batches: header.micro_batches,
            global_samples: header.global_samples,
            global_weight: f64::from_bits(header.global_weight_bits),
            epoch: header.epoch,
            step: header.step,
        })
    }
}

/// A [`StepBatch`] without its numbers: short enough to be sent as text, while the numbers are sent in binary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepHeader {
    arrays: Vec<ArrayHeader>,
    texts: Vec<(String, Vec<String>)>,
    images: Vec<(String, ImageRecipe)>,
    indices: Vec<usize>,
    valid: usize,
    micro_batches: Vec<MicroBatchRange>,
    global_samples: usize,
    /// As bits, since decimals may not survive a round trip.
    global_weight_bits: u64,
    epoch: u64,
    step: usize,
}

impl StepHeader {
    /// Returns the types of the data that belong to the header: those of the arrays, then u8 for each set of images,
    /// then f32 for the weights.
    pub fn element_types(&self) -> impl Iterator<Item = ElementType> {
        let pixels = self.images.iter().map(|_| ElementType::U8);
        self.arrays.iter().map(|array| array.element_type).chain(pixels).chain([ElementType::F32])
    }
}

/// An array without its elements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ArrayHeader {
    name: String,
    shape: Vec<usize>,
    element_type: ElementType,
}

/// The parts of a loader that make a batch, shared by its threads.
pub(crate) struct BatchMaker {
    pub(crate) source: Arc<dyn BatchSource>,
    pub(crate) sampler: DistributedSampler,
    pub(crate) mixing: Option<Mixing>,
    /// Set to cancel batches in progress.
    pub(crate) stopped: AtomicBool,
}

impl BatchMaker {
    /// Makes a batch; `None` if it was cancelled.
    pub(crate) fn make(&self, epoch: u64, step: usize) -> Option<Result<StepBatch>> {
        // A panic in a dataset becomes an error at its position in the order. A dead thread would leave the consumer
        // waiting for this batch.
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.assemble(epoch, step)));
        match made {
            Ok(Err(DataError::Cancelled)) if self.stopped.load(Ordering::Relaxed) => None,
            Ok(made) => Some(made),
            Err(panic) => {
                let message = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
                    .unwrap_or_else(|| "no message".to_string());
                Some(Err(DataError::WorkerPanicked { epoch, step, message }))
            }
        }
    }

    fn assemble(&self, epoch: u64, step: usize) -> Result<StepBatch> {
        let RankSamples { mut indices, valid, micro_batches, global_samples } =
            self.sampler.samples(epoch, step)?;
        if indices.is_empty() {
            // Any sample has the right shapes.
            indices.push(0);
        }
        let global = self.sampler.global_indices(epoch, step)?;
        let batch = match &self.mixing {
            None => self.read(&indices, epoch)?,
            Some(mixing) => {
                let positions = micro_batches.iter().flat_map(|own| own.positions.clone()).take(valid);
                let pairs = Pairs::of(&positions.collect::<Vec<_>>(), &indices, &global);
                let batch = self.read(&pairs.read, epoch)?;
                match mixing.draw(epoch, step, batch.image_size()?) {
                    Some(mixture) => batch.mixed(&pairs.partners, &mixture)?,
                    None => batch.narrow(0..indices.len())?,
                }
            }
        };
        let of_true = indices[..valid].iter().map(|&index| self.source.weight(index, epoch));
        let mut weights = of_true.collect::<Result<Vec<f32>>>()?;
        weights.resize(indices.len(), 0.0);
        // Added in the order of the global batch, so that all world sizes get the same sum.
        let mut global_weight = 0.0;
        for index in global {
            global_weight += f64::from(self.source.weight(index, epoch)?);
        }
        let batch = batch.with_weights(weights)?;
        Ok(StepBatch { batch, indices, valid, micro_batches, global_samples, global_weight, epoch, step })
    }
}

impl BatchMaker {
    fn read(&self, indices: &[usize], epoch: u64) -> Result<Batch> {
        self.source.batch(indices, epoch, &|| !self.stopped.load(Ordering::Relaxed))
    }
}

/// The samples that are read for a rank's mixed samples.
#[derive(Debug, PartialEq, Eq)]
struct Pairs {
    /// The indices of the rank's samples, then those of partners on other ranks.
    read: Vec<usize>,
    /// The place of each own sample's partner in `read`. Padding is its own partner.
    partners: Vec<usize>,
}

impl Pairs {
    /// Finds the partners of the samples at these positions of the global batch, whose real samples are `global`.
    /// `indices` are the rank's samples with padding at the end.
    fn of(positions: &[usize], indices: &[usize], global: &[usize]) -> Self {
        let place_of: BTreeMap<usize, usize> =
            positions.iter().enumerate().map(|(place, position)| (*position, place)).collect();
        let mut read = indices.to_vec();
        let mut partners: Vec<usize> = (0..indices.len()).collect();
        for (place, position) in positions.iter().enumerate() {
            let other = partner(*position, global.len());
            partners[place] = place_of.get(&other).copied().unwrap_or(read.len());
            if partners[place] == read.len() {
                read.push(global[other]);
            }
        }
        Self { read, partners }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::{Normalise, Placement};

    fn step_batch() -> StepBatch {
        let placements =
            vec![Placement::default(), Placement { left: -1, top: 2, flipped: true, erased: None }];
        let recipe = ImageRecipe::of_each([1, 2], [3, 3], &Normalise::CIFAR10, placements);
        let batch = Batch::new(2)
            .with("images", [2, 1], vec![f32::MIN_POSITIVE, -0.0])
            .and_then(|batch| batch.with("labels", [2], vec![u32::MAX, 0]))
            .and_then(|batch| batch.with("ids", [2, 0], Vec::<i64>::new()))
            .and_then(|batch| batch.with_texts("captions", vec!["a \"star\"".into(), String::new()]))
            .and_then(|batch| batch.with_images("pictures", ImageBytes::new(recipe, (0..12).collect())?))
            .and_then(|batch| batch.with_weights(vec![0.1, 0.0]));
        StepBatch {
            batch: batch.unwrap(),
            indices: vec![7, 3],
            valid: 1,
            micro_batches: vec![MicroBatchRange { positions: 4..6, ranks: 1 }],
            global_samples: 5,
            global_weight: 1.0 / 3.0,
            epoch: 1,
            step: 2,
        }
    }

    #[test]
    fn parts_make_the_batch_again_also_through_text() {
        let (header, data) = step_batch().into_parts();
        let types: Vec<_> = header.element_types().collect();
        assert_eq!(types, data.iter().map(ArrayData::element_type).collect::<Vec<_>>());
        let text = serde_json::to_vec(&header).unwrap();
        let header = serde_json::from_slice(&text).unwrap();
        assert_eq!(StepBatch::from_parts(header, data).unwrap(), step_batch());
    }

    #[test]
    fn partners_of_other_ranks_are_read_too() {
        let global = [40, 41, 42, 43, 44];
        // The middle of five samples, whose pairs are cut on both sides, and one that is its own partner.
        let pairs = Pairs::of(&[1, 2], &[41, 42], &global);
        assert_eq!(pairs, Pairs { read: vec![41, 42, 40, 43], partners: vec![2, 3] });
        let pairs = Pairs::of(&[3, 4], &[43, 44, 40], &global);
        assert_eq!(pairs, Pairs { read: vec![43, 44, 40, 42], partners: vec![3, 1, 2] });
        assert_eq!(Pairs::of(&[], &[0], &global), Pairs { read: vec![0], partners: vec![0] });
    }

    #[test]
    fn data_that_contradict_the_header_are_refused() {
        let (header, mut data) = step_batch().into_parts();
        data[0] = ArrayData::F32(vec![0.0; 3]);
        assert!(StepBatch::from_parts(header.clone(), data.clone()).is_err());
        data[0] = ArrayData::F64(vec![0.0; 2]);
        assert!(StepBatch::from_parts(header.clone(), data.clone()).is_err());
        data.pop();
        assert!(StepBatch::from_parts(header, data).is_err());
    }
}
