//! Writes a grid of generated pictures: `shapes_grid OUT.png [RESOLUTION] [PER_SIDE]`; the captions go to `OUT.txt`.

use phalanx_data::{Dataset, Objects, ShapesConfig, ShapesDataset};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: shapes_grid OUT.png [RESOLUTION] [PER_SIDE]")?;
    let resolution: u32 = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let side: u32 = arguments.next().map_or(Ok(8), |text| text.parse())?;
    let dataset = ShapesDataset::new(ShapesConfig {
        len: (side * side) as usize,
        resolution,
        objects: Objects::OneOrTwo,
        ..Default::default()
    })?;
    let mut captions = String::new();
    let mut grid = image::RgbImage::new(side * resolution, side * resolution);
    for index in 0..dataset.len() {
        let sample = dataset.get(index, 0)?;
        let (x, y) = (index as u32 % side * resolution, index as u32 / side * resolution);
        image::imageops::replace(&mut grid, &sample.image, x.into(), y.into());
        captions += &format!("{index}: {}\n", sample.caption);
    }
    grid.save(&path)?;
    std::fs::write(std::path::Path::new(&path).with_extension("txt"), captions)?;
    Ok(())
}
