//! Relations between the values of one section.

use phalanx_data::RandAugment;
use phalanx_sharding::{Partition, Synchrony};
use phalanx_tensor::Precision;

use super::keys::{
    Config, DataConfig, DataKind, LogConfig, OptimConfig, OptimKind, QualityConfig, ScheduleConfig,
    ScheduleKind, TrainConfig, WatchConfig,
};
use super::validate::Relations;

/// The most threads of one kind in a rank. No host has as many cores, so more are a mistake, and could not be started.
const MAX_THREADS: usize = 1024;

impl TrainConfig {
    pub(super) fn check(&self, relations: &mut Relations<'_>) {
        relations.positive("train.ranks", self.ranks as u64);
        relations.positive("train.global_batch", self.global_batch as u64);
        relations.positive("train.accumulate", self.accumulate as u64);
        relations.require(
            self.threads <= MAX_THREADS,
            "train.threads",
            format!(
                "train.threads = {} is more than {MAX_THREADS} compute threads of one rank",
                self.threads
            ),
        );
        relations.fraction("train.ema", self.ema);
        relations.not_negative("train.clip_norm", self.clip_norm);
        relations.not_negative("train.loss_scale", self.loss_scale);
        relations.require(
            self.steps > 0 || self.epochs > 0 || self.tokens > 0,
            "train.epochs",
            "train.steps and train.epochs are both 0: the run has no length".to_owned(),
        );
        relations.require(
            self.steps == 0 || self.tokens == 0,
            "train.tokens",
            format!(
                "train.tokens = {} and train.steps = {} are both lengths of the run; set one to 0",
                self.tokens, self.steps
            ),
        );
    }
}

impl OptimConfig {
    pub(super) fn check(&self, relations: &mut Relations<'_>) {
        relations.fraction("optim.momentum", self.momentum);
        relations.not_negative("optim.lr", self.lr);
        relations.not_negative("optim.eps", self.eps);
        relations.not_negative("optim.weight_decay", self.weight_decay);
        relations.require(
            [0, 2].contains(&self.betas.len()) && self.betas.iter().all(|beta| (0.0..1.0).contains(beta)),
            "optim.betas",
            format!("optim.betas = {:?} is not a pair of numbers in [0, 1)", self.betas),
        );
        relations.require(
            !self.nesterov || self.momentum > 0.0,
            "optim.nesterov",
            "optim.nesterov needs optim.momentum above 0".to_owned(),
        );
        self.check_rules(relations);
    }

    /// Checks the rules about single parameters.
    fn check_rules(&self, relations: &mut Relations<'_>) {
        if let Err(error) = self.undecayed() {
            relations.require(false, "optim.no_decay", format!("optim.no_decay: {error}"));
        }
        if let Err(error) = self.unturned() {
            relations.require(false, "optim.unturned", format!("optim.unturned: {error}"));
        }
        relations.require(
            self.unturned.is_empty() || self.kind == OptimKind::Muon,
            "optim.unturned",
            format!("optim.unturned is for optim.kind = muon, and not for {}", self.kind),
        );
        if let Err(error) = self.frozen() {
            relations.require(false, "optim.freeze", format!("optim.freeze: {error}"));
        }
        if let Err(problem) = self.rate_rules() {
            relations.require(false, "optim.rates", format!("optim.rates: {problem}"));
        }
        for (key, number) in [
            ("optim.unfreeze_step", self.unfreeze_step),
            ("optim.unfreeze_epoch", self.unfreeze_epoch as u64),
        ] {
            relations.require(
                number == 0 || !self.freeze.is_empty(),
                key,
                format!("{key} = {number} needs optim.freeze, which is empty"),
            );
        }
        relations.require(
            !(self.unfreezes() && matches!(self.kind, OptimKind::Lamb | OptimKind::Muon)),
            "optim.unfreeze_step",
            format!(
                "optim.kind = {} counts steps from the first one; set optim.unfreeze_step and optim.unfreeze_epoch to 0",
                self.kind
            ),
        );
        relations.require(
            self.unfreeze_step == 0 || self.unfreeze_epoch == 0,
            "optim.unfreeze_epoch",
            "optim.unfreeze_step and optim.unfreeze_epoch are both set; set one to 0".to_owned(),
        );
    }
}

