//! Memory limits for PyTorch's files, checked before they are read.
//!
//! Such a file is an archive whose `data.pkl` is a program for a machine with a stack and a memo (Python's
//! `pickletools` documents its instructions). candle runs it, and copies every object that goes into the memo or
//! comes from it. So a few hundred bytes can ask for any amount of memory, or for objects nested so deeply that
//! dropping them overflows the stack. Here the program runs with sizes in place of objects.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use zip::ZipArchive;

/// The number of objects allowed for each byte of a program. A state dict makes less than four.
const OBJECTS_PER_BYTE: u64 = 32;
const OBJECTS: u64 = 4096;

/// The largest nesting of objects. A state dict has about ten.
const DEPTH: u32 = 64;

/// Rejects a file that claims more than it holds, or that would need much more memory than its size. The error is a
/// message.
pub(super) fn check(path: &Path) -> Result<(), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let there = file.metadata().map_err(|error| error.to_string())?.len();
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| error.to_string())?;
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at).map_err(|error| error.to_string())?;
        let name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        // PyTorch does not compress, so no entry is larger than the file.
        if entry.size() > there {
            return Err(format!("`{name}` claims {} bytes, more than the file has", entry.size()));
        }
        if name.ends_with("data.pkl") {
            let mut program = Vec::new();
            entry.by_ref().take(there).read_to_end(&mut program).map_err(|error| error.to_string())?;
            follow(&program).map_err(|problem| format!("`{name}` {problem}"))?;
        }
    }
    Ok(())
}

/// The size of an object on the stack: its number of objects, and their nesting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    objects: u64,
    depth: u32,
    is_mark: bool,
}

/// The machine, with sizes in place of objects.
struct Machine<'a> {
    program: &'a [u8],
    stack: Vec<Size>,
    memo: HashMap<u32, Size>,
    /// All objects made so far.
    made: u64,
}

/// The reason for an early end of a program.
enum End {
    /// Its last instruction, or an unknown one, which the reader reports.
    Over,
    /// It exceeds a limit.
    Refused(&'static str),
}

fn follow(program: &[u8]) -> Result<(), &'static str> {
    let most = OBJECTS + OBJECTS_PER_BYTE * program.len() as u64;
    let mut machine = Machine { program, stack: Vec::new(), memo: HashMap::new(), made: 0 };
    loop {
        match machine.step() {
            Ok(()) if machine.made > most => return Err("makes far more objects than it has bytes"),
            Ok(()) => {}
            Err(End::Over) => return Ok(()),
            Err(End::Refused(problem)) => return Err(problem),
        }
    }
}

