//! Errors of GPUs and their libraries.

/// The result of this crate's functions.
pub type Result<T, E = GpuError> = std::result::Result<T, E>;

/// An error of a device, of one of its libraries, or of a caller's arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// A shared library is not installed, or cannot be loaded.
    #[error("{library} ({purpose}) cannot be loaded; tried {}", tried.join(", "))]
    MissingLibrary {
        /// Its name: "cuDNN".
        library: &'static str,
        /// Its purpose.
        purpose: &'static str,
        /// The file names that were tried, in order.
        tried: Vec<String>,
    },
    /// The driver knows no such GPU.
    #[error("GPU {index} does not exist; the driver reports {count}")]
    NoDevice {
        /// The requested GPU, from 0.
        index: usize,
        /// The number of GPUs.
        count: usize,
    },
    /// A GPU is older than the kernels support.
    #[error(
        "GPU {index} ({name}) has compute capability {}.{}; {}.{} (Ampere) or newer is needed",
        found.0, found.1, needed.0, needed.1
    )]
    OldDevice {
        /// The GPU, from 0.
        index: usize,
        /// Its name.
        name: String,
        /// Its compute capability.
        found: (i32, i32),
        /// The lowest supported compute capability.
        needed: (i32, i32),
    },
    /// NVRTC is too old for a GPU.
    #[error(
        "NVRTC {version} does not compile for the GPU's {architecture}, only for {known}; {needed} is needed"
    )]
    OldCompiler {
        /// The compiler's version.
        version: String,
        /// The GPU's architecture: "sm_100".
        architecture: String,
        /// The architectures that the compiler supports: "sm_50 to sm_90".
        known: String,
        /// The required version: "12.8 or newer".
        needed: String,
    },
    /// An operation cannot be part of a graph, or a capture was used wrongly.
    #[error("{action} cannot be captured: {problem}")]
    Capture {
        /// The operation.
        action: String,
        /// The reason, and the remedy.
        problem: String,
    },
    /// Replayed work differs from the recorded work.
    #[error("{action} is not what was recorded: {problem}")]
    Replay {
        /// The work that was issued.
        action: String,
        /// The work that was recorded in its place.
        problem: String,
    },
    /// A call of the driver failed.
    #[error("{action}: the driver says {problem}")]
    Driver {
        /// The action that failed.
        action: &'static str,
        /// The driver's name and text of the error.
        problem: String,
    },
    /// Device memory ran out.
    #[error("no {bytes} bytes of device memory for {kind}; {usage}")]
    OutOfMemory {
        /// The requested bytes.
        bytes: usize,
        /// The purpose of the memory.
        kind: &'static str,
        /// The bytes in use, by kind.
        usage: String,
    },
    /// A kernel source does not compile.
    #[error("kernels `{source_name}` do not compile for {architecture}:\n{log}")]
    Compile {
        /// The source.
        source_name: &'static str,
        /// The target architecture.
        architecture: String,
        /// The compiler's log.
        log: String,
    },
    /// A source has no such kernel.
    #[error("kernels `{source_name}` have no `{kernel}`")]
    NoKernel {
        /// The source.
        source_name: &'static str,
        /// The kernel.
        kernel: String,
    },
    /// A function was called with invalid arguments.
    #[error("{function}: {problem}")]
    Argument {
        /// The function or kernel.
        function: String,
        /// The value that was found, and the expected one.
        problem: String,
    },
    /// An operation has no implementation on GPUs.
    #[error("{function} is not supported on GPUs for {what}")]
    Unsupported {
        /// The function.
        function: String,
        /// The element type, shape or option.
        what: String,
    },
    /// A call of a library failed.
    #[error("{library}: {function}: {problem}")]
    Library {
        /// Its name: "cuDNN".
        library: &'static str,
        /// The function that was called.
        function: &'static str,
        /// The error that it returned.
        problem: String,
    },
}

impl GpuError {
    /// Returns an error about an argument of `function`.
    pub fn argument(function: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Argument { function: function.into(), problem: problem.into() }
    }

    /// Returns an error about an unsupported use of `function`.
    pub fn unsupported(function: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Unsupported { function: function.into(), what: what.into() }
    }
}
