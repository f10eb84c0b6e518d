//! Blocks of columns of a matrix that threads write at the same time, by `unsafe`.

#![allow(unsafe_code)]

use std::marker::PhantomData;

/// A block of columns: a part of every row of a matrix.
pub(crate) struct ColumnBlock<'a, T> {
    /// The first element of the first row.
    start: *mut T,
    rows: usize,
    row_len: usize,
    width: usize,
    matrix: PhantomData<&'a mut [T]>,
}

// SAFETY: a block is an exclusive borrow of its elements, which `T: Send` allows to hand to another thread.
unsafe impl<T: Send> Send for ColumnBlock<'_, T> {}

/// Splits a matrix with rows of `row_len` elements into blocks of `width` columns; the last may be narrower. Elements after
/// the last whole row are left out.
pub(crate) fn column_blocks<T>(data: &mut [T], row_len: usize, width: usize) -> Vec<ColumnBlock<'_, T>> {
    let rows = data.len().checked_div(row_len).unwrap_or(0);
    let start = data.as_mut_ptr();
    (0..row_len)
        .step_by(width.max(1))
        .map(|first| ColumnBlock {
            // Without a row the pointer is never read.
            start: start.wrapping_add(first),
            rows,
            row_len,
            width: width.max(1).min(row_len - first),
            matrix: PhantomData,
        })
        .collect()
}

/// Splits a matrix into `count` blocks of `width` columns, or as many as there are. The last has the rest as well.
pub(crate) fn column_parts<T>(
    data: &mut [T],
    row_len: usize,
    width: usize,
    count: usize,
) -> Vec<ColumnBlock<'_, T>> {
    let mut blocks = column_blocks(data, row_len, width);
    blocks.truncate(count);
    let before = blocks.len().saturating_sub(1) * width.max(1);
    if let Some(last) = blocks.last_mut() {
        last.width = row_len - before;
    }
    blocks
}

impl<T> ColumnBlock<'_, T> {
    /// Some of the columns, while this block is borrowed.
    pub(crate) fn some(&mut self, first: usize, width: usize) -> ColumnBlock<'_, T> {
        let fits = first <= self.width && width <= self.width - first;
        assert!(fits, "{width} columns from {first} on, of {}", self.width);
        let start = self.start.wrapping_add(first);
        ColumnBlock { start, rows: self.rows, row_len: self.row_len, width, matrix: PhantomData }
    }

    /// The number of columns.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The first element, the number of rows, and the elements from one row to the next.
    pub(crate) fn raw_parts(&mut self) -> (*mut T, usize, usize) {
        (self.start, self.rows, self.row_len)
    }

    /// The block's part of a row.
    #[inline(always)]
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the block begins at a column below `row_len` and its width ends at `row_len` at the latest, so its part
        // of a row below `rows` lies in the matrix, which is exclusively borrowed for as long as the block lives. Blocks
        // of one matrix share no column, and this one is borrowed while its row is, so these elements have no other
        // reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.row_len), self.width) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_every_element_once() {
        for (rows, row_len, width) in [(3, 7, 2), (1, 5, 9), (4, 6, 6), (0, 4, 2), (2, 1, 1)] {
            let mut data = vec![0; rows * row_len];
            for (index, block) in column_blocks(&mut data, row_len, width).iter_mut().enumerate() {
                for row in 0..rows {
                    block.row(row).iter_mut().for_each(|value| *value += index);
                    let half = block.width / 2;
                    block.some(0, half).row(row).iter_mut().for_each(|value| *value += 1);
                    let rest = block.width - half;
                    block.some(half, rest).row(row).iter_mut().for_each(|value| *value += 1);
                }
            }
            let expected: Vec<usize> = (0..rows * row_len).map(|i| i % row_len / width + 1).collect();
            assert_eq!(data, expected);
        }
    }

    #[test]
    fn the_last_part_has_the_rest() {
        for (row_len, width, count, expected) in [
            (7, 2, 3, "1122333"),
            (6, 3, 2, "111222"),
            (5, 5, 1, "11111"),
            (5, 3, 3, "11122"),
            (3, 0, 2, "122"),
        ] {
            let mut data = vec![0; 2 * row_len];
            for (index, block) in column_parts(&mut data, row_len, width, count).iter_mut().enumerate() {
                (0..2).for_each(|row| block.row(row).iter_mut().for_each(|value| *value += index + 1));
            }
            let found: String = data.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected.repeat(2));
        }
    }

    #[test]
    #[should_panic(expected = "row 2 of 2")]
    fn there_is_no_row_after_the_last() {
        column_blocks(&mut [0; 6], 3, 2)[1].row(2);
    }
}