impl Machine<'_> {
    fn take(&mut self, count: usize) -> Result<&[u8], End> {
        let (taken, rest) = self.program.split_at_checked(count).ok_or(End::Over)?;
        self.program = rest;
        Ok(taken)
    }

    fn number(&mut self, bytes: usize) -> Result<u32, End> {
        let taken = self.take(bytes)?;
        Ok(taken.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    fn line(&mut self) -> Result<u64, End> {
        let end = self.program.iter().position(|byte| *byte == b'\n').ok_or(End::Over)?;
        self.take(end + 1)?;
        Ok(end as u64)
    }

    fn pop(&mut self) -> Result<Size, End> {
        self.stack.pop().ok_or(End::Over)
    }

    fn push(&mut self, size: Size) -> Result<(), End> {
        if size.depth > DEPTH {
            return Err(End::Refused("nests objects deeper than any state dict does"));
        }
        self.stack.push(size);
        Ok(())
    }

    /// Pushes an object without parts.
    fn leaf(&mut self, objects: u64) -> Result<(), End> {
        self.made += objects;
        self.push(Size { objects, depth: 1, is_mark: false })
    }

    /// Pushes an object made of the upper `count` objects.
    fn of(&mut self, count: usize) -> Result<(), End> {
        let first = self.stack.len().checked_sub(count).ok_or(End::Over)?;
        let parts = self.stack.split_off(first);
        self.holding(Size { objects: 1, depth: 1, is_mark: false }, &parts)
    }

    /// Pushes an object with parts.
    fn holding(&mut self, object: Size, parts: &[Size]) -> Result<(), End> {
        self.made += 1;
        let objects = parts.iter().fold(object.objects, |sum, part| sum.saturating_add(part.objects));
        let depth = parts.iter().map(|part| part.depth + 1).max().unwrap_or(1).max(object.depth);
        self.push(Size { objects, depth, is_mark: false })
    }

    /// Pops everything above the last mark, and the mark.
    fn since_mark(&mut self) -> Result<Vec<Size>, End> {
        let mark = self.stack.iter().rposition(|size| size.is_mark).ok_or(End::Over)?;
        let parts = self.stack.split_off(mark + 1);
        self.pop()?;
        Ok(parts)
    }

    fn step(&mut self) -> Result<(), End> {
        match self.take(1)?[0] {
            // The protocol version.
            0x80 => self.take(1).map(|_| ()),
            // Names of a module and a class.
            b'c' => {
                let names = self.line()? + self.line()?;
                self.leaf(1 + names / 16)
            }
            // Numbers, booleans, None, and empty containers. candle takes `d` for one, too.
            b'J' => self.take(4).map(|_| ()).and_then(|()| self.leaf(1)),
            b'K' => self.take(1).map(|_| ()).and_then(|()| self.leaf(1)),
            b'M' => self.take(2).map(|_| ()).and_then(|()| self.leaf(1)),
            b'G' => self.take(8).map(|_| ()).and_then(|()| self.leaf(1)),
            0x8a => {
                let bytes = self.number(1)?;
                self.take(bytes as usize)?;
                self.leaf(1)
            }
            b'N' | 0x88 | 0x89 | b')' | b']' | b'}' | b'd' => self.leaf(1),
            // A string.
            b'X' => {
                let bytes = self.number(4)?;
                if bytes as usize > self.program.len() {
                    return Err(End::Refused("has a text that is longer than itself"));
                }
                self.take(bytes as usize)?;
                self.leaf(1 + u64::from(bytes) / 16)
            }
            b'(' => self.push(Size { objects: 1, depth: 1, is_mark: true }),
            b't' => {
                let parts = self.since_mark()?;
                self.holding(Size { objects: 1, depth: 1, is_mark: false }, &parts)
            }
            0x85 | b'Q' => self.of(1),
            0x86 | b'R' | b'b' | 0x81 => self.of(2),
            0x87 => self.of(3),
            // Into the list or dict below.
            b'a' => self.put_into(1),
            b's' => self.put_into(2),
            b'e' | b'u' => {
                let parts = self.since_mark()?;
                let container = self.pop()?;
                self.holding(container, &parts)
            }
            b'q' => self.number(1).and_then(|id| self.keep(id)),
            b'r' => self.number(4).and_then(|id| self.keep(id)),
            b'h' => self.number(1).and_then(|id| self.copy(id)),
            b'j' => self.number(4).and_then(|id| self.copy(id)),
            _ => Err(End::Over),
        }
    }

    fn put_into(&mut self, count: usize) -> Result<(), End> {
        let first = self.stack.len().checked_sub(count).ok_or(End::Over)?;
        let parts = self.stack.split_off(first);
        let container = self.pop()?;
        self.holding(container, &parts)
    }

    fn keep(&mut self, id: u32) -> Result<(), End> {
        let last = *self.stack.last().ok_or(End::Over)?;
        self.made = self.made.saturating_add(last.objects);
        self.memo.insert(id, last);
        Ok(())
    }

    fn copy(&mut self, id: u32) -> Result<(), End> {
        let kept = *self.memo.get(&id).ok_or(End::Over)?;
        self.made = self.made.saturating_add(kept.objects);
        self.push(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_asks_for_too_much_is_refused_and_what_is_not_understood_is_left_to_others() {
        // A pair of the last object twice, repeated: it doubles with every five bytes.
        let mut doubling = b"\x80\x02Nq\x00".to_vec();
        for _ in 0..40 {
            doubling.extend(b"h\x00h\x00\x86q\x00");
        }
        let nested = [&b"\x80\x02N"[..], &[0x85; 100_000], b"."].concat();
        // A list that is put into itself from the memo, and stored in the memo again.
        let list_of_itself = [&b"\x80\x02]q\x00"[..], &b"h\x00aq\x00".repeat(100), b"."].concat();
        for (program, words) in [
            (doubling, "far more objects"),
            (nested, "deeper"),
            (list_of_itself, "far more objects"),
            (b"\x80\x02X\xff\xff\xff\x7fabc".to_vec(), "longer than itself"),
        ] {
            let problem = follow(&program).expect_err(words);
            assert!(problem.contains(words), "{problem}");
        }
        for program in [
            &b""[..],
            b".",
            b"\x80\x02}q\x00.",
            b"\xff",
            b"\x80\x02t",
            b"\x80\x02\x86",
            b"\x80\x02h\x07",
            b"\x80\x02X\x01",
        ] {
            follow(program).unwrap_or_else(|problem| panic!("{program:?}: {problem}"));
        }
    }

    /// A state dict of four thousand tensors, as PyTorch writes it.
    #[test]
    fn state_dicts_of_any_length_make_few_objects_for_each_byte() {
        let mut program = b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01(".to_vec();
        let mut next = 2_u32;
        let mut put = |program: &mut Vec<u8>| {
            program.push(b'r');
            program.extend(next.to_le_bytes());
            next += 1;
        };
        for tensor in 0..4000 {
            let text = |program: &mut Vec<u8>, text: &str| {
                program.push(b'X');
                program.extend((text.len() as u32).to_le_bytes());
                program.extend(text.as_bytes());
            };
            text(&mut program, &format!("layers.{tensor}.weight"));
            put(&mut program);
            program.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
            text(&mut program, "storage");
            program.extend(b"ctorch\nFloatStorage\n");
            text(&mut program, &tensor.to_string());
            text(&mut program, "cpu");
            program.extend(b"K\x06tQK\x00K\x02K\x03\x86");
            put(&mut program);
            program.extend(b"K\x03K\x01\x86");
            put(&mut program);
            program.extend(b"\x89ccollections\nOrderedDict\n)Rt");
            put(&mut program);
            program.extend(b"R");
            put(&mut program);
        }
        program.extend(b"u.");
        follow(&program).expect("a state dict");
    }
}
