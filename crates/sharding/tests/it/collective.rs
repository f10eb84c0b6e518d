//! Gradients of operations over ranks, against finite differences over ranks; and the contrastive loss of many ranks against that
//! of one.

use std::sync::Arc;

use crate::common::on_ranks;
use candle_core::{DType, Device, Tensor};
use phalanx_collectives::{Communicator, ReduceOp};
use phalanx_sharding::RankGroup;
use phalanx_tensor::group::even_lens;
use phalanx_tensor::loss::{self, LossDivisor};
use phalanx_tensor::{Context, Key, ProcessGroup, Result, Session, Tape, Value, ops};

type Group = Arc<dyn ProcessGroup>;

fn draw(name: &str, index: usize, dims: &[usize]) -> Tensor {
    let mut values = vec![0.0; dims.iter().product()];
    Key::new(5).stream(name).index(index as u64).normal(0, &mut values);
    Tensor::from_vec(values, dims, &Device::Cpu).expect("as many values as the shape has")
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    let flat = tensor.flatten_all().and_then(|flat| flat.to_dtype(DType::F64));
    flat.and_then(|flat| flat.to_vec1()).expect("numbers")
}

fn gradient(tape: &Tape, leaf: &Value) -> Vec<f64> {
    numbers(&tape.leaf_grad(leaf).expect("takes part").tensor().expect("on the host"))
}

fn recording() -> Tape {
    Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)))
}

/// The definition of the loss.
#[derive(Clone, Copy, PartialEq)]
enum Loss {
    /// The sum over ranks of a function of each rank's output.
    Summed,
    /// A function of the output that is equal on all ranks, counted once.
    Replicated,
}

/// The input of the ranks.
#[derive(Clone, Copy, PartialEq)]
enum Input {
    /// An input that differs between ranks.
    Own,
    /// An input that is equal on all ranks.
    Alike,
}

/// Compares the gradient that `f` records with differences of the loss over all ranks, each input's element in turn. `dims` is
/// the shape of a rank's input.
fn check(
    world: usize,
    (loss, input): (Loss, Input),
    dims: impl Fn(usize) -> Vec<usize> + Clone + Send + 'static,
    f: impl Fn(&Tape, &Value, &Group) -> Result<Value> + Clone + Send + 'static,
) {
    const STEP: f64 = 1e-5;
    on_ranks(world, move |comm: Communicator| {
        let (rank, group) = (comm.rank(), RankGroup::of(&comm));
        let drawn = if input == Input::Alike { 0 } else { rank };
        let x = draw("x", drawn, &dims(rank));
        let weights = |output: &Value| {
            let seed = if loss == Loss::Replicated { 0 } else { rank };
            draw("weights", seed, output.dims())
        };
        let tape = recording();
        let leaf = tape.leaf(x.clone());
        let output = f(&tape, &leaf, &group).expect("forward");
        tape.backward_from([(&output, weights(&output))]).expect("backward");
        let analytic = gradient(&tape, &leaf);

        let evaluate = |x: Vec<f64>| {
            let tape = Tape::forward_only(Session::training(Arc::new(Context::new(1)), Key::new(0)));
            let x = Tensor::from_vec(x, dims(rank), &Device::Cpu).expect("a shape");
            let output = f(&tape, &Value::constant(x), &group).expect("forward");
            let product = output.tensor().expect("a tensor").broadcast_mul(&weights(&output));
            let own = product.and_then(|product| product.sum_all()?.to_scalar::<f64>()).expect("a number");
            let mut all = [if loss == Loss::Summed || rank == 0 { own } else { 0.0 }];
            comm.all_reduce(&mut all, ReduceOp::Sum).expect("sums");
            all[0]
        };
        let base = numbers(&x);
        let counts = comm.all_gather(&[base.len() as i64]).expect("gathers");
        // Who moves: each rank in turn, or all together.
        let movers: Vec<Option<usize>> = match input {
            Input::Own => (0..world).map(Some).collect(),
            Input::Alike => vec![None],
        };
        for mover in movers {
            for at in 0..counts[mover.unwrap_or(0)] as usize {
                let moved = |by: f64| {
                    let mut x = base.clone();
                    if mover.is_none_or(|mover| mover == rank) {
                        x[at] += by;
                    }
                    evaluate(x)
                };
                let numeric = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                if mover.is_none_or(|mover| mover == rank) {
                    let off = (numeric - analytic[at]).abs();
                    assert!(off < 1e-7 * analytic[at].abs().max(1.0), "{at}: {numeric} {}", analytic[at]);
                }
            }
        }
    });
}

/// Squares, so that gradients depend on values.
fn square(tape: &Tape, x: &Value) -> Result<Value> {
    ops::mul(tape, x, x)
}

/// Multiplies the squares of `x` by a factor that differs between ranks, like the columns of a split weight.
fn own_factor(tape: &Tape, x: &Value, group: &Group) -> Result<Value> {
    let factor = Value::constant(draw("factor", group.rank(), x.dims()));
    ops::mul(tape, &square(tape, x)?, &factor)
}

