//! The choice of a token by its logits.

use phalanx_tensor::{Result, TensorError};

/// The settings of the choice of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// The divisor of the logits; 0 = the most probable token.
    pub temperature: f64,
    /// Only this number of the most probable tokens is chosen from; 0 = all.
    pub top_k: usize,
    /// Only the most probable tokens that together have this probability are chosen from (Holtzman et al. 2020); 1 = all.
    pub top_p: f64,
    /// The divisor of positive logits, and the factor of negative ones, of tokens that the text has (Keskar et al. 2019);
    /// 1 = none.
    pub repetition_penalty: f64,
    /// The seed.
    pub seed: u64,
}

impl Default for Sampling {
    /// Samples from all tokens at temperature 1.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// Chooses a token behind the text `seen` by its logits and a number from [0, 1). Of equal logits the smaller token is
    /// first.
    pub(super) fn choose(&self, logits: &mut [f32], seen: &[u32], uniform: f64) -> Result<u32> {
        if let Some(token) = logits.iter().position(|logit| !logit.is_finite()) {
            let problem = format!("the logit of token {token} is {}: the weights are damaged", logits[token]);
            return Err(TensorError::Shape { op: "generate", problem });
        }
        self.penalise(logits, seen);
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let by_logit = |one: &u32, other: &u32| {
            logits[*other as usize].total_cmp(&logits[*one as usize]).then_with(|| one.cmp(other))
        };
        if self.temperature == 0.0 {
            return Ok(order.into_iter().min_by(by_logit).unwrap_or(0));
        }
        if self.top_k > 0 && self.top_k < order.len() {
            order.select_nth_unstable_by(self.top_k - 1, by_logit);
            order.truncate(self.top_k);
        }
        order.sort_unstable_by(by_logit);
        let highest = order.first().map_or(0.0, |token| f64::from(logits[*token as usize]));
        let weights: Vec<f64> = order
            .iter()
            .map(|token| ((f64::from(logits[*token as usize]) - highest) / self.temperature).exp())
            .collect();
        let sum: f64 = weights.iter().sum();
        let kept = nucleus(&weights, self.top_p * sum);
        let mut rest = uniform * weights[..kept].iter().sum::<f64>();
        for (token, weight) in order.iter().zip(&weights[..kept]) {
            rest -= weight;
            if rest < 0.0 {
                return Ok(*token);
            }
        }
        Ok(order[kept - 1])
    }

    fn penalise(&self, logits: &mut [f32], seen: &[u32]) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        let penalty = self.repetition_penalty as f32;
        let mut tokens = seen.to_vec();
        tokens.sort_unstable();
        tokens.dedup();
        for token in tokens {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }
}

/// The number of the first weights that reach `needed` together; at least 1.
fn nucleus(weights: &[f64], needed: f64) -> usize {
    let mut sum = 0.0;
    let reached = weights.iter().position(|weight| {
        sum += weight;
        sum >= needed
    });
    reached.map_or(weights.len(), |at| at + 1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shares of tokens over many draws.
    fn shares(sampling: Sampling, logits: [f32; 4], seen: &[u32]) -> [f64; 4] {
        let draws = 4000;
        let mut counts = [0.0; 4];
        for draw in 0..draws {
            let uniform = (f64::from(draw) + 0.5) / f64::from(draws);
            counts[sampling.choose(&mut logits.clone(), seen, uniform).expect("finite") as usize] += 1.0;
        }
        counts.map(|count| count / f64::from(draws))
    }

    fn close(found: [f64; 4], expected: [f64; 4]) -> bool {
        found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-3)
    }

    #[test]
    fn tokens_have_the_probabilities_of_the_softmax() {
        let logits = [0.1_f32, 0.2, 0.3, 0.4].map(f32::ln);
        let all = Sampling::default();
        assert!(close(shares(all, logits, &[]), [0.1, 0.2, 0.3, 0.4]));
        assert!(close(shares(Sampling { top_k: 2, ..all }, logits, &[]), [0.0, 0.0, 3.0 / 7.0, 4.0 / 7.0]));
        // 0.4 and 0.3 reach 0.65.
        assert!(close(
            shares(Sampling { top_p: 0.65, ..all }, logits, &[]),
            [0.0, 0.0, 3.0 / 7.0, 4.0 / 7.0]
        ));
        assert!(close(shares(Sampling { top_p: 0.01, ..all }, logits, &[]), [0.0, 0.0, 0.0, 1.0]));
        let squares = [0.01, 0.04, 0.09, 0.16].map(|share| share / 0.3);
        assert!(close(shares(Sampling { temperature: 0.5, ..all }, logits, &[]), squares));
        let greedy = Sampling { temperature: 0.0, ..all };
        assert!(close(shares(greedy, logits, &[]), [0.0, 0.0, 0.0, 1.0]));
        assert!(close(shares(greedy, [1.0; 4], &[]), [1.0, 0.0, 0.0, 0.0]), "the first of equal ones");
    }

    #[test]
    fn tokens_of_the_text_are_penalised_once() {
        let penalty = Sampling { repetition_penalty: 2.0, temperature: 0.0, ..Sampling::default() };
        let choose =
            |logits: [f32; 4], seen: &[u32]| penalty.choose(&mut logits.clone(), seen, 0.0).expect("finite");
        assert_eq!(choose([1.0, 3.0, 2.0, 0.0], &[1, 1, 1]), 2);
        assert_eq!(choose([1.0, 3.0, 1.4, 0.0], &[1, 9]), 1);
        assert_eq!(choose([-1.0, -1.5, -9.0, -9.0], &[0]), 1);
        assert!(
            penalty
                .choose(&mut [f32::NAN, 0.0], &[], 0.0)
                .expect_err("damaged")
                .to_string()
                .contains("token 0")
        );
    }
}
