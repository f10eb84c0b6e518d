//! Normalisation, losses, optimizer steps.

use candle_core::DType;
use phalanx_tensor::backend::{
    AdamOptions, Array, AverageUpdate, BatchNormBackward, BatchNormMaps, BatchNormPass, BatchNorms,
    CrossEntropy, CutCrossEntropy, ElementLossInputs, EmaOptions, GroupShape, KlInputs, LambOptions,
    LayerwiseUpdates, LionOptions, LossScaleOutcome, LossScaleStep, Losses, NormBackward, NormGrads,
    NormOutput, NormPass, Norms, ParamUpdate, RmsNormBackward, RmsNormGrads, RunningStatistics, ScaledStep,
    SgdOptions, Updates,
};

use super::{Checking, Result};

const BATCH: &str = "batch_norm2d";

/// Runs `$run` with the wrapped arrays of `$pass`.
macro_rules! opened {
    ($self:ident, $pass:ident => $run:expr) => {{
        let (x, gamma, beta) =
            ($self.open(BATCH, $pass.x)?, $self.open(BATCH, $pass.gamma)?, $self.open(BATCH, $pass.beta)?);
        let residual = $self.open_if(BATCH, $pass.residual)?;
        let $pass =
            BatchNormPass { x: &x, gamma: &gamma, beta: &beta, residual: residual.as_ref(), ..$pass };
        $run
    }};
    ($self:ident, backward $of:ident => $run:expr) => {{
        let pass = $of.pass;
        opened!($self, pass => {
            let (statistics, dy) = ($self.open(BATCH, $of.statistics)?, $self.open(BATCH, $of.dy)?);
            let output = $self.open_if(BATCH, $of.output)?;
            let $of = BatchNormBackward {
                pass, statistics: &statistics, output: output.as_ref(), dy: &dy, residual: $of.residual,
            };
            $run
        })
    }};
}

impl Checking {
    fn hide_maps(&self, maps: &BatchNormMaps) -> Result<BatchNormMaps> {
        let residual = maps.residual.as_ref().map(|residual| self.hide(residual)).transpose()?;
        Ok(BatchNormMaps { dx: self.hide(&maps.dx)?, residual })
    }

    fn hide_two(&self, [a, b]: &[Array; 2]) -> Result<[Array; 2]> {
        Ok([self.hide(a)?, self.hide(b)?])
    }
}

impl BatchNorms for Checking {
    fn batch_norm_sums(&self, dims: [usize; 3], x: &Array) -> Result<Array> {
        self.hide(&self.cpu().batch_norm_sums(dims, &self.open(BATCH, x)?)?)
    }

    fn batch_norm_statistics(&self, sums: &Array) -> Result<Array> {
        self.hide(&self.cpu().batch_norm_statistics(&self.open(BATCH, sums)?)?)
    }

    fn batch_norm_fixed(&self, mean: &Array, variance: &Array, count: f64) -> Result<Array> {
        let (mean, variance) = (self.open(BATCH, mean)?, self.open(BATCH, variance)?);
        self.hide(&self.cpu().batch_norm_fixed(&mean, &variance, count)?)
    }

    fn batch_norm_train(&self, pass: BatchNormPass<'_>) -> Result<(Array, Array)> {
        let (y, statistics) = opened!(self, pass => self.cpu().batch_norm_train(pass)?);
        Ok((self.hide(&y)?, self.hide(&statistics)?))
    }

    fn batch_norm(&self, pass: BatchNormPass<'_>, statistics: &Array) -> Result<Array> {
        let statistics = self.open(BATCH, statistics)?;
        self.hide(&opened!(self, pass => self.cpu().batch_norm(pass, &statistics)?))
    }

    fn batch_norm_running(&self, statistics: &Array, running: RunningStatistics<'_>) -> Result<[Array; 2]> {
        let statistics = self.open(BATCH, statistics)?;
        let (mean, variance) = (&self.open(BATCH, running.mean)?, &self.open(BATCH, running.variance)?);
        let running = RunningStatistics { mean, variance, ..running };
        self.hide_two(&self.cpu().batch_norm_running(&statistics, running)?)
    }

    fn batch_norm_train_backward(&self, of: BatchNormBackward<'_>) -> Result<(BatchNormMaps, Array)> {
        let (maps, sums) = opened!(self, backward of => self.cpu().batch_norm_train_backward(of)?);
        Ok((self.hide_maps(&maps)?, self.hide(&sums)?))
    }