/// Even and uneven parts of some ranks.
fn spreads(world: usize) -> Vec<Vec<usize>> {
    let uneven = if world == 2 { vec![1, 3] } else { vec![3, 1, 2] };
    vec![vec![2; world], even_lens(2 * world + 1, world), uneven]
}

#[test]
fn gradients_of_a_loss_that_is_the_sum_of_the_ranks() {
    for world in [2, 3] {
        let case = (Loss::Summed, Input::Own);
        check(
            world,
            case,
            |_| vec![2, 3],
            |tape, x, group| square(tape, &ops::all_reduce(tape, &square(tape, x)?, group)?),
        );
        for lens in spreads(world) {
            for dim in [0, 1] {
                let (of_part, of_op) = (lens.clone(), lens.clone());
                let part = move |rank: usize| {
                    let mut dims = vec![2, 2, 2];
                    dims[dim] = of_part[rank];
                    dims
                };
                check(world, case, part, move |tape, x, group| {
                    square(tape, &ops::all_gather(tape, &square(tape, x)?, dim, &of_op, group)?)
                });
                let (total, of_op) = (lens.iter().sum(), lens.clone());
                let whole = move |_| {
                    let mut dims = vec![2, 2];
                    dims[dim] = total;
                    dims
                };
                check(world, case, whole, move |tape, x, group| {
                    square(tape, &ops::reduce_scatter(tape, &square(tape, x)?, dim, &of_op, group)?)
                });
            }
        }
    }
}

#[test]
fn gradients_of_a_replicated_loss() {
    for world in [2, 3] {
        check(
            world,
            (Loss::Replicated, Input::Own),
            |_| vec![2, 3],
            |tape, x, group| square(tape, &ops::reduce_from_group(tape, &square(tape, x)?, group)?),
        );
        // A tensor-parallel pair: columns, then rows.
        check(
            world,
            (Loss::Replicated, Input::Alike),
            |_| vec![2, 3],
            |tape, x, group| {
                let x = ops::copy_to_group(tape, &square(tape, x)?, group)?;
                square(tape, &ops::reduce_from_group(tape, &own_factor(tape, &x, group)?, group)?)
            },
        );
        for lens in spreads(world) {
            let total: usize = lens.iter().sum();
            let (of_part, of_op) = (lens.clone(), lens.clone());
            check(
                world,
                (Loss::Replicated, Input::Own),
                move |rank| vec![2, of_part[rank]],
                move |tape, x, group| {
                    square(tape, &ops::gather_from_group(tape, &square(tape, x)?, 1, &of_op, group)?)
                },
            );
            let of_op = lens.clone();
            check(
                world,
                (Loss::Replicated, Input::Alike),
                move |_| vec![total, 2],
                move |tape, x, group| {
                    let part = ops::split_to_group(tape, &square(tape, x)?, 0, &of_op, group)?;
                    square(
                        tape,
                        &ops::gather_from_group(tape, &own_factor(tape, &part, group)?, 0, &of_op, group)?,
                    )
                },
            );
            // Sequence parallelism: partial sums become parts, which come together again.
            check(
                world,
                (Loss::Replicated, Input::Own),
                move |_| vec![total, 2],
                move |tape, x, group| {
                    let part = ops::reduce_scatter(tape, &square(tape, x)?, 0, &lens, group)?;
                    square(tape, &ops::gather_from_group(tape, &square(tape, &part)?, 0, &lens, group)?)
                },
            );
        }
    }
}

#[test]
fn values_of_16_bits_are_summed_in_f32_and_keep_their_type() {
    on_ranks(3, |comm| {
        let group = RankGroup::of(&comm);
        // 1 + 2⁻⁸ + 2⁻⁸ is lost one addend at a time in bf16, but not in f32.
        let own = if comm.rank() == 0 { 1.0_f32 } else { 1.0 / 256.0 };
        let tape = recording();
        let x = Tensor::new(&[own, 2.0], &Device::Cpu).and_then(|x| x.to_dtype(DType::BF16)).expect("bf16");
        let leaf = tape.leaf(x);
        let sum = ops::all_reduce(&tape, &leaf, &group).expect("sums");
        assert_eq!(sum.dtype().expect("a type"), DType::BF16);
        assert_eq!(numbers(&sum.tensor().expect("a tensor")), [1.0 + 1.0 / 128.0, 6.0]);
        let all = ops::all_gather(&tape, &leaf, 0, &[2; 3], &group).expect("gathers");
        assert_eq!((all.dtype().expect("a type"), all.dims()), (DType::BF16, &[6][..]));
        let small = 1.0 / 256.0;
        assert_eq!(numbers(&all.tensor().expect("a tensor")), [1.0, 2.0, small, 2.0, small, 2.0]);
    });
}

