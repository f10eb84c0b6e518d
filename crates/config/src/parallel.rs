//! The section `[parallel]`: the mesh of the ranks.

use phalanx_sharding::{Degree, Degrees, MeshLayout, Partition, ShardingError, Strategy};

use super::keys::{Config, Offload, ParallelConfig};
use super::parallel_degree::ParallelDegree;
use super::validate::Relations;

impl ParallelConfig {
    /// The degrees that are given.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if a kind of parallelism has no name there.
    fn degrees(&self) -> Result<Degrees, ShardingError> {
        let Self { replicate, shard, tensor, pipeline, context, expert } = self;
        let given = [
            ("replicate", replicate),
            ("shard", shard),
            ("tensor", tensor),
            ("pipeline", pipeline),
            ("context", context),
            ("expert", expert),
        ];
        let given = given.into_iter().filter_map(|(name, degree)| Some((name, degree.0?)));
        given.into_iter().try_fold(Degrees::default(), |degrees, (name, degree)| degrees.with(name, degree))
    }

    /// True if a degree of a data axis is given.
    fn has_data_axes(&self) -> bool {
        self.replicate.0.is_some() || self.shard.0.is_some()
    }

    /// True if the mesh fits only one number of ranks.
    fn is_fixed(&self) -> bool {
        self.has_data_axes() && ![self.replicate, self.shard].contains(&ParallelDegree(Some(Degree::Rest)))
    }

    /// The number of ranks of a group that shares one replica of the state; `None` if the strategy chooses it.
    pub fn group(&self) -> Option<usize> {
        match self.shard.0 {
            Some(Degree::Of(ranks)) => Some(ranks),
            _ => None,
        }
    }

    /// True if layers are cut over ranks, if only over one.
    pub fn cuts_layers(&self) -> bool {
        self.tensor.0.is_some()
    }

    /// The number of ranks of `world` along an axis; `None` if it is not given.
    fn along(&self, axis: ParallelDegree, world: usize) -> Option<usize> {
        let Self { replicate, shard, tensor, pipeline, .. } = self;
        match axis.0? {
            Degree::Of(ranks) => Some(ranks),
            Degree::Rest => {
                let given =
                    [replicate, shard, tensor, pipeline].into_iter().filter_map(|axis| match axis.0 {
                        Some(Degree::Of(ranks)) => Some(ranks),
                        _ => None,
                    });
                Some((world / given.product::<usize>().max(1)).max(1))
            }
        }
    }

    /// Returns the mesh of the ranks whose hosts are given. The strategy chooses the data axes if none is given.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if the degrees do not fit the number of ranks, or a kind of parallelism is not built.
    pub fn layout(&self, strategy: &Strategy, hosts: &[usize]) -> Result<MeshLayout, ShardingError> {
        let mut degrees = self.degrees()?;
        if !self.has_data_axes() {
            // Ranks along other axes have the same samples, and lie next to each other.
            let together = degrees.model_ranks(hosts.len());
            let hosts: Vec<usize> = hosts.iter().copied().step_by(together).collect();
            let suiting = Degrees::suiting(strategy, &hosts, 0);
            for name in ["replicate", "shard"] {
                if let Some(degree) = suiting.get(name) {
                    degrees = degrees.with(name, degree)?;
                }
            }
        }
        degrees.layout(hosts.len())
    }
}

impl Config {
    /// The number of ranks along the axis `tensor`; `None` if layers are not cut.
    pub fn tensor_ranks(&self) -> Option<usize> {
        self.parallel.along(self.parallel.tensor, self.train.ranks)
    }

    /// The number of ranks along the axis `pipeline`: 1 if the model has no stages.
    pub fn pipeline_ranks(&self) -> usize {
        self.parallel.along(self.parallel.pipeline, self.train.ranks).unwrap_or(1)
    }

    /// The number of ranks that train on different samples.
    pub fn data_ranks(&self) -> usize {
        let of_model = self.tensor_ranks().unwrap_or(1) * self.pipeline_ranks();
        (self.train.ranks / of_model).max(1)
    }

    /// True if ranks hold parts of the model: portions of layers, or stages.
    pub fn shares_model(&self) -> bool {
        self.parallel.cuts_layers() || self.pipeline_ranks() > 1
    }

    /// True if each rank has all parameters where it computes, so that it can run a network while others do not.
    pub fn has_whole_parameters(&self) -> bool {
        let train = &self.train;
        let is_replicated = train.strategy.layout.parameters == Partition::Replicated;
        is_replicated && train.offload == Offload::None && !self.shares_model()
    }

