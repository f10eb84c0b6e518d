//! What can go wrong between here and a GPU.

/// What this crate's functions return.
pub type Result<T, E = GpuError> = std::result::Result<T, E>;

/// An error of a device, of a library that it needs, or of what either was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// A shared library is not installed, or cannot be loaded.
    #[error("{library} ({purpose}) cannot be loaded; tried {}", tried.join(", "))]
    MissingLibrary {
        /// What it is called: "cuDNN".
        library: &'static str,
        /// What it is needed for.
        purpose: &'static str,
        /// The file names that were tried, in order.
        tried: Vec<String>,
    },
    /// There is a driver, but no such GPU.
    #[error("there is no GPU {index}: the driver knows {count}")]
    NoDevice {
        /// The GPU that was asked for, from 0.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A GPU is older than what kernels are written for.
    #[error(
        "GPU {index} ({name}) has compute capability {}.{}; {}.{} (Ampere) or newer is needed",
        found.0, found.1, needed.0, needed.1
    )]
    OldDevice {
        /// The GPU, from 0.
        index: usize,
        /// What it is called.
        name: String,
        /// Its compute capability.
        found: (i32, i32),
        /// The least that there are kernels for.
        needed: (i32, i32),
    },
    /// The compiler of kernels is older than a GPU.
    #[error(
        "NVRTC {version} does not compile for the GPU's {architecture}, only for {known}; {needed} is needed"
    )]
    OldCompiler {
        /// The compiler's version.
        version: String,
        /// What the GPU needs: "sm_100".
        architecture: String,
        /// What the compiler knows: "sm_50 to sm_90".
        known: String,
        /// What is needed: "12.8 or newer".
        needed: String,
    },
    /// Something cannot be part of a graph, or a graph was captured wrongly.
    #[error("{action} cannot be captured: {problem}")]
    Capture {
        /// What was asked for.
        action: String,
        /// Why it cannot be, and what would be right.
        problem: String,
    },
    /// Work that is replayed is not the work that was recorded.
    #[error("{action} is not what was recorded: {problem}")]
    Replay {
        /// What was issued.
        action: String,
        /// What was recorded in its place.
        problem: String,
    },
    /// The driver refused or failed.
    #[error("{action}: the driver says {problem}")]
    Driver {
        /// What was being done.
        action: &'static str,
        /// The driver's name and text of the error.
        problem: String,
    },
    /// Device memory ran out.
    #[error("no {bytes} bytes of device memory for {kind}; {held}")]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
        /// What it was for.
        kind: &'static str,
        /// What is held, by kind.
        held: String,
    },
    /// A kernel's source does not compile.
    #[error("kernels `{source_name}` do not compile for {architecture}:\n{log}")]
    Compile {
        /// The source.
        source_name: &'static str,
        /// What it was compiled for.
        architecture: String,
        /// What the compiler says.
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
    /// A function was given what it cannot work with.
    #[error("{function}: {problem}")]
    Argument {
        /// The function or kernel.
        function: String,
        /// What was found, and what would be right.
        problem: String,
    },
    /// Something has no implementation on GPUs.
    #[error("{function} is not supported on GPUs for {what}")]
    Unsupported {
        /// The function.
        function: String,
        /// The element type, shape or option.
        what: String,
    },
    /// A library refused or failed.
    #[error("{library}: {function}: {problem}")]
    Library {
        /// What it is called: "cuDNN".
        library: &'static str,
        /// The function that was called.
        function: &'static str,
        /// Its answer.
        problem: String,
    },
}

impl GpuError {
    /// An error of what `function` was given.
    pub fn argument(function: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Argument { function: function.into(), problem: problem.into() }
    }

    /// An error of what `function` cannot do.
    pub fn unsupported(function: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Unsupported { function: function.into(), what: what.into() }
    }
}
