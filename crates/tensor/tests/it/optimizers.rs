//! Lion, LAMB and Muon against other implementations, on parts of parameters, and in skipped steps.

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::backend::ScaledStep;
use phalanx_tensor::optim::{Adam, Lamb, Lion, Muon, Optimizer, Sgd};
use phalanx_tensor::{BuildOptions, Context, FlatStorage, Init, ParamBucket, ParamStore, StoreBuilder};

/// The elements of a matrix of 3 × 4 and a vector of 3, in a bucket.
const LEN: usize = 15;

fn store(dtype: DType) -> ParamStore {
    let options = BuildOptions { dtype, decay_matrices_only: true, ..BuildOptions::default() };
    let builder = StoreBuilder::new(options);
    let block = builder.root().pp("a").block();
    block.param("weight", (3, 4), Init::ZEROS).expect("a name");
    block.param("bias", 3, Init::ZEROS).expect("a name");
    let store = builder.build().expect("builds");
    let start: Vec<f64> = (0..LEN).map(|at| (0.9 * at as f64).cos()).collect();
    let bucket = &store.buckets()[0];
    let start = Tensor::from_vec(start, LEN, &Device::Cpu).expect("a tensor");
    bucket.values().expect("filled").put(&start).expect("fits");
    store
}

fn weights(bucket: &ParamBucket) -> Vec<f64> {
    let values = bucket.values().expect("filled").to_host().expect("on the host");
    values.to_dtype(DType::F64).expect("converts").to_vec1().expect("numbers")
}

/// Sets the gradients of the owned elements in a step.
fn differentiate(bucket: &ParamBucket, step: usize) {
    let grads = weights(bucket).into_iter().enumerate();
    let grads = grads.map(|(at, weight)| 0.5 * weight + (1.7 * at as f64 + step as f64).sin());
    let owned = bucket.owned();
    let grads = Tensor::from_vec(grads.collect::<Vec<_>>(), LEN, &Device::Cpu);
    let grads = grads.and_then(|grads| grads.to_dtype(bucket.dtype())).expect("a tensor");
    let all = FlatStorage::new(grads).expect("flat");
    let sum = all.narrow(owned).and_then(|part| part.copy()).expect("inside");
    bucket.zero_grads();
    bucket.set_owned_grads(sum).expect("as many");
}

#[test]
fn lion_and_lamb_are_those_of_timm_and_muon_that_of_pytorch() {
    let text = include_str!("../fixtures/optimizers.json");
    let reference: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let runs: [(&str, Box<dyn Optimizer>); 3] = [
        ("lion", Box::new(Lion::new((0.9, 0.99), 0.1))),
        ("lamb", Box::new(Lamb::new((0.9, 0.999), 1e-6, 0.1))),
        ("muon", Box::new(Muon::new(0.95, (0.9, 0.999), 1e-8, 0.1))),
    ];
    let context = Context::new(1);
    for (name, mut optimizer) in runs {
        let store = store(DType::F64);
        for (step, expected) in reference[name].as_array().expect("rows").iter().enumerate() {
            differentiate(&store.buckets()[0], step);
            optimizer.step(store.buckets(), 0.01, &context).expect("steps");
            let found = weights(&store.buckets()[0]);
            for (found, expected) in found.iter().zip(expected.as_array().expect("numbers")) {
                let off = (found - expected.as_f64().expect("a number")).abs();
                assert!(off < 1e-12, "{name}, step {step}: {off}");
            }
        }
    }
}

