//! Compilation of CUDA C to device code, once for each architecture.

mod cache;
mod nvrtc;

use std::path::PathBuf;

pub use cache::default_folder;

use crate::libraries::Library;
use crate::{GpuError, Result};

/// CUDA C that is compiled as a unit: a family of kernels.
///
/// Kernels are `extern "C" __global__ void NAME_TYPE(…)` with plain pointers and scalars as parameters.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// The name in messages.
    pub name: &'static str,
    /// The text, in parts that are concatenated: a prelude shared by families, and the family's own text.
    pub parts: &'static [&'static str],
}

impl Source {
    /// Returns the whole text.
    pub fn text(&self) -> String {
        self.parts.concat()
    }
}

/// The options of NVRTC besides the architecture.
pub const OPTIONS: &[&str] = nvrtc::OPTIONS;

/// A compiler for one architecture, with a cache on disk.
#[derive(Debug)]
pub struct Compiler {
    architecture: String,
    version: String,
    folder: Option<PathBuf>,
}

impl Compiler {
    /// Returns a compiler for devices of a compute capability, such as (9, 0). `folder` caches compiled code.
    ///
    /// # Errors
    /// [`GpuError::MissingLibrary`] if NVRTC is not installed; [`GpuError::OldCompiler`] if it is too old for the device.
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

    /// Returns the target architecture: "sm_90".
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Returns the device code of a source, from the cache if possible.
    ///
    /// # Errors
    /// [`GpuError::Compile`] with the compiler's log. A cache that cannot be written is not an error.
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

/// Returns the first version of NVRTC for a compute capability, from its release notes.
fn needed(capability: (i32, i32)) -> String {
    let version = match capability {
        (8, 0) => "11.0",
        (8, 6) => "11.1",
        (8, 7) => "11.4",
        (8, 9) | (9, 0) => "11.8",
        (10, 0 | 1) | (12, 0) => "12.8",
        (10, 3) | (12, 1) => "12.9",
        (8, 8) | (11, 0) => "13.0",
        _ => return "a newer version".to_owned(),
    };
    format!("{version} or newer")
}

/// Returns the error of a source that does not compile.
fn refused(source_name: &'static str, architecture: &str, log: String) -> GpuError {
    GpuError::Compile { source_name, architecture: architecture.to_owned(), log }
}
