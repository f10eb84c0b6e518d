//! Writes a grid of synthetic images: `shapes_grid OUT.png [RESOLUTION] [PER_SIDE] [scenes]`. The captions go to
//! `OUT.txt`.

use phalanx_data::{ImageDataset, Objects, ScenesConfig, ScenesDataset, ShapesConfig, ShapesDataset};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: shapes_grid OUT.png [RESOLUTION] [PER_SIDE] [scenes]")?;
    let resolution: u32 = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let side: u32 = arguments.next().map_or(Ok(8), |text| text.parse())?;
    let len = (side * side) as usize;
    let dataset: Box<ImageDataset> = match arguments.next().as_deref() {
        Some("scenes") => {
            Box::new(ScenesDataset::new(ScenesConfig { len, resolution, ..Default::default() })?)
        }
        _ => {
            let objects = Objects::OneOrTwo;
            Box::new(ShapesDataset::new(ShapesConfig { len, resolution, objects, ..Default::default() })?)
        }
    };
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