    fn batch_norm_gradient_sums(&self, of: BatchNormBackward<'_>) -> Result<Array> {
        self.hide(&opened!(self, backward of => self.cpu().batch_norm_gradient_sums(of)?))
    }

    fn batch_norm_backward(&self, of: BatchNormBackward<'_>, sums: Option<&Array>) -> Result<BatchNormMaps> {
        let sums = self.open_if(BATCH, sums)?;
        self.hide_maps(&opened!(self, backward of => self.cpu().batch_norm_backward(of, sums.as_ref())?))
    }

    fn batch_norm_affine_gradients(&self, sums: &Array, dtype: DType) -> Result<[Array; 2]> {
        self.hide_two(&self.cpu().batch_norm_affine_gradients(&self.open(BATCH, sums)?, dtype)?)
    }

    fn count_up(&self, counter: &Array) -> Result<Array> {
        self.hide(&self.cpu().count_up(&self.open(BATCH, counter)?)?)
    }
}

impl Checking {
    fn normalise(
        &self,
        of: NormPass<'_>,
        run: impl FnOnce(NormPass<'_>) -> Result<NormOutput>,
    ) -> Result<NormOutput> {
        let open = |array| self.open("norm", array);
        let (x, gamma, beta) = (&open(of.x)?, &open(of.gamma)?, &open(of.beta)?);
        let NormOutput { output, mean, inv_std } = run(NormPass { x, gamma, beta, eps: of.eps })?;
        Ok(NormOutput { output: self.hide(&output)?, mean: self.hide(&mean)?, inv_std: self.hide(&inv_std)? })
    }

    fn normalise_backward(
        &self,
        from: NormBackward<'_>,
        run: impl FnOnce(NormBackward<'_>) -> Result<NormGrads>,
    ) -> Result<NormGrads> {
        let open = |array| self.open("norm", array);
        let (x, dy, gamma) = (&open(from.x)?, &open(from.dy)?, &open(from.gamma)?);
        let (mean, inv_std) = (&open(from.mean)?, &open(from.inv_std)?);
        let grads = run(NormBackward { x, dy, gamma, mean, inv_std })?;
        let (dx, dgamma) = (self.hide(&grads.dx)?, self.hide(&grads.dgamma)?);
        Ok(NormGrads { dx, dgamma, dbeta: self.hide(&grads.dbeta)? })
    }
}

impl Norms for Checking {
    fn rms_norm(&self, x: &Array, gamma: &Array, eps: f64) -> Result<[Array; 2]> {
        let (x, gamma) = (self.open("rms_norm", x)?, self.open("rms_norm", gamma)?);
        let [y, inv_rms] = self.cpu().rms_norm(&x, &gamma, eps)?;
        Ok([self.hide(&y)?, self.hide(&inv_rms)?])
    }

    fn rms_norm_backward(&self, from: RmsNormBackward<'_>, before: Option<&Array>) -> Result<RmsNormGrads> {
        let open = |array| self.open("rms_norm", array);
        let (x, dy, gamma) = (&open(from.x)?, &open(from.dy)?, &open(from.gamma)?);
        let from = RmsNormBackward { x, dy, gamma, inv_rms: &open(from.inv_rms)? };
        let before = before.map(open).transpose()?;
        let RmsNormGrads { dx, dgamma } = self.cpu().rms_norm_backward(from, before.as_ref())?;
        Ok(RmsNormGrads { dx: self.hide(&dx)?, dgamma: self.hide(&dgamma)? })
    }

    fn layer_norm(&self, of: NormPass<'_>) -> Result<NormOutput> {
        self.normalise(of, |of| self.cpu().layer_norm(of))
    }

    fn layer_norm_backward(&self, from: NormBackward<'_>, before: Option<&Array>) -> Result<NormGrads> {
        let before = before.map(|before| self.open("norm", before)).transpose()?;
        self.normalise_backward(from, |from| self.cpu().layer_norm_backward(from, before.as_ref()))
    }

    fn group_norm(&self, shape: GroupShape, of: NormPass<'_>) -> Result<NormOutput> {
        self.normalise(of, |of| self.cpu().group_norm(shape, of))
    }

    fn group_norm_backward(&self, shape: GroupShape, from: NormBackward<'_>) -> Result<NormGrads> {
        self.normalise_backward(from, |from| self.cpu().group_norm_backward(shape, from))
    }

    fn l2_normalise(&self, x: &Array) -> Result<(Array, Array)> {
        let (y, inverses) = self.cpu().l2_normalise(&self.open("l2_normalise", x)?)?;
        Ok((self.hide(&y)?, self.hide(&inverses)?))
    }

    fn l2_normalise_backward(&self, y: &Array, dy: &Array, inverses: &Array) -> Result<Array> {
        let open = |array| self.open("l2_normalise", array);
        self.hide(&self.cpu().l2_normalise_backward(&open(y)?, &open(dy)?, &open(inverses)?)?)
    }
}

impl Losses for Checking {
    fn cross_entropy(&self, logits: &Array, of: CrossEntropy<'_>) -> Result<Array> {
        const OP: &str = "cross_entropy";
        let (logits, labels) = (self.open(OP, logits)?, &self.open(OP, of.labels)?);
        let weights = self.open_if(OP, of.weights)?;
        let of = CrossEntropy { labels, weights: weights.as_ref(), ..of };
        self.hide(&self.cpu().cross_entropy(&logits, of)?)
    }

    fn cross_entropy_parts(&self, logits: &Array, of: CutCrossEntropy<'_>) -> Result<Array> {
        const OP: &str = "cross_entropy_parts";
        let (logits, labels) = (self.open(OP, logits)?, &self.open(OP, of.rows.labels)?);
        let weights = self.open_if(OP, of.rows.weights)?;
        let rows = CrossEntropy { labels, weights: weights.as_ref(), ..of.rows };
        self.hide(&self.cpu().cross_entropy_parts(&logits, CutCrossEntropy { rows, ..of })?)
    }

    fn cross_entropy_slopes(&self, logits: &Array, of: CutCrossEntropy<'_>, log_sums: &[f64]) -> Result<()> {
        const OP: &str = "cross_entropy_slopes";
        let (logits, labels) = (self.open(OP, logits)?, &self.open(OP, of.rows.labels)?);
        let weights = self.open_if(OP, of.rows.weights)?;
        let rows = CrossEntropy { labels, weights: weights.as_ref(), ..of.rows };
        self.cpu().cross_entropy_slopes(&logits, CutCrossEntropy { rows, ..of }, log_sums)
    }

    fn element_loss(&self, of: ElementLossInputs<'_>) -> Result<Array> {
        let (x, target) = (&self.open(of.loss.name(), of.x)?, &self.open(of.loss.name(), of.target)?);
        self.hide(&self.cpu().element_loss(ElementLossInputs { x, target, ..of })?)
    }

    fn element_loss_backward(&self, of: ElementLossInputs<'_>, grad: &Array) -> Result<Array> {
        let open = |array| self.open(of.loss.name(), array);
        let (x, target) = (&open(of.x)?, &open(of.target)?);
        let of = ElementLossInputs { x, target, ..of };
        self.hide(&self.cpu().element_loss_backward(of, &self.open(of.loss.name(), grad)?)?)
    }

    fn kl_standard_normal(&self, of: KlInputs<'_>) -> Result<Array> {
        let (mu, logvar) = (&self.open("kl", of.mu)?, &self.open("kl", of.logvar)?);
        self.hide(&self.cpu().kl_standard_normal(KlInputs { mu, logvar, ..of })?)
    }

    fn kl_standard_normal_backward(&self, of: KlInputs<'_>, grad: &Array) -> Result<[Array; 2]> {
        let (mu, logvar) = (&self.open("kl", of.mu)?, &self.open("kl", of.logvar)?);
        let (of, grad) = (KlInputs { mu, logvar, ..of }, self.open("kl", grad)?);
        self.hide_two(&self.cpu().kl_standard_normal_backward(of, &grad)?)
    }
}

impl Checking {
    fn scaled(&self, scaled: Option<&ScaledStep>) -> Result<Option<ScaledStep>> {
        let Some(scaled) = scaled else { return Ok(None) };
        let open = |array| self.open("a scaled step", array);
        let (factor, left_out) = (open(&scaled.factor)?, open(&scaled.left_out)?);
        Ok(Some(ScaledStep { factor, left_out, all_left_out: open(&scaled.all_left_out)? }))
    }

    fn updated(&self, of: ParamUpdate<'_>, run: impl FnOnce(ParamUpdate<'_>) -> Result<()>) -> Result<()> {
        let (weights, grads) = (&self.open("update", of.weights)?, &self.open("update", of.grads)?);
        run(ParamUpdate { weights, grads, scaled: self.scaled(of.scaled)?.as_ref() })
    }
}

impl Updates for Checking {
    fn sgd_step(&self, options: SgdOptions, of: ParamUpdate<'_>, buffer: Option<&Array>) -> Result<()> {
        let buffer = self.open_if("sgd", buffer)?;
        self.updated(of, |of| self.cpu().sgd_step(options, of, buffer.as_ref()))
    }

