//! A batch: named tensors of some samples.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_data::batch::BatchParts;
use phalanx_data::mix::{LABEL_SHARES, PARTNER_LABELS};
use phalanx_data::{ArrayData, DataError};
use phalanx_tensor::loss::LossDivisor;
use phalanx_tensor::{Array, Tape};

use crate::device_cache::DeviceCache;
use crate::error::BatchError;
use crate::images_of_batch::BatchImages;
use crate::sample_hash::{self, SampleHash};

/// A rank's samples of a micro-batch, or of the test split: arrays as tensors, images, which a device may prepare, texts, and the weight
/// of each sample.
#[derive(Debug, Clone)]
pub struct Batch {
    tensors: Vec<(String, Tensor)>,
    images: Vec<(String, BatchImages)>,
    texts: Vec<(String, Vec<String>)>,
    weights: Vec<f32>,
}

/// The labels of the samples that those of a batch are mixed with.
#[derive(Debug, Clone, PartialEq)]
pub struct MixedLabels {
    /// The label of each sample's partner.
    pub partners: Vec<u32>,
    /// The share of a sample's own label, 0 to 1; the rest is the partner's.
    pub share: f32,
}

impl Batch {
    /// The number of samples.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// True if there are no samples.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Returns the array of this name on the CPU, with samples along its first dimension. Images that a device prepares are prepared
    /// again on the CPU at the first call; images that a device caches are copied from it.
    ///
    /// # Errors
    /// If there is no array of this name; the error lists all names.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, BatchError> {
        if let Some(images) = self.images(name) {
            return images.on_host();
        }
        let found = self.tensors.iter().find(|(own, _)| own == name);
        found.map(|(_, tensor)| tensor).ok_or_else(|| self.no_such("array", name))
    }

    /// Returns the array of this name at the place where a tape computes.
    ///
    /// # Errors
    /// If there is no array of this name, or it cannot be copied or prepared there.
    pub fn array(&self, name: &str, tape: &Tape) -> Result<Array, BatchError> {
        let session = tape.session();
        match self.images(name) {
            Some(images) => images.prepared_at(&session.device, tape.backend(), session.precision),
            None => Ok(session.device.put(self.tensor(name)?)?),
        }
    }

    /// Returns a hash of each sample's values of an array of f32, also of images that a device prepares, which are not prepared
    /// for it; `None` where a device mixes samples.
    ///
    /// # Errors
    /// If there is no array of this name, or its elements are of another type.
    pub fn hashes(&self, name: &str) -> Result<Option<Vec<SampleHash>>, BatchError> {
        match self.images(name) {
            Some(images) => images.hashes(),
            None => Ok(Some(sample_hash::of_rows(self.tensor(name)?)?)),
        }
    }

    fn images(&self, name: &str) -> Option<&BatchImages> {
        self.images.iter().find(|(own, _)| own == name).map(|(_, images)| images)
    }

    /// Returns the elements of an array of u32, such as classes or tokens, one sample after the other.
    ///
    /// # Errors
    /// If there is no array of this name, or its elements are of another type.
    pub fn classes(&self, name: &str) -> Result<Vec<u32>, BatchError> {
        Ok(self.tensor(name)?.flatten_all()?.to_vec1()?)
    }

    /// Returns the texts of this name, one for each sample.
    ///
    /// # Errors
    /// If there are no texts of this name; the error lists all names.
    pub fn texts(&self, name: &str) -> Result<&[String], BatchError> {
        let found = self.texts.iter().find(|(own, _)| own == name);
        found.map(|(_, texts)| texts.as_slice()).ok_or_else(|| self.no_such("list of texts", name))
    }

    /// The dimensions of all arrays.
    pub fn shapes(&self) -> Vec<Vec<usize>> {
        let tensors = self.tensors.iter().map(|(_, tensor)| tensor.dims().to_vec());
        tensors.chain(self.images.iter().map(|(_, images)| images.shape())).collect()
    }

    fn no_such(&self, kind: &'static str, name: &str) -> BatchError {
        let tensors = self.tensors.iter().map(|(name, _)| name.clone());
        let images = self.images.iter().map(|(name, _)| name.clone());
        let known = tensors.chain(images).chain(self.texts.iter().map(|(name, _)| name.clone())).collect();
        DataError::NoSuchArray { kind, name: name.to_owned(), known }.into()
    }

    /// The mixture of labels, if the samples are mixed with others.
    ///
    /// # Errors
    /// If the arrays of the mixture have other types.
    pub fn mixed_labels(&self) -> Result<Option<MixedLabels>, BatchError> {
        let named = |name: &str| self.tensors.iter().find(|(own, _)| own == name).map(|(_, tensor)| tensor);
        let (Some(partners), Some(shares)) = (named(PARTNER_LABELS), named(LABEL_SHARES)) else {
            return Ok(None);
        };
        // The samples of a step have one share.
        let share = shares.flatten_all()?.to_vec1::<f32>()?.first().copied().unwrap_or(1.0);
        Ok(Some(MixedLabels { partners: partners.flatten_all()?.to_vec1()?, share }))
    }

    /// The weights of the samples, for [`phalanx_tensor::loss::weighted`].
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The sum of the weights.
    pub fn weight(&self) -> f64 {
        self.weights.iter().map(|weight| f64::from(*weight)).sum()
    }

    /// Returns the divisor of a loss over all samples, where the weights of the global batch add up to `sum`.
    ///
    /// # Errors
    /// If the samples have different weights.
    pub fn even(&self, sum: f64) -> Result<LossDivisor, BatchError> {
        let first = self.weights.first().copied().unwrap_or(1.0);
        if let Some(other) = self.weights.iter().find(|weight| **weight != first) {
            return Err(BatchError::UnequalWeights { first, other: *other });
        }
        // Without weight, dividing by infinity makes the loss and its gradients 0.
        Ok(LossDivisor::Sum(if first > 0.0 { sum / f64::from(first) } else { f64::INFINITY }))
    }

    /// Returns true if there is an array of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.iter().any(|(known, _)| known == name)
    }

    /// Returns N·T weights of positions: each sample's weight, spread evenly over the positions that `mask`, f32 [N, T] of 0 and 1,
    /// marks. A loss with these weights is the mean of the samples' means.
    ///
    /// # Errors
    /// If there is no array of this name, or it has another shape or type.
    pub fn weights_of_places(&self, mask: &str) -> Result<Vec<f32>, BatchError> {
        let (_, places) = self.tensor(mask)?.dims2()?;
        let mut marked = self.tensor(mask)?.flatten_all()?.to_vec1::<f32>()?;
        for (row, weight) in marked.chunks_exact_mut(places.max(1)).zip(&self.weights) {
            let number: f32 = row.iter().sum();
            for place in row.iter_mut().filter(|place| **place != 0.0) {
                *place *= weight / number;
            }
        }
        Ok(marked)
    }

    /// Returns the first samples.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn first(&self, count: usize) -> Result<Self, BatchError> {
        self.narrow(&(0..count))
    }

    /// Returns some of the samples. Tensors share the memory of the batch.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn narrow(&self, samples: &Range<usize>) -> Result<Self, BatchError> {
        if samples.end > self.len() {
            return Err(BatchError::TooFew { wanted: samples.end, samples: self.len() });
        }
        let tensors = self.tensors.iter().map(|(name, tensor)| {
            Ok((name.clone(), tensor.narrow(0, samples.start, samples.len())?.contiguous()?))
        });
        let images = self.images.iter().map(|(name, images)| Ok((name.clone(), images.narrow(samples)?)));
        let texts = self.texts.iter().map(|(name, texts)| (name.clone(), texts[samples.clone()].to_vec()));
        Ok(Self {
            tensors: tensors.collect::<Result<_, candle_core::Error>>()?,
            images: images.collect::<Result<_, BatchError>>()?,
            texts: texts.collect(),
            weights: self.weights[samples.clone()].to_vec(),
        })
    }

    /// Converts a batch without copying its arrays. Images of a cached set are added to `cache`.
    ///
    /// # Errors
    /// If an array cannot be made, or images do not fit the cache.
    pub fn new(batch: phalanx_data::Batch, cache: Option<&Arc<DeviceCache>>) -> Result<Self, BatchError> {
        let BatchParts { arrays, texts, images, weights } = batch.into_parts();
        let tensors = arrays.into_iter().map(|(name, array)| {
            let (shape, data) = array.into_parts();
            let tensor = match data {
                ArrayData::F32(values) => Tensor::from_vec(values, shape, &Device::Cpu),
                ArrayData::F64(values) => Tensor::from_vec(values, shape, &Device::Cpu),
                ArrayData::U8(values) => Tensor::from_vec(values, shape, &Device::Cpu),
                ArrayData::U32(values) => Tensor::from_vec(values, shape, &Device::Cpu),
                ArrayData::I64(values) => Tensor::from_vec(values, shape, &Device::Cpu),
            };
            Ok((name, tensor?))
        });
        let tensors = tensors.collect::<Result<_, candle_core::Error>>()?;
        let images = images.into_iter().map(|(name, images)| Ok((name, BatchImages::new(images, cache)?)));
        Ok(Self { tensors, images: images.collect::<Result<_, BatchError>>()?, texts, weights })
    }
}

