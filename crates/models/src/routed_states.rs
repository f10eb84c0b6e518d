//! States of models whose tokens choose experts, and the loss that balances the experts.

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

/// The normalised states of texts, and how evenly their tokens chose experts.
#[derive(Debug, Clone)]
pub struct RoutedStates {
    /// The states of the tokens, [N, T, width].
    pub hidden: Value,
    /// The loss that balances experts, a scalar: E · Σ_e f_e·p_e of each text times the weights of its tokens, the sum over texts and
    /// the mean over layers; `None` without experts. f_e is the share of the choices of a text's tokens that expert e has, p_e its mean
    /// probability in the text. Divided by the weights of all tokens it is 1 where experts are used evenly, and E / chosen at most,
    /// where all tokens choose the same ones. Gradients flow through p_e.
    ///
    /// Switch Transformers (Fedus et al. 2022) take both over a rank's batch; here they are of each text (DeepSeek-AI 2024, the loss of
    /// a sequence), so that any number of ranks and any micro-batch compute the same.
    pub balance: Option<Value>,
}

/// The experts that the tokens of texts chose.
#[derive(Clone, Copy)]
pub(crate) struct Choices<'a> {
    /// For each token its experts, one token after the other.
    pub(crate) experts: &'a [usize],
    /// The experts of a token.
    pub(crate) of_token: usize,
}

/// Computes the balance of a layer from scores [N, T, E] and the weights of the tokens, f32 [N, T].
pub(crate) fn balance(tape: &Tape, scores: &Value, choices: Choices<'_>, weights: &Value) -> Result<Value> {
    let error = |problem: String| Err(TensorError::Shape { op: "balance", problem });
    let &[texts, length, experts] = scores.dims() else {
        return error(format!("scores of experts {:?}; expected [N, T, E]", scores.shape()));
    };
    if weights.dims() != [texts, length] {
        let dims = weights.dims();
        return error(format!("weights {dims:?} for {texts} texts of {length} tokens"));
    }
    // Sums of probabilities of 16 bits would be too coarse.
    let wide = match scores.dtype()? {
        narrow if narrow.size_in_bytes() < 4 => DType::F32,
        wide => wide,
    };
    let factors = match tape.backend().has_numbers() {
        true => factors(&choices, &weights.to_host()?.flatten_all()?.to_vec1::<f32>()?, [length, experts]),
        false => vec![0.0; scores.shape().elem_count()],
    };
    let factors = Tensor::from_vec(factors, scores.shape(), &Device::Cpu)?.to_dtype(wide)?;
    let factors = Value::constant(tape.backend().from_host(&factors)?);
    let probabilities = ops::softmax(tape, &ops::cast(tape, scores, wide)?)?;
    ops::sum(tape, &ops::mul(tape, &probabilities, &factors)?)
}

