//! Subsets of datasets.

use crate::attribute::Attribute;
use crate::dataset::{Dataset, LabelledDataset, check_index};
use crate::error::{DataError, Result};
use crate::rng::{Purpose, rng_for, shuffle};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Some samples of a dataset, with its classes and labels.
pub struct Subset<D: ?Sized> {
    inner: Arc<D>,
    name: String,
    indices: Vec<usize>,
}

impl<D: ?Sized> Clone for Subset<D> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), name: self.name.clone(), indices: self.indices.clone() }
    }
}

impl<D: ?Sized> std::fmt::Debug for Subset<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subset")
            .field("name", &self.name)
            .field("len", &self.indices.len())
            .finish_non_exhaustive()
    }
}

/// Chooses `n` of `len` indices by the seed, in ascending order; `name` is for errors.
pub(crate) fn choose(name: &str, len: usize, n: usize, seed: u64) -> Result<Vec<usize>> {
    if n > len {
        return Err(DataError::config("subset.take", format!("{n} samples of {name}, which has {len}")));
    }
    let mut indices: Vec<usize> = (0..len).collect();
    shuffle(&mut rng_for(seed, Purpose::Subset, 0, 0), &mut indices);
    indices.truncate(n);
    indices.sort_unstable();
    Ok(indices)
}

/// Returns the chunk lengths of the chosen samples from those of the whole dataset; `None` if the samples are not in
/// ascending order.
pub(crate) fn chunks(whole: Vec<usize>, chosen: &[usize]) -> Option<Vec<usize>> {
    let (mut begin, mut end) = (0, 0);
    let in_order = chosen.is_sorted();
    let of_chunk = |length| {
        end += length;
        let number = chosen[begin..].partition_point(|index| *index < end);
        begin += number;
        number
    };
    in_order.then(|| whole.into_iter().map(of_chunk).filter(|number| *number > 0).collect())
}

impl<D: Dataset + ?Sized> Subset<D> {
    /// Selects the samples at given indices, in the given order.
    ///
    /// # Errors
    /// If there are none, or an index is out of range.
    pub fn new(inner: Arc<D>, indices: Vec<usize>) -> Result<Self> {
        if indices.is_empty() {
            return Err(DataError::config("subset", format!("no samples of {}", inner.name())));
        }
        for &index in &indices {
            check_index(inner.name(), index, inner.len())?;
        }
        let name = format!("{}[{}]", inner.name(), indices.len());
        Ok(Self { inner, name, indices })
    }

    /// Selects `n` samples by the seed, regardless of their classes.
    ///
    /// # Errors
    /// If `n` is 0, or the dataset has fewer.
    pub fn take(inner: Arc<D>, n: usize, seed: u64) -> Result<Self> {
        let indices = choose(inner.name(), inner.len(), n, seed)?;
        Self::new(inner, indices)
    }

    /// Selects all samples but some; `excluded` is in ascending order.
    ///
    /// # Errors
    /// If none is left.
    pub fn without(inner: Arc<D>, excluded: &[usize]) -> Result<Self> {
        let kept = (0..inner.len()).filter(|index| excluded.binary_search(index).is_err()).collect();
        Self::new(inner, kept)
    }

    /// Returns the indices in the whole dataset.
    #[must_use]
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }
}

impl<D: LabelledDataset + ?Sized> Subset<D> {
    /// Selects `n` samples of every class by the seed.
    ///
    /// # Errors
    /// If `n` is 0, a class has fewer, or a label is out of range.
    pub fn per_class(inner: Arc<D>, n: usize, seed: u64) -> Result<Self> {
        let names = inner.class_names();
        let mut classes = vec![Vec::new(); names.len()];
        for index in 0..inner.len() {
            let label = inner.label(index)? as usize;
            let class = classes.get_mut(label).ok_or_else(|| {
                let reason = format!("label {label} of sample {index} is not one of {} classes", names.len());
                DataError::config("subset.per_class", reason)
            })?;
            class.push(index);
        }
        let mut indices = Vec::with_capacity(n * classes.len());
        for (label, class) in classes.iter_mut().enumerate() {
            if class.len() < n {
                let reason = format!("{n} samples of class {}, which has {}", names[label], class.len());
                return Err(DataError::config("subset.per_class", reason));
            }
            // Each class has its own random stream, so the choice does not depend on the number of classes.
            shuffle(&mut rng_for(seed, Purpose::Subset, 1, label as u64), class);
            indices.extend_from_slice(&class[..n]);
        }
        indices.sort_unstable();
        Self::new(inner, indices)
    }
}

