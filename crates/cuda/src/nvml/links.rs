//! Connections between the GPUs of this machine: NVLink, PCIe and peer access.

use std::collections::HashSet;
use std::fmt;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;

use super::{failed, if_supported, open};
use crate::device::Device;
use crate::{Result, driver};

/// The nearest common ancestor of two GPUs on the PCIe bus, from near to far, as in `nvidia-smi topo -m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// One board.
    Board,
    /// One switch: "PIX".
    Switch,
    /// Several switches: "PXB".
    Switches,
    /// A host bridge of the CPU: "PHB".
    HostBridge,
    /// Host bridges of one NUMA node: "NODE".
    Node,
    /// The link between NUMA nodes: "SYS".
    System,
}

impl Path {
    fn of(level: TopologyLevel) -> Self {
        match level {
            TopologyLevel::Internal => Self::Board,
            TopologyLevel::Single => Self::Switch,
            TopologyLevel::Multiple => Self::Switches,
            TopologyLevel::HostBridge => Self::HostBridge,
            TopologyLevel::Node => Self::Node,
            TopologyLevel::System => Self::System,
        }
    }

    /// Returns a description with the name of `nvidia-smi`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Board => "one board",
            Self::Switch => "one PCIe switch (PIX)",
            Self::Switches => "several PCIe switches (PXB)",
            Self::HostBridge => "a PCIe host bridge (PHB)",
            Self::Node => "PCIe host bridges of one NUMA node (NODE)",
            Self::System => "the link between NUMA nodes (SYS)",
        }
    }
}

/// The connection between two GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The driver's indices, in ascending order.
    pub gpus: (usize, usize),
    /// Active NVLinks between the two.
    pub nvlinks: usize,
    /// Active NVLinks to NVSwitches, which connect all their GPUs: the minimum of the two GPUs.
    pub switched: usize,
    /// The path on the PCIe bus, if NVML reports it.
    pub path: Option<Path>,
    /// True if both access each other's memory without the host.
    pub peer_access: bool,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (one, other) = self.gpus;
        write!(f, "GPU {one} and GPU {other}: ")?;
        let of = |count: usize| if count == 1 { "NVLink" } else { "NVLinks" };
        match (self.nvlinks, self.switched) {
            (0, 0) => write!(f, "{}", self.path.map_or("PCIe", Path::name))?,
            (0, switched) => write!(f, "{switched} {} by NVSwitch", of(switched))?,
            (direct, _) => write!(f, "{direct} {}", of(direct))?,
        }
        let access = if self.peer_access { "read" } else { "do not read" };
        write!(f, "; they {access} each other's memory")
    }
}

/// Returns the PCI addresses of the remote ends of a GPU's active NVLinks.
fn ends(device: &nvml_wrapper::Device<'_>) -> Result<Vec<String>> {
    const MOST: u32 = 18;
    let mut ends = Vec::new();
    for link in (0..MOST).map(|link| device.link_wrapper_for(link)) {
        // GPUs without NVLink, and link numbers that a GPU does not have, are errors here.
        if !matches!(link.is_active(), Ok(true)) {
            continue;
        }
        if let Some(end) = if_supported("nvmlDeviceGetNvLinkRemotePciInfo_v2", link.remote_pci_info())? {
            ends.push(end.bus_id);
        }
    }
    Ok(ends)
}

fn bus_id(device: &nvml_wrapper::Device<'_>) -> Result<String> {
    Ok(device.pci_info().map_err(failed("nvmlDeviceGetPciInfo_v3"))?.bus_id)
}

/// Returns the PCI addresses of all GPUs, including those hidden from this program.
fn places(nvml: &Nvml) -> Result<HashSet<String>> {
    let count = nvml.device_count().map_err(failed("nvmlDeviceGetCount_v2"))?;
    let place = |index| {
        let device = nvml.device_by_index(index).map_err(failed("nvmlDeviceGetHandleByIndex_v2"))?;
        bus_id(&device)
    };
    (0..count).map(place).collect()
}

/// Returns the connections between all pairs of visible GPUs. Empty with fewer than two.
///
/// # Errors
/// [`MissingLibrary`](crate::GpuError::MissingLibrary) without NVML, [`Library`](crate::GpuError::Library) if it fails, or the
/// driver's error.
pub fn links() -> Result<Vec<Link>> {
    let count = Device::count()?;
    if count < 2 {
        return Ok(Vec::new());
    }
    let nvml = open()?;
    let all_places = places(&nvml)?;
    let mut gpus = Vec::with_capacity(count);
    for index in 0..count {
        let uuid = driver::device_uuid(index)?;
        let device = nvml.device_by_uuid(uuid.as_str()).map_err(failed("nvmlDeviceGetHandleByUUID"))?;
        let (place, ends) = (bus_id(&device)?, ends(&device)?);
        gpus.push((device, place, ends));
    }
    let to_switches = |ends: &[String]| ends.iter().filter(|end| !all_places.contains(end.as_str())).count();
    let mut links = Vec::new();
    for one in 0..count {
        for other in one + 1..count {
            let ((device, _, ends), (_, place, theirs)) = (&gpus[one], &gpus[other]);
            #[cfg(target_os = "linux")]
            let level = {
                let peer = nvml.device_by_uuid(driver::device_uuid(other)?.as_str());
                let peer = peer.map_err(failed("nvmlDeviceGetHandleByUUID"))?;
                if_supported("nvmlDeviceGetTopologyCommonAncestor", device.topology_common_ancestor(peer))?
            };
            #[cfg(not(target_os = "linux"))]
            let level = None;
            links.push(Link {
                gpus: (one, other),
                nvlinks: ends.iter().filter(|end| *end == place).count(),
                switched: to_switches(ends).min(to_switches(theirs)),
                path: level.map(Path::of),
                peer_access: driver::can_access(one, other)? && driver::can_access(other, one)?,
            });
        }
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_described_in_a_line() {
        let link =
            Link { gpus: (0, 1), nvlinks: 0, switched: 0, path: Some(Path::System), peer_access: false };
        let text = "GPU 0 and GPU 1: the link between NUMA nodes (SYS); they do not read each other's memory";
        assert_eq!(link.to_string(), text);
        let near = Link { nvlinks: 1, peer_access: true, ..link.clone() };
        assert_eq!(near.to_string(), "GPU 0 and GPU 1: 1 NVLink; they read each other's memory");
        let switched = Link { switched: 12, path: None, peer_access: true, ..link };
        assert_eq!(
            switched.to_string(),
            "GPU 0 and GPU 1: 12 NVLinks by NVSwitch; they read each other's memory"
        );
        assert!(Path::Switch < Path::HostBridge);
    }
}
