//! The lines of `logs/rank-N.usage.jsonl`: the resources that a rank used, about once a second.

use serde::{Deserialize, Serialize};

use super::energy::EnergyKind;

/// A line of a usage file, `logs/rank-N.usage.jsonl`. Values that the system does not report are
/// left out. Counts and sums of seconds
/// and joules begin at 0 with the process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageLine {
    /// Seconds since 1970.
    pub time: f64,
    /// Seconds of training of the run.
    pub seconds: f64,
    /// Steps done.
    pub step: u64,
    /// The rank, by its number when the run began.
    pub rank: usize,
    /// The name of its host.
    pub host: String,
    /// CPU time of the process since the last line, in percent of one core. The first rank of a process accounts for
    /// the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// Memory that the process holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    /// Bytes of training state.
    #[serde(flatten)]
    pub memory: MemoryLine,
    /// Transfers of the process.
    #[serde(flatten)]
    pub transfers: TransferLine,
    /// Seconds of training, by activity.
    #[serde(flatten)]
    pub times: TimeLine,
    /// Use of the rank's GPU.
    #[serde(flatten)]
    pub gpu: GpuLine,
    /// Watts of CPUs since the last line: those of the whole host, if they are measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_watts: Option<f64>,
    /// Joules of CPUs: those of the whole host, if they are measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_joules: Option<f64>,
    /// The source of the energy of CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergyKind>,
}

/// Bytes of training state, in a [`UsageLine`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryLine {
    /// Bytes of parameters.
    pub parameter_bytes: u64,
    /// Bytes of gradients.
    pub gradient_bytes: u64,
    /// Bytes of optimizer state, averages, and state of codecs and strategies.
    pub optimizer_bytes: u64,
    /// The most bytes of whole parameters for blocks that ran.
    pub gathered_bytes: u64,
    /// The most bytes that forward has left for backward since the last line; on a GPU those that it holds now.
    pub activation_bytes: u64,
}

/// Transfers of a process by network and disk, in a [`UsageLine`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferLine {
    /// Bytes sent to other ranks.
    pub network_sent_bytes: u64,
    /// Bytes received from other ranks.
    pub network_received_bytes: u64,
    /// Bytes read from disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_read_bytes: Option<u64>,
    /// Bytes written to disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_written_bytes: Option<u64>,
    /// Page faults without a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor_faults: Option<u64>,
    /// Page faults that waited for a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_faults: Option<u64>,
}

/// Seconds of training by activity, in a [`UsageLine`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeLine {
    /// Seconds in which the rank waited for data.
    pub data_seconds: f64,
    /// Seconds in which it waited for communication.
    pub communication_exposed_seconds: f64,
    /// Seconds of communication while it computed.
    pub communication_hidden_seconds: f64,
    /// Seconds of training steps.
    pub step_seconds: f64,
}

/// Use of a rank's GPU, in a [`UsageLine`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuLine {
    /// The share of time in which kernels ran, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_percent: Option<f64>,
    /// Bytes of its memory that are taken, by all programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
    /// Watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_watts: Option<f64>,
    /// Joules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_joules: Option<f64>,
}

impl UsageLine {
    /// Memory by kind, with a short name of each, as far as it is known; the rest of the resident memory is `other`.
    pub fn memory_by_kind(&self) -> Vec<(&'static str, u64)> {
        let mut known = vec![
            ("param", self.memory.parameter_bytes),
            ("grad", self.memory.gradient_bytes),
            ("optim", self.memory.optimizer_bytes),
            ("gather", self.memory.gathered_bytes),
            ("activ", self.memory.activation_bytes),
        ];
        known.retain(|kind| kind.1 > 0);
        // State in a GPU's memory is no part of the memory of the process.
        let accounted: u64 = known.iter().map(|(_, bytes)| bytes).sum();
        let other = self.resident_bytes.map(|resident| resident.saturating_sub(accounted));
        known.extend(other.filter(|bytes| *bytes > 0).map(|bytes| ("other", bytes)));
        known
    }

    /// Returns the watts of the rank's share of the CPUs and of its GPU, as far as they are known.
    pub fn watts(&self) -> Option<f64> {
        match (self.cpu_watts, self.gpu.gpu_watts) {
            (None, None) => None,
            (cpu, gpu) => Some(cpu.unwrap_or_default() + gpu.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_flat_object_in_the_order_of_its_fields() {
        let line = UsageLine {
            host: "here".to_owned(),
            gpu: GpuLine { gpu_watts: Some(4.5), ..GpuLine::default() },
            cpu_joules: Some(0.1),
            ..UsageLine::default()
        };
        let text = "{\"time\":0.0,\"seconds\":0.0,\"step\":0,\"rank\":0,\"host\":\"here\",\"parameter_bytes\":0,\
            \"gradient_bytes\":0,\"optimizer_bytes\":0,\"gathered_bytes\":0,\"activation_bytes\":0,\"network_sent_bytes\":0,\
            \"network_received_bytes\":0,\"data_seconds\":0.0,\"communication_exposed_seconds\":0.0,\
            \"communication_hidden_seconds\":0.0,\"step_seconds\":0.0,\"gpu_watts\":4.5,\"cpu_joules\":0.1}";
        assert_eq!(serde_json::to_string(&line).expect("writes"), text);
        assert_eq!(serde_json::from_str::<UsageLine>(text).expect("reads"), line);
    }

    #[test]
    fn memory_of_no_kind_is_other() {
        let line = |text: &str| serde_json::from_str::<UsageLine>(text).expect("a line");
        let usage =
            line(r#"{"resident_bytes":100,"parameter_bytes":30,"gradient_bytes":0,"optimizer_bytes":20}"#);
        assert_eq!(usage.memory_by_kind(), [("param", 30), ("optim", 20), ("other", 50)]);
        assert_eq!(line(r#"{"resident_bytes":10,"parameter_bytes":30}"#).memory_by_kind(), [("param", 30)]);
        assert_eq!(line(r#"{"cpu_watts":3.0,"gpu_watts":null}"#).watts(), Some(3.0));
        assert_eq!(line("{}").watts(), None);
    }
}
