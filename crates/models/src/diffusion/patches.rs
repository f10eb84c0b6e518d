//! Images as fewer positions with more channels, and back.

use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

/// Cuts images [N, C, H, W] into patches of `side`×`side` pixels: [N, C·side², H/side, W/side]. The channels of a patch are those of its
/// pixels, channel by channel and row by row, as in PyTorch's `pixel_unshuffle`.
///
/// # Errors
/// If `images` are not [N, C, H, W], or `side` does not divide the height and the width.
pub fn to_patches(tape: &Tape, images: &Value, side: usize) -> Result<Value> {
    let &[count, channels, height, width] = images.dims() else { return Err(refused(images, side)) };
    if side == 0 || !height.is_multiple_of(side) || !width.is_multiple_of(side) {
        return Err(refused(images, side));
    }
    let (rows, columns) = (height / side, width / side);
    let cut = ops::reshape(tape, images, vec![count, channels, rows, side, columns, side])?;
    let cut = ops::permute(tape, &cut, &[0, 1, 3, 5, 2, 4])?;
    ops::reshape(tape, &cut, (count, channels * side * side, rows, columns))
}

/// Puts patches [N, C·side², H, W] together: [N, C, H·side, W·side], the inverse of [`to_patches`].
///
/// # Errors
/// If `patches` are not [N, C·side², H, W].
pub fn from_patches(tape: &Tape, patches: &Value, side: usize) -> Result<Value> {
    let &[count, channels, rows, columns] = patches.dims() else { return Err(refused(patches, side)) };
    if side == 0 || !channels.is_multiple_of(side * side) {
        return Err(refused(patches, side));
    }
    let channels = channels / (side * side);
    let parts = ops::reshape(tape, patches, vec![count, channels, side, side, rows, columns])?;
    let parts = ops::permute(tape, &parts, &[0, 1, 4, 2, 5, 3])?;
    ops::reshape(tape, &parts, (count, channels, rows * side, columns * side))
}

fn refused(value: &Value, side: usize) -> TensorError {
    let problem = format!("{:?} and patches of {side}x{side}", value.shape());
    TensorError::Shape { op: "patches", problem }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::{Device, Tensor};
    use phalanx_tensor::{Array, Context, Session};

    use super::*;

    #[test]
    fn patches_have_the_pixels_of_their_place_and_go_back() {
        let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
        let pixels =
            Tensor::arange(0_f32, 48.0, &Device::Cpu).and_then(|pixels| pixels.reshape((1, 2, 4, 6)));
        let images = Value::constant(Array::from(pixels.expect("as many")));
        let patches = to_patches(&tape, &images, 2).expect("divides");
        assert_eq!(patches.dims(), [1, 8, 2, 3]);
        let host = patches.to_host().expect("on the host");
        let of_place = |channel: usize, row: usize, column: usize| -> f32 {
            let place = host.get(0).and_then(|host| host.get(channel)).and_then(|host| host.get(row));
            place.and_then(|host| host.get(column)).and_then(|host| host.to_scalar()).expect("in range")
        };
        // The pixels of the second patch of the second row: rows 2 and 3, columns 2 and 3.
        assert_eq!([0, 1, 2, 3].map(|channel| of_place(channel, 1, 1)), [14.0, 15.0, 20.0, 21.0]);
        assert_eq!(of_place(4, 0, 0), 24.0, "the second channel");
        let back = from_patches(&tape, &patches, 2).expect("divides").to_host().expect("on the host");
        let given = images.to_host().expect("on the host");
        let flat = |tensor: Tensor| tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).expect("f32");
        assert_eq!(flat(back), flat(given));
        assert!(to_patches(&tape, &images, 4).is_err(), "4 does not divide 6");
        assert!(from_patches(&tape, &images, 2).is_err(), "2 channels are no patch");
    }
}
