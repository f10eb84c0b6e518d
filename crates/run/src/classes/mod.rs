//! The evaluation of a classifier: measures of each class, the confusion matrix, and the worst mistakes.
//!
//! `report` is the file `evaluation/classes.json` of a run. `table` prints it, `matrix_picture` and `mistakes_picture` draw it.

mod confusion;

mod report;

mod matrix_picture;
mod mistakes_picture;
mod table;

pub use confusion::{ClassScore, Confused, ConfusionMatrix};
pub use matrix_picture::confusion_svg;
pub use mistakes_picture::{PlanarPicture, mistakes_svg};
pub use report::{ClassReport, ClassRow, Mistake};
pub use table::class_lines;