impl ScheduleConfig {
    pub(super) fn check(&self, relations: &mut Relations<'_>) {
        relations.not_negative("schedule.final_fraction", self.final_fraction);
        relations.require(
            self.gamma > 0.0 && self.gamma <= 1.0,
            "schedule.gamma",
            format!("schedule.gamma = {} is not in (0, 1]", self.gamma),
        );
        relations.require(
            self.final_fraction <= 1.0,
            "schedule.final_fraction",
            format!("schedule.final_fraction = {} is not in [0, 1]", self.final_fraction),
        );
        relations.require(
            self.decay_fraction > 0.0 && self.decay_fraction <= 1.0,
            "schedule.decay_fraction",
            format!("schedule.decay_fraction = {} is not in (0, 1]", self.decay_fraction),
        );
        self.check_one_cycle(relations);
    }

    fn check_one_cycle(&self, relations: &mut Relations<'_>) {
        relations.fraction("schedule.pct_start", self.pct_start);
        let factors = [
            ("div_factor", self.div_factor),
            ("final_div_factor", self.final_div_factor),
            ("range_ratio", self.range_ratio),
        ];
        for (key, factor) in factors {
            let key = format!("schedule.{key}");
            relations.require(factor >= 1.0, &key, format!("{key} = {factor} is not at least 1"));
        }
        let is_cycle = self.kind == ScheduleKind::OneCycle;
        relations.require(
            !is_cycle || self.warmup_steps == 0,
            "schedule.warmup_steps",
            "schedule.warmup_steps is set, but schedule.kind = one-cycle rises over schedule.pct_start of the run".to_owned(),
        );
        relations.require(
            self.kind != ScheduleKind::RangeTest || self.warmup_steps == 0,
            "schedule.warmup_steps",
            "schedule.warmup_steps is set, but schedule.kind = range-test is one rise from the first step on"
                .to_owned(),
        );
        let range = match self.momentum[..] {
            [] => true,
            [low, high] => 0.0 < low && low <= high && high < 1.0,
            _ => false,
        };
        relations.require(
            range,
            "schedule.momentum",
            format!("schedule.momentum = {:?} is not a pair of rising numbers in (0, 1)", self.momentum),
        );
        relations.require(
            is_cycle || self.momentum.is_empty(),
            "schedule.momentum",
            format!("schedule.momentum is for schedule.kind = one-cycle, and not for {}", self.kind),
        );
    }
}

impl Config {
    /// Refuses an optimizer that needs whole parameters where ranks update parts of them.
    pub(super) fn check_optimizer(&self, relations: &mut Relations<'_>) {
        if self.optim.kind == OptimKind::Muon {
            relations.require(
                self.train.strategy.layout.optimizer != Partition::Sharded,
                "optim.kind",
                format!(
                    "optim.kind = muon steps whole matrices, of which ranks hold parts under train.strategy = {}; ddp keeps them whole",
                    self.train.strategy
                ),
            );
            relations.require(
                self.train.precision != Precision::F16 && self.train.loss_scale == 0.0,
                "train.loss_scale",
                "optim.kind = muon does not step gradients of a scaled loss; use bf16 without train.loss_scale in place of f16".to_owned(),
            );
        }
        let has_servers = matches!(self.train.strategy.synchrony, Synchrony::Servers(_));
        relations.require(
            self.optim.kind != OptimKind::Lamb || !has_servers,
            "optim.kind",
            format!(
                "optim.kind = lamb needs norms of whole parameters, of which servers hold parts under train.strategy = {}",
                self.train.strategy
            ),
        );
    }

    /// Refuses a momentum that changes where it has no effect.
    pub(super) fn check_momentum(&self, relations: &mut Relations<'_>) {
        let (optim, momentum) = (&self.optim, &self.schedule.momentum);
        relations.require(
            momentum.is_empty() || optim.kind != OptimKind::Sgd || optim.momentum > 0.0,
            "schedule.momentum",
            "schedule.momentum needs optim.momentum above 0".to_owned(),
        );
        let has_servers = matches!(self.train.strategy.synchrony, Synchrony::Servers(_));
        relations.require(
            momentum.is_empty() || !has_servers,
            "schedule.momentum",
            format!(
                "schedule.momentum needs ranks that update, but train.strategy = {} has servers",
                self.train.strategy
            ),
        );
    }
}

