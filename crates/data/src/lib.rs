//! Datasets, transforms, tokenisers, per-rank sampling and prefetching loaders.
#![forbid(unsafe_code)]

pub mod batch;
pub mod dataset;
pub mod error;
pub mod loader;
pub mod rng;
pub mod sampler;
pub mod shapes;
pub mod transform;

pub use batch::Batch;
pub use dataset::{Dataset, Sample, Split};
pub use error::{DataError, Result};
pub use loader::{Loader, LoaderConfig};
pub use sampler::{DistributedSampler, SamplerConfig, Share, Tail};
pub use shapes::{Objects, ShapeSpec, ShapesConfig, ShapesDataset, heldout_prompts, render};
pub use transform::{Filter, Normalise, RandomCrop, Resize, ResizeMode, Transform, TransformConfig};
