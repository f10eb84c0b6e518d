//! Relations between values: what the types alone cannot say.

use super::keys::{Config, DataKind};
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
    /// Checks the relations that hold for every task; `images` says whether those of `[data]` will be read.
    pub(super) fn check(&self, relations: &mut Relations<'_>, images: bool) {
        let Self {
            model, data, train, optim, schedule, checkpoint, log, sample, comm, quality, watch, ..
        } = self;

        let positive = [
            ("model.image_size", model.image_size as u64),
            ("data.prefetch", data.prefetch as u64),
            ("data.window", data.window as u64),
            ("train.ranks", train.ranks as u64),
            ("train.global_batch", train.global_batch as u64),
            ("train.accumulate", train.accumulate as u64),
            ("checkpoint.keep", checkpoint.keep as u64),
            ("log.every", log.every),
            ("quality.batch", quality.batch as u64),
            ("quality.neighbours", quality.neighbours as u64),
            ("sample.columns", sample.columns as u64),
            ("sample.rows", sample.rows as u64),
        ];
        for (key, value) in positive {
            relations.positive(key, value);
        }
        let fractions = [("train.ema", train.ema), ("optim.momentum", optim.momentum)];
        for (key, value) in fractions {
            relations.fraction(key, value);
        }
        let not_negative = [
            ("data.box_crop", data.box_crop),
            ("train.clip_norm", train.clip_norm),
            ("train.loss_scale", train.loss_scale),
            ("log.cpu_watts", log.cpu_watts),
            ("optim.lr", optim.lr),
            ("optim.eps", optim.eps),
            ("optim.weight_decay", optim.weight_decay),
            ("schedule.final_fraction", schedule.final_fraction),
            ("watch.low_loss", watch.low_loss),
            ("watch.high_loss", watch.high_loss),
            ("watch.still_loss", watch.still_loss),
            ("watch.low_measure", watch.low_measure),
        ];
        for (key, value) in not_negative {
            relations.not_negative(key, value);
        }

        let seconds = log.usage_seconds;
        relations.require(
            seconds == 0.0 || (0.01..=60.0).contains(&seconds),
            "log.usage_seconds",
            format!("log.usage_seconds = {seconds} is neither 0 nor from 0.01 to 60"),
        );
        relations.require(
            quality.samples >= 2,
            "quality.samples",
            format!("quality.samples = {} is not at least 2, without which nothing varies", quality.samples),
        );
        let (batch, pieces) = (train.global_batch, train.ranks.saturating_mul(train.accumulate));
        let product = format!("train.ranks {} x train.accumulate {}", train.ranks, train.accumulate);
        relations.require(
            batch >= pieces,
            "train.global_batch",
            format!("train.global_batch {batch} is not at least {product} = {pieces}"),
        );
        relations.require(
            train.steps > 0 || train.epochs > 0,
            "train.epochs",
            "train.steps and train.epochs are both 0: the run has no length".to_owned(),
        );
        relations.require(
            optim.betas.len() == 2 && optim.betas.iter().all(|beta| (0.0..1.0).contains(beta)),
            "optim.betas",
            format!("optim.betas = {:?} is not a pair of numbers in [0, 1)", optim.betas),
        );
        relations.require(
            !optim.nesterov || optim.momentum > 0.0,
            "optim.nesterov",
            "optim.nesterov needs optim.momentum above 0".to_owned(),
        );
        relations.require(
            schedule.gamma > 0.0 && schedule.gamma <= 1.0,
            "schedule.gamma",
            format!("schedule.gamma = {} is not in (0, 1]", schedule.gamma),
        );
        relations.require(
            schedule.final_fraction <= 1.0,
            "schedule.final_fraction",
            format!("schedule.final_fraction = {} is not in [0, 1]", schedule.final_fraction),
        );
        relations.require(
            data.kind != DataKind::Shapes || data.objects <= 2,
            "data.objects",
            format!("data.objects = {} is not 1 or 2, which shapes can have", data.objects),
        );
        relations.require(
            data.kind != DataKind::Scenes || [0, 2, 3].contains(&data.objects),
            "data.objects",
            format!("data.objects = {} is not 2 or 3, which scenes can have", data.objects),
        );
        relations.require(
            !images || data.kind.is_embedded() || !data.path.is_empty(),
            "data.kind",
            format!("data.kind = {0} needs data.path, or the option --data {0}=PATH", data.kind),
        );
        let of_kind = [
            ("data.test_path", &data.test_path, vec![DataKind::Shards]),
            ("data.index", &data.index, vec![DataKind::Shards]),
            ("data.captions", &data.captions, vec![DataKind::Cub]),
            ("data.test_classes", &data.test_classes, vec![DataKind::Cub]),
            (
                "data.exclude",
                &data.exclude,
                vec![DataKind::Cifar10, DataKind::Folder, DataKind::Cub, DataKind::Coco, DataKind::Imagenet],
            ),
        ];
        for (key, value, kinds) in of_kind {
            let names: Vec<String> = kinds.iter().map(ToString::to_string).collect();
            relations.require(
                value.is_empty() || kinds.contains(&data.kind),
                key,
                format!("{key} is for data.kind = {}, and not for {}", names.join(", "), data.kind),
            );
        }
        let parts = match data.crop_area[..] {
            [] => true,
            [least, most] => least > 0.0 && least <= most && most <= 1.0,
            _ => false,
        };
        relations.require(
            parts,
            "data.crop_area",
            format!("data.crop_area = {:?} is not a pair of parts above 0 and at most 1", data.crop_area),
        );
        relations.require(
            data.crop_area.is_empty() || data.crop_padding == 0,
            "data.crop_area",
            "data.crop_area and data.crop_padding are both set: a part is cut already".to_owned(),
        );
        relations.require(
            !images || data.resize == 0 || data.resize >= model.image_size,
            "data.resize",
            format!("data.resize {} is not at least model.image_size {}", data.resize, model.image_size),
        );
        relations.require(
            !images || data.crop_padding < model.image_size.max(1),
            "data.crop_padding",
            format!(
                "data.crop_padding {} is not below model.image_size {}",
                data.crop_padding, model.image_size
            ),
        );
        if let Err(error) = train.strategy.goes_by(comm.algorithm) {
            relations.require(false, "comm.algorithm", format!("comm.algorithm: {error}"));
        }
        self.check_transport(relations);
        self.check_link(relations);
        self.check_codec(relations, &train.strategy);
        self.check_synchrony(relations);
        self.check_chaos(relations);
        self.check_replicas(relations);
        relations.require(
            (0.1..=86_400.0).contains(&comm.timeout),
            "comm.timeout",
            format!("comm.timeout = {} is not from 0.1 to 86400 seconds", comm.timeout),
        );
        self.check_logical_ranks(relations);
        self.check_elastic(relations);
    }
}
