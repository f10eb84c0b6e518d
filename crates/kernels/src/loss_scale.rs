//! How the scale of a loss follows its gradients (Micikevicius et al. 2018), as `torch.amp.GradScaler` has it.

/// How a scale follows gradients, and what their norm is clipped to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaleOptions {
    /// What the norm of unscaled gradients may be at most.
    pub max_norm: Option<f64>,
    /// Steps with finite gradients after which the scale doubles; a scale that stays has none.
    pub interval: Option<u64>,
}

/// Numbers of a scale's state: the scale; steps with finite gradients since it changed; steps that were left out, in a row up to
/// now; and all that were.
pub const LOSS_SCALE_STATE: usize = 4;

/// What a step of a scale has come to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaleStep {
    /// What gradients are multiplied by before they are used: 1/scale and clipping in one; 0 if the step is left out.
    pub factor: f64,
    /// Whether the step is left out, as a gradient is not finite.
    pub left_out: bool,
    /// The norm of the unscaled gradients.
    pub norm: f64,
}

/// What gradients are multiplied by so that their norm is at most `max_norm`; 1 if they need not be, or the norm is not finite.
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    // The small number is PyTorch's, so that both clip alike.
    if norm.is_finite() && norm > max_norm { max_norm / (norm + 1e-6) } else { 1.0 }
}

/// Takes a step of a scale whose gradients have this sum of squares; `overflow` says whether any rank's are not finite. The scale
/// halves after a step that is left out and doubles after `interval` that are not.
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
