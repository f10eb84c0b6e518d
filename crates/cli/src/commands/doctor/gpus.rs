//! The libraries that training on GPUs loads, the GPUs, and the results of their self-tests.

use serde::Serialize;

/// A library of GPUs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct LibraryFinding {
    /// Its name, such as `cuDNN`.
    pub(super) name: &'static str,
    /// Its version and file, or the file names that were tried.
    pub(super) found: String,
}

/// The findings about GPUs.
#[derive(Debug, Default, Serialize)]
pub(super) struct GpuFindings {
    pub(super) libraries: Vec<LibraryFinding>,
    /// The reason why there is no GPU.
    pub(super) none: Option<String>,
    /// Each GPU with the result of its self-test.
    gpus: Vec<String>,
    /// The links between the GPUs, of which there are several.
    links: Vec<String>,
    /// The network by which NCCL reaches other hosts.
    network: Option<String>,
}

impl GpuFindings {
    /// Returns the findings about GPUs, each with its name.
    pub(super) fn rows(&self) -> Vec<(String, String)> {
        let row = |name: &str, value: &String| (name.to_owned(), value.clone());
        let mut rows: Vec<_> = self.none.iter().map(|none| row("GPUs", none)).collect();
        rows.extend(self.gpus.iter().enumerate().map(|(index, gpu)| row(&format!("GPU {index}"), gpu)));
        rows.extend(self.links.iter().map(|link| row("link", link)));
        rows.extend(self.network.iter().map(|network| row("to hosts", network)));
        rows
    }
}

#[cfg(not(feature = "cuda"))]
impl GpuFindings {
    /// Returns that this program knows no GPUs.
    pub(super) fn of_this_machine() -> Self {
        let none = "none (this program was built without its feature `cuda`)".to_owned();
        Self { none: Some(none), ..Self::default() }
    }
}

#[cfg(feature = "cuda")]
impl GpuFindings {
    /// Looks for libraries and GPUs, and has each GPU compute for a second.
    pub(super) fn of_this_machine() -> Self {
        use phalanx_cuda::Device;
        use phalanx_cuda::libraries::Library;

        let libraries = Library::ALL.iter().copied().map(cuda::library).collect();
        let none =
            |why: String| Self { libraries: Vec::clone(&libraries), none: Some(why), ..Self::default() };
        let count = match Device::count() {
            Ok(0) if Library::Driver.find().is_err() => {
                return none("none (no NVIDIA driver found)".to_owned());
            }
            Ok(0) => return none("none (the NVIDIA driver finds no GPU)".to_owned()),
            Ok(count) => count,
            Err(error) => return none(format!("none ({error})")),
        };
        let examined =
            |index| cuda::examine(index).unwrap_or_else(|error| format!("self-test failed: {error}"));
        Self {
            gpus: (0..count).map(examined).collect(),
            links: if count > 1 { cuda::links() } else { Vec::new() },
            network: Some(phalanx_collectives::nccl::network().to_string()),
            libraries,
            none: None,
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::time::Duration;

    use phalanx_cuda::libraries::{FoundLibrary, Library};
    use phalanx_cuda::nvml::Monitor;
    use phalanx_cuda::{Gpu, GpuError, Options, self_test};
    use phalanx_run::format;

    use super::LibraryFinding;

    /// Looks for a library.
    pub(super) fn library(library: Library) -> LibraryFinding {
        let found = match library.find() {
            Ok(FoundLibrary { file, version }) => format!("{version} ({file})"),
            Err(GpuError::MissingLibrary { tried, purpose, .. }) => {
                format!("missing; it {purpose}; tried {}", tried.join(", "))
            }
            Err(error) => error.to_string(),
        };
        LibraryFinding { name: library.name().trim_start_matches("the CUDA "), found }
    }

    /// Describes a GPU and runs its self-test.
    pub(super) fn examine(index: usize) -> Result<String, GpuError> {
        let gpu = Gpu::new(index, &Options::default())?;
        let about = gpu.device().description().clone();
        let (free, all) = gpu.device().memory()?;
        let (major, minor) = about.capability;
        let mut text = format!(
            "{}, compute capability {major}.{minor}, {} multiprocessors, {} of {} free",
            about.name,
            about.multiprocessors,
            format::bytes(free as u64),
            format::bytes(all as u64),
        );
        if let Some(power) = Monitor::new(gpu.device()).and_then(|monitor| monitor.read())?.power {
            text += &format!(", {power:.0} W");
        }
        let outcome = self_test::run(&gpu, Duration::from_secs(1))?;
        let teraflops = outcome.flops / 1e12;
        Ok(format!("{text}; self-test passed, {teraflops:.3} TFLOP/s in f32 at {0}x{0}", outcome.size))
    }

    /// Describes the links between GPUs.
    pub(super) fn links() -> Vec<String> {
        match phalanx_cuda::nvml::links() {
            Ok(links) => links.iter().map(ToString::to_string).collect(),
            Err(error) => vec![format!("unknown: {error}")],
        }
    }
}
