//! Sparse codecs: the k largest values, values at random indices, and residuals, with the bits of the CPU's codecs.

use phalanx_cuda::kernels::{
    RandomEntries, accumulate_momentum, index_bytes, scatter, store_residual, subtract_entries, top_k,
    top_k_words,
};
use phalanx_cuda::{ElementType, Gpu, Slice, Stream};
use phalanx_kernels::{
    Context, accumulate_momentum as cpu_accumulate_momentum, clear_indices, gather_indices, random_indices,
    scatter_add, top_k as cpu_top_k,
};

use super::codec_chunks::{after, bits, gradients};
use super::inputs::{Draw, on_gpu};

/// Entries as copied from a device.
fn read(gpu: &Gpu, indices: &Slice, numbers: &Slice) -> (Vec<u32>, Vec<f32>) {
    let words = gpu.download::<u8>(indices).unwrap();
    let words: Vec<u32> = words.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    assert_eq!(words[0] as usize, words.len() - 1, "how many there are");
    (words[1..].to_vec(), gpu.download::<f32>(numbers).unwrap())
}

/// Entries on a device.
fn entries(gpu: &Gpu, indices: &[u32], numbers: &[f32]) -> (Slice, Slice) {
    let words = [indices.len() as u32].into_iter().chain(indices.iter().copied());
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    (gpu.upload(&bytes).unwrap(), gpu.upload(numbers).unwrap())
}

fn found(gpu: &Gpu, values: &Slice, taken: usize) -> (Vec<u32>, Vec<f32>) {
    let indices = gpu.unwritten(ElementType::U8, index_bytes(taken)).unwrap();
    let numbers = gpu.unwritten(ElementType::F32, taken).unwrap();
    let scratch = gpu.unwritten(ElementType::U32, top_k_words(values.len())).unwrap();
    after(gpu, Stream::Communication, Stream::Compute);
    top_k(gpu, (values, taken), (&indices, &numbers), &scratch).unwrap();
    after(gpu, Stream::Compute, Stream::Communication);
    read(gpu, &indices, &numbers)
}

#[test]
fn top_k_entries_are_those_of_the_cpu() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(61);
        for len in [1_usize, 2, 255, 4096, 4097, 10_000, 20_011] {
            let (mut values, _) = gradients(&mut draw, gpu, len);
            // Ties and NaN.
            for at in (0..len).step_by(5) {
                values[at] = if at % 2 == 0 { 0.125 } else { -0.125 };
            }
            if len > 4096 {
                values[len / 2] = f32::NAN;
                values[17] = f32::NEG_INFINITY;
            }
            for taken in [1, len.div_ceil(100), len / 3, len - 1, len].into_iter().filter(|taken| *taken > 0)
            {
                let (mut indices, mut expected) = (Vec::new(), vec![0.0; taken]);
                cpu_top_k(&Context::new(1), &values, taken, &mut indices).unwrap();
                gather_indices(&values, &indices, &mut expected).unwrap();
                let (at, numbers) = found(gpu, &gpu.upload(&values).unwrap(), taken);
                assert_eq!(at, indices, "{taken} of {len}");
                assert_eq!(bits(&numbers), bits(&expected), "{taken} of {len}");
            }
        }
        // All equal.
        let (at, _) = found(gpu, &gpu.upload(&[2.5_f32; 5000]).unwrap(), 4500);
        assert_eq!(at, (0..4500).collect::<Vec<u32>>());
        let (at, _) = found(gpu, &gpu.upload(&[0.0_f32; 9000]).unwrap(), 3);
        assert_eq!(at, [0, 1, 2]);
    });
}

