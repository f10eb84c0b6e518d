//! A batch: named arrays, texts and images of some samples, with a weight for each sample.
//!
//! A batch does not know the meaning of its arrays. A [collation](crate::collate) chooses their names and the consumer
//! asks for them by name; loaders cut, pad and move batches without looking at names.

mod array;
mod images;
mod mixing;

pub use array::{ArrayData, ArrayElement, BatchArray, ElementType};
pub use images::{ImageBytes, ImageMix, ImageRecipe};

use crate::error::{DataError, Result};
use std::ops::Range;

/// Named arrays, texts and images as bytes, and weights, all of the same samples.
///
/// The loss of a sample is multiplied by its weight; the sum over the global batch is divided by the sum of the
/// weights. The weight is 1 for a plain sample and 0 for padding. A loader sets it from
/// [`Dataset::weight`](crate::Dataset::weight); collations leave it alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    arrays: Vec<(String, BatchArray)>,
    texts: Vec<(String, Vec<String>)>,
    images: Vec<(String, ImageBytes)>,
    weights: Vec<f32>,
}

/// The parts of a [`Batch`].
#[derive(Debug, Clone, PartialEq)]
pub struct BatchParts {
    /// The named arrays.
    pub arrays: Vec<(String, BatchArray)>,
    /// The named lists of texts.
    pub texts: Vec<(String, Vec<String>)>,
    /// The named images as bytes.
    pub images: Vec<(String, ImageBytes)>,
    /// The weight of each sample.
    pub weights: Vec<f32>,
}

