//! Shared libraries: which there are, under which file names they were looked for, and of which versions.

mod probe;

use crate::{GpuError, Result};

/// A shared library that training on GPUs uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Library {
    /// The driver.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Convolutions.
    Cudnn,
    /// Collectives.
    Nccl,
    /// Utilisation, power, energy.
    Nvml,
}

/// What was found of a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The file name under which it was found.
    pub file: String,
    /// Its version as its makers write it: "12.8".
    pub version: String,
}

impl Library {
    /// Every library, in the order in which a program needs them.
    pub const ALL: [Self; 6] =
        [Self::Driver, Self::Nvrtc, Self::CublasLt, Self::Cudnn, Self::Nccl, Self::Nvml];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "the CUDA driver",
            Self::Nvrtc => "NVRTC",
            Self::CublasLt => "cuBLASLt",
            Self::Cudnn => "cuDNN",
            Self::Nccl => "NCCL",
            Self::Nvml => "NVML",
        }
    }

    /// What it is needed for.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::Driver => "runs any work on a GPU; comes with NVIDIA's kernel module",
            Self::Nvrtc => "compiles kernels; package `cuda-nvrtc`, or `nvidia-cuda-nvrtc` of Python",
            Self::CublasLt => "multiplies matrices; package `libcublas`, or `nvidia-cublas` of Python",
            Self::Cudnn => "convolves; package `cudnn`, or `nvidia-cudnn-cu13` of Python",
            Self::Nccl => "reduces between GPUs; package `libnccl2`, or `nvidia-nccl-cu13` of Python",
            Self::Nvml => "tells utilisation, memory and power; comes with the driver",
        }
    }

    /// The file names under which it is looked for, in order; the first that can be loaded is used.
    pub fn file_names(self) -> Vec<String> {
        let stem = match self {
            Self::Driver => "cuda",
            Self::Nvrtc => "nvrtc",
            Self::CublasLt => "cublasLt",
            Self::Cudnn => "cudnn",
            Self::Nccl => "nccl",
            Self::Nvml => "nvidia-ml",
        };
        if self == Self::Nccl {
            // `phalanx-collectives` looks for it under these.
            return ["libnccl.so.2", "libnccl.so"].map(str::to_owned).into();
        }
        let mut names = cudarc::get_lib_name_candidates(stem);
        if self == Self::Driver {
            names.extend(cudarc::get_lib_name_candidates("nvcuda"));
        }
        names
    }

    /// What there is of it.
    ///
    /// # Errors
    /// [`GpuError::MissingLibrary`] with the names that were tried; [`GpuError::Library`] if it does not tell its version.
    pub fn find(self) -> Result<Found> {
        let names = self.file_names();
        let Some(file) = names.iter().find(|name| probe::loads(name)) else {
            return Err(GpuError::MissingLibrary {
                library: self.name(),
                purpose: self.purpose(),
                tried: names,
            });
        };
        Ok(Found { file: file.clone(), version: probe::version(self, file)? })
    }

    /// Makes sure that it can be called: cudarc panics where it cannot be loaded.
    ///
    /// # Errors
    /// [`GpuError::MissingLibrary`].
    pub(crate) fn require(self) -> Result<()> {
        let names = self.file_names();
        if names.iter().any(|name| probe::loads(name)) {
            return Ok(());
        }
        Err(GpuError::MissingLibrary { library: self.name(), purpose: self.purpose(), tried: names })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_names_that_were_tried() {
        for library in Library::ALL {
            match library.find() {
                Ok(found) => assert!(found.version.contains('.'), "{library:?}: {found:?}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(library.name()) && text.contains(".so"), "{text}");
                }
            }
        }
    }
}
