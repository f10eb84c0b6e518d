//! The source pixels of every pixel.

use super::super::Conv2dShape;

/// A pixel of the other map, and the tap that connects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) pixel: u32,
    pub(crate) tap: u32,
}

/// The sources of every pixel of a map, in order.
#[derive(Debug)]
pub(crate) struct Sources {
    list: Vec<Source>,
    ends: Vec<u32>,
}

impl Sources {
    /// The number of pixels of the map.
    pub(crate) fn pixels(&self) -> usize {
        self.ends.len()
    }

    /// The sources of a pixel.
    #[inline(always)]
    pub(crate) fn of(&self, pixel: usize) -> &[Source] {
        let start = if pixel == 0 { 0 } else { self.ends[pixel - 1] };
        &self.list[start as usize..self.ends[pixel] as usize]
    }

    /// Numbers the taps that occur from 0 on and returns their former numbers; other taps need no weights.
    pub(crate) fn renumber_taps(&mut self) -> Vec<usize> {
        let mut taps: Vec<usize> = self.list.iter().map(|source| source.tap as usize).collect();
        taps.sort_unstable();
        taps.dedup();
        for source in &mut self.list {
            source.tap = taps.partition_point(|&tap| tap < source.tap as usize) as u32;
        }
        taps
    }

    fn collect(each: impl Iterator<Item = Vec<Source>>) -> Self {
        let (mut list, mut ends) = (Vec::new(), Vec::new());
        for sources in each {
            list.extend(sources);
            ends.push(list.len() as u32);
        }
        Self { list, ends }
    }
}

/// Returns the input position that a tap reads for an output position, along one axis.
fn reached(shape: &Conv2dShape, axis: usize, output: usize, tap: usize) -> Option<usize> {
    let size = [shape.height, shape.width][axis];
    let at = output * shape.stride[axis] + tap * shape.dilation[axis];
    at.checked_sub(shape.padding[axis]).filter(|&at| at < size)
}

/// Returns the input pixels under the window of every output pixel.
pub(crate) fn of_outputs(shape: &Conv2dShape) -> Sources {
    let (height, width) = (shape.out_height(), shape.out_width());
    Sources::collect((0..height * width).map(|pixel| {
        let mut sources = Vec::new();
        for ky in 0..shape.kernel[0] {
            let Some(y) = reached(shape, 0, pixel / width, ky) else { continue };
            for kx in 0..shape.kernel[1] {
                let Some(x) = reached(shape, 1, pixel % width, kx) else { continue };
                let (pixel, tap) = ((y * shape.width + x) as u32, (ky * shape.kernel[1] + kx) as u32);
                sources.push(Source { pixel, tap });
            }
        }
        sources
    }))
}

/// Returns the output pixels whose window has each input pixel.
pub(crate) fn of_inputs(shape: &Conv2dShape) -> Sources {
    let outputs = of_outputs(shape);
    let mut sources = vec![Vec::new(); shape.height * shape.width];
    for output in 0..outputs.pixels() {
        for source in outputs.of(output) {
            sources[source.pixel as usize].push(Source { pixel: output as u32, tap: source.tap });
        }
    }
    Sources::collect(sources.into_iter())
}

/// The pairs of output and input pixels that a tap connects.
#[derive(Debug)]
pub(crate) struct TapPairs {
    pub(crate) tap: usize,
    pub(crate) pairs: Vec<(u32, u32)>,
}

/// Returns the pairs of every tap that has any.
pub(crate) fn of_taps(shape: &Conv2dShape) -> Vec<TapPairs> {
    let outputs = of_outputs(shape);
    let mut pairs = vec![Vec::new(); shape.kernel[0] * shape.kernel[1]];
    for output in 0..outputs.pixels() {
        for source in outputs.of(output) {
            pairs[source.tap as usize].push((output as u32, source.pixel));
        }
    }
    let taps = pairs.into_iter().enumerate().map(|(tap, pairs)| TapPairs { tap, pairs });
    taps.filter(|tap| !tap.pairs.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(size: usize, stride: usize) -> Conv2dShape {
        Conv2dShape {
            batch: 1,
            in_channels: 1,
            height: size,
            width: size,
            out_channels: 1,
            kernel: [3; 2],
            stride: [stride; 2],
            padding: [1; 2],
            dilation: [1; 2],
            groups: 1,
        }
    }

    #[test]
    fn taps_in_the_padding_are_no_sources() {
        for (size, stride, total) in [(1, 1, 1), (2, 1, 16), (4, 1, 100), (4, 2, 25)] {
            let shape = shape(size, stride);
            let outputs = of_outputs(&shape);
            let count: usize = (0..outputs.pixels()).map(|pixel| outputs.of(pixel).len()).sum();
            assert_eq!(count, total, "{size} {stride}");
            let inputs = of_inputs(&shape);
            let count: usize = (0..inputs.pixels()).map(|pixel| inputs.of(pixel).len()).sum();
            assert_eq!(count, total);
            assert_eq!(of_taps(&shape).iter().map(|tap| tap.pairs.len()).sum::<usize>(), total);
        }
        assert_eq!(of_outputs(&shape(2, 1)).of(3)[0], Source { pixel: 0, tap: 0 });
        let mut alone = of_outputs(&shape(1, 1));
        assert_eq!(alone.renumber_taps(), [4]);
        assert_eq!(alone.of(0), [Source { pixel: 0, tap: 0 }]);
    }
}
