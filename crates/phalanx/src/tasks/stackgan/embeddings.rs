//! Vectors of captions from a file, such as those of char-CNN-RNN that the authors trained with.
//!
//! A safetensors file has for each image a tensor of the image's name, [K, D], and under the same key of its metadata the
//! image's K captions, a line each: row k is the vector of line k. Tensors without captions are left out. Captions are looked up by their words, so that data sets need
//! not know of the file; of one that several images have the first vector counts, as the encoder sees nothing but the text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::io::TensorFile;

use phalanx_trainer::engine::TrainError;

/// A file of vectors, of which those of a batch are read when it needs them.
pub(super) struct Embeddings {
    path: PathBuf,
    file: TensorFile,
    dim: usize,
    /// By a caption's words: the number of the tensor and the row.
    rows: BTreeMap<String, (u32, u32)>,
    names: Vec<String>,
}

impl Embeddings {
    /// Opens a file and learns which captions it has.
    pub(super) fn open(path: &Path) -> Result<Self, TrainError> {
        let problem = |problem: String| {
            TrainError::Setup(format!("model.text_embeddings {}: {problem}", path.display()))
        };
        let file = TensorFile::open(path)?;
        let (mut rows, mut names, mut dim) = (BTreeMap::new(), Vec::new(), None);
        for name in file.names() {
            // Tensors without captions, such as counters, are no vectors.
            let Some(captions) = file.metadata().get(name) else { continue };
            let Some(header) = file.get(name) else {
                let dtype = file.unread_type(name);
                return Err(problem(format!("`{name}` has vectors of {dtype}; convert them to float32")));
            };
            let &[count, width] = header.shape.as_slice() else {
                return Err(problem(format!(
                    "`{name}` has shape {:?}; expected [captions, numbers]",
                    header.shape
                )));
            };
            if !is_float(header.dtype) || width == 0 || *dim.get_or_insert(width) != width {
                let expected = dim.unwrap_or(width);
                let (dtype, width) = (header.dtype.as_str(), width);
                return Err(problem(format!(
                    "`{name}` has vectors of {width} {dtype}; expected {expected} numbers of f32, f16, bf16 or f64"
                )));
            }
            let lines: Vec<&str> = captions.lines().collect();
            if lines.len() != count {
                let lines = lines.len();
                return Err(problem(format!(
                    "`{name}` has {count} vectors and {lines} captions, which are not a line each"
                )));
            }
            for (row, line) in lines.into_iter().enumerate() {
                rows.entry(words(line)).or_insert((names.len() as u32, row as u32));
            }
            names.push(name.to_owned());
        }
        let dim = dim.ok_or_else(|| match file.names().next() {
            Some(name) => {
                problem(format!("its metadata have no captions of `{name}`, nor of another tensor"))
            }
            None => problem("it has no vectors".to_owned()),
        })?;
        Ok(Self { path: path.to_owned(), file, dim, rows, names })
    }

    /// Elements of a vector.
    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    /// Different captions.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The vectors of captions, f32 [N, D].
    pub(super) fn vectors(&self, captions: &[String]) -> Result<Tensor, TrainError> {
        let mut values = Vec::with_capacity(captions.len() * self.dim);
        for caption in captions {
            let unknown = || {
                let path = self.path.display();
                TrainError::Setup(format!(
                    "model.text_embeddings {path} has no vector of the caption {caption:?}"
                ))
            };
            let (tensor, row) = *self.rows.get(&words(caption)).ok_or_else(unknown)?;
            let start = row as usize * self.dim;
            let row = self.file.read(&self.names[tensor as usize], start..start + self.dim)?;
            values.extend(row.to_dtype(DType::F32)?.to_vec1::<f32>()?);
        }
        Ok(Tensor::from_vec(values, (captions.len(), self.dim), &Device::Cpu)?)
    }
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F64)
}

/// A caption's words in small letters, with a space between.
fn words(caption: &str) -> String {
    caption.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, rows: usize, metadata: &[(&str, String)]) -> PathBuf {
        let values: Vec<f32> = (0..rows * 3).map(|value| value as f32).collect();
        let tensor = Tensor::from_vec(values, (rows, 3), &Device::Cpu).expect("small");
        let path = folder.join("vectors.safetensors");
        let named = [("a bird".to_owned(), tensor)];
        phalanx_tensor::io::save_safetensors(&path, &named, metadata).expect("writes");
        path
    }

    #[test]
    fn captions_are_found_by_their_words() {
        let place = tempfile::tempdir().expect("a folder");
        let path = write(place.path(), 2, &[("a bird", "A small bird .\nit is  red\n".to_owned())]);
        // A counter next to the vectors, and vectors of half precision.
        let mut named = phalanx_tensor::io::load_safetensors(&path).expect("reads");
        named[0].1 = named[0].1.to_dtype(DType::F16).expect("small");
        named.push(("steps".to_owned(), Tensor::zeros((), DType::I64, &Device::Cpu).expect("small")));
        let captions = [("a bird", "A small bird .\nit is  red\n".to_owned())];
        phalanx_tensor::io::save_safetensors(&path, &named, &captions).expect("writes");
        let read = Embeddings::open(&path).expect("sound");
        assert_eq!((read.dim(), read.len()), (3, 2));
        let captions = ["it is red".to_owned(), "a small bird .".to_owned()];
        let vectors = read.vectors(&captions).expect("known").to_vec2::<f32>().expect("f32");
        assert_eq!(vectors, [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0]]);
        let error = read.vectors(&["a cat".to_owned()]).expect_err("unknown").to_string();
        assert!(error.contains("vectors.safetensors has no vector of the caption \"a cat\""), "{error}");
    }

    #[test]
    fn files_that_say_too_little_are_named() {
        let place = tempfile::tempdir().expect("a folder");
        for (metadata, said) in [
            (vec![], "its metadata have no captions of `a bird`"),
            (vec![("a bird", "one".to_owned())], "`a bird` has 2 vectors and 1 captions"),
        ] {
            let error =
                Embeddings::open(&write(place.path(), 2, &metadata)).err().expect("refused").to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