/// Trains for some steps with the elements cut at a place between two owners, whose parts of sums are added.
fn trained_in_parts(cut: usize, is_exact: bool) -> Vec<f64> {
    let context = Context::new(1);
    let make = || Lamb::new((0.9, 0.999), 1e-6, 0.1).with_exact_norms(is_exact);
    let mut owners: Vec<(ParamStore, Lamb)> = [0..cut, cut..LEN]
        .into_iter()
        .map(|owned| {
            let store = store(DType::F32);
            store.buckets()[0].set_owned(owned).expect("inside");
            (store, make())
        })
        .collect();
    for step in 0..4 {
        let mut sums = Vec::new();
        for (store, lamb) in &mut owners {
            differentiate(&store.buckets()[0], step);
            sums.push(lamb.begin_step(store.buckets(), None, &context).expect("adds").expect("a matrix"));
        }
        let flat = |at: usize| FlatStorage::new(sums[at].clone()).expect("flat");
        flat(0).add(&flat(1)).expect("as many");
        flat(1).copy_from(&flat(0)).expect("as many");
        for (store, lamb) in &mut owners {
            lamb.step(store.buckets(), 0.01, &context).expect("steps");
        }
        // Each gets the elements of the other, as by an all-gather.
        let [first, second] = [0, 1].map(|at| owners[at].0.buckets()[0].values().expect("filled"));
        second
            .narrow(0..cut)
            .expect("inside")
            .copy_from(&first.narrow(0..cut).expect("inside"))
            .expect("fits");
        first
            .narrow(cut..LEN)
            .expect("inside")
            .copy_from(&second.narrow(cut..LEN).expect("inside"))
            .expect("fits");
    }
    weights(&owners[0].0.buckets()[0])
}

#[test]
fn lamb_on_parts_of_parameters_is_lamb_on_all() {
    for is_exact in [false, true] {
        let whole = trained_in_parts(LEN, is_exact);
        for cut in 0..LEN {
            for (found, expected) in trained_in_parts(cut, is_exact).iter().zip(&whole) {
                let tolerance = if is_exact { 0.0 } else { 1e-6 };
                assert!((found - expected).abs() <= tolerance, "{cut} {is_exact}: {found} is not {expected}");
            }
        }
    }
    let store = store(DType::F32);
    store.buckets()[0].set_owned(2..7).expect("inside");
    differentiate(&store.buckets()[0], 0);
    let mut lamb = Lamb::new((0.9, 0.999), 1e-6, 0.1);
    let error =
        lamb.step(store.buckets(), 0.01, &Context::new(1)).expect_err("norms are missing").to_string();
    assert!(error.contains("a.weight") && error.contains("begin_step"), "{error}");
}

/// Takes some steps of Muon on a matrix and returns it, row by row.
fn turned(rows: usize, cols: usize, transposes: bool) -> Vec<f64> {
    let builder = StoreBuilder::new(BuildOptions { dtype: DType::F64, ..BuildOptions::default() });
    let block = builder.root().pp("a").block();
    block.param("weight", (rows, cols), Init::ZEROS).expect("a name");
    let store = builder.build().expect("builds");
    let bucket = &store.buckets()[0];
    let mut muon = Muon::new(0.95, (0.9, 0.999), 1e-8, 0.1);
    for step in 0..3 {
        let number = |at: usize| {
            let (row, col) = (at / cols, at % cols);
            let at = if transposes { col * rows + row } else { at };
            (1.7 * at as f64 + f64::from(step)).sin()
        };
        let grads =
            Tensor::from_vec((0..rows * cols).map(number).collect::<Vec<_>>(), rows * cols, &Device::Cpu);
        bucket.zero_grads();
        bucket.set_owned_grads(FlatStorage::new(grads.expect("a tensor")).expect("flat")).expect("as many");
        muon.step(store.buckets(), 0.01, &Context::new(2)).expect("steps");
    }
    weights(bucket)
}

#[test]
fn muon_turns_a_matrix_as_its_transpose_and_refuses_parts() {
    let (wide, high) = (turned(3, 7, false), turned(7, 3, true));
    for (at, value) in wide.iter().enumerate() {
        assert!((value - high[at % 7 * 3 + at / 7]).abs() < 1e-12, "{at}");
    }
    let builder = StoreBuilder::new(BuildOptions::default());
    let block = builder.root().pp("a").block();
    block.table("table", (3, 4), Init::ZEROS).expect("a name");
    block.param("weight", (3, 4), Init::ZEROS).expect("a name");
    let store = builder.build().expect("builds");
    let bucket = &store.buckets()[0];
    let is_turned: Vec<bool> = bucket.entries().iter().map(|entry| entry.is_turned).collect();
    assert_eq!(is_turned, [false, true]);
    bucket.set_owned(2..20).expect("inside");
    bucket.zero_grads();
    let ones = Tensor::ones(18, DType::F32, &Device::Cpu).expect("a tensor");
    bucket.set_owned_grads(FlatStorage::new(ones).expect("flat")).expect("as many");
    let mut muon = Muon::new(0.95, (0.9, 0.999), 1e-8, 0.1);
    let error = muon.step(store.buckets(), 0.01, &Context::new(1)).expect_err("a part").to_string();
    assert!(error.contains("a part of `a.weight`"), "{error}");
}