    fn adam_step(&self, options: AdamOptions, of: ParamUpdate<'_>, moments: [&Array; 2]) -> Result<()> {
        let [first, second] = moments.map(|moment| self.open("adam", moment));
        let moments = [&first?, &second?];
        self.updated(of, |of| self.cpu().adam_step(options, of, moments))
    }

    fn lion_step(&self, options: LionOptions, of: ParamUpdate<'_>, moment: &Array) -> Result<()> {
        let moment = self.open("lion", moment)?;
        self.updated(of, |of| self.cpu().lion_step(options, of, &moment))
    }

    fn ema_step(&self, options: EmaOptions, of: AverageUpdate<'_>) -> Result<()> {
        let (average, weights) = (&self.open("ema", of.average)?, &self.open("ema", of.weights)?);
        let scaled = self.scaled(of.scaled)?;
        self.cpu().ema_step(options, AverageUpdate { average, weights, scaled: scaled.as_ref() })
    }

    fn sum_of_squares(&self, x: &Array) -> Result<Array> {
        self.hide(&self.cpu().sum_of_squares(&self.open("gradient norm", x)?)?)
    }

    fn exact_squares(&self, x: &Array) -> Result<Array> {
        self.hide(&self.cpu().exact_squares(&self.open("exact gradient norm", x)?)?)
    }

