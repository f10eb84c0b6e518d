//! Files of weights: reads and writes safetensors, whole or by ranges of elements, and reads PyTorch's `.pth`.

mod atomic;
mod pickle;
mod ranges;
mod weights;
mod write;

pub use atomic::{atomic_write, sync_folder};
pub use ranges::TensorFile;
pub use weights::{load_into, load_safetensors, load_weights, save_safetensors};
pub use write::{TensorHeader, sort_for_safetensors, write_elements, write_header};
