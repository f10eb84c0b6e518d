//! The coordinates of positions, for networks that otherwise know positions only by their distance from the border.

use candle_core::{Device, Tensor};
use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

/// The number of channels that [`with_coordinates`] adds.
pub const COORDINATES: usize = 2;

/// Returns the images [N, C, H, W] with two further channels: x, then y of each position's centre, from −1 to 1 across the image
/// (CoordConv, Liu et al. 2018).
///
/// # Errors
/// If `images` are not [N, C, H, W].
pub fn with_coordinates(tape: &Tape, images: &Value) -> Result<Value> {
    let &[count, _, height, width] = images.dims() else {
        return Err(TensorError::Shape {
            op: "coordinates",
            problem: format!("expected images [N, C, H, W], not {:?}", images.shape()),
        });
    };
    let centre = |at: usize, of: usize| ((2 * at + 1) as f64 / of as f64 - 1.0) as f32;
    let mut plane = Vec::with_capacity(COORDINATES * height * width);
    for of_y in [false, true] {
        for row in 0..height {
            plane.extend((0..width).map(|col| if of_y { centre(row, height) } else { centre(col, width) }));
        }
    }
    let coordinates =
        Tensor::from_vec(plane.repeat(count), (count, COORDINATES, height, width), &Device::Cpu)?;
    let coordinates = coordinates.to_dtype(images.dtype()?)?;
    let coordinates = Value::constant(tape.backend().from_host(&coordinates)?);
    ops::cat(tape, &[images, &coordinates], 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use phalanx_tensor::{Array, Context, Session};

    #[test]
    fn each_position_has_its_own() {
        let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
        let images = Tensor::zeros((2, 1, 2, 4), candle_core::DType::F32, &Device::Cpu).expect("zeros");
        let images = Value::constant(Array::from(images));
        let with = with_coordinates(&tape, &images).expect("images").to_host().expect("on the host");
        let second: Vec<Vec<Vec<f32>>> = with.get(1).expect("two").to_vec3().expect("three dims");
        assert_eq!(second[1], [[-0.75, -0.25, 0.25, 0.75], [-0.75, -0.25, 0.25, 0.75]]);
        assert_eq!(second[2], [[-0.5; 4], [0.5; 4]]);
        let flat = ops::reshape(&tape, &images, (2, 8)).expect("as many");
        assert!(with_coordinates(&tape, &flat).is_err());
    }
}