    fn exact_squares_value(&self, digits: &Array) -> Result<Array> {
        self.hide(&self.cpu().exact_squares_value(&self.open("exact gradient norm", digits)?)?)
    }

    fn scale_by(&self, to: &Array, factor: &Array) -> Result<()> {
        self.cpu().scale_by(&self.open("scale", to)?, &self.open("scale", factor)?)
    }

    fn clip_factor(&self, sum_of_squares: &Array, max_norm: f64) -> Result<Array> {
        self.hide(&self.cpu().clip_factor(&self.open("clip", sum_of_squares)?, max_norm)?)
    }

    fn not_finite(&self, number: &Array) -> Result<Array> {
        self.hide(&self.cpu().not_finite(&self.open("not_finite", number)?)?)
    }

    fn loss_scale_step(&self, of: LossScaleStep<'_>) -> Result<LossScaleOutcome> {
        let open = |array| self.open("loss_scale_step", array);
        let (squares, not_finite, state) = (&open(of.squares)?, &open(of.not_finite)?, &open(of.state)?);
        let of = LossScaleStep { squares, not_finite, state, ..of };
        let LossScaleOutcome { factor, left_out, report } = self.cpu().loss_scale_step(of)?;
        let (factor, left_out) = (self.hide(&factor)?, self.hide(&left_out)?);
        Ok(LossScaleOutcome { factor, left_out, report: self.hide(&report)? })
    }
}

impl LayerwiseUpdates for Checking {
    fn lamb_direction(
        &self,
        options: LambOptions,
        of: ParamUpdate<'_>,
        moments: [&Array; 2],
    ) -> Result<Array> {
        let [first, second] = moments.map(|moment| self.open("lamb", moment));
        let (first, second, mut direction) = (first?, second?, None);
        self.updated(of, |of| {
            direction = Some(self.cpu().lamb_direction(options, of, [&first, &second])?);
            Ok(())
        })?;
        self.hide(&direction.expect("computed"))
    }

    fn lamb_step(
        &self,
        options: LambOptions,
        of: ParamUpdate<'_>,
        moments: [&Array; 2],
        squares: Option<[&Array; 2]>,
    ) -> Result<()> {
        let [first, second] = moments.map(|moment| self.open("lamb", moment));
        let moments = [&first?, &second?];
        let [weights, direction] = squares.map_or([None, None], |squares| squares.map(Some));
        let (weights, direction) = (self.open_if("lamb", weights)?, self.open_if("lamb", direction)?);
        let squares =
            weights.as_ref().zip(direction.as_ref()).map(|(weights, direction)| [weights, direction]);
        self.updated(of, |of| self.cpu().lamb_step(options, of, moments, squares))
    }
}