#[test]
fn entries_are_added_and_subtracted() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(62);
        let context = Context::new(1);
        for len in [3_usize, 1000, 5000] {
            let taken = len.div_ceil(7);
            let (values, on_gpu) = gradients(&mut draw, gpu, len);
            let (more, _) = gradients(&mut draw, gpu, taken);
            let mut indices = Vec::new();
            cpu_top_k(&context, &values, taken, &mut indices).unwrap();
            let (at, numbers) = entries(gpu, &indices, &more);
            let range = len / 4..len - len / 5;
            let [sound, invalid] = [0_u32, 1].map(|flag| gpu.upload(&[flag]).unwrap());
            let [taken_away, cleared, stays] = [(); 3].map(|()| gpu.upload(&values).unwrap());
            after(gpu, Stream::Communication, Stream::Compute);
            scatter(gpu, (&at, &numbers), taken, (&on_gpu, range.clone())).unwrap();
            subtract_entries(gpu, (&at, Some(&numbers)), taken, (&taken_away, &sound)).unwrap();
            subtract_entries(gpu, (&at, None), taken, (&cleared, &sound)).unwrap();
            subtract_entries(gpu, (&at, None), taken, (&stays, &invalid)).unwrap();
            let [residual, kept] = [(); 2].map(|()| gpu.upload(&vec![7.0_f32; len]).unwrap());
            after(gpu, Stream::Communication, Stream::Compute);
            store_residual(gpu, &cleared, &sound, &residual).unwrap();
            store_residual(gpu, &cleared, &invalid, &kept).unwrap();
            after(gpu, Stream::Compute, Stream::Communication);
            let mut sums = values.clone();
            scatter_add(&indices, &more, &mut sums).unwrap();
            let sum = |at: usize| if range.contains(&at) { sums[at] } else { values[at] };
            let expected: Vec<f32> = (0..len).map(sum).collect();
            assert_eq!(bits(&gpu.download(&on_gpu).unwrap()), bits(&expected));
            let mut less = values.clone();
            indices.iter().zip(&more).for_each(|(at, number)| less[*at as usize] -= number);
            assert_eq!(bits(&gpu.download(&taken_away).unwrap()), bits(&less));
            let mut none = values.clone();
            clear_indices(&indices, &mut none).unwrap();
            assert_eq!(bits(&gpu.download(&cleared).unwrap()), bits(&none));
            assert_eq!(bits(&gpu.download(&residual).unwrap()), bits(&none));
            assert_eq!(bits(&gpu.download(&stays).unwrap()), bits(&values));
            assert_eq!(gpu.download::<f32>(&kept).unwrap(), vec![7.0; len]);
        }
    });
}

#[test]
fn random_entries_are_those_of_the_cpu() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(63);
        for (len, taken) in [(1, 1), (100, 7), (5000, 50), (4097, 4097), (3000, 2999)] {
            let (values, on_gpu) = gradients(&mut draw, gpu, len);
            let (more, numbers) = gradients(&mut draw, gpu, taken);
            let by = RandomEntries { draw: draw.word(), count: taken };
            let indices = random_indices(by.draw, len, taken);
            let out = gpu.unwritten(ElementType::F32, taken).unwrap();
            let [sound, invalid] = [0_u32, 1].map(|flag| gpu.upload(&[flag]).unwrap());
            let [cleared, stays] = [(); 2].map(|()| gpu.upload(&values).unwrap());
            let range = len / 3..len;
            after(gpu, Stream::Communication, Stream::Compute);
            by.gather(gpu, &on_gpu, &out).unwrap();
            by.clear(gpu, &cleared, &sound).unwrap();
            by.clear(gpu, &stays, &invalid).unwrap();
            by.add(gpu, &numbers, (&on_gpu, range.clone())).unwrap();
            after(gpu, Stream::Compute, Stream::Communication);
            let mut expected = vec![0.0; taken];
            gather_indices(&values, &indices, &mut expected).unwrap();
            assert_eq!(bits(&gpu.download(&out).unwrap()), bits(&expected), "{taken} of {len}");
            let mut none = values.clone();
            clear_indices(&indices, &mut none).unwrap();
            assert_eq!(bits(&gpu.download(&cleared).unwrap()), bits(&none));
            assert_eq!(bits(&gpu.download(&stays).unwrap()), bits(&values));
            let mut sums = values.clone();
            scatter_add(&indices, &more, &mut sums).unwrap();
            let sum = |at: usize| if range.contains(&at) { sums[at] } else { values[at] };
            assert_eq!(bits(&gpu.download(&on_gpu).unwrap()), bits(&(0..len).map(sum).collect::<Vec<_>>()));
        }
    });
}

#[test]
fn momentum_accumulates_as_on_the_cpu() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(64);
        for (len, broken) in [(1, false), (1001, false), (1001, true)] {
            let [(mut g, on_g), (mut u, on_u), (mut v, on_v)] =
                [(); 3].map(|()| gradients(&mut draw, gpu, len));
            if broken {
                g[len / 2] = f32::NAN;
                let broken = gpu.upload(&g).unwrap();
                on_g.copy_from_on(&broken, Stream::Compute).unwrap();
            }
            let invalid = gpu.upload(&[0_u32]).unwrap();
            after(gpu, Stream::Communication, Stream::Compute);
            accumulate_momentum(gpu, &on_g, (&on_u, &on_v), 0.9, &invalid).unwrap();
            after(gpu, Stream::Compute, Stream::Communication);
            if broken {
                g.fill(f32::NAN);
            } else {
                cpu_accumulate_momentum(&Context::new(1), 0.9, &g, &mut u, &mut v).unwrap();
                g.copy_from_slice(&v);
            }
            for (on_gpu, expected) in [(on_g, g), (on_u, u), (on_v, v)] {
                assert_eq!(bits(&gpu.download(&on_gpu).unwrap()), bits(&expected), "{len}");
            }
        }
    });
}