impl TryFrom<phalanx_data::Batch> for Batch {
    type Error = BatchError;

    /// Converts a batch without copying its arrays.
    fn try_from(batch: phalanx_data::Batch) -> Result<Self, BatchError> {
        Self::new(batch, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(weights: Vec<f32>) -> Batch {
        let batch = phalanx_data::Batch::new(3)
            .with("mask", [3, 2], vec![1.0_f32, 0.0, 1.0, 1.0, 0.0, 0.0])
            .and_then(|batch| batch.with("labels", [3], vec![4_u32, 5, 6]))
            .and_then(|batch| batch.with_texts("captions", ["a", "b", "c"].map(String::from).to_vec()))
            .and_then(|batch| batch.with_weights(weights));
        batch.expect("sound").try_into().expect("sound")
    }

    #[test]
    fn arrays_and_texts_are_found_by_name() {
        let batch = batch(vec![1.0; 3]);
        assert_eq!(batch.classes("labels").expect("there"), [4, 5, 6]);
        assert_eq!(batch.tensor("mask").expect("there").dims(), [3, 2]);
        let error = batch.tensor("images").expect_err("not there").to_string();
        assert!(error.contains("images") && error.contains("mask, labels, captions"), "{error}");
        assert!(batch.texts("labels").is_err() && batch.classes("mask").is_err());
        let part = batch.narrow(&(1..3)).expect("sound");
        assert_eq!(part.classes("labels").expect("there"), [5, 6]);
        assert_eq!(part.texts("captions").expect("there"), ["b", "c"]);
        assert_eq!(part.len(), 2);
        let error = batch.first(4).expect_err("three samples").to_string();
        assert_eq!(error, "a batch of 3 samples has no first 4");
    }

    #[test]
    fn equal_samples_have_equal_hashes() {
        let batch = phalanx_data::Batch::new(3).with("x", [3, 2], vec![1.0_f32, 2.0, 1.0, -2.0, 1.0, 2.0]);
        let batch: Batch = batch.expect("sound").try_into().expect("sound");
        let found = batch.hashes("x").expect("there").expect("not mixed");
        assert!(found[0] == found[2] && found[0] != found[1]);
        assert!(batch.hashes("y").is_err());
    }

    #[test]
    fn weights_determine_the_divisor_of_a_loss() {
        assert_eq!(batch(vec![1.0; 3]).even(8.0).expect("alike"), LossDivisor::Sum(8.0));
        assert_eq!(batch(vec![2.0; 3]).even(8.0).expect("alike"), LossDivisor::Sum(4.0));
        assert_eq!(batch(vec![0.0; 3]).even(8.0).expect("alike"), LossDivisor::Sum(f64::INFINITY));
        assert!(batch(vec![1.0, 2.0, 1.0]).even(8.0).is_err());
        let batch = batch(vec![0.5, 3.0, 2.0]);
        assert_eq!(batch.weight(), 5.5);
        // The third sample marks no place, so it has nothing to count with.
        assert_eq!(batch.weights_of_places("mask").expect("sound"), [0.5, 0.0, 1.5, 1.5, 0.0, 0.0]);
    }
}
