//! The low-rank codec, against the CPU's: to rounding errors, and to the bit where nothing is summed.

use phalanx_cuda::kernels::{
    expand, move_runs, orthogonalise, project, project_back, project_back_numbers, scale,
};
use phalanx_cuda::{ElementType, Gpu, Slice, Stream};
use phalanx_kernels::{Context, Run, ThinMatrix, low_rank_product};

use super::codec_chunks::{after, bits};
use super::inputs::{Draw, assert_close, on_gpu};

/// Rows, columns and rank of matrices in one call: more than a launch handles, with wide rows, and more rows than a tile.
fn matrices(draw: &mut Draw, many: bool) -> (Vec<ThinMatrix>, [usize; 4]) {
    let mut sizes = vec![(20, 30, 2), (3, 1200, 1), (300, 9, 5), (7, 7, 7), (64, 65, 4), (1, 1, 1)];
    if many {
        sizes = (0..18).map(|at| (2 + draw.below(30), 1 + draw.below(40), 1 + at % 3)).collect();
    }
    // Between them are elements of no matrix.
    let (mut matrices, mut ends) = (Vec::new(), [3, 0, 0, 0]);
    for (rows, columns, rank) in sizes {
        let [start, residual, p, q] = ends;
        let matrix = ThinMatrix { start, held: residual, p, q, rows, columns, rank };
        ends = [matrix.elements().end + draw.below(4), matrix.held().end, matrix.p().end, matrix.q().end];
        matrices.push(matrix);
    }
    (matrices, [ends[0] + 5, ends[1], ends[2], ends[3]])
}

fn numbers(draw: &mut Draw, gpu: &Gpu, len: usize) -> (Vec<f32>, Slice) {
    let values: Vec<f32> = draw.numbers(ElementType::F32, len).into_iter().map(|v| v as f32).collect();
    let slice = gpu.upload(&values).unwrap();
    (values, slice)
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// Runs codecs on their stream, between earlier and later compute.
fn on_their_stream(gpu: &Gpu, work: impl FnOnce()) {
    after(gpu, Stream::Communication, Stream::Compute);
    work();
    after(gpu, Stream::Compute, Stream::Communication);
}

#[test]
fn projections_are_those_of_the_cpu() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(71);
        for many in [false, true] {
            let (matrices, [len, held_len, p_len, q_len]) = matrices(&mut draw, many);
            let (mut values, given) = numbers(&mut draw, gpu, len);
            let (residual, errors) = numbers(&mut draw, gpu, held_len);
            let ((q, q_given), (_, p_given)) =
                (numbers(&mut draw, gpu, q_len), numbers(&mut draw, gpu, p_len));
            on_their_stream(gpu, || project(gpu, &matrices, (&given, &errors), &q_given, &p_given).unwrap());
            let mut p = vec![0.0_f64; p_len];
            for m in &matrices {
                values[m.elements()]
                    .iter_mut()
                    .zip(&residual[m.held()])
                    .for_each(|(value, residual)| *value += residual);
                for (at, value) in values[m.elements()].iter().enumerate() {
                    let (row, column) = (at / m.columns, at % m.columns);
                    for i in 0..m.rank {
                        p[m.p + row * m.rank + i] +=
                            f64::from(*value) * f64::from(q[m.q + column * m.rank + i]);
                    }
                }
            }
            assert_eq!(
                bits(&gpu.download::<f32>(&given).unwrap()),
                bits(&values),
                "what was residual is added"
            );
            assert_close(gpu, "P", &p_given, &p);
            // The reverse projection, with other values of P.
            let (p, p_given) = numbers(&mut draw, gpu, p_len);
            let scratch = gpu.unwritten(ElementType::F32, project_back_numbers(&matrices)).unwrap();
            on_their_stream(gpu, || {
                project_back(gpu, &matrices, (&given, &p_given), &q_given, &scratch).unwrap();
            });
            let mut q = vec![0.0_f64; q_len];
            for m in &matrices {
                for (at, value) in values[m.elements()].iter().enumerate() {
                    let (row, column) = (at / m.columns, at % m.columns);
                    for i in 0..m.rank {
                        q[m.q + column * m.rank + i] +=
                            f64::from(*value) * f64::from(p[m.p + row * m.rank + i]);
                    }
                }
            }
            assert_close(gpu, "Q", &q_given, &q);
        }
    });
}

#[test]
fn columns_become_orthonormal() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(72);
        let (matrices, [_, _, p_len, _]) = matrices(&mut draw, false);
        // Seven columns of seven rows, five of 300; and a column of zeros stays zero.
        let (mut p, _) = numbers(&mut draw, gpu, p_len);
        p[matrices[4].p()].iter_mut().step_by(4).for_each(|value| *value = 0.0);
        let given = gpu.upload(&p).unwrap();
        on_their_stream(gpu, || orthogonalise(gpu, &matrices, &given).unwrap());
        for m in &matrices {
            phalanx_kernels::orthogonalise(&mut p[m.p()], m.rank).unwrap();
        }
        assert_close(gpu, "P", &given, &wide(&p));
    });
}

