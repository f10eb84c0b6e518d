//! Datasets, transforms, tokenisers, per-rank sampling and prefetching loaders.
#![forbid(unsafe_code)]

pub mod dataset;
pub mod error;
pub mod rng;
pub mod sampler;
pub mod shapes;
pub mod transform;

pub use dataset::{Dataset, Sample, Split};
pub use error::{DataError, Result};
pub use sampler::{DistributedSampler, SamplerConfig, Share, Tail};
pub use shapes::{Objects, ShapeSpec, ShapesConfig, ShapesDataset, heldout_prompts, render};
pub use transform::{Filter, Normalise, RandomCrop, Resize, ResizeMode, Transform, TransformConfig};
