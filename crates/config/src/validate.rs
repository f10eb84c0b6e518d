//! Relations between values: what the types alone cannot say.

use super::keys::Config;
use super::origin::{ConfigError, Origin};

/// Collects the relations that do not hold, each with where its first value came from.
pub struct Relations<'a> {
    origin: &'a dyn Fn(&str) -> Origin,
    problems: Vec<ConfigError>,
}

impl std::fmt::Debug for Relations<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.problems).finish()
    }
}

impl<'a> Relations<'a> {
    pub(super) fn new(origin: &'a dyn Fn(&str) -> Origin) -> Self {
        Self { origin, problems: Vec::new() }
    }

    /// Notes `relation`, which is about `key`, unless it holds. It should name key and value.
    pub fn require(&mut self, holds: bool, key: &str, relation: String) {
        if !holds {
            self.problems.push(ConfigError::Invalid { origin: (self.origin)(key), relation });
        }
    }

    /// The value must be at least 1.
    pub fn positive(&mut self, key: &str, value: u64) {
        self.require(value >= 1, key, format!("{key} = {value} is not at least 1"));
    }

    /// The value must be in [0, 1).
    pub fn fraction(&mut self, key: &str, value: f64) {
        self.require((0.0..1.0).contains(&value), key, format!("{key} = {value} is not in [0, 1)"));
    }

    /// The value must not be negative.
    pub fn not_negative(&mut self, key: &str, value: f64) {
        self.require(value >= 0.0, key, format!("{key} = {value} is negative"));
    }

    /// One error for all that does not hold.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        ConfigError::from_all(self.problems)
    }
}

impl Config {
    /// Checks the relations that hold for every task; `images` is true if the images of `[data]` will be read.
    pub(super) fn check(&self, relations: &mut Relations<'_>, images: bool) {
        let Self {
            model,
            data,
            train,
            optim,
            lora,
            schedule,
            checkpoint,
            log,
            sample,
            comm,
            quality,
            watch,
            ..
        } = self;
        relations.positive("model.image_size", model.image_size as u64);
        relations.require(
            !model.new_head || !model.weights.is_empty(),
            "model.new_head",
            "model.new_head = true needs model.weights; without weights all parameters are new".to_owned(),
        );
        relations.positive("checkpoint.keep", checkpoint.keep as u64);
        relations.positive("sample.columns", sample.columns as u64);
        relations.positive("sample.rows", sample.rows as u64);
        relations.positive("sample.tokens", sample.tokens as u64);
        train.check(relations);
        optim.check(relations);
        lora.check(relations, model);
        schedule.check(relations);
        self.check_optimizer(relations);
        self.check_momentum(relations);
        log.check(relations);
        quality.check(relations);
        watch.check(relations);
        data.check(relations);
        if images {
            data.check_images(relations, model.image_size);
        }
        if let Err(error) = train.strategy.goes_by(comm.algorithm) {
            relations.require(false, "comm.algorithm", format!("comm.algorithm: {error}"));
        }
        self.check_transport(relations);
        self.check_link(relations);
        self.check_codec(relations, &train.strategy);
        self.check_synchrony(relations);
        self.check_chaos(relations);
        self.check_replicas(relations);
        self.check_selection(relations);
        relations.require(
            (0.1..=86_400.0).contains(&comm.timeout),
            "comm.timeout",
            format!("comm.timeout = {} is not from 0.1 to 86400 seconds", comm.timeout),
        );
        self.check_parallel(relations);
        self.check_tensor(relations);
        self.check_pipeline(relations);
        self.check_logical_ranks(relations);
        self.check_elastic(relations);
    }
}
