//! Folders of published weights in Hugging Face's layout: Stable Diffusion as the diffusers library saves it.
//!
//! | file | holds |
//! |---|---|
//! | `model_index.json` | which class each part is of |
//! | `unet/config.json`, `unet/diffusion_pytorch_model.safetensors` | the U-Net |
//! | `vae/config.json`, `vae/diffusion_pytorch_model.safetensors` | the autoencoder |
//! | `text_encoder/config.json`, `text_encoder/model.safetensors` | CLIP's text encoder |
//! | `tokenizer/merges.txt`, `tokenizer/vocab.json` | the tokenizer |
//! | `scheduler/scheduler_config.json` | the noise schedule |
//!
//! Weights may be of 16 or 32 bits, in one file (also one called `….fp16.safetensors`) or in several with an index.
//! What such a folder asks for and this program does not compute is an error that names the file and the key.

mod config;
mod json;
mod pipeline;
mod weights;

pub use pipeline::{DiffusersPipeline, Request};

use std::path::{Path, PathBuf};

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiffusersError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is missing.
    #[error("{} lacks {wanted}", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// The missing file.
        wanted: String,
    },
    /// A file does not hold what it should, or asks for what is not computed here.
    #[error("{}: {problem}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// Computing failed, or weights do not fit.
    #[error(transparent)]
    Tensor(#[from] phalanx_tensor::TensorError),
    /// candle failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// The tokenizer cannot be read.
    #[error(transparent)]
    Data(#[from] phalanx_data::DataError),
}

impl DiffusersError {
    fn unfit(path: &Path, problem: impl Into<String>) -> Self {
        Self::Unfit { path: path.to_owned(), problem: problem.into() }
    }
}
