//! Codecs among ranks: what they make of sums, the same bits everywhere, what they keep, and what is not finite.

use std::sync::Arc;

use phalanx_codecs::{
    Bucket, CodecError, CodecKind, CodecSettings, CodecState, GradCodec, MatrixRange, Peers, SumGroup,
    SumPlacement,
};
use phalanx_collectives::{Algorithm, Communicator, threads};
use phalanx_kernels::uniform;

const LEN: usize = 1003;

fn settings(kind: CodecKind) -> CodecSettings {
    CodecSettings { kind, density: 0.1, rank: 2, chunk: 64, seed: 5, ..Default::default() }
}

fn codec(kind: CodecKind) -> Arc<dyn GradCodec> {
    settings(kind).codec().expect("sound").expect("a codec")
}

/// Two matrices among vectors.
fn bucket() -> Bucket {
    let matrices = vec![
        MatrixRange { range: 7..7 + 20 * 30, rows: 20 },
        MatrixRange { range: 700..700 + 15 * 18, rows: 15 },
    ];
    Bucket { slot: 2, len: LEN, matrices }
}

/// Returns the gradients of rank `rank` at step `step`.
fn gradients(rank: usize, step: usize) -> Vec<f32> {
    let base = (rank as u64) << 40 | (step as u64) << 20;
    (0..LEN as u64).map(|at| (uniform(base, at) - 0.5).powi(3)).collect()
}

/// The sums of `steps` on every rank, and what is kept after them.
fn sums(
    world: usize,
    steps: std::ops::Range<usize>,
    keeps: SumPlacement,
    make: impl Fn(usize) -> Arc<dyn GradCodec>,
    draw: impl Fn(usize, usize) -> Vec<f32> + Copy + Send + 'static,
) -> Vec<(Vec<Vec<f32>>, CodecState)> {
    let start = |(rank, comm): (usize, Communicator)| {
        let (codec, steps) = (make(rank), steps.clone());
        std::thread::spawn(move || {
            let sum = |step| {
                let mut values = draw(rank, step);
                let mut peers = Peers::new(&comm, Algorithm::Auto);
                codec.reduce(&bucket(), values.as_mut_slice().into(), keeps, &mut peers).expect("sums");
                values
            };
            (steps.map(sum).collect(), codec.state().expect("on the host"))
        })
    };
    let ranks: Vec<_> = threads(world).expect("threads").into_iter().enumerate().map(start).collect();
    ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
}

fn kinds() -> impl Iterator<Item = CodecKind> {
    CodecKind::ALL.iter().copied().filter(|kind| *kind != CodecKind::None)
}