impl Batch {
    /// Makes a batch of `len` samples of weight 1, without arrays.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { arrays: Vec::new(), texts: Vec::new(), images: Vec::new(), weights: vec![1.0; len] }
    }

    /// Adds an array of this shape, whose first dimension counts samples.
    ///
    /// # Errors
    /// If the elements do not fill the shape, the first dimension is not the number of samples, or the name is taken.
    pub fn with(
        self,
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        data: impl Into<ArrayData>,
    ) -> Result<Self> {
        self.with_array(name, BatchArray::new(shape, data)?)
    }

    /// Adds an array.
    ///
    /// # Errors
    /// If the array has a different number of samples, or the name is taken.
    pub fn with_array(mut self, name: impl Into<String>, array: BatchArray) -> Result<Self> {
        let name = self.check_new(name.into(), array.samples())?;
        self.arrays.push((name, array));
        Ok(self)
    }

    /// Adds a list of texts, one for each sample.
    ///
    /// # Errors
    /// If the number of texts differs, or the name is taken.
    pub fn with_texts(mut self, name: impl Into<String>, texts: Vec<String>) -> Result<Self> {
        let name = self.check_new(name.into(), texts.len())?;
        self.texts.push((name, texts));
        Ok(self)
    }

    /// Adds images as bytes, one for each sample.
    ///
    /// # Errors
    /// If the number of samples differs, or the name is taken.
    pub fn with_images(mut self, name: impl Into<String>, images: ImageBytes) -> Result<Self> {
        let name = self.check_new(name.into(), images.samples())?;
        self.images.push((name, images));
        Ok(self)
    }

    /// Replaces the weights, one for each sample.
    ///
    /// # Errors
    /// If the number differs, or a weight is negative or not finite.
    pub fn with_weights(mut self, weights: Vec<f32>) -> Result<Self> {
        if weights.len() != self.len() {
            let reason = format!("{} weights for {} samples", weights.len(), self.len());
            return Err(DataError::Batch { name: "weights".to_owned(), reason });
        }
        if let Some((sample, weight)) =
            weights.iter().enumerate().find(|(_, weight)| !(weight.is_finite() && **weight >= 0.0))
        {
            let reason = format!("sample {sample} has {weight}; a weight is finite and not negative");
            return Err(DataError::Batch { name: "weights".to_owned(), reason });
        }
        self.weights = weights;
        Ok(self)
    }

    fn check_new(&self, name: String, samples: usize) -> Result<String> {
        if samples != self.len() {
            let reason = format!("{samples} samples, but the batch has {}", self.len());
            return Err(DataError::Batch { name, reason });
        }
        if self.names().any(|taken| taken == name) {
            let reason = "the batch has an entry of this name already".to_owned();
            return Err(DataError::Batch { name, reason });
        }
        Ok(name)
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Returns true without samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Returns the names of its arrays, texts and images.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let arrays = self.arrays.iter().map(|(name, _)| name.as_str());
        let texts = self.texts.iter().map(|(name, _)| name.as_str());
        arrays.chain(texts).chain(self.images.iter().map(|(name, _)| name.as_str()))
    }

    /// Returns its arrays in the order of their addition.
    pub fn arrays(&self) -> impl Iterator<Item = (&str, &BatchArray)> {
        self.arrays.iter().map(|(name, array)| (name.as_str(), array))
    }

    /// Returns an array by name.
    ///
    /// # Errors
    /// If the name is unknown; the error lists the known names.
    pub fn array(&self, name: &str) -> Result<&BatchArray> {
        let found = self.arrays.iter().find(|(own, _)| own == name);
        found.map(|(_, array)| array).ok_or_else(|| self.no_such("array", name))
    }

    /// Returns the elements of an array, sample by sample.
    ///
    /// # Errors
    /// If the name is unknown, or the elements have another type.
    pub fn values<T: ArrayElement>(&self, name: &str) -> Result<&[T]> {
        let array = self.array(name)?;
        array.values().ok_or_else(|| {
            let reason = format!("its elements are {}, not {}", array.element_type(), T::TYPE);
            DataError::Batch { name: name.to_owned(), reason }
        })
    }

    /// Returns a list of texts by name, one text for each sample.
    ///
    /// # Errors
    /// If the name is unknown; the error lists the known names.
    pub fn texts(&self, name: &str) -> Result<&[String]> {
        let found = self.texts.iter().find(|(own, _)| own == name);
        found.map(|(_, texts)| texts.as_slice()).ok_or_else(|| self.no_such("list of texts", name))
    }

    /// Returns images as bytes by name.
    ///
    /// # Errors
    /// If the name is unknown; the error lists the known names.
    pub fn images(&self, name: &str) -> Result<&ImageBytes> {
        let found = self.images.iter().find(|(own, _)| own == name);
        found.map(|(_, images)| images).ok_or_else(|| self.no_such("set of images as bytes", name))
    }

    fn no_such(&self, kind: &'static str, name: &str) -> DataError {
        let known = self.names().map(str::to_owned).collect();
        DataError::NoSuchArray { kind, name: name.to_owned(), known }
    }

    /// Returns the weight of each sample.
    #[must_use]
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Copies a range of samples.
    ///
    /// # Errors
    /// If the range reaches beyond the last sample.
    pub fn narrow(&self, samples: Range<usize>) -> Result<Self> {
        if samples.start > samples.end || samples.end > self.len() {
            let reason = format!("{samples:?} is not within 0..{}", self.len());
            return Err(DataError::Batch { name: "samples".to_owned(), reason });
        }
        let arrays = self.arrays.iter().map(|(name, array)| (name.clone(), array.narrow(&samples)));
        let texts = self.texts.iter().map(|(name, texts)| (name.clone(), texts[samples.clone()].to_vec()));
        let images = self.images.iter().map(|(name, images)| (name.clone(), images.narrow(&samples)));
        Ok(Self {
            arrays: arrays.collect(),
            texts: texts.collect(),
            images: images.collect(),
            weights: self.weights[samples.clone()].to_vec(),
        })
    }

    /// Concatenates batches.
    ///
    /// # Errors
    /// If there is no batch, or the batches differ in names, element types or sample shapes.
    pub fn concat(batches: impl IntoIterator<Item = Self>) -> Result<Self> {
        let mut batches = batches.into_iter();
        let nothing =
            || DataError::Batch { name: "concat".to_owned(), reason: "no batch is given".to_owned() };
        let mut all = batches.next().ok_or_else(nothing)?;
        for next in batches {
            if !all.names().eq(next.names()) {
                let (own, other): (Vec<_>, Vec<_>) = (all.names().collect(), next.names().collect());
                let reason = format!("one batch has {own:?}, another {other:?}");
                return Err(DataError::Batch { name: "concat".to_owned(), reason });
            }
            for ((name, own), (_, more)) in all.arrays.iter_mut().zip(&next.arrays) {
                if !own.append(more) {
                    let each = |array: &BatchArray| format!("{} {:?}", array.element_type(), array.shape());
                    let reason = format!("{} cannot be followed by {}", each(own), each(more));
                    return Err(DataError::Batch { name: name.clone(), reason });
                }
            }
            for ((name, own), (_, more)) in all.images.iter_mut().zip(&next.images) {
                if !own.append(more) {
                    let each = |images: &ImageBytes| {
                        format!("{:?} to {:?}", images.recipe().source(), images.recipe().size())
                    };
                    let reason = format!("images of {} cannot be followed by {}", each(own), each(more));
                    return Err(DataError::Batch { name: name.clone(), reason });
                }
            }
            for ((_, own), (_, more)) in all.texts.iter_mut().zip(next.texts) {
                own.extend(more);
            }
            all.weights.extend(next.weights);
        }
        Ok(all)
    }

    /// Splits the batch into its parts, without a copy.
    #[must_use]
    pub fn into_parts(self) -> BatchParts {
        BatchParts { arrays: self.arrays, texts: self.texts, images: self.images, weights: self.weights }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(from: u32, len: usize) -> Batch {
        let labels: Vec<u32> = (from..).take(len).collect();
        let points: Vec<f32> = labels.iter().flat_map(|label| [*label as f32, 0.5]).collect();
        let texts = labels.iter().map(|label| format!("sample {label}")).collect();
        Batch::new(len)
            .with("points", [len, 2], points)
            .and_then(|batch| batch.with("labels", [len], labels))
            .and_then(|batch| batch.with_texts("captions", texts))
            .and_then(|batch| batch.with_weights(vec![0.25; len]))
            .unwrap()
    }

    #[test]
    fn entries_are_found_by_name_and_type() {
        let batch = batch(3, 2);
        assert_eq!(batch.len(), 2);
        assert_eq!(batch.array("points").unwrap().shape(), [2, 2]);
        assert_eq!(batch.values::<f32>("points").unwrap(), [3.0, 0.5, 4.0, 0.5]);
        assert_eq!(batch.values::<u32>("labels").unwrap(), [3, 4]);
        assert_eq!(batch.texts("captions").unwrap(), ["sample 3", "sample 4"]);
        assert_eq!(batch.weights(), [0.25, 0.25]);
    }

    #[test]
    fn unknown_names_are_errors_that_list_the_known_ones() {
        let batch = batch(0, 1);
        let missing = batch.array("images").unwrap_err().to_string();
        assert!(missing.contains("images") && missing.contains("points, labels, captions"), "{missing}");
        assert!(batch.texts("labels").unwrap_err().to_string().contains("captions"));
        let other = batch.values::<i64>("labels").unwrap_err().to_string();
        assert!(other.contains("u32") && other.contains("i64"), "{other}");
    }

    #[test]
    fn mismatched_sizes_are_refused() {
        assert!(Batch::new(2).with("a", [2, 3], vec![0_u8; 5]).is_err());
        assert!(Batch::new(2).with("a", Vec::new(), vec![0_u8]).is_err());
        assert!(Batch::new(2).with("a", [3], vec![0_i64; 3]).is_err());
        assert!(batch(0, 2).with("captions", [2], vec![0.0_f64; 2]).is_err());
        assert!(batch(0, 2).with_texts("more", vec![String::new()]).is_err());
        for weights in [vec![1.0], vec![1.0, -1.0], vec![f32::NAN, 1.0]] {
            assert!(batch(0, 2).with_weights(weights).is_err());
        }
        assert!(batch(0, 2).narrow(1..3).is_err());
        assert!(Batch::concat([]).is_err());
        assert!(Batch::concat([batch(0, 1), Batch::new(1)]).is_err());
        let other = Batch::new(1).with("points", [1, 3], vec![0.0_f32; 3]).unwrap();
        let points = Batch::new(1).with("points", [1, 2], vec![0.0_f32; 2]).unwrap();
        assert!(Batch::concat([points, other]).unwrap_err().to_string().contains("points"));
    }

    #[test]
    fn parts_of_a_batch_make_the_batch_again() {
        let whole = batch(0, 5);
        let parts: Vec<_> = [0..2, 2..2, 2..5].map(|samples| whole.narrow(samples).unwrap()).into();
        assert_eq!(parts[0], batch(0, 2));
        assert_eq!(parts[1].array("points").unwrap().shape(), [0, 2]);
        assert_eq!(Batch::concat(parts).unwrap(), whole);
    }
}
