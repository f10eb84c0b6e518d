//! Whole pictures, compared with files.

mod golden;
