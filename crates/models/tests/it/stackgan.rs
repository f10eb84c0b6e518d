//! StackGAN's networks and losses: the authors' sizes, training one network at a time, pairs that agree between ranks.

use std::sync::Arc;

use candle_core::DType;
use phalanx_models::stackgan::{
    AdversarialLoss, Condition, ConditioningActivation, Discriminator, GanObjective, GeneratorOutput,
    SampleWeights, conditions_of_next,
};
use phalanx_models::{StackGanConfig, StageOneGenerator, StageTwoGenerator};
use phalanx_tensor::{
    BuildOptions, Context, Key, ParamBucket, ParamStore, Result, Scope, Session, StoreBuilder, Tape, Value,
};

use crate::harness::{self, evaluation_tape, numbers};

fn built<N>(new: impl FnOnce(&Scope) -> Result<N>) -> (N, ParamStore) {
    harness::build(BuildOptions { key: Key::new(7), ..BuildOptions::default() }, new)
}

fn tape() -> Tape {
    Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)))
}

/// Standard normal values that the name determines.
fn random(name: &str, dims: &[usize]) -> Value {
    Value::constant(harness::random(Key::new(3).stream(name), dims, DType::F32))
}

fn gradients(store: &ParamStore) -> Vec<Vec<f32>> {
    let grads = |param: &ParamBucket| {
        let grads = param.grads().expect("sound").expect("there");
        grads.tensor().expect("on the CPU").to_vec1().expect("f32")
    };
    store.buckets().iter().map(grads).collect()
}

fn small() -> StackGanConfig {
    StackGanConfig {
        text_dim: 6,
        condition_dim: 4,
        conditioning: ConditioningActivation::Relu,
        z_dim: 5,
        gf_dim: 4,
        df_dim: 4,
        residual_blocks: 1,
        stage_one_size: 16,
        stage_two_size: 64,
        sync_batch_norm: false,
    }
}

#[test]
fn networks_have_the_authors_sizes() {
    let config = StackGanConfig::new();
    let parameters = |store: ParamStore| store.num_parameters();
    let both = |config: &StackGanConfig| {
        [
            parameters(built(|scope| StageOneGenerator::new(scope, config)).1),
            parameters(built(|scope| Discriminator::stage_one(scope, config)).1),
            parameters(built(|scope| StageTwoGenerator::new(scope, config)).1),
            parameters(built(|scope| Discriminator::stage_two(scope, config)).1),
        ]
    };
    assert_eq!(both(&config), [10_301_248, 5_715_713, 26_290_080, 71_269_122]);
    // The authors' settings for COCO.
    let coco = StackGanConfig { gf_dim: 192, df_dim: 96, residual_blocks: 2, ..config };
    assert_eq!(both(&coco), [20_020_832, 12_407_425, 37_130_480, 159_889_538]);
}

