//! Datasets, transforms, tokenisers, per-rank sampling and prefetching loaders.
#![forbid(unsafe_code)]

pub mod batch;
pub mod captions;
pub mod cifar10;
pub mod dataset;
mod encoded;
pub mod error;
pub mod image_folder;
pub mod loader;
pub mod rng;
pub mod sampler;
pub mod shapes;
pub mod tokenizer;
pub mod transform;

pub use batch::Batch;
pub use cifar10::{open_cifar10, open_cifar10_seeded};
pub use dataset::{Dataset, Sample, Split};
pub use error::{DataError, Result};
pub use image_folder::ImageFolder;
pub use loader::{Loader, LoaderConfig};
pub use sampler::{DistributedSampler, SamplerConfig, Share, Tail};
pub use shapes::{Objects, ShapeSpec, ShapesConfig, ShapesDataset, heldout_prompts, render};
pub use tokenizer::ClipTokenizer;
pub use transform::{Filter, Normalise, RandomCrop, Resize, ResizeMode, Transform, TransformConfig};
