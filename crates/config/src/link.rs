//! The simulated network of the section `[comm]`.

use phalanx_collectives::{Clock, CommError, CostModel, SimulatedLink};
use phalanx_sharding::{CodecKind, Overlap};

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

    /// The link between ranks of a host, if several hosts are simulated.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn simulated_inside(&self) -> Result<Option<SimulatedLink>, CommError> {
        if self.link.is_empty() || self.hosts <= 1 {
            return Ok(None);
        }
        let link = match self.host_link.as_str() {
            "" => SimulatedLink::timeless(),
            link => link.parse()?,
        };
        Ok(Some(SimulatedLink { clock: self.clock, ..link }))
    }

    /// Returns the number of ranks on each simulated host.
    pub fn ranks_by_host(&self, ranks: usize) -> Vec<usize> {
        let hosts = if self.link.is_empty() { 1 } else { self.hosts.clamp(1, ranks.max(1)) };
        vec![ranks / hosts; hosts]
    }

    /// Returns the cost of messages over the simulated links, if there are any.
    ///
    /// # Errors
    /// If a link cannot be read.
    pub fn simulated_costs(&self) -> Result<Option<CostModel>, CommError> {
        let (link, inside) = (self.simulated()?, self.simulated_inside()?);
        Ok(link.map(|link| CostModel::over_hosts(&inside.unwrap_or(link), &link)))
    }
}

impl Config {
    /// The overlap of communication with computation. Transfers on a simulated link take no CPU time, so they always overlap unless
    /// that is refused.
    pub fn overlap(&self) -> Overlap {
        match self.train.overlap {
            Overlap::Auto if !self.comm.link.is_empty() => Overlap::Always,
            overlap => overlap,
        }
    }

    /// Bytes of a step's images over all ranks, as a leader scatters them: three channels of f32, without captions and classes.
    pub fn scattered_bytes(&self) -> u64 {
        let side = self.model.image_size as u64;
        3 * 4 * side * side * self.train.global_batch as u64
    }

    /// Checks that a link can be simulated, and with simulated clocks that they know of all that takes time.
    pub(super) fn check_link(&self, relations: &mut Relations<'_>) {
        let Self { train, comm, .. } = self;
        if let Err(error) = comm.simulated() {
            relations.require(false, "comm.link", format!("comm.link: {error}"));
        } else if let Err(error) = comm.simulated_inside() {
            relations.require(false, "comm.host_link", format!("comm.host_link: {error}"));
        }
        relations.require(
            comm.hosts > 0 && (comm.hosts == 1 || !comm.link.is_empty()),
            "comm.hosts",
            format!(
                "comm.hosts = {} needs comm.link: hosts that there are need not be simulated",
                comm.hosts
            ),
        );
        relations.require(
            comm.host_link.is_empty() || comm.hosts > 1,
            "comm.host_link",
            "comm.host_link is for several simulated hosts (comm.hosts)".to_owned(),
        );
        relations.require(
            comm.hosts <= 1 || train.ranks.is_multiple_of(comm.hosts),
            "comm.hosts",
            format!("{} ranks are not as many on each of {} simulated hosts", train.ranks, comm.hosts),
        );
        relations.require(
            comm.hosts <= 1 || train.strategy.ranks == phalanx_sharding::Ranks::Processes,
            "comm.hosts",
            format!("{} has threads of one process for ranks, which are on one host", train.strategy),
        );
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
        if comm.clock == Clock::Cpu {
            self.check_simulated_clock(relations);
        }
    }

    /// Refuses settings whose time the simulated clock does not know.
    fn check_simulated_clock(&self, relations: &mut Relations<'_>) {
        let Self { train, comm, codec, .. } = self;
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
        assert_eq!(comm.simulated_inside().expect("one host"), None);
        assert_eq!(comm.ranks_by_host(4), [4]);
        comm.hosts = 2;
        let inside = comm.simulated_inside().expect("sound").expect("two hosts");
        assert_eq!((inside.bandwidth, inside.clock), (f64::INFINITY, Clock::Cpu));
        comm.host_link = "8Gbit,1us".to_owned();
        let costs = comm.simulated_costs().expect("sound").expect("links");
        let beta = |of: Option<phalanx_collectives::LinkCosts>| of.expect("known").busy.beta;
        assert_eq!((beta(costs.local), beta(costs.remote)), (1e-9, 8e-9));
        assert_eq!(comm.ranks_by_host(4), [2, 2]);
        comm.link = "fast".to_owned();
        assert!(comm.simulated().expect_err("no link").to_string().contains("10Gbit,20us"));
    }
}
