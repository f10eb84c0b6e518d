//! Dynamic loss scaling (Micikevicius et al. 2018), as in `torch.amp.GradScaler`.

/// The options of loss scaling and gradient clipping.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaleOptions {
    /// The largest norm of unscaled gradients.
    pub max_norm: Option<f64>,
    /// The steps with finite gradients after which the scale doubles; none for a constant scale.
    pub interval: Option<u64>,
}

/// The length of a scale's state: the scale, the steps with finite gradients since it changed, the current run of skipped
/// steps, and all skipped steps.
pub const LOSS_SCALE_STATE: usize = 4;

/// The result of a step of loss scaling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaleStep {
    /// The factor of the gradients: 1/scale times the clip factor; 0 if the step is skipped.
    pub factor: f64,
    /// True if the step is skipped because a gradient is not finite.
    pub left_out: bool,
    /// The norm of the unscaled gradients.
    pub norm: f64,
}

/// Returns the factor that clips a norm to `max_norm`; 1 if the norm is small enough or not finite.
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    // The small number is PyTorch's, so that both clip equally.
    if norm.is_finite() && norm > max_norm { max_norm / (norm + 1e-6) } else { 1.0 }
}

/// Updates the scale from the sum of squares of its gradients; `overflow` is true if a gradient of any rank is not finite.
///
/// The scale halves after a skipped step and doubles after `interval` others.
pub fn loss_scale_step(
    options: LossScaleOptions,
    (sum_of_squares, overflow): (f64, bool),
    state: &mut [f64; LOSS_SCALE_STATE],
) -> LossScaleStep {
    let [scale, good_steps, in_a_row, left_out] = state;
    let (used, norm) = (*scale, sum_of_squares.sqrt() / *scale);
    if overflow {
        (*good_steps, *in_a_row, *left_out) = (0.0, *in_a_row + 1.0, *left_out + 1.0);
        if options.interval.is_some() {
            *scale *= 0.5;
        }
        return LossScaleStep { factor: 0.0, left_out: true, norm };
    }
    (*good_steps, *in_a_row) = (*good_steps + 1.0, 0.0);
    if options.interval.is_some_and(|interval| *good_steps >= interval as f64) {
        (*scale, *good_steps) = (*scale * 2.0, 0.0);
    }
    let clipped = options.max_norm.map_or(1.0, |max_norm| clip_factor(norm, max_norm));
    LossScaleStep { factor: clipped / used, left_out: false, norm }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_after_good_steps_and_halves_after_a_bad_one() {
        let options = LossScaleOptions { max_norm: None, interval: Some(2) };
        let mut state = [1024.0, 0.0, 0.0, 0.0];
        let step = loss_scale_step(options, (4.0, false), &mut state);
        assert_eq!((step.factor, step.left_out, step.norm), (1.0 / 1024.0, false, 2.0 / 1024.0));
        loss_scale_step(options, (4.0, false), &mut state);
        assert_eq!(state, [2048.0, 0.0, 0.0, 0.0]);
        let step = loss_scale_step(options, (f64::INFINITY, true), &mut state);
        assert_eq!((step.factor, step.left_out, state), (0.0, true, [1024.0, 0.0, 1.0, 1.0]));
        // A rank that sees nothing wrong follows the others.
        loss_scale_step(options, (1.0, true), &mut state);
        assert_eq!(state, [512.0, 0.0, 2.0, 2.0]);
        loss_scale_step(options, (1.0, false), &mut state);
        assert_eq!(state, [512.0, 1.0, 0.0, 2.0]);
    }

    #[test]
    fn one_that_stays_counts_and_clips() {
        let options = LossScaleOptions { max_norm: Some(2.0), interval: None };
        let mut state = [8.0, 0.0, 0.0, 0.0];
        let step = loss_scale_step(options, (f64::powi(4.0 * 8.0, 2), false), &mut state);
        assert!((step.factor * 8.0 - 2.0 / (4.0 + 1e-6)).abs() < 1e-12 && step.norm == 4.0);
        loss_scale_step(options, (f64::NAN, true), &mut state);
        assert_eq!(state, [8.0, 0.0, 1.0, 1.0]);
    }
}