/// The sum over ranks in f64.
fn exact(world: usize, step: usize) -> Vec<f64> {
    let mut sum = vec![0.0; LEN];
    for rank in 0..world {
        sum.iter_mut().zip(gradients(rank, step)).for_each(|(sum, value)| *sum += f64::from(value));
    }
    sum
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

#[test]
fn every_rank_and_run_has_the_same_bits() {
    for kind in kinds() {
        for world in [1, 2, 3, 5] {
            let all = sums(world, 0..3, SumPlacement::All, |_| codec(kind), gradients);
            for (rank, (sums, _)) in all.iter().enumerate() {
                assert_eq!(sums, &all[0].0, "{kind}: rank {rank} of {world}");
            }
            let again = sums(world, 0..3, SumPlacement::All, |_| codec(kind), gradients);
            assert_eq!(again, all, "{kind}: another run on {world}");
        }
    }
}

#[test]
fn sums_are_as_near_as_the_codec_is_fine() {
    for (kind, allowed) in [
        (CodecKind::Lossless, 1e-7),
        (CodecKind::Bf16, 6e-3),
        (CodecKind::Int8, 1.5e-2),
        (CodecKind::Int4, 0.25),
        (CodecKind::Qsgd, 0.1),
        (CodecKind::Sign, 1.2),
        (CodecKind::TopK, 0.9),
        (CodecKind::TopKInt8, 0.9),
        (CodecKind::RandomK, 1.0),
        (CodecKind::Dgc, 0.9),
        (CodecKind::PowerSgd, 1.0),
    ] {
        let all = sums(3, 0..1, SumPlacement::All, |_| codec(kind), gradients);
        let (sum, exact) = (&all[0].0[0], exact(3, 0));
        let off = norm(sum.iter().zip(&exact).map(|(a, b)| f64::from(*a) - b)) / norm(exact.iter().copied());
        assert!(off <= allowed, "{kind}: {off}");
        assert!(kind == CodecKind::Lossless || off > allowed / 20.0, "{kind} is finer than its bound: {off}");
    }
}

#[test]
fn what_was_left_out_comes_later() {
    // With the same gradients at every step the mean of sums nears the exact one, for all codecs with error feedback.
    for kind in kinds().filter(|kind| kind.feeds_back() && *kind != CodecKind::Dgc) {
        let steps = 60;
        let all = sums(3, 0..steps, SumPlacement::All, |_| codec(kind), |rank, _| gradients(rank, 0));
        let exact = exact(3, 0);
        let mean = |at: usize| all[0].0.iter().map(|sum| f64::from(sum[at])).sum::<f64>() / steps as f64;
        let off = norm((0..LEN).map(|at| mean(at) - exact[at])) / norm(exact.iter().copied());
        let first = norm(all[0].0[0].iter().zip(&exact).map(|(a, b)| f64::from(*a) - b))
            / norm(exact.iter().copied());
        assert!(off < 0.35 * first, "{kind}: {off} after {steps} steps, {first} at first");
    }
}

#[test]
fn shards_and_leaders_have_their_part_of_the_sum() {
    for kind in kinds() {
        let whole = sums(3, 0..4, SumPlacement::All, |_| codec(kind), gradients);
        let shards = sums(3, 0..4, SumPlacement::Shard, |_| codec(kind), gradients);
        let leader = sums(3, 0..4, SumPlacement::Root, |_| codec(kind), gradients);
        // In two hops the sum of a part that stays is not rounded again, and entries of another part have scales of their own; of
        // all others every strategy gets the same.
        let once = [CodecKind::Int8, CodecKind::Int4, CodecKind::Qsgd, CodecKind::Sign, CodecKind::TopKInt8]
            .contains(&kind);
        for (rank, (sums, _)) in shards.iter().enumerate() {
            let own = rank * LEN / 3..(rank + 1) * LEN / 3;
            for (step, sum) in sums.iter().enumerate() {
                let (sum, whole) = (&sum[own.clone()], &whole[0].0[step][own.clone()]);
                if once {
                    let off = norm(sum.iter().zip(whole).map(|(a, b)| f64::from(a - b)));
                    assert!(
                        (off > 0.0 || kind == CodecKind::TopKInt8)
                            && off < norm(whole.iter().map(|v| f64::from(*v))),
                        "{kind}: {off}"
                    );
                } else {
                    assert_eq!(sum, whole, "{kind}: rank {rank}, step {step}");
                }
            }
        }
        if !once {
            assert_eq!(leader[0].0, whole[0].0, "{kind}");
        }
    }
}

#[test]
fn lossless_is_the_sum_itself() {
    let world = 4;
    let coded = sums(world, 0..2, SumPlacement::All, |_| codec(CodecKind::Lossless), gradients);
    let plain = threads(world).expect("threads").into_iter().enumerate().map(|(rank, comm)| {
        std::thread::spawn(move || {
            let mut values = gradients(rank, 1);
            Peers::new(&comm, Algorithm::Auto).sum(values.as_mut_slice(), SumPlacement::All).expect("sums");
            values
        })
    });
    for rank in plain.collect::<Vec<_>>() {
        assert_eq!(rank.join().expect("no panic"), coded[0].0[1]);
    }
}

#[test]
fn interrupted_is_uninterrupted_to_the_bit() {
    for kind in kinds() {
        let through = sums(3, 0..7, SumPlacement::All, |_| codec(kind), gradients);
        let first = sums(3, 0..4, SumPlacement::All, |_| codec(kind), gradients);
        let resumed = |rank: usize| {
            let codec = codec(kind);
            codec.load_state(first[rank].1.clone()).expect("its own");
            codec
        };
        let rest = sums(3, 4..7, SumPlacement::All, resumed, gradients);
        for (rank, (sums, kept)) in rest.iter().enumerate() {
            assert_eq!(sums[..], through[rank].0[4..], "{kind}: rank {rank}");
            assert_eq!(kept, &through[rank].1, "{kind}: rank {rank}");
        }
        // A codec that keeps something refuses another's.
        let error = codec(kind).load_state(vec![("0.nonsense".into(), vec![1.0])]).expect_err("not its own");
        assert!(matches!(error, CodecError::Codec { .. }), "{error}");
    }
}

#[test]
fn numbers_that_are_not_finite_reach_all_and_are_not_kept() {
    for kind in kinds() {
        // Of a matrix, and of none.
        for (bad, at) in [(f32::NAN, 300), (f32::INFINITY, 300), (f32::NAN, 3)] {
            let draw = move |rank, step| {
                let mut values = gradients(rank, step);
                // In one of the ranks, at one step.
                if (rank, step) == (1, 2) {
                    values[at] = bad;
                }
                values
            };
            let all = sums(3, 0..4, SumPlacement::All, |_| codec(kind), draw);
            for (rank, (sums, kept)) in all.iter().enumerate() {
                for (step, sum) in sums.iter().enumerate() {
                    let sound = sum.iter().all(|value| value.is_finite());
                    assert_eq!(sound, step != 2, "{kind}: rank {rank}, step {step}");
                }
                assert!(
                    kept.iter().flat_map(|(_, kept)| kept).all(|kept| kept.is_finite()),
                    "{kind}: rank {rank}"
                );
            }
            // All ranks see it in what all have, and keep what they had.
            if kind == CodecKind::PowerSgd {
                let [before, after] =
                    [2, 3].map(|steps| sums(3, 0..steps, SumPlacement::All, |_| codec(kind), draw));
                assert!(before.iter().zip(&after).all(|((_, before), (_, after))| before == after));
            }
        }
    }
}

#[test]
fn flushed_is_nothing_lost() {
    for (kind, keeps) in kinds()
        .filter(|kind| kind.feeds_back() && *kind != CodecKind::Dgc)
        .flat_map(|kind| [(kind, SumPlacement::Shard), (kind, SumPlacement::All)])
    {
        let all = sums(2, 0..1, keeps, |_| codec(kind), gradients);
        let mut sum = vec![0.0; LEN];
        for (rank, (sums, kept)) in all.iter().enumerate() {
            let codec = codec(kind);
            codec.load_state(kept.clone()).expect("its own");
            let mut rest = vec![0.0; LEN];
            let among = SumGroup { rank, ranks: 2, keeps, algorithm: Algorithm::Auto };
            codec.flush(&bucket(), &among, rest.as_mut_slice().into()).expect("its own");
            let own = rank * LEN / 2..(rank + 1) * LEN / 2;
            (0..LEN).for_each(|at| sum[at] += f64::from(rest[at]));
            // All ranks have the same sum; each counts for its part.
            own.for_each(|at| sum[at] += f64::from(sums[0][at]));
            let kept: f32 = codec
                .state()
                .expect("on the host")
                .iter()
                .filter(|(name, _)| name.ends_with("residual"))
                .flat_map(|(_, kept)| kept)
                .sum();
            assert_eq!(kept, 0.0, "{kind}");
        }
        for (at, (sum, exact)) in sum.iter().zip(exact(2, 0)).enumerate() {
            assert!((sum - exact).abs() < 2e-6, "{kind}, {keeps:?}: {sum} at {at}, not {exact}");
        }
    }
}

#[test]
fn densities_of_dgc_fall_while_it_warms_up() {
    let make = |_| {
        let settings = CodecSettings { density: 0.001, warm_up: 8, ..settings(CodecKind::Dgc) };
        settings.codec().expect("sound").expect("a codec")
    };
    let all = sums(1, 0..10, SumPlacement::All, make, gradients);
    let sent: Vec<usize> =
        all[0].0.iter().map(|sum| sum.iter().filter(|value| **value != 0.0).count()).collect();
    assert_eq!(sent, [251, 251, 63, 63, 16, 16, 5, 5, 2, 2]);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for (settings, said) in [
        (CodecSettings { density: 0.0, ..settings(CodecKind::TopK) }, "a part of 0"),
        (CodecSettings { density: 1.5, ..settings(CodecKind::TopK) }, "a part of 1.5"),
        (CodecSettings { rank: 0, ..settings(CodecKind::PowerSgd) }, "rank 0"),
        (CodecSettings { chunk: 12, ..settings(CodecKind::Int8) }, "chunks of 12"),
        (CodecSettings { momentum: 1.0, ..settings(CodecKind::Dgc) }, "a momentum of 1"),
    ] {
        let error = settings.codec().expect_err("nonsense").to_string();
        assert!(error.contains(said), "{error}");
    }
    let error = "zip".parse::<CodecKind>().expect_err("no codec").to_string();
    assert!(error.starts_with("codec `zip` is unknown; there is: none, bf16, int8"), "{error}");
}