/// The factor of each probability [N, T, E] in the balance: the weight of the token times E·f_e of its text.
fn factors(choices: &Choices<'_>, weights: &[f32], [length, experts]: [usize; 2]) -> Vec<f64> {
    let mut factors = Vec::with_capacity(weights.len() * experts);
    let of_text = choices.experts.chunks(length * choices.of_token);
    for (weights, chosen) in weights.chunks(length).zip(of_text) {
        let all: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        let mut shares = vec![0.0; experts];
        for (weight, chosen) in weights.iter().zip(chosen.chunks(choices.of_token)) {
            chosen.iter().for_each(|expert| shares[*expert] += f64::from(*weight));
        }
        let even = all * choices.of_token as f64 / experts as f64;
        for weight in weights {
            let factor = |share: &f64| if even > 0.0 { f64::from(*weight) * share / even } else { 0.0 };
            factors.extend(shares.iter().map(factor));
        }
    }
    factors
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use phalanx_tensor::gradcheck::check_gradients;
    use phalanx_tensor::{Context, Key, Session};

    use super::*;

    /// The choices of six tokens, two each.
    const CHOSEN: [usize; 12] = [0, 1, 1, 2, 0, 3, 2, 3, 1, 2, 0, 2];

    const WEIGHTS: [f32; 6] = [1.0, 0.5, 1.0, 2.0, 0.0, 1.0];

    /// Scores of four experts in two texts of three tokens.
    fn scores() -> Tensor {
        let mut values = vec![0.0; 24];
        Key::new(5).normal(0, &mut values);
        Tensor::from_vec(values, (2, 3, 4), &Device::Cpu).expect("as many")
    }

    fn balance_of(tape: &Tape, scores: &Value) -> Result<Value> {
        let weights = Value::constant(Tensor::new(&WEIGHTS, &Device::Cpu)?.reshape((2, 3))?);
        balance(tape, scores, Choices { experts: &CHOSEN, of_token: 2 }, &weights)
    }

    fn evaluated(scores: &Tensor) -> f64 {
        let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
        let value = balance_of(&tape, &Value::constant(scores)).and_then(|value| value.tensor());
        value.and_then(|value| Ok(value.to_dtype(DType::F64)?.to_scalar()?)).expect("a number")
    }

    #[test]
    fn the_balance_is_its_definition() {
        let texts: Vec<Vec<Vec<f64>>> = scores().to_vec3().expect("f64");
        let mut expected = 0.0;
        for (text, scores) in texts.iter().enumerate() {
            let weights = WEIGHTS[3 * text..][..3].iter().map(|weight| f64::from(*weight));
            let all: f64 = weights.clone().sum();
            for expert in 0..4 {
                let (mut share, mut probability) = (0.0, 0.0);
                for (token, weight) in weights.clone().enumerate() {
                    let chosen = &CHOSEN[6 * text + 2 * token..][..2];
                    share += if chosen.contains(&expert) { weight / (2.0 * all) } else { 0.0 };
                    let sum: f64 = scores[token].iter().map(|score| score.exp()).sum();
                    probability += weight * scores[token][expert].exp() / sum / all;
                }
                expected += all * 4.0 * share * probability;
            }
        }
        let found = evaluated(&scores());
        assert!((found - expected).abs() < 1e-12, "{found} and {expected}");
        // In 16 bits only the scores are rounded.
        let narrow = evaluated(&scores().to_dtype(DType::BF16).expect("it fits"));
        assert!((narrow - expected).abs() < 0.02, "{narrow}");
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let off = check_gradients(&[scores()], |tape, scores| balance_of(tape, &scores[0]));
        assert!(off.expect("f64") < 1e-7);
    }

    #[test]
    fn even_use_is_1_and_the_same_expert_for_all_is_the_number_of_experts() {
        let of = |scores: &[[f32; 4]; 4], dims: [usize; 3], chosen: [usize; 4]| {
            let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
            let scores = Tensor::new(scores, &Device::Cpu).and_then(|scores| scores.reshape(&dims));
            let weights = Tensor::ones(&dims[..2], DType::F32, &Device::Cpu).expect("small");
            let choices = Choices { experts: &chosen, of_token: 1 };
            let scores = Value::constant(scores.expect("as many"));
            let value = balance(&tape, &scores, choices, &Value::constant(weights)).expect("it fits");
            value.tensor().and_then(|value| Ok(value.to_scalar::<f32>()?)).expect("f32") / 4.0
        };
        let even = [0, 1, 2, 3].map(|at| [0, 1, 2, 3].map(|expert| if expert == at { 50.0 } else { 0.0 }));
        assert!((of(&even, [1, 4, 4], [0, 1, 2, 3]) - 1.0).abs() < 1e-6);
        assert!((of(&[even[0]; 4], [1, 4, 4], [0; 4]) - 4.0).abs() < 1e-6);
        // Four texts of a token: even only together.
        assert!((of(&even, [4, 1, 4], [0, 1, 2, 3]) - 4.0).abs() < 1e-6);
    }
}