#[test]
fn reconstruction_flags_values_that_are_not_finite() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(73);
        for broken in [0_u32, 1] {
            let (matrices, [len, held_len, p_len, q_len]) = matrices(&mut draw, broken == 0);
            let (values, given) = numbers(&mut draw, gpu, len);
            let (residual, errors) = numbers(&mut draw, gpu, held_len);
            let ((p, p_given), (q, q_given)) =
                (numbers(&mut draw, gpu, p_len), numbers(&mut draw, gpu, q_len));
            let invalid = gpu.upload(&[broken]).unwrap();
            let (of, by) = ((&given, &errors), (&p_given, &q_given));
            on_their_stream(gpu, || expand(gpu, &matrices, of, by, &invalid, 3.0).unwrap());
            let (mut expected, mut kept) = (values.clone(), residual.clone());
            for m in &matrices {
                let mut product = vec![0.0; m.elements().len()];
                low_rank_product(&Context::new(1), &p[m.p()], &q[m.q()], m.rank, &mut product).unwrap();
                for (at, product) in product.into_iter().enumerate() {
                    let value = &mut expected[m.start + at];
                    if broken == 0 {
                        kept[m.held + at] = *value - product;
                    }
                    *value = if broken == 0 { product * 3.0 } else { f32::NAN };
                }
            }
            assert_eq!(bits(&gpu.download::<f32>(&given).unwrap()), bits(&expected));
            assert_eq!(bits(&gpu.download::<f32>(&errors).unwrap()), bits(&kept));
        }
    });
}

#[test]
fn runs_are_copied_and_flag_values_that_are_not_finite() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(74);
        // More than one launch handles.
        let mut end = 0;
        let runs: Vec<Run> = (0..20)
            .map(|at| {
                let len = if at == 3 { 700 } else { draw.below(9) };
                let run = Run { from: 1100 - end - len, to: end, len };
                end += len;
                run
            })
            .collect();
        let (mut from, _) = numbers(&mut draw, gpu, 1100);
        for (broken, add) in [(false, false), (false, true), (true, true)] {
            if broken {
                from[runs[3].from + 650] = f32::NEG_INFINITY;
            }
            let (mut to, given) = numbers(&mut draw, gpu, 1000);
            let (of, flag) = (gpu.upload(&from).unwrap(), gpu.upload(&[0_u32]).unwrap());
            on_their_stream(gpu, || move_runs(gpu, &runs, (&of, &given), add, Some(&flag)).unwrap());
            for Run { from: start, to: place, len } in runs.iter().copied() {
                for (to, from) in to[place..place + len].iter_mut().zip(&from[start..start + len]) {
                    *to = if add { *to + from } else { *from };
                }
            }
            assert_eq!(bits(&gpu.download::<f32>(&given).unwrap()), bits(&to));
            assert_eq!(gpu.download::<u32>(&flag).unwrap(), [u32::from(broken)]);
        }
        // 1e30 overflows.
        for factor in [0.5_f32, 1e20] {
            let values: Vec<f32> = (0..500).map(|at| if at == 400 { 1e30 } else { at as f32 }).collect();
            let (given, flag) = (gpu.upload(&values).unwrap(), gpu.upload(&[0_u32]).unwrap());
            on_their_stream(gpu, || scale(gpu, &given, factor, &flag).unwrap());
            let expected: Vec<f32> = values.iter().map(|value| value * factor).collect();
            assert_eq!(bits(&gpu.download::<f32>(&given).unwrap()), bits(&expected));
            assert_eq!(gpu.download::<u32>(&flag).unwrap(), [u32::from(factor > 1.0)]);
        }
    });
}

#[test]
fn matrices_that_do_not_fit_are_refused() {
    on_gpu(|gpu| {
        let some = gpu.upload(&[1.0_f32; 100]).unwrap();
        let one = ThinMatrix { start: 0, held: 0, p: 0, q: 0, rows: 10, columns: 10, rank: 2 };
        let refused = |matrix: ThinMatrix, expected: &str| {
            let error = project(gpu, &[matrix], (&some, &some), &some, &some).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused(ThinMatrix { start: 1, ..one }, "`values` has 100 elements, and a matrix needs 101");
        refused(ThinMatrix { q: 90, ..one }, "`q` has 100 elements, and a matrix needs 110");
        refused(ThinMatrix { rank: 0, ..one }, "has no elements");
        let flag = gpu.upload(&[0_u32]).unwrap();
        let run = Run { from: 0, to: 60, len: 41 };
        let error = move_runs(gpu, &[run], (&some, &some), false, Some(&flag)).unwrap_err().to_string();
        assert!(error.contains("of 100 numbers to 100"), "{error}");
    });
}