impl LogConfig {
    pub(super) fn check(&self, relations: &mut Relations<'_>) {
        relations.positive("log.every", self.every);
        relations.not_negative("log.cpu_watts", self.cpu_watts);
        relations.not_negative("log.peak_gflops", self.peak_gflops);
        let seconds = self.usage_seconds;
        relations.require(
            seconds == 0.0 || (0.01..=60.0).contains(&seconds),
            "log.usage_seconds",
            format!("log.usage_seconds = {seconds} is neither 0 nor from 0.01 to 60"),
        );
    }
}

impl QualityConfig {
    pub(super) fn check(&self, relations: &mut Relations<'_>) {
        relations.positive("quality.batch", self.batch as u64);
        relations.positive("quality.neighbours", self.neighbours as u64);
        relations.require(
            self.samples >= 2,
            "quality.samples",
            format!("quality.samples = {} is not at least 2, without which nothing varies", self.samples),
        );
    }
}

impl WatchConfig {
    pub(super) fn check(&self, relations: &mut Relations<'_>) {
        relations.not_negative("watch.low_loss", self.low_loss);
        relations.not_negative("watch.high_loss", self.high_loss);
        relations.not_negative("watch.still_loss", self.still_loss);
        relations.not_negative("watch.low_measure", self.low_measure);
        relations.not_negative("watch.gradient_jump", self.gradient_jump);
    }
}

impl DataConfig {
    pub(super) fn check(&self, relations: &mut Relations<'_>) {
        relations.positive("data.prefetch", self.prefetch as u64);
        relations.require(
            self.workers <= MAX_THREADS,
            "data.workers",
            format!("data.workers = {} is more than {MAX_THREADS} threads of one rank", self.workers),
        );
        relations.positive("data.window", self.window as u64);
        relations.not_negative("data.box_crop", self.box_crop);
        self.check_test_fraction(relations);
        self.check_augmentation(relations);
        relations.require(
            self.kind != DataKind::Shapes || self.objects <= 2,
            "data.objects",
            format!("data.objects = {} is not 1 or 2, which shapes can have", self.objects),
        );
        relations.require(
            self.kind != DataKind::Scenes || [0, 2, 3].contains(&self.objects),
            "data.objects",
            format!("data.objects = {} is not 2 or 3, which scenes can have", self.objects),
        );
        self.check_placed_captions(relations);
        self.check_keys_of_kinds(relations);
        let parts = match self.crop_area[..] {
            [] => true,
            [least, most] => least > 0.0 && least <= most && most <= 1.0,
            _ => false,
        };
        relations.require(
            parts,
            "data.crop_area",
            format!("data.crop_area = {:?} is not a pair of parts above 0 and at most 1", self.crop_area),
        );
        relations.require(
            self.crop_area.is_empty() || self.crop_padding == 0,
            "data.crop_area",
            "data.crop_area and data.crop_padding are both set: a part is cut already".to_owned(),
        );
    }

    fn check_placed_captions(&self, relations: &mut Relations<'_>) {
        let (placed, partly) = (self.placed_captions, self.partly_placed_captions);
        for (key, share) in [("data.placed_captions", placed), ("data.partly_placed_captions", partly)] {
            let within = (0.0..=1.0).contains(&share);
            relations.require(within, key, format!("{key} = {share} is not in [0, 1]"));
            relations.require(
                share == 0.0 || self.kind == DataKind::Scenes,
                key,
                format!("{key} is for data.kind = scenes; set it to 0 for {}", self.kind),
            );
        }
        relations.require(
            placed + partly <= 1.0,
            "data.partly_placed_captions",
            format!(
                "data.placed_captions + data.partly_placed_captions = {} is more than 1",
                placed + partly
            ),
        );
    }

