//! Files of weights: reads and writes safetensors, whole or by ranges of elements, and reads files of PyTorch's
//! `torch.save` and folders of Hugging Face's libraries.

mod atomic;
mod folder;
mod listing;
mod name_part;
mod ranges;
mod regular;
mod torch;
mod weight_file;
mod weight_part;
mod weights;
mod wrappers;
mod write;

pub use atomic::{atomic_write, sync_folder};
pub use name_part::NamePart;
pub use ranges::TensorFile;
pub use weight_file::{StateDict, WeightFile};
pub use weights::{load_into, load_network, load_safetensors, save_safetensors};
pub use wrappers::without_wrappers;
pub use write::{TensorHeader, sort_for_safetensors, write_elements, write_header};
