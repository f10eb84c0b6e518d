//! Relations between values: what the types alone cannot say.

use phalanx_sharding::Strategy;

use super::keys::{Config, DataKind, ModelKind, NormaliseKind};
use super::origin::{ConfigError, Origin};

impl Config {
    /// Checks all relations, naming with each that fails where its first value came from.
    pub(super) fn check(&self, origin: &dyn Fn(&str) -> Origin) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        let mut require = |holds: bool, key: &str, relation: String| {
            if !holds {
                problems.push(ConfigError::Invalid { origin: origin(key), relation });
            }
        };
        let Self { model, data, train, optim, schedule, checkpoint, log, sample, eval: _, networks } = self;

        let positive = [
            ("model.image_size", model.image_size as u64),
            ("model.width", model.width as u64),
            ("model.mlp_width", model.mlp_width as u64),
            ("model.mlp_depth", model.mlp_depth as u64),
            ("model.latent", model.latent as u64),
            ("model.embed", model.embed as u64),
            ("model.text_width", model.text_width as u64),
            ("model.text_layers", model.text_layers as u64),
            ("model.text_heads", model.text_heads as u64),
            ("data.prefetch", data.prefetch as u64),
            ("train.ranks", train.ranks as u64),
            ("train.global_batch", train.global_batch as u64),
            ("train.accumulate", train.accumulate as u64),
            ("checkpoint.keep", checkpoint.keep as u64),
            ("log.every", log.every),
            ("sample.columns", sample.columns as u64),
            ("sample.rows", sample.rows as u64),
        ];
        for (key, value) in positive {
            require(value >= 1, key, format!("{key} = {value} is not at least 1"));
        }
        let fractions = [
            ("model.dropout", model.dropout),
            ("train.label_smoothing", train.label_smoothing),
            ("train.ema", train.ema),
            ("optim.momentum", optim.momentum),
        ];
        for (key, value) in fractions {
            require((0.0..1.0).contains(&value), key, format!("{key} = {value} is not in [0, 1)"));
        }
        let not_negative = [
            ("train.kl_weight", train.kl_weight),
            ("train.l1_smooth", train.l1_smooth),
            ("train.clip_norm", train.clip_norm),
            ("train.loss_scale", train.loss_scale),
            ("optim.lr", optim.lr),
            ("optim.eps", optim.eps),
            ("optim.weight_decay", optim.weight_decay),
            ("schedule.final_fraction", schedule.final_fraction),
        ];
        for (key, value) in not_negative {
            require(value >= 0.0, key, format!("{key} = {value} is negative"));
        }

        let (batch, pieces) = (train.global_batch, train.ranks.saturating_mul(train.accumulate));
        let product = format!("train.ranks {} x train.accumulate {}", train.ranks, train.accumulate);
        require(
            batch >= pieces,
            "train.global_batch",
            format!("train.global_batch {batch} is not at least {product} = {pieces}"),
        );
        require(
            train.steps > 0 || train.epochs > 0,
            "train.epochs",
            "train.steps and train.epochs are both 0: the run has no length".to_owned(),
        );
        require(
            optim.betas.len() == 2 && optim.betas.iter().all(|beta| (0.0..1.0).contains(beta)),
            "optim.betas",
            format!("optim.betas = {:?} is not a pair of numbers in [0, 1)", optim.betas),
        );
        require(
            !optim.nesterov || optim.momentum > 0.0,
            "optim.nesterov",
            "optim.nesterov needs optim.momentum above 0".to_owned(),
        );
        require(
            schedule.gamma > 0.0 && schedule.gamma <= 1.0,
            "schedule.gamma",
            format!("schedule.gamma = {} is not in (0, 1]", schedule.gamma),
        );
        require(
            schedule.final_fraction <= 1.0,
            "schedule.final_fraction",
            format!("schedule.final_fraction = {} is not in [0, 1]", schedule.final_fraction),
        );
        require(
            (1..=2).contains(&data.objects),
            "data.objects",
            format!("data.objects = {} is not 1 or 2", data.objects),
        );
        require(
            data.kind == DataKind::Shapes || !data.path.is_empty(),
            "data.kind",
            format!("data.kind = {0} needs data.path, or the option --data {0}=PATH", data.kind),
        );
        require(
            data.crop_padding < model.image_size.max(1),
            "data.crop_padding",
            format!(
                "data.crop_padding {} is not below model.image_size {}",
                data.crop_padding, model.image_size
            ),
        );
        require(
            model.kind != ModelKind::Cvae || data.normalise == NormaliseKind::Symmetric,
            "data.normalise",
            format!("model.kind {} draws from -1 to 1, but data.normalise is {}", model.kind, data.normalise),
        );
        let text = matches!(model.kind, ModelKind::Cvae | ModelKind::Clip);
        let (width, heads) = (model.text_width, model.text_heads.max(1));
        require(
            !text || width.is_multiple_of(heads),
            "model.text_width",
            format!("model.text_width {width} is not a multiple of model.text_heads {heads}"),
        );
        require(
            !text || (514..=49408).contains(&model.text_vocab),
            "model.text_vocab",
            format!("model.text_vocab {} is not in 514..=49408", model.text_vocab),
        );
        require(
            !text || model.text_context >= 4,
            "model.text_context",
            format!("model.text_context {} is not at least 4", model.text_context),
        );
        let halvings = model.widths.len();
        let factor = 1_usize.checked_shl(halvings as u32).unwrap_or(usize::MAX);
        let (size, widths) = (model.image_size, &model.widths);
        require(
            model.kind != ModelKind::Cvae || (halvings > 0 && widths.iter().all(|width| *width > 0)),
            "model.widths",
            format!("model.widths = {widths:?} are not one or more positive numbers"),
        );
        require(
            model.kind != ModelKind::Cvae || size.is_multiple_of(factor),
            "model.image_size",
            format!(
                "model.image_size {size} is not a multiple of {factor}, as {halvings} model.widths halve it"
            ),
        );
        if let Err(error) = Strategy::named(train.strategy.as_str()) {
            problems.push(ConfigError::NotBuilt {
                origin: origin("train.strategy"),
                what: format!("train.strategy: {error}"),
            });
        }
        // What all networks have wrong is told once.
        for name in networks.keys().filter(|_| problems.is_empty()) {
            self.for_network(name).check(&|key| origin(&format!("{name}.{key}")))?;
        }
        ConfigError::from_all(problems)
    }
}
