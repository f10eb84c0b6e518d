//! Weights that a training begins with, or that are used: of files and folders of other programs, and of runs.
//!
//! | file | holds |
//! |---|---|
//! | `names` | the names of parameters in files of other programs, and the head of a model |
//! | `source` | the tensors of a file, a folder or a run |
//! | `plan` | which of them are loaded, which tensors of the model are made new, and which are not used |
//! | `positions` | positions of patches for images of another size |
//! | `peft` | the format of folders of adapters |
//! | `adapters` | adapters that a training begins with: `lora.from` |
//! | `load` | weights of a file, a folder or a run, for training or for use |
//! | `configured` | the check of `model.weights` and `lora.from` |
//! | `exported` | weights for use: of a checkpoint, of an exported file |
//! | `of_run` | a frozen network out of another run |
//! | `adapter_folder`, `model_adapters` | adapters of a folder, and those of a model for exports |
//!
//! Nothing is changed before every name and shape was compared. Each rank reads the elements that it keeps, with one tensor more in
//! memory at a time, so a sharded model is never whole on a rank.
//!
//! # Example
//!
//! ```
//! use phalanx_tensor::io::save_safetensors;
//! use phalanx_tensor::{BuildOptions, StoreBuilder, nn};
//! use phalanx_weights::{HeadRule, WeightNames, load};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let file = folder.path().join("model.safetensors");
//! # let tensor = |value: f32, dims: &[usize]| candle_core::Tensor::full(value, dims, &candle_core::Device::Cpu);
//! let tensors = [("fc.weight".to_owned(), tensor(0.5, &[2, 3])?), ("fc.bias".to_owned(), tensor(1.0, &[2])?)];
//! save_safetensors(&file, &tensors, &[])?;
//!
//! let builder = StoreBuilder::new(BuildOptions::default());
//! let linear = nn::Linear::new(&builder.root().pp("fc"), 3, 2)?;
//! let store = builder.build()?;
//! let record = load(&file, &[&store], &WeightNames::default(), HeadRule::Load)?;
//! assert_eq!(record.loaded, ["fc.bias", "fc.weight"]);
//! # let _ = linear;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod error;
mod head_rule;
mod names;
mod positions;
mod source;

mod peft;
mod plan;

mod load;

mod adapters;
mod configured;

mod adapter_folder;
mod exported;
mod model_adapters;
mod of_run;

pub use adapter_folder::{AdapterFolder, FOLDER_CONFIG};
pub use adapters::load_adapters;
pub use configured::check_configured;
pub use error::WeightError;
pub use exported::{load_checkpoint, load_exported};
pub use head_rule::HeadRule;
pub use load::load;
pub use model_adapters::ModelAdapters;
pub use names::{NameDeclarations, ShapeAdvice, Translate, WeightNames};
pub use of_run::load_of_run;

/// Tests of the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
