//! Rendering of a [`ShapeSpec`] at any resolution, with smooth edges.
//!
//! Each pixel takes a grid of sub-samples and mixes the object's colour in proportion to those inside. So small images
//! show a shape by its edge values, and large images are not jagged.

use super::spec::{Colour, Object, Shape, ShapeSpec};
use image::{Rgb, RgbImage};

/// The inner radius of the five-pointed star. With 0.382 its edges would be straight lines; this star is plumper.
const STAR_INNER: f32 = 0.45;

/// Renders an image, `resolution` pixels wide and high.
#[must_use]
pub fn render(spec: &ShapeSpec, resolution: u32) -> RgbImage {
    let mut image = RgbImage::from_pixel(resolution, resolution, Rgb(spec.background.rgb()));
    for object in spec.objects() {
        render_object(&mut image, &object);
    }
    image
}

/// Renders one object over the image.
fn render_object(image: &mut RgbImage, object: &Object) {
    render_shape(image, object.shape, object.colour, object.position.centre(), object.size.radius());
}

/// Renders a shape over a square image; centre and radius are fractions of the image side.
pub(crate) fn render_shape(
    image: &mut RgbImage,
    shape: Shape,
    colour: Colour,
    centre: (f32, f32),
    radius: f32,
) {
    let side = image.width() as f32;
    let radius = radius * side;
    let (x, y) = (centre.0 * side, centre.1 * side);
    // In a large image a pixel is a smaller part of an edge, so fewer sub-samples suffice.
    let samples: u32 = if image.width() <= 64 { 8 } else { 4 };
    let pixels = |centre: f32| {
        let begin = (centre - radius).floor().max(0.0) as u32;
        let end = (centre + radius).ceil().min(side) as u32;
        begin..end
    };
    let colour = colour.rgb();
    for row in pixels(y) {
        for column in pixels(x) {
            let mut inside = 0_u32;
            for sample in 0..samples * samples {
                let sub = |index: u32| (index as f32 + 0.5) / samples as f32;
                let u = (column as f32 + sub(sample % samples) - x) / radius;
                let v = (row as f32 + sub(sample / samples) - y) / radius;
                inside += u32::from(contains(shape, u, v));
            }
            let coverage = inside as f32 / (samples * samples) as f32;
            let pixel = image.get_pixel_mut(column, row);
            for (old, new) in pixel.0.iter_mut().zip(colour) {
                *old = (f32::from(*old) * (1.0 - coverage) + f32::from(new) * coverage).round() as u8;
            }
        }
    }
}

/// Returns true if a point lies in a shape; `u` to the right and `v` down, in units of the radius.
fn contains(shape: Shape, u: f32, v: f32) -> bool {
    match shape {
        Shape::Circle => distance(u, v) <= 0.9,
        Shape::Square => u.abs().max(v.abs()) <= 0.75,
        // Equilateral, its centre of mass in the middle.
        Shape::Triangle => v <= 0.5 && 3.0_f32.sqrt() * u.abs() - v <= 1.0,
        Shape::Diamond => u.abs() / 0.65 + v.abs() <= 1.0,
        Shape::Star => in_star(u, v),
        Shape::Cross => u.abs().min(v.abs()) <= 0.28 && u.abs().max(v.abs()) <= 0.9,
        Shape::Ring => (0.5..=0.95).contains(&distance(u, v)),
    }
}

/// Returns the distance of a point from the middle, with the same bits on every platform, as libraries' `hypot` has not.
fn distance(u: f32, v: f32) -> f32 {
    let (u, v) = (f64::from(u), f64::from(v));
    (u * u + v * v).sqrt() as f32
}

