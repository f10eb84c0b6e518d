//! Locations of optimizer state: on the device of the parameters, in the host's memory, or on a disk.

use super::disk::Disk;
use crate::backend::ComputeDevice;
use crate::store::ParamBucket;

/// The location of optimizer state, and so the device that computes a step.
#[derive(Debug, Clone, Default)]
pub enum StateLocation {
    /// The device that keeps the parameters.
    #[default]
    Parameters,
    /// The host, whose CPU computes the step; a device then holds no state. Gradients and weights of a device are
    /// downloaded, those of the next bucket during the step of this one, and changed weights are uploaded (Ren et al.
    /// 2021). The host waits for the gradients. For parameters on the host this changes nothing.
    Host,
    /// Files. The host's memory has the state of one bucket during its step on the CPU, and of the next one, which is
    /// read ahead. The previous one is written in the background. For parameters on a device it is otherwise as
    /// [`StateLocation::Host`].
    Disk(Disk),
}

impl StateLocation {
    /// Returns the device of a bucket's state.
    pub(super) fn device(&self, param: &ParamBucket) -> ComputeDevice {
        match self {
            Self::Parameters => param.storage_device().clone(),
            Self::Host | Self::Disk(_) => ComputeDevice::host(),
        }
    }
}
