//! The integration tests of this crate, in one program so that its dependencies are linked once.

mod files;

mod archives;
mod augment;
mod cifar10;
mod coco;
mod cub;
mod damage;
mod decode;
mod folders;
mod imagenet;
mod loader;
#[cfg(target_os = "linux")]
mod memory;

mod tokenizer;
