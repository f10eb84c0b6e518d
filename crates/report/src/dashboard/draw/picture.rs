//! Draws images as coloured half blocks, two pixels for each character, or as ASCII art without colours.

use image::RgbImage;
use image::imageops::{FilterType, resize};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::palette::Depth;

/// Characters from dark to bright.
const GREYS: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];

/// Draws an image as large as possible, with its aspect ratio.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, picture: &RgbImage, depth: Depth) {
    let (width, height) = (u32::from(area.width), 2 * u32::from(area.height));
    if width == 0 || height == 0 || picture.width() == 0 || picture.height() == 0 {
        return;
    }
    let scale =
        (f64::from(width) / f64::from(picture.width())).min(f64::from(height) / f64::from(picture.height()));
    let side = |pixels: u32, most: u32| ((f64::from(pixels) * scale).round() as u32).clamp(1, most);
    let (width, height) = (side(picture.width(), width), side(picture.height(), height));
    // Magnified pixels keep sharp edges.
    let filter = if scale < 1.0 { FilterType::Triangle } else { FilterType::Nearest };
    let scaled = resize(picture, width, height, filter);
    let pixel = |x: u32, y: u32| scaled.get_pixel_checked(x, y).map(|pixel| pixel.0);
    for (row, y) in (0..height).step_by(2).enumerate() {
        for x in 0..width {
            let (Some(upper), lower) = (pixel(x, y), pixel(x, y + 1)) else { continue };
            let place = (area.x + x as u16, area.y + row as u16);
            let Some(cell) = buffer.cell_mut(place) else { continue };
            let style = |colour| depth.pixel(colour);
            match style(upper) {
                Some(colour) => {
                    let below = lower.and_then(style);
                    cell.set_char('▀').set_style(Style::new().fg(colour));
                    if let Some(below) = below {
                        cell.set_bg(below);
                    }
                }
                None => {
                    let both = [upper, lower.unwrap_or(upper)];
                    let sum: usize = both.iter().flatten().map(|level| usize::from(*level)).sum();
                    cell.set_char(GREYS[(sum * GREYS.len() / (6 * 256)).min(GREYS.len() - 1)]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::style::Color;

    use super::*;

    #[test]
    fn two_pixels_share_a_character() {
        let picture = RgbImage::from_fn(4, 4, |x, y| image::Rgb([60 * x as u8, 60 * y as u8, 0]));
        let area = Rect::new(1, 1, 4, 2);
        let mut buffer = Buffer::empty(Rect::new(0, 0, 6, 4));
        draw(&mut buffer, area, &picture, Depth::True);
        let cell = &buffer[(3, 2)];
        assert_eq!(
            (cell.symbol(), cell.fg, cell.bg),
            ("▀", Color::Rgb(120, 120, 0), Color::Rgb(120, 180, 0))
        );
        assert_eq!(buffer[(0, 0)].symbol(), " ");
        assert_eq!(buffer[(5, 3)].symbol(), " ");
    }

    #[test]
    fn a_picture_keeps_its_proportions_and_is_letters_without_colours() {
        let picture = RgbImage::from_fn(10, 5, |x, _| image::Rgb(if x < 5 { [0; 3] } else { [255; 3] }));
        let area = Rect::new(0, 0, 20, 20);
        let mut buffer = Buffer::empty(area);
        draw(&mut buffer, area, &picture, Depth::None);
        let row = |y: u16| (0..20).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        assert_eq!(row(2), "          @@@@@@@@@@");
        assert_eq!([row(4), row(5)], ["          @@@@@@@@@@".to_owned(), " ".repeat(20)]);
    }
}
