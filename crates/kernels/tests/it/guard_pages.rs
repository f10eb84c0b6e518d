//! Kernels on memory between inaccessible pages: a read or write past either end ends the process.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "memory between pages without access comes from the system")]

use std::ops::{Deref, DerefMut};

use phalanx_kernels::{
    ActivationMask, Affine, BatchNormBackward, BatchNormGrads, BatchNormOutput, Context, Conv2dShape,
    Epilogue, Level, Matrix, MatrixMut, NormInput, Products, batch_norm_train, batch_norm_train_backward,
    conv2d_backward_input, conv2d_backward_weight, conv2d_forward, matmul_batched,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::harness;

/// f32 numbers that begin after, or end before, a page without access.
struct GuardedFloats {
    map: *mut std::ffi::c_void,
    bytes: usize,
    first: *mut f32,
    len: usize,
}

const PAGE: usize = 4096;

impl GuardedFloats {
    fn new(len: usize, at_end: bool) -> Self {
        let inner = (len * 4).div_ceil(PAGE).max(1) * PAGE;
        let bytes = inner + 2 * PAGE;
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping; the first and the last page lose their access before anything points there, and
        // `first` lies so that `len` numbers fit between them.
        unsafe {
            let map = mmap_anonymous(std::ptr::null_mut(), bytes, flags, MapFlags::PRIVATE).expect("memory");
            let inside = map.cast::<u8>().add(PAGE);
            mprotect(map, PAGE, MprotectFlags::empty()).expect("a page of its own");
            mprotect(inside.add(inner).cast(), PAGE, MprotectFlags::empty()).expect("a page of its own");
            let first = inside.add(if at_end { inner - len * 4 } else { 0 }).cast::<f32>();
            Self { map, bytes, first, len }
        }
    }

    fn random(seed: u64, len: usize, at_end: bool) -> Self {
        let mut this = Self::new(len, at_end);
        this.copy_from_slice(&harness::random::<f32>(seed, len));
        this
    }
}

impl Deref for GuardedFloats {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: `len` numbers from `first` on lie in the mapping, which is zeroed at first and lives as long as this.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

impl DerefMut for GuardedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and this is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl Drop for GuardedFloats {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing borrows from it any more.
        unsafe { munmap(self.map, self.bytes) }.expect("it was mapped");
    }
}

/// Every level that the machine has, multiplying f32 and, if it can, bf16.
fn contexts() -> impl Iterator<Item = Context> {
    let all = Level::ALL.iter().flat_map(|&level| [(level, Products::F32), (level, Products::Bf16)]);
    all.filter_map(|(level, products)| Some(Context::with_level(2, level).ok()?.with_products(products)))
}

#[test]
fn convolutions_stay_inside() {
    for context in contexts() {
        for (batch, inputs, outputs, size, kernel, stride, padding, groups) in [
            (5, 17, 19, 6, 3, 1, 1, 1),
            (8, 33, 30, 12, 3, 1, 1, 1),
            (24, 130, 129, 4, 3, 1, 1, 1),
            (5, 40, 23, 7, 3, 2, 1, 1),
            (4, 20, 37, 1, 3, 1, 1, 1),
            (6, 24, 21, 2, 1, 1, 0, 1),
            (3, 13, 29, 9, 1, 1, 0, 1),
            (2, 3, 16, 15, 7, 2, 3, 1),
            (2, 19, 19, 11, 3, 1, 1, 19),
            (5, 21, 21, 3, 3, 2, 1, 21),
            (2, 6, 9, 5, 3, 1, 1, 3),
        ] {
            let shape = Conv2dShape {
                batch,
                in_channels: inputs,
                height: size,
                width: size,
                out_channels: outputs,
                kernel: [kernel; 2],
                stride: [stride; 2],
                padding: [padding; 2],
                dilation: [1; 2],
                groups,
            };
            for at_end in [false, true] {
                let x = GuardedFloats::random(1, shape.input_len(), at_end);
                let w = GuardedFloats::random(2, shape.weight_len(), at_end);
                let dy = GuardedFloats::random(3, shape.output_len(), at_end);
                let bias = GuardedFloats::random(4, outputs, at_end);
                let mut y = GuardedFloats::new(dy.len(), at_end);
                let (mut dx, mut dw) =
                    (GuardedFloats::new(x.len(), at_end), GuardedFloats::new(w.len(), at_end));
                conv2d_forward(&context, &shape, &x, &w, Some(&bias), &mut y).expect("sound");
                conv2d_backward_input(&context, &shape, &dy, &w, &mut dx).expect("sound");
                conv2d_backward_weight(&context, &shape, &x, &dy, &mut dw, false).expect("sound");
                assert!(y.iter().chain(&*dx).chain(&*dw).all(|value| value.is_finite()));
            }
        }
    }
}

#[test]
fn products_and_norms_stay_inside() {
    for context in contexts() {
        for at_end in [false, true] {
            for (batch, m, n, k, transposed) in [
                (1, 33, 50, 17, false),
                (3, 5, 16, 9, true),
                (1, 1, 1, 1, false),
                (1, 70, 49, 130, true),
                (1, 9, 200, 40, true),
                (1, 9, 200, 40, false),
            ] {
                let (a, b) = (
                    GuardedFloats::random(1, batch * m * k, at_end),
                    GuardedFloats::random(2, batch * k * n, at_end),
                );
                let mut c = GuardedFloats::new(batch * m * n, at_end);
                let (left, right) =
                    (Matrix::batched(&a, m, k, transposed), Matrix::batched(&b, k, n, transposed));
                matmul_batched(&context, batch, left, right, MatrixMut::batched(&mut c, m, n), false)
                    .expect("sound");
            }
            for dims in [[3, 5, 2], [4, 37, 4], [2, 7, 33], [1, 3, 300]] {
                let [n, c, p] = dims;
                let x = GuardedFloats::random(1, n * c * p, at_end);
                let (dy, residual) =
                    (GuardedFloats::random(2, x.len(), at_end), GuardedFloats::random(3, x.len(), at_end));
                let (gamma, beta) =
                    (GuardedFloats::random(4, c, at_end), GuardedFloats::random(5, c, at_end));
                let (mut y, mut dx) =
                    (GuardedFloats::new(x.len(), at_end), GuardedFloats::new(x.len(), at_end));
                let mut dr = GuardedFloats::new(x.len(), at_end);
                let (mut mean, mut m2) = (vec![0.0; c], vec![0.0; c]);
                let activation = phalanx_kernels::Activation::Relu6;
                let finish = Epilogue { activation, residual: Some(&*residual) };
                let input = NormInput { x: &x, gamma: &gamma, beta: &beta, eps: 1e-5 };
                let normed = BatchNormOutput { y: &mut y, mean: &mut mean, moment: &mut m2 };
                batch_norm_train(&context, dims, input, finish, normed).expect("sound");
                let (mean, inv_std) =
                    (GuardedFloats::random(6, c, at_end), GuardedFloats::random(7, c, at_end));
                let affine = Affine { mean: &mean, inv_std: &inv_std, gamma: &gamma, beta: &beta };
                let cut = ActivationMask { activation, output: Some(&*y) };
                let (mut a, mut b) = (vec![0.0; c], vec![0.0; c]);
                let to = BatchNormGrads { dx: &mut dx, residual: Some(&mut dr) };
                let sums = [a.as_mut_slice(), &mut b];
                let from = BatchNormBackward { x: &x, dy: &dy, affine, mask: cut };
                batch_norm_train_backward(&context, dims, from, sums, to).expect("sound");
            }
        }
    }
}