    fn check_augmentation(&self, relations: &mut Relations<'_>) {
        let magnitude = self.rand_augment_magnitude;
        relations.require(
            magnitude < RandAugment::BINS,
            "data.rand_augment_magnitude",
            format!("data.rand_augment_magnitude = {magnitude} is not from 0 to {}", RandAugment::BINS - 1),
        );
        let fill = &self.rand_augment_fill;
        relations.require(
            [0, 3].contains(&fill.len()) && fill.iter().all(|value| *value <= 255),
            "data.rand_augment_fill",
            format!("data.rand_augment_fill = {fill:?} is not three numbers from 0 to 255"),
        );
        let jitter = &self.color_jitter;
        let hue = jitter.get(3).copied().unwrap_or(0.0);
        relations.require(
            [0, 4].contains(&jitter.len()) && jitter.iter().all(|range| *range >= 0.0) && hue <= 0.5,
            "data.color_jitter",
            format!(
                "data.color_jitter = {jitter:?} is not four numbers from 0, of which the last is at most 0.5"
            ),
        );
        relations.require(
            (0.0..=1.0).contains(&self.random_erasing),
            "data.random_erasing",
            format!("data.random_erasing = {} is not in [0, 1]", self.random_erasing),
        );
        for (key, values, most) in [
            ("data.random_erasing_area", &self.random_erasing_area, 1.0),
            ("data.random_erasing_aspect", &self.random_erasing_aspect, f64::MAX),
        ] {
            let rises = matches!(values[..], [least, greatest] if 0.0 < least && least <= greatest && greatest <= most);
            relations.require(
                rises,
                key,
                format!("{key} = {values:?} is not a pair of rising numbers above 0"),
            );
        }
        relations.not_negative("data.mixup", self.mixup);
        relations.not_negative("data.cutmix", self.cutmix);
    }

    /// Refuses mixed labels for a task that does not train on them.
    pub(super) fn check_mixing(&self, relations: &mut Relations<'_>, kind: &str) {
        for (key, alpha) in [("data.mixup", self.mixup), ("data.cutmix", self.cutmix)] {
            relations.require(
                alpha == 0.0,
                key,
                format!("{key} = {alpha} mixes labels, which the loss of model.kind = {kind} does not take"),
            );
        }
    }

    fn check_test_fraction(&self, relations: &mut Relations<'_>) {
        let fraction = self.test_fraction;
        relations.require(
            (0.0..1.0).contains(&fraction),
            "data.test_fraction",
            format!("data.test_fraction = {fraction} is not from 0 to below 1"),
        );
        relations.require(
            fraction == 0.0 || !self.kind.is_embedded(),
            "data.test_fraction",
            format!("data.test_fraction is for images in files; data.test_images is for {}", self.kind),
        );
        relations.require(
            fraction == 0.0 || (self.test_path.is_empty() && self.test_classes.is_empty()),
            "data.test_fraction",
            "data.test_fraction is set, and so is data.test_path or data.test_classes".to_owned(),
        );
    }

    /// Refuses keys that belong to another kind of data set.
    fn check_keys_of_kinds(&self, relations: &mut Relations<'_>) {
        let files = [
            DataKind::Cifar10,
            DataKind::Folder,
            DataKind::Cub,
            DataKind::Coco,
            DataKind::Imagenet,
            DataKind::Shards,
        ];
        let of_kind = [
            ("data.test_path", &self.test_path, &[DataKind::Shards][..]),
            ("data.index", &self.index, &[DataKind::Shards]),
            ("data.captions", &self.captions, &[DataKind::Cub]),
            ("data.test_classes", &self.test_classes, &[DataKind::Cub]),
            ("data.exclude", &self.exclude, &files),
        ];
        for (key, value, kinds) in of_kind {
            let names: Vec<String> = kinds.iter().map(ToString::to_string).collect();
            relations.require(
                value.is_empty() || kinds.contains(&self.kind),
                key,
                format!("{key} is for data.kind = {}, and not for {}", names.join(", "), self.kind),
            );
        }
    }

    /// Checks what reading images of `size` pixels needs.
    pub(super) fn check_images(&self, relations: &mut Relations<'_>, size: usize) {
        relations.require(
            self.kind.is_embedded() || !self.path.is_empty(),
            "data.kind",
            format!("data.kind = {0} needs data.path, or the option --data {0}=PATH", self.kind),
        );
        relations.require(
            self.resize == 0 || self.resize >= size,
            "data.resize",
            format!("data.resize {} is not at least model.image_size {size}", self.resize),
        );
        relations.require(
            self.crop_padding < size.max(1),
            "data.crop_padding",
            format!("data.crop_padding {} is not below model.image_size {size}", self.crop_padding),
        );
    }
}