impl<D: Dataset + ?Sized> Dataset for Subset<D> {
    type Item = D::Item;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<D::Item> {
        check_index(&self.name, index, self.len())?;
        self.inner.get(self.indices[index], epoch)
    }

    fn without_pixels(&self, index: usize, epoch: u64) -> Result<D::Item> {
        check_index(&self.name, index, self.len())?;
        self.inner.without_pixels(self.indices[index], epoch)
    }

    fn has_fixed_pixels(&self) -> bool {
        self.inner.has_fixed_pixels()
    }

    fn chunks(&self) -> Option<Vec<usize>> {
        chunks(self.inner.chunks()?, &self.indices)
    }

    fn lengths(&self) -> Option<Vec<u32>> {
        let whole = self.inner.lengths()?;
        Some(self.indices.iter().map(|index| whole[*index]).collect())
    }

    fn notes(&self) -> &[String] {
        self.inner.notes()
    }

    fn sample_path(&self, index: usize) -> Result<PathBuf> {
        check_index(&self.name, index, self.len())?;
        self.inner.sample_path(self.indices[index])
    }

    fn weight(&self, index: usize, epoch: u64) -> Result<f32> {
        check_index(&self.name, index, self.len())?;
        self.inner.weight(self.indices[index], epoch)
    }
}

impl<D: LabelledDataset + ?Sized> LabelledDataset for Subset<D> {
    fn class_names(&self) -> &[String] {
        self.inner.class_names()
    }

    fn label(&self, index: usize) -> Result<u32> {
        check_index(&self.name, index, self.len())?;
        self.inner.label(self.indices[index])
    }

    fn attributes(&self) -> &[Attribute] {
        self.inner.attributes()
    }

    fn files(&self) -> &[PathBuf] {
        self.inner.files()
    }

    fn classes_from(&self) -> Option<&Path> {
        self.inner.classes_from()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::{Shape, ShapesConfig, ShapesDataset};

    fn shapes() -> Arc<ShapesDataset> {
        Arc::new(ShapesDataset::new(ShapesConfig { len: 400, resolution: 4, ..Default::default() }).unwrap())
    }

    #[test]
    fn every_class_has_the_same_number_of_samples() {
        let subset = Subset::per_class(shapes(), 5, 1).unwrap();
        let mut counts = vec![0; Shape::ALL.len()];
        for index in 0..subset.len() {
            counts[subset.label(index).unwrap() as usize] += 1;
        }
        assert_eq!(counts, vec![5; Shape::ALL.len()]);
        assert_eq!(subset.indices(), Subset::per_class(shapes(), 5, 1).unwrap().indices());
        assert_ne!(subset.indices(), Subset::per_class(shapes(), 5, 2).unwrap().indices());
    }

    #[test]
    fn samples_are_those_of_the_whole() {
        let whole = shapes();
        let subset = Subset::take(Arc::clone(&whole), 30, 3).unwrap();
        assert_eq!((subset.len(), subset.name()), (30, "shapes/train[30]"));
        assert!(subset.indices().is_sorted_by(|a, b| a < b));
        for (index, &of_whole) in subset.indices().iter().enumerate() {
            let (a, b) = (subset.get(index, 2).unwrap(), whole.get(of_whole, 2).unwrap());
            assert_eq!((a.image, a.label, a.caption), (b.image, b.label, b.caption));
        }
        assert!(subset.get(30, 0).is_err());
    }

    #[test]
    fn chunks_are_those_of_the_chosen_samples() {
        assert_eq!(chunks(vec![3, 2, 4], &[0, 2, 5, 6, 8]), Some(vec![2, 3]));
        assert_eq!(chunks(vec![3, 2, 4], &[4]), Some(vec![1]));
        assert_eq!(chunks(vec![3, 2, 4], &[4, 3]), None);
    }

    #[test]
    fn too_many_samples_are_refused() {
        assert!(Subset::take(shapes(), 401, 0).is_err());
        assert!(Subset::take(shapes(), 0, 0).is_err());
        assert!(Subset::per_class(shapes(), 100, 0).is_err());
        assert!(Subset::new(shapes(), vec![400]).is_err());
    }
}
