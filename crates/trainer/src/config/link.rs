//! What `[comm]` says of a network that is simulated.

use phalanx_collectives::{Clock, CommError, SimulatedLink};
use phalanx_sharding::CodecKind;

use super::keys::{CommConfig, Config, DeviceKind, Offload};
use super::validate::Relations;

impl CommConfig {
    /// The link that messages go over, if one is simulated, by the configured clock.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn simulated(&self) -> Result<Option<SimulatedLink>, CommError> {
        if self.link.is_empty() {
            return Ok(None);
        }
        Ok(Some(SimulatedLink { clock: self.clock, ..self.link.parse()? }))
    }
}

impl Config {
    /// Checks that a link can be simulated, and with simulated clocks that they know of all that takes time.
    pub(super) fn check_link(&self, relations: &mut Relations<'_>) {
        let Self { train, comm, codec, .. } = self;
        if let Err(error) = comm.simulated() {
            relations.require(false, "comm.link", format!("comm.link: {error}"));
        }
        let simulated = !comm.link.is_empty() || comm.clock == Clock::Cpu;
        relations.require(
            !simulated || train.device != DeviceKind::Cuda,
            "train.device",
            "train.device = cuda: GPUs reach each other by NCCL, for which comm.link and comm.clock have no simulation; use cpu"
                .to_owned(),
        );
        relations.require(
            !simulated || cfg!(target_os = "linux"),
            "comm.link",
            "comm.link and comm.clock need Linux, whose clock all processes of a machine share".to_owned(),
        );
        if comm.clock == Clock::Wall {
            return;
        }
        let needs = |what: &str| format!("comm.clock = cpu {what}");
        relations.require(
            train.ranks == 1 || !comm.link.is_empty(),
            "comm.link",
            needs("needs comm.link: memory that ranks share knows no simulated time"),
        );
        relations.require(
            train.threads == 1,
            "train.threads",
            needs("needs train.threads = 1: a rank's clock is the CPU time of one thread"),
        );
        relations.require(
            train.strategy.is_bulk_synchronous(),
            "train.strategy",
            needs(&format!(
                "needs ranks that take every step together, which {} does not ask for",
                train.strategy
            )),
        );
        relations.require(
            codec.kind == CodecKind::None && codec.weight_rounding().is_none(),
            "codec.kind",
            needs("knows nothing of the thread that encodes; codec.kind and codec.weights must be none"),
        );
        relations.require(
            train.offload == Offload::None,
            "train.offload",
            needs("knows nothing of the thread that reads what is offloaded; train.offload must be none"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_read_with_its_clock() {
        let mut comm = Config::default().comm;
        assert_eq!(comm.simulated().expect("none"), None);
        comm.link = "1Gbit,50us".to_owned();
        comm.clock = Clock::Cpu;
        let link = comm.simulated().expect("sound").expect("one");
        assert_eq!((link.bandwidth, link.clock), (1.25e8, Clock::Cpu));
        comm.link = "fast".to_owned();
        assert!(comm.simulated().expect_err("no link").to_string().contains("10Gbit,20us"));
    }
}