/// Tests a star with a point upwards, by folding the plane onto one half of one point.
fn in_star(u: f32, v: f32) -> bool {
    let half = std::f32::consts::PI / 5.0;
    // The angle from the nearest point's axis, from 0 (the point) to `half` (the notch).
    let from_up = u.abs().atan2(-v);
    let angle = (from_up - (from_up / (2.0 * half)).round() * 2.0 * half).abs();
    // The edge runs from the tip (1, 0) to the notch; a point is inside when it is on the centre's side.
    let (notch_x, notch_y) = (STAR_INNER * half.cos(), STAR_INNER * half.sin());
    let distance = distance(u, v);
    let (px, py) = (distance * angle.cos(), distance * angle.sin());
    (1.0 - px) * notch_y - py * (1.0 - notch_x) >= 0.0
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Background, Position, Size};
    use super::*;

    fn spec(shape: Shape, size: Size, position: Position) -> ShapeSpec {
        let first = Object { shape, colour: Colour::Red, size, position };
        ShapeSpec { background: Background::White, first, second: None }
    }

    #[test]
    fn the_object_is_where_it_is_said_to_be() {
        for &position in Position::ALL {
            let image = render(&spec(Shape::Circle, Size::Medium, position), 64);
            let (x, y) = position.centre();
            assert_eq!(image.get_pixel((x * 64.0) as u32, (y * 64.0) as u32).0, Colour::Red.rgb());
            let covered: Vec<_> =
                image.enumerate_pixels().filter(|(_, _, p)| p.0 != Background::White.rgb()).collect();
            let mean = |of: &dyn Fn(u32, u32) -> u32| {
                covered.iter().map(|&(x, y, _)| of(x, y) as f32 + 0.5).sum::<f32>() / covered.len() as f32
            };
            assert!((mean(&|x, _| x) - x * 64.0).abs() < 0.1);
            assert!((mean(&|_, y| y) - y * 64.0).abs() < 0.1);
        }
    }

    /// The fraction of the image that is covered, by the shift of each pixel's colour.
    fn covered_fraction(spec: &ShapeSpec, resolution: u32) -> f32 {
        let (back, front) = (spec.background.rgb()[1], spec.first.colour.rgb()[1]);
        let moved: f32 = render(spec, resolution)
            .pixels()
            .map(|p| (f32::from(back) - f32::from(p.0[1])) / (f32::from(back) - f32::from(front)))
            .sum();
        moved / (resolution * resolution) as f32
    }

    #[test]
    fn areas_are_those_of_geometry_at_every_resolution() {
        let star = 5.0 * STAR_INNER * (std::f32::consts::PI / 5.0).sin();
        let cases = [
            (Shape::Circle, std::f32::consts::PI * 0.81),
            (Shape::Square, 2.25),
            (Shape::Triangle, 0.75 * 3.0_f32.sqrt()),
            (Shape::Diamond, 1.3),
            (Shape::Star, star),
            (Shape::Cross, 2.0 * 1.8 * 0.56 - 0.56 * 0.56),
            (Shape::Ring, std::f32::consts::PI * (0.95 * 0.95 - 0.25)),
        ];
        for (shape, area) in cases {
            for resolution in [32, 64, 256] {
                let spec = spec(shape, Size::Large, Position::Center);
                let expected = area * Size::Large.radius().powi(2);
                let found = covered_fraction(&spec, resolution);
                assert!(
                    (found / expected - 1.0).abs() < 0.02,
                    "{shape} at {resolution}: {found} not {expected}"
                );
            }
        }
    }

    #[test]
    fn edges_are_smooth() {
        let image = render(&spec(Shape::Circle, Size::Small, Position::Center), 32);
        let between =
            image.pixels().filter(|p| p.0 != Background::White.rgb() && p.0 != Colour::Red.rgb()).count();
        assert!(between >= 8, "{between}");
    }

    #[test]
    fn a_picture_of_one_pixel_or_none_is_possible() {
        for resolution in [0, 1] {
            assert_eq!(
                render(&spec(Shape::Star, Size::Large, Position::Top), resolution).width(),
                resolution
            );
        }
    }
}
