//! Dimensions in another order.

use std::num::NonZeroUsize;

use phalanx_kernels::{Context, KernelError, Movable, bf16, f16, permute};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_assert, proptest};

use crate::harness::contexts;

/// For each element of the result its place in `0..`, by the definition.
fn places(sizes: &[usize], order: &[usize]) -> Vec<usize> {
    let strides: Vec<usize> = (0..sizes.len()).map(|dim| sizes[dim + 1..].iter().product()).collect();
    (0..sizes.iter().product())
        .map(|mut at: usize| {
            let mut place = 0;
            for &dim in order.iter().rev() {
                place += at % sizes[dim] * strides[dim];
                at /= sizes[dim];
            }
            place
        })
        .collect()
}

fn check<T: Movable + Default + PartialEq>(
    context: &Context,
    sizes: &[usize],
    order: &[usize],
    value: impl Fn(usize) -> T,
) {
    let x: Vec<T> = (0..sizes.iter().product()).map(&value).collect();
    let mut y = vec![T::default(); x.len()];
    permute(context, sizes, order, &x, &mut y).expect("valid arguments");
    let expected: Vec<T> = places(sizes, order).into_iter().map(&value).collect();
    assert!(y == expected, "{sizes:?} {order:?}");
}

#[test]
fn elements_are_where_the_order_says() {
    let cases: &[(&[usize], &[usize])] = &[
        (&[], &[]),
        (&[0, 3], &[1, 0]),
        (&[5], &[0]),
        (&[1, 1], &[1, 0]),
        (&[3, 5], &[1, 0]),
        (&[37, 50], &[1, 0]),
        (&[4, 40], &[1, 0]),
        (&[40, 4], &[1, 0]),
        (&[3, 17, 33], &[0, 2, 1]),
        (&[2, 20, 3, 16], &[0, 2, 1, 3]),
        (&[2, 20, 3, 16], &[0, 2, 3, 1]),
        (&[2, 20, 3, 16], &[3, 1, 0, 2]),
        (&[2, 33, 1, 5, 7], &[0, 3, 4, 2, 1]),
        (&[64, 48, 40], &[2, 1, 0]),
    ];
    for (level, context) in contexts(1).chain(contexts(3)) {
        let context = context.with_parts(NonZeroUsize::new(3).expect("not 0"));
        for (sizes, order) in cases {
            println!("{level:?} {sizes:?} {order:?}");
            check(&context, sizes, order, |at| at as f32);
            check(&context, sizes, order, |at| at as f64);
            check(&context, sizes, order, |at| bf16::from_bits(at as u16 & 0x7f7f));
            check(&context, sizes, order, |at| f16::from_bits(at as u16 & 0x7bff));
        }
    }
}

#[test]
fn wrong_orders_and_lengths_are_errors() {
    let context = Context::new(1);
    for order in [&[0][..], &[0, 0], &[0, 2], &[0, 1, 2]] {
        let error = permute(&context, &[2, 3], order, &[0.0_f32; 6], &mut [0.0; 6]).unwrap_err();
        assert!(matches!(error, KernelError::Shape { .. }), "{error}");
    }
    let error = permute(&context, &[2, 3], &[1, 0], &[0.0_f32; 5], &mut [0.0; 6]).unwrap_err();
    assert!(error.to_string().contains("`x` has 5 elements; the shape needs 6"), "{error}");
    let error = permute(&context, &[2, 3], &[1, 0], &[0.0_f32; 6], &mut [0.0; 7]).unwrap_err();
    assert!(error.to_string().contains("`y` has 7"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_order_of_any_sizes(
        (sizes, order) in vec(1_usize..24, 1..5).prop_flat_map(|sizes| {
            let dims: Vec<usize> = (0..sizes.len()).collect();
            (Just(sizes), Just(dims).prop_shuffle())
        })
    ) {
        let x: Vec<f32> = (0..sizes.iter().product()).map(|at: usize| at as f32).collect();
        let mut y = vec![-1.0; x.len()];
        let context = Context::new(2).with_parts(NonZeroUsize::new(2).expect("not 0"));
        permute(&context, &sizes, &order, &x, &mut y).expect("valid arguments");
        let expected: Vec<f32> = places(&sizes, &order).into_iter().map(|at| at as f32).collect();
        prop_assert!(y == expected);
    }
}
