//! Kernels: from CUDA C to code of the device, once for each architecture.

mod cache;
mod nvrtc;

use std::path::PathBuf;

pub use cache::default_folder;

use crate::libraries::Library;
use crate::{GpuError, Result};

/// CUDA C that is compiled as one: a family of kernels.
///
/// Kernels are `extern "C" __global__ void NAME_TYPE(…)` with plain pointers and numbers as arguments.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// What messages call it.
    pub name: &'static str,
    /// The text, in parts that are compiled one after the other: a prelude that families share, and the family's own.
    pub parts: &'static [&'static str],
}

impl Source {
    /// The whole text.
    pub fn text(&self) -> String {
        self.parts.concat()
    }
}

/// What NVRTC is told besides the architecture.
pub const OPTIONS: &[&str] = nvrtc::OPTIONS;

/// Compiles sources for one architecture, and keeps what it made on disk.
#[derive(Debug)]
pub struct Compiler {
    architecture: String,
    version: String,
    folder: Option<PathBuf>,
}

impl Compiler {
    /// A compiler for devices of a compute capability: (9, 0). What it makes is kept in `folder`, if one is given.
    ///
    /// # Errors
    /// [`GpuError::MissingLibrary`] if there is no NVRTC; [`GpuError::OldCompiler`] if it is older than the device needs.
    pub fn new(capability: (i32, i32), folder: Option<PathBuf>) -> Result<Self> {
        let version = Library::Nvrtc.find()?.version;
        let architecture = format!("sm_{}{}", capability.0, capability.1);
        let known = nvrtc::architectures()?;
        if known.contains(&(capability.0 * 10 + capability.1)) {
            return Ok(Self { architecture, version, folder });
        }
        let known = match (known.iter().min(), known.iter().max()) {
            (Some(oldest), Some(newest)) => format!("sm_{oldest} to sm_{newest}"),
            _ => "nothing".to_owned(),
        };
        Err(GpuError::OldCompiler { version, architecture, known, needed: needed(capability) })
    }

    /// What it compiles for: "sm_90".
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// The device's code for a source, from disk if it was compiled before.
    ///
    /// # Errors
    /// [`GpuError::Compile`] with what the compiler says. That nothing can be kept on disk is no error.
    pub fn compile(&self, source: &Source) -> Result<Vec<u8>> {
        let text = source.text();
        let entry = self.folder.as_ref().map(|folder| {
            cache::Entry::new(
                folder,
                source.name,
                &[&text, &self.architecture, &self.version, &OPTIONS.join(" ")],
            )
        });
        if let Some(code) = entry.as_ref().and_then(cache::Entry::read) {
            return Ok(code);
        }
        let code = nvrtc::compile(source.name, &text, &self.architecture)?;
        if let Some(entry) = entry {
            entry.write(&code);
        }
        Ok(code)
    }
}

/// The first version of NVRTC that compiles for a compute capability, as its release notes say.
fn needed(capability: (i32, i32)) -> String {
    let version = match capability {
        (8, 0) => "11.0",
        (8, 6) => "11.1",
        (8, 7) => "11.4",
        (8, 9) | (9, 0) => "11.8",
        (10, 0 | 1) | (12, 0) => "12.8",
        (10, 3) | (12, 1) => "12.9",
        (8, 8) | (11, 0) => "13.0",
        _ => return "a newer one that does".to_owned(),
    };
    format!("{version} or newer")
}

/// The error for a source that does not compile.
fn refused(source_name: &'static str, architecture: &str, log: String) -> GpuError {
    GpuError::Compile { source_name, architecture: architecture.to_owned(), log }
}
