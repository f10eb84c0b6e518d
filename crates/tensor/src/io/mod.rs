//! Files of weights: safetensors in and out, PyTorch's `.pth` in.

mod atomic;
mod weights;

pub use atomic::{atomic_write, sync_folder};
pub use weights::{load_into, load_safetensors, load_weights, save_safetensors};