#[test]
fn images_have_the_sizes_that_are_set_and_others_are_refused() {
    for (one, two) in [(8, 16), (16, 32), (16, 64), (32, 64), (64, 128)] {
        let config = StackGanConfig { stage_one_size: one, stage_two_size: two, ..small() };
        let (g1, _) = built(|scope| StageOneGenerator::new(scope, &config));
        let (g2, _) = built(|scope| StageTwoGenerator::new(scope, &config));
        let tape = tape();
        let (text, noise) = (random("text", &[2, 6]), random("noise", &[2, 4]));
        let made = g1.forward(&tape, &text, &random("z", &[2, 5]), &noise).expect("sound").image;
        assert_eq!(made.dims(), [2, 3, one, one]);
        let large = g2.forward(&tape, &made.detach(), &text, &noise).expect("sound").image;
        assert_eq!(large.dims(), [2, 3, two, two]);
        for (images, judge) in [
            (&made, built(|scope| Discriminator::stage_one(scope, &config)).0),
            (&large, built(|scope| Discriminator::stage_two(scope, &config)).0),
        ] {
            let features = judge.features(&tape, images).expect("sound");
            assert_eq!(features.dims()[2..], [4, 4]);
            assert_eq!(judge.logits(&tape, &features, &noise).expect("sound").dims(), [2]);
        }
    }
    for (one, two, said) in
        [(24, 96, "24 is not 4 doubled"), (16, 48, "48 is not 16 doubled"), (16, 16, "16 is not 16")]
    {
        let config = StackGanConfig { stage_one_size: one, stage_two_size: two, ..small() };
        let builder = StoreBuilder::new(BuildOptions::default());
        let first = StageOneGenerator::new(&builder.root().pp("one"), &config).map(|_| ());
        let error =
            first.and_then(|()| StageTwoGenerator::new(&builder.root().pp("two"), &config).map(|_| ()));
        let error = error.expect_err("no such size").to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// The losses of the authors' code.
fn objective(counts: SampleWeights<'_>) -> GanObjective<'_> {
    GanObjective { adversarial: AdversarialLoss::CrossEntropy, kl_weight: 2.0, counts }
}

#[test]
fn one_network_is_trained_at_a_time() {
    let config = small();
    let (g1, of_g1) = built(|scope| StageOneGenerator::new(scope, &config));
    let (g2, of_g2) = built(|scope| StageTwoGenerator::new(scope, &config));
    let weights = SampleWeights { weights: &[1.0; 3], sum: 3.0 };
    for stage in [1, 2] {
        let (d, of_d) = built(|scope| match stage {
            1 => Discriminator::stage_one(scope, &config),
            _ => Discriminator::stage_two(scope, &config),
        });
        let (real, text) =
            (random("real", &[3, 3, 4 << (2 * stage), 4 << (2 * stage)]), random("text", &[3, 6]));
        let (making, judging) = (tape(), tape());
        let noise = random("noise", &[3, 4]);
        let mut made = g1.forward(&making, &text, &random("z", &[3, 5]), &noise).expect("sound");
        let (mut of_g, mut first) = (&of_g1, None);
        if stage == 2 {
            first = Some(gradients(&of_g1));
            made = g2.forward(&making, &made.image.detach(), &text, &noise).expect("sound");
            of_g = &of_g2;
        }
        let (shown, fake) = (made.condition.mu.detach(), made.image.detach());
        let wrong = conditions_of_next(&judging, &shown).expect("sound");
        let pairs = (&shown, wrong.as_ref());
        let loss =
            objective(weights).discriminator_loss(&judging, &d, (&real, &fake), pairs).expect("sound").total;
        judging.backward(&loss).expect("sound");
        assert!(of_d.buckets().iter().all(ParamBucket::has_grads));
        assert!(!of_g.buckets().iter().any(ParamBucket::has_grads));
        let before = gradients(&of_d);
        let losses = objective(weights).generator_loss(&making, &d, &made, &shown).expect("sound");
        making.backward(&losses.total).expect("sound");
        assert!(of_g.buckets().iter().all(ParamBucket::has_grads));
        assert_eq!(gradients(&of_d), before, "the discriminator gets no gradient of the generator's loss");
        if let Some(first) = first {
            assert_eq!(gradients(&of_g1), first, "the first stage is cut off from the second");
        }
    }
}

#[test]
fn glu_gates_means_and_log_variances_by_further_outputs() {
    let config = StackGanConfig { conditioning: ConditioningActivation::Glu, ..small() };
    let (g1, of_g1) = built(|scope| StageOneGenerator::new(scope, &config));
    let fc = of_g1.params().iter().find(|param| param.name() == "ca_net.fc.weight").expect("is there");
    assert_eq!(fc.dims(), [16, 6]);
    let (weight, text) = (Value::constant(fc.tensor().expect("whole")), random("text", &[3, 6]));
    let noise = (random("z", &[3, 5]), random("noise", &[3, 4]));
    let found = g1.forward(&tape(), &text, &noise.0, &noise.1).expect("sound").condition;
    let (weight, text) = (numbers(&weight), numbers(&text));
    let output = |row: usize, output: usize| -> f32 {
        (0..6).map(|input| weight[6 * output + input] * text[6 * row + input]).sum()
    };
    let expected = |first: usize| -> Vec<f32> {
        let cells = (0..3).flat_map(|row| (first..first + 4).map(move |cell| (row, cell)));
        cells.map(|(row, cell)| output(row, cell) / (1.0 + (-output(row, cell + 8)).exp())).collect()
    };
    for (found, expected) in [(found.mu, expected(0)), (found.logvar, expected(4))] {
        let off = numbers(&found).iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-6, "{found:?} {expected:?}");
        assert!(expected.iter().any(|x| *x < 0.0), "both signs");
    }
}

#[test]
fn the_losses_are_those_of_the_papers() {
    // Computes the sums of the authors' code, term by term.
    let bce = |logits: &[f32], target: f64| {
        let each = logits.iter().map(|x| f64::from(*x)).map(|x| (1.0 + (-x).exp()).ln() + (1.0 - target) * x);
        each.sum::<f64>() / logits.len() as f64
    };
    let hinge = |logits: &[f32], target: f64| {
        let each = logits.iter().map(|x| (1.0 + (1.0 - 2.0 * target) * f64::from(*x)).max(0.0));
        each.sum::<f64>() / logits.len() as f64
    };
    losses_are(AdversarialLoss::CrossEntropy, bce, |logits| bce(logits, 1.0));
    losses_are(AdversarialLoss::Hinge, hinge, |logits| {
        -logits.iter().map(|x| f64::from(*x)).sum::<f64>() / logits.len() as f64
    });
}

/// Compares both networks' losses with sums of `bce`, of logits and their target, and `convincing`, of the logits of a
/// generator's images.
fn losses_are(
    adversarial: AdversarialLoss,
    bce: impl Fn(&[f32], f64) -> f64,
    convincing: impl Fn(&[f32]) -> f64,
) {
    let config = small();
    for stage in [1, 2] {
        let (d, _) = built(|scope| match stage {
            1 => Discriminator::stage_one(scope, &config),
            _ => Discriminator::stage_two(scope, &config),
        });
        let size = 4 << (2 * stage);
        let (real, fake) = (random("real", &[4, 3, size, size]), random("fake", &[4, 3, size, size]));
        let condition = random("condition", &[4, 4]);
        let tape = tape();
        let wrong = conditions_of_next(&tape, &condition).expect("sound").expect("there are four");
        let rows = numbers(&condition);
        assert_eq!(numbers(&wrong), [&rows[4..], &rows[..4]].concat());
        let counts = SampleWeights { weights: &[1.0; 4], sum: 4.0 };
        let pairs = (&condition, Some(&wrong));
        let objective = GanObjective { adversarial, ..objective(counts) };
        let found = objective.discriminator_loss(&tape, &d, (&real, &fake), pairs).expect("sound");
        let of = |images: &Value| d.features(&tape, images).expect("sound");
        let (of_real, of_fake) = (of(&real), of(&fake));
        let logits = |features: &Value, condition: &Value| {
            numbers(&d.logits(&tape, features, condition).expect("sound"))
        };
        let right = bce(&logits(&of_real, &condition), 1.0);
        let (wrong, made) = (bce(&logits(&of_real, &wrong), 0.0), bce(&logits(&of_fake, &condition), 0.0));
        let alone =
            |features: &Value| d.logits_alone(&tape, features).expect("sound").map(|logits| numbers(&logits));
        let expected = match (alone(&of_real), alone(&of_fake)) {
            (Some(real), Some(fake)) => {
                (right + bce(&real, 1.0)) / 2.0 + (wrong + made + bce(&fake, 0.0)) / 3.0
            }
            _ => right + 0.5 * (wrong + made),
        };
        let total = f64::from(numbers(&found.total)[0]);
        assert!((total - expected).abs() < 1e-5, "stage {stage}: {total} {expected}");

        let of_fakes = convincing(&logits(&of_fake, &condition));
        let expected = of_fakes + alone(&of_fake).map_or(0.0, |logits| convincing(&logits));
        let made = GeneratorOutput {
            image: fake,
            condition: Condition { mu: condition.clone(), logvar: random("logvar", &[4, 4]) },
        };
        let found = objective.generator_loss(&tape, &d, &made, &condition).expect("sound");
        let adversarial = f64::from(numbers(&found.adversarial)[0]);
        assert!((adversarial - expected).abs() < 1e-5, "stage {stage}: {adversarial} {expected}");
    }
}

#[test]
fn samples_count_as_much_as_they_weigh() {
    AdversarialLoss::ALL.iter().for_each(|loss| samples_count_by_weight(*loss));
}

fn samples_count_by_weight(adversarial: AdversarialLoss) {
    let config = small();
    let (g, of_g) = built(|scope| StageOneGenerator::new(scope, &config));
    let (d, of_d) = built(|scope| Discriminator::stage_one(scope, &config));
    let (text, noise) = (random("text", &[4, 6]), random("noise", &[4, 4]));
    // In evaluation samples are independent, so a loss is the mean of its samples' losses.
    let judged = |weights: &[f32], sum: f64| {
        let tape = evaluation_tape();
        let made = g.forward(&tape, &text, &random("z", &[4, 5]), &noise).expect("sound");
        let shown = made.condition.mu.detach();
        let objective = GanObjective { adversarial, ..objective(SampleWeights { weights, sum }) };
        let wrong = conditions_of_next(&tape, &shown).expect("sound");
        let real = random("real", &[4, 3, 16, 16]);
        let pairs = (&shown, wrong.as_ref());
        let images = (&real, &made.image);
        let of_d = objective.discriminator_loss(&tape, &d, images, pairs).expect("sound").total;
        let of_g = objective.generator_loss(&tape, &d, &made, &shown).expect("sound").total;
        [of_d, of_g].map(|loss| f64::from(numbers(&loss)[0]))
    };
    let only = |sample: usize| {
        let mut weights = [0.0; 4];
        weights[sample] = 1.0;
        judged(&weights, 1.0)
    };
    let each = [0, 1, 2, 3].map(only);
    for part in [0, 1] {
        let expected = (0.5 * each[0][part] + 2.0 * each[1][part] + 2.0 * each[2][part]) / 9.0;
        let found = judged(&[0.5, 2.0, 2.0, 0.0], 9.0)[part];
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        assert!((each[0][part] - each[1][part]).abs() > 1e-6, "samples differ: {each:?}");
    }
    let _ = (of_g, of_d);
}

#[test]
fn a_batch_of_one_has_no_wrong_pair() {
    let tape = tape();
    assert!(conditions_of_next(&tape, &random("condition", &[1, 4])).expect("sound").is_none());
    assert!(conditions_of_next(&tape, &random("none", &[0, 4])).is_err());
    assert!(conditions_of_next(&tape, &random("maps", &[2, 4, 1])).is_err());
}
