//! The shared libraries: file names, presence and versions.

mod probe;

use crate::{GpuError, Result};

/// A shared library of GPU training.
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

/// A found library, with its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLibrary {
    /// The loaded file name.
    pub file: String,
    /// The version in its vendor's notation: "12.8".
    pub version: String,
}

impl Library {
    /// All libraries, in the order in which a program needs them.
    pub const ALL: [Self; 6] =
        [Self::Driver, Self::Nvrtc, Self::CublasLt, Self::Cudnn, Self::Nccl, Self::Nvml];

    /// Returns the name.
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

    /// Returns the purpose.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::Driver => "runs any work on a GPU; comes with NVIDIA's kernel module",
            Self::Nvrtc => "compiles kernels; package `cuda-nvrtc`, or `nvidia-cuda-nvrtc` of Python",
            Self::CublasLt => "multiplies matrices; package `libcublas`, or `nvidia-cublas` of Python",
            Self::Cudnn => "convolves; package `cudnn`, or `nvidia-cudnn-cu13` of Python",
            Self::Nccl => "communicates between GPUs; package `libnccl2`, or `nvidia-nccl-cu13` of Python",
            Self::Nvml => "reports utilisation, memory and power; comes with the driver",
        }
    }

    /// Returns the file names that are tried, in order. The first that loads is used.
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
            // The names that `phalanx-collectives` tries.
            return ["libnccl.so.2", "libnccl.so"].map(str::to_owned).into();
        }
        let mut names = cudarc::get_lib_name_candidates(stem);
        if self == Self::Driver {
            names.extend(cudarc::get_lib_name_candidates("nvcuda"));
        }
        names
    }

    /// Looks for the library.
    ///
    /// # Errors
    /// [`GpuError::MissingLibrary`] with the names that were tried; [`GpuError::Library`] if it does not report its version.
    pub fn find(self) -> Result<FoundLibrary> {
        let names = self.file_names();
        let Some(file) = names.iter().find(|name| probe::loads(name)) else {
            return Err(GpuError::MissingLibrary {
                library: self.name(),
                purpose: self.purpose(),
                tried: names,
            });
        };
        Ok(FoundLibrary { file: file.clone(), version: probe::version(self, file)? })
    }

    /// Checks that the library can be loaded: cudarc panics otherwise.
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
    fn missing_libraries_are_named_with_the_tried_names() {
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