#[test]
fn spreads_that_do_not_fit_are_named() {
    on_ranks(2, |comm| {
        let group = RankGroup::of(&comm);
        let tape = recording();
        let x = Value::constant(draw("x", 0, &[3, 2]));
        let wrong = |result: Result<Value>| result.expect_err("does not fit").to_string();
        let rank = comm.rank();
        assert_eq!(
            wrong(ops::all_gather(&tape, &x, 0, &[2, 2], &group)),
            format!("all_gather: rank {rank} has 3 along dimension 0; [2, 2] has 2")
        );
        assert_eq!(
            wrong(ops::reduce_scatter(&tape, &x, 0, &[2, 2], &group)),
            "reduce_scatter: dimension 0 has size 3; [2, 2] adds up to 4"
        );
        assert_eq!(
            wrong(ops::split_to_group(&tape, &x, 0, &[3], &group)),
            "split_to_group: 1 lengths for 2 ranks; expected one each"
        );
        assert_eq!(
            wrong(ops::gather_from_group(&tape, &x, 2, &[1, 1], &group)),
            "gather_from_group: there is no dimension 2 in shape [3, 2]"
        );
    });
}

const SAMPLES: usize = 7;
const WIDTH: usize = 4;

/// The result of a training on one rank: the losses of the steps and the last weights, all in f64.
#[derive(Debug)]
struct TrainingResult {
    losses: Vec<f64>,
    weights: Vec<f64>,
    scale: f64,
}

/// Trains two linear towers by the contrastive loss, a rank of several with `lens[rank]` of the samples.
fn learn(comm: &Communicator, lens: &[usize]) -> TrainingResult {
    let rank = comm.rank();
    let start = lens[..rank].iter().sum();
    let own = |name: &str| {
        let all = draw(name, 0, &[SAMPLES, WIDTH]);
        Value::constant(all.narrow(0, start, lens[rank]).and_then(|own| own.contiguous()).expect("a part"))
    };
    let (images, texts) = (own("images"), own("texts"));
    let mut weights = [draw("w", 1, &[3, WIDTH]), draw("w", 2, &[3, WIDTH]), draw("scale", 0, &[1])];
    let mut losses = Vec::new();
    for _ in 0..5 {
        let mut session = Session::training(Arc::new(Context::new(1)), Key::new(0));
        session.batch_group = Some(RankGroup::of(comm));
        let tape = Tape::recording(session);
        let leaves = weights.clone().map(|weight| tape.leaf(weight));
        let tower = |x: &Value, weight: &Value| {
            ops::l2_normalise(&tape, &ops::linear(&tape, x, weight, None).expect("fits"))
        };
        let image = tower(&images, &leaves[0]).expect("fits");
        let text = tower(&texts, &leaves[1]).expect("fits");
        let loss = loss::clip_contrastive(&tape, &image, &text, &leaves[2], LossDivisor::Count(SAMPLES));
        let loss = loss.expect("a loss");
        let mut sum = numbers(&loss.tensor().expect("a number"));
        tape.backward(&loss).expect("backward");
        comm.all_reduce(&mut sum, ReduceOp::Sum).expect("sums");
        losses.push(sum[0]);
        for (weight, leaf) in weights.iter_mut().zip(&leaves) {
            let mut grad = gradient(&tape, leaf);
            comm.all_reduce(&mut grad, ReduceOp::Sum).expect("sums");
            let new = numbers(weight).iter().zip(grad).map(|(value, grad)| value - 0.5 * grad).collect();
            *weight = Tensor::from_vec(new, weight.dims(), &Device::Cpu).expect("a shape");
        }
    }
    let [w_image, w_text, scale] = weights.map(|weight| numbers(&weight));
    TrainingResult { losses, weights: [w_image, w_text].concat(), scale: scale[0] }
}

#[test]
fn ranks_contrast_what_one_rank_contrasts() {
    let one = on_ranks(1, |comm| learn(&comm, &[SAMPLES])).pop().expect("one rank");
    assert!(one.losses[4] < one.losses[0], "it learns: {:?}", one.losses);
    for lens in [vec![4, 3], vec![1, 6], vec![3, 2, 2], vec![1, 1, 5]] {
        let spread = lens.clone();
        for found in on_ranks(lens.len(), move |comm| learn(&comm, &spread)) {
            let pairs = one.losses.iter().chain(&one.weights).zip(found.losses.iter().chain(&found.weights));
            for (expected, found) in pairs.chain([(&one.scale, &found.scale)]) {
                assert!(
                    (expected - found).abs() < 1e-12 * expected.abs().max(1.0),
                    "{lens:?}: {expected} {found}"
                );
            }
        }
    }
}

#[test]
fn a_rank_without_samples_is_named_on_all() {
    let found = on_ranks(3, |comm| {
        let samples = [2, 0, 1][comm.rank()];
        let mut session = Session::training(Arc::new(Context::new(1)), Key::new(0));
        session.batch_group = Some(RankGroup::of(&comm));
        let tape = Tape::recording(session);
        let of = |name: &str| Value::constant(draw(name, 0, &[samples, WIDTH]));
        let scale = Value::constant(draw("scale", 0, &[1]));
        let loss = loss::clip_contrastive(&tape, &of("images"), &of("texts"), &scale, LossDivisor::Count(3));
        loss.expect_err("nothing to contrast").to_string()
    });
    for error in found {
        assert!(error.contains("rank 1 of the batch's group has no sample"), "{error}");
    }
}
