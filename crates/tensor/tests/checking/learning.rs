//! Normalisation, losses, steps of optimizers.

use candle_core::DType;
use phalanx_tensor::Result;
use phalanx_tensor::backend::{
    AdamOptions, Array, BatchNormBackward, BatchNormMaps, BatchNormPass, BatchNorms, ElementLoss, EmaOptions,
    LossScaleOptions, Losses, NormBackward, NormGrads, Normed, Norms, ScaledStep, SgdOptions, Updates,
};

use super::Checking;

const BATCH: &str = "batch_norm2d";

/// Runs `$run` with `$pass` opened.
macro_rules! opened {
    ($self:ident, $pass:ident => $run:expr) => {{
        let (x, gamma, beta) =
            ($self.open(BATCH, $pass.x)?, $self.open(BATCH, $pass.gamma)?, $self.open(BATCH, $pass.beta)?);
        let $pass = BatchNormPass { x: &x, gamma: &gamma, beta: &beta, ..$pass };
        $run
    }};
    ($self:ident, backward $from:ident => $run:expr) => {{
        let pass = $from.pass;
        opened!($self, pass => {
            let (statistics, dy) = ($self.open(BATCH, $from.statistics)?, $self.open(BATCH, $from.dy)?);
            let output = $self.open_if(BATCH, $from.output)?;
            let $from = BatchNormBackward {
                pass, statistics: &statistics, output: output.as_ref(), dy: &dy, residual: $from.residual,
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

    fn batch_norm_train(&self, pass: BatchNormPass<'_>, residual: Option<&Array>) -> Result<(Array, Array)> {
        let residual = self.open_if(BATCH, residual)?;
        let (y, statistics) = opened!(self, pass => self.cpu().batch_norm_train(pass, residual.as_ref())?);
        Ok((self.hide(&y)?, self.hide(&statistics)?))
    }

    fn batch_norm(
        &self,
        pass: BatchNormPass<'_>,
        statistics: &Array,
        residual: Option<&Array>,
    ) -> Result<Array> {
        let (statistics, residual) = (self.open(BATCH, statistics)?, self.open_if(BATCH, residual)?);
        self.hide(&opened!(self, pass => self.cpu().batch_norm(pass, &statistics, residual.as_ref())?))
    }

    fn batch_norm_running(
        &self,
        statistics: &Array,
        momentum: f64,
        mean: &Array,
        variance: &Array,
    ) -> Result<[Array; 2]> {
        let open = |array| self.open(BATCH, array);
        let (statistics, mean, variance) = (open(statistics)?, open(mean)?, open(variance)?);
        self.hide_two(&self.cpu().batch_norm_running(&statistics, momentum, &mean, &variance)?)
    }

    fn batch_norm_train_backward(&self, from: BatchNormBackward<'_>) -> Result<(BatchNormMaps, Array)> {
        let (maps, sums) = opened!(self, backward from => self.cpu().batch_norm_train_backward(from)?);
        Ok((self.hide_maps(&maps)?, self.hide(&sums)?))
    }

    fn batch_norm_gradient_sums(&self, from: BatchNormBackward<'_>) -> Result<Array> {
        self.hide(&opened!(self, backward from => self.cpu().batch_norm_gradient_sums(from)?))
    }

    fn batch_norm_backward(
        &self,
        from: BatchNormBackward<'_>,
        sums: Option<&Array>,
    ) -> Result<BatchNormMaps> {
        let sums = self.open_if(BATCH, sums)?;
        self.hide_maps(&opened!(self, backward from => self.cpu().batch_norm_backward(from, sums.as_ref())?))
    }

    fn batch_norm_affine_gradients(&self, sums: &Array, dtype: DType) -> Result<[Array; 2]> {
        self.hide_two(&self.cpu().batch_norm_affine_gradients(&self.open(BATCH, sums)?, dtype)?)
    }

    fn count_up(&self, counter: &Array) -> Result<Array> {
        self.hide(&self.cpu().count_up(&self.open(BATCH, counter)?)?)
    }
}

impl Checking {
    fn hide_normed(&self, normed: &Normed) -> Result<Normed> {
        let (output, mean) = (self.hide(&normed.output)?, self.hide(&normed.mean)?);
        Ok(Normed { output, mean, inv_std: self.hide(&normed.inv_std)? })
    }

    fn normalised(
        &self,
        from: NormBackward<'_>,
        run: impl FnOnce(NormBackward<'_>) -> Result<NormGrads>,
    ) -> Result<NormGrads> {
        let open = |array| self.open("norm", array);
        let (x, dy, gamma, mean, inv_std) =
            (open(from.x)?, open(from.dy)?, open(from.gamma)?, open(from.mean)?, open(from.inv_std)?);
        let grads = run(NormBackward { x: &x, dy: &dy, gamma: &gamma, mean: &mean, inv_std: &inv_std })?;
        let (dx, dgamma) = (self.hide(&grads.dx)?, self.hide(&grads.dgamma)?);
        Ok(NormGrads { dx, dgamma, dbeta: self.hide(&grads.dbeta)? })
    }
}

impl Norms for Checking {
    fn layer_norm(&self, x: &Array, gamma: &Array, beta: &Array, eps: f64) -> Result<Normed> {
        let open = |array| self.open("layer_norm", array);
        self.hide_normed(&self.cpu().layer_norm(&open(x)?, &open(gamma)?, &open(beta)?, eps)?)
    }

    fn layer_norm_backward(&self, from: NormBackward<'_>) -> Result<NormGrads> {
        self.normalised(from, |from| self.cpu().layer_norm_backward(from))
    }

    fn group_norm(
        &self,
        dims: [usize; 3],
        groups: usize,
        x: &Array,
        gamma: &Array,
        beta: &Array,
        eps: f64,
    ) -> Result<Normed> {
        let open = |array| self.open("group_norm", array);
        self.hide_normed(&self.cpu().group_norm(dims, groups, &open(x)?, &open(gamma)?, &open(beta)?, eps)?)
    }

    fn group_norm_backward(
        &self,
        dims: [usize; 3],
        groups: usize,
        from: NormBackward<'_>,
    ) -> Result<NormGrads> {
        self.normalised(from, |from| self.cpu().group_norm_backward(dims, groups, from))
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
    fn cross_entropy(
        &self,
        logits: &Array,
        labels: &Array,
        smoothing: f64,
        factor: f64,
    ) -> Result<(Array, Array)> {
        let (logits, labels) = (self.open("cross_entropy", logits)?, self.open("cross_entropy", labels)?);
        let (loss, softmax) = self.cpu().cross_entropy(&logits, &labels, smoothing, factor)?;
        Ok((self.hide(&loss)?, self.hide(&softmax)?))
    }

    fn cross_entropy_backward(
        &self,
        softmax: &Array,
        labels: &Array,
        smoothing: f64,
        factor: f64,
        grad: &Array,
    ) -> Result<Array> {
        let open = |array| self.open("cross_entropy", array);
        let (softmax, labels, grad) = (open(softmax)?, open(labels)?, open(grad)?);
        self.hide(&self.cpu().cross_entropy_backward(&softmax, &labels, smoothing, factor, &grad)?)
    }

    fn element_loss(&self, loss: ElementLoss, x: &Array, target: &Array, factor: f64) -> Result<Array> {
        let (x, target) = (self.open(loss.name(), x)?, self.open(loss.name(), target)?);
        self.hide(&self.cpu().element_loss(loss, &x, &target, factor)?)
    }

    fn element_loss_backward(
        &self,
        loss: ElementLoss,
        x: &Array,
        target: &Array,
        factor: f64,
        grad: &Array,
    ) -> Result<Array> {
        let open = |array| self.open(loss.name(), array);
        let (x, target, grad) = (open(x)?, open(target)?, open(grad)?);
        self.hide(&self.cpu().element_loss_backward(loss, &x, &target, factor, &grad)?)
    }

    fn kl_standard_normal(&self, mu: &Array, logvar: &Array, factor: f64) -> Result<Array> {
        let (mu, logvar) = (self.open("kl", mu)?, self.open("kl", logvar)?);
        self.hide(&self.cpu().kl_standard_normal(&mu, &logvar, factor)?)
    }

    fn kl_standard_normal_backward(
        &self,
        mu: &Array,
        logvar: &Array,
        factor: f64,
        grad: &Array,
    ) -> Result<[Array; 2]> {
        let open = |array| self.open("kl", array);
        let (mu, logvar, grad) = (open(mu)?, open(logvar)?, open(grad)?);
        self.hide_two(&self.cpu().kl_standard_normal_backward(&mu, &logvar, factor, &grad)?)
    }
}

impl Checking {
    fn scaled(&self, scaled: Option<&ScaledStep>) -> Result<Option<ScaledStep>> {
        let Some(scaled) = scaled else { return Ok(None) };
        let open = |array| self.open("a scaled step", array);
        let (factor, left_out) = (open(&scaled.factor)?, open(&scaled.left_out)?);
        Ok(Some(ScaledStep { factor, left_out, all_left_out: open(&scaled.all_left_out)? }))
    }
}

impl Updates for Checking {
    fn sgd_step(
        &self,
        options: SgdOptions,
        weights: &Array,
        grads: &Array,
        buffer: Option<&Array>,
        scaled: Option<&ScaledStep>,
    ) -> Result<()> {
        let (weights, grads) = (self.open("sgd", weights)?, self.open("sgd", grads)?);
        let buffer = self.open_if("sgd", buffer)?;
        self.cpu().sgd_step(options, &weights, &grads, buffer.as_ref(), self.scaled(scaled)?.as_ref())
    }

    fn adam_step(
        &self,
        options: AdamOptions,
        weights: &Array,
        grads: &Array,
        [first, second]: [&Array; 2],
        scaled: Option<&ScaledStep>,
    ) -> Result<()> {
        let open = |array| self.open("adam", array);
        let (moments, scaled) = ([&open(first)?, &open(second)?], self.scaled(scaled)?);
        self.cpu().adam_step(options, &open(weights)?, &open(grads)?, moments, scaled.as_ref())
    }

    fn ema_step(
        &self,
        options: EmaOptions,
        average: &Array,
        weights: &Array,
        scaled: Option<&ScaledStep>,
    ) -> Result<()> {
        let (average, weights) = (self.open("ema", average)?, self.open("ema", weights)?);
        self.cpu().ema_step(options, &average, &weights, self.scaled(scaled)?.as_ref())
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

    fn loss_scale_step(
        &self,
        options: LossScaleOptions,
        [squares, overflow]: [&Array; 2],
        state: &Array,
    ) -> Result<[Array; 3]> {
        let open = |array| self.open("loss_scale_step", array);
        let (squares, overflow) = (open(squares)?, open(overflow)?);
        let [a, b, c] = self.cpu().loss_scale_step(options, [&squares, &overflow], &open(state)?)?;
        Ok([self.hide(&a)?, self.hide(&b)?, self.hide(&c)?])
    }
}