    /// Checks the degrees of the mesh.
    pub(super) fn check_parallel(&self, relations: &mut Relations<'_>) {
        const KEY: &str = "parallel.replicate";
        let Self { parallel, train, elastic, .. } = self;
        let ranks = self.world_size().max(1);
        let number = self.comm.ranks_by_host(ranks).len();
        let hosts: Vec<usize> = (0..ranks).map(|rank| rank * number / ranks).collect();
        if let Err(error) = parallel.layout(&train.strategy, &hosts) {
            let problem = error.to_string();
            let problem = problem.strip_prefix("mesh: ").unwrap_or(&problem);
            relations.require(false, KEY, format!("parallel: {problem}"));
        }
        let (batch, parts, micros) = (train.global_batch, self.data_ranks(), self.micro_batches());
        let pieces = parts.saturating_mul(micros);
        let product = match parts == train.ranks {
            true => format!("train.ranks {parts} x train.accumulate {micros}"),
            false => format!("{parts} parts of the data x {micros} micro-batches"),
        };
        relations.require(
            batch >= pieces,
            "train.global_batch",
            format!("train.global_batch {batch} is not at least {product} = {pieces}"),
        );
        let has_groups = parallel.replicate.0.is_some() && parallel.shard.0.is_some();
        relations.require(
            has_groups || !parallel.has_data_axes() || !train.strategy.data.has_groups(),
            KEY,
            format!(
                "train.strategy = {} has groups of ranks: give parallel.replicate and parallel.shard, or neither",
                train.strategy
            ),
        );
        relations.require(
            elastic.min == 0 || !parallel.is_fixed(),
            KEY,
            "elastic.min is set, so the number of ranks may change: give parallel.replicate or parallel.shard as -1".to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use toml::Value;

    use super::*;

    fn problems(sets: &[(&str, i64)], strategy: &str, ranks: usize) -> String {
        let mut config = Config::default();
        (config.train.ranks, config.train.strategy) = (ranks, Strategy::named(strategy).expect("a row"));
        for (key, value) in sets {
            config.set(key, &Value::Integer(*value)).expect("a key").expect("a degree");
        }
        let origin = |_: &str| super::super::origin::Origin::Default;
        let mut relations = Relations::new(&origin);
        config.check_parallel(&mut relations);
        relations.finish().map_or_else(|error| error.to_string(), |()| String::new())
    }

    /// Ranks that are the rest of an axis share the model, and do not train on samples of their own.
    #[test]
    fn the_rest_of_the_ranks_may_lie_along_an_axis_of_the_model() {
        let ranks = |sets: &[(&str, i64)]| {
            let mut config = Config::default();
            config.train.ranks = 8;
            for (key, value) in sets {
                config.set(key, &Value::Integer(*value)).expect("a key").expect("a degree");
            }
            [config.data_ranks(), config.pipeline_ranks(), config.tensor_ranks().unwrap_or(0)]
        };
        assert_eq!(ranks(&[]), [8, 1, 0]);
        assert_eq!(ranks(&[("parallel.pipeline", -1)]), [1, 8, 0]);
        assert_eq!(
            ranks(&[("parallel.pipeline", -1), ("parallel.tensor", 2), ("parallel.shard", 2)]),
            [2, 2, 2]
        );
        assert_eq!(ranks(&[("parallel.tensor", -1), ("parallel.replicate", 4)]), [4, 1, 2]);
    }

    #[test]
    fn ranks_that_hold_parts_of_the_model_have_no_whole_parameters() {
        let whole = |sets: &[(&str, i64)], strategy: &str, offload| {
            let mut config = Config::default();
            (config.train.ranks, config.train.strategy) = (4, Strategy::named(strategy).expect("a row"));
            config.train.offload = offload;
            for (key, value) in sets {
                config.set(key, &Value::Integer(*value)).expect("a key").expect("a degree");
            }
            config.has_whole_parameters()
        };
        for strategy in ["ddp", "zero1", "zero2", "local-sgd"] {
            assert!(whole(&[], strategy, Offload::None), "{strategy}");
        }
        for strategy in ["fsdp", "hsdp"] {
            assert!(!whole(&[], strategy, Offload::None), "{strategy}");
        }
        assert!(!whole(&[("parallel.pipeline", 2)], "ddp", Offload::None));
        assert!(!whole(&[("parallel.tensor", 2)], "ddp", Offload::None));
        assert!(!whole(&[], "ddp", Offload::Optimizer));
    }

    #[test]
    fn degrees_fit_the_ranks_or_are_refused() {
        assert_eq!(problems(&[], "hsdp", 4), "");
        assert_eq!(problems(&[("parallel.replicate", 2), ("parallel.shard", -1)], "hsdp", 4), "");
        assert_eq!(problems(&[("parallel.tensor", 1)], "fsdp", 3), "");
        assert_eq!(problems(&[("parallel.tensor", 2)], "fsdp", 4), "");
        let told = problems(&[("parallel.tensor", 2)], "ddp", 3);
        assert!(told.contains("replicate 2 × tensor 2 = 4, but the world has 3 ranks"), "{told}");
        let told = problems(&[("parallel.replicate", 3)], "ddp", 4);
        assert!(told.contains("replicate 3 = 3, but the world has 4 ranks"), "{told}");
        for name in ["context", "expert"] {
            let told = problems(&[(&format!("parallel.{name}"), 2)], "ddp", 4);
            assert!(told.contains(&format!("`{name}` is not built yet")), "{told}");
        }
        let told = problems(&[("parallel.shard", 4)], "hsdp", 4);
        assert!(told.contains("parallel.replicate and parallel.shard"), "{told}");
    }
}