#[test]
fn a_scale_on_the_device_multiplies_gradients_and_skips_steps() {
    let context = Context::new(1);
    let scalar = |value: f64| Tensor::new(value, &Device::Cpu).expect("a scalar").into();
    let decision = |factor: f64, left_out: u32, all: f64| ScaledStep {
        factor: scalar(factor),
        left_out: Tensor::new(left_out, &Device::Cpu).expect("a scalar").into(),
        all_left_out: scalar(all),
    };
    let make: [fn() -> Box<dyn Optimizer>; 2] =
        [|| Box::new(Lion::new((0.9, 0.99), 0.1)), || Box::new(Lamb::new((0.9, 0.999), 1e-6, 0.1))];
    for make in make {
        let (plain, scaled) = (store(DType::F64), store(DType::F64));
        let (mut alone, mut counted) = (make(), make());
        for step in 0..4 {
            differentiate(&plain.buckets()[0], step);
            alone.step(plain.buckets(), 0.01, &context).expect("steps");
            // Every step is tried twice: the first try is skipped.
            for (try_of_step, factor) in [(1, f64::NAN), (0, 0.25)] {
                differentiate(&scaled.buckets()[0], step);
                let grads = scaled.buckets()[0].owned_grads().expect("reduced").expect("set");
                context_scale(&grads, 4.0);
                let decision = decision(factor, try_of_step, step as f64 + 1.0);
                let before = weights(&scaled.buckets()[0]);
                counted.scaled_step(scaled.buckets(), 0.01, Some(&decision), &context).expect("steps");
                assert_eq!(weights(&scaled.buckets()[0]) == before, try_of_step == 1);
            }
        }
        for (found, expected) in weights(&scaled.buckets()[0]).iter().zip(weights(&plain.buckets()[0])) {
            assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
        }
        counted.note_left_out(4);
        assert_eq!(counted.state(&[]).expect("a count").0, 4);
    }
}

/// Multiplies flat memory of f64.
fn context_scale(flat: &FlatStorage, factor: f64) {
    flat.with_slice_mut(|slice| match slice {
        phalanx_tensor::host::HostSliceMut::F64(values) => {
            values.iter_mut().for_each(|value| *value *= factor);
        }
        phalanx_tensor::host::HostSliceMut::F32(_) => unreachable!("f64"),
    })
    .expect("on the host");
}

#[test]
fn a_momentum_that_changes_is_that_of_later_steps() {
    let context = Context::new(1);
    let make: [fn(f64) -> Box<dyn Optimizer>; 4] = [
        |momentum| Box::new(Sgd::new(momentum, false, 0.0)),
        |momentum| Box::new(Adam::new((momentum, 0.999), 1e-8, 0.0)),
        |momentum| Box::new(Lion::new((momentum, 0.99), 0.0)),
        |momentum| Box::new(Lamb::new((momentum, 0.999), 1e-6, 0.0)),
    ];
    for make in make {
        let run = |made: f64, later: f64| {
            let (store, mut optimizer) = (store(DType::F64), make(made));
            optimizer.set_momentum(later);
            for step in 0..3 {
                differentiate(&store.buckets()[0], step);
                optimizer.step(store.buckets(), 0.01, &context).expect("steps");
            }
            weights(&store.buckets()[0])
        };
        assert_eq!(run(0.9, 0.6), run(0.6, 0.6));
        // Lion's steps are signs, which two momenta may share.
        let is_by_signs = format!("{:?}", make(0.9)).contains("Lion");
        assert!(is_by_signs || run(0.9, 0.6) != run(0.9, 0.9));
    }
}
