//! The memory itself: a mapping, or a heap block between threads. `unsafe` for that.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::dtype::{Element, ReduceOp};
use crate::reduce::reduce_into;

/// Bytes that several ranks read and write. Clones are the same memory.
#[derive(Clone)]
pub(crate) struct SharedMemory(Arc<Mapping>);

struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory may be used from any thread. All access goes through the functions below: atomic words, and copies
// from and to ranges that the slot exchange's protocol gives to one writer or to readers at a time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, of this length, and no reference into it outlives a call below or `self`.
        // An error would mean that it is not mapped, and then there is nothing to do.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl SharedMemory {
    fn map(file: impl AsFd, len: usize) -> std::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the system chooses; the file is at least `len` long, so that no page of it
        // lies beyond the file's end.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self(Arc::new(Mapping { start, len })))
    }

    /// New memory, all zero, and the descriptor through which others open it.
    pub(crate) fn create(len: usize) -> std::io::Result<(Self, OwnedFd)> {
        let file = rustix::fs::memfd_create("phalanx-slots", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        Ok((Self::map(&file, len)?, file))
    }

    /// Returns the path by which another process of this host can open `file`, as long as this one holds it.
    pub(crate) fn path_of(file: &OwnedFd) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
    }

    /// Opens memory of another process at a path from [`SharedMemory::path_of`]. Other paths are refused, even if that process asks
    /// for them.
    pub(crate) fn open(path: &str, len: usize) -> std::io::Result<Self> {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit());
        let place = path.strip_prefix("/proc/").and_then(|rest| rest.split_once("/fd/"));
        if !place.is_some_and(|(process, file)| number(process) && number(file)) {
            let problem = format!("{path} is no memory of another process");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, problem));
        }
        let file: File = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() != len as u64 {
            let problem = format!("{path} is not {len} bytes long");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, problem));
        }
        Self::map(&file, len)
    }

    fn range(&self, offset: usize, len: usize) -> NonNull<u8> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.0.len);
        assert!(fits, "bytes {offset} to {offset} + {len} of {}", self.0.len);
        // SAFETY: the offset is inside the mapping.
        unsafe { self.0.start.add(offset) }
    }

    /// Returns the first of `len` aligned elements that lie inside the mapping.
    fn elements<T: Element>(&self, offset: usize, len: usize) -> NonNull<T> {
        assert!(offset.is_multiple_of(align_of::<T>()), "elements of {} at {offset}", T::DTYPE.name());
        let bytes = len.checked_mul(size_of::<T>());
        let bytes = bytes.unwrap_or_else(|| panic!("{len} elements of {}", T::DTYPE.name()));
        self.range(offset, bytes).cast()
    }

    /// Returns a word that ranks change atomically. No other function may be used on its bytes.
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "word at {offset}");
        let word = self.range(offset, 4).cast::<AtomicU32>();
        // SAFETY: four aligned bytes of the mapping, which lives as long as `self`; mappings begin at a page. They are only
        // changed atomically, by every rank.
        unsafe { word.as_ref() }
    }

    /// Copies bytes into the memory. The protocol must have given the range to this rank alone.
    pub(super) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.range(offset, bytes.len());
        // SAFETY: `to` has as many bytes, in a mapping that no Rust reference points into.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
    }

    /// Copies bytes out of the memory. The protocol must keep writers away from the range during the call.
    pub(super) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.range(offset, bytes.len());
        // SAFETY: as above, the other way.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// acc ← acc ∘ the elements at `offset`. The protocol must keep writers away from the range during the call.
    pub(super) fn reduce_from<T: Element>(&self, offset: usize, op: ReduceOp, acc: &mut [T]) {
        let from = self.elements::<T>(offset, acc.len());
        // SAFETY: aligned elements inside the mapping; every bit pattern is one. No rank writes to them while the slice lives: the
        // writer has published by its counter that they are complete, and takes the range again only after this rank's counter
        // shows that it has read them. Ranks of a world run this same code.
        let other = unsafe { std::slice::from_raw_parts(from.as_ptr(), acc.len()) };
        reduce_into(op, acc, other);
    }

    /// Copies bytes from one place to another that does not overlap it. During the call the protocol must keep writers away from
    /// the first, and all other ranks from the second.
    pub(super) fn copy_within(&self, from: usize, to: usize, len: usize) {
        assert!(from.abs_diff(to) >= len, "{len} bytes from {from} to {to} overlap");
        let (from, to) = (self.range(from, len), self.range(to, len));
        // SAFETY: both are inside the mapping and do not overlap. No Rust reference points there: buffers that a region exposes are
        // borrowed by the operation during the call.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), len) }
    }

    /// Returns elements that belong to this rank outside of operations. The caller must be the only owner of that part.
    pub(super) fn own<T: Element>(&self, offset: usize, len: usize) -> &[T] {
        let from = self.elements::<T>(offset, len);
        // SAFETY: aligned elements inside the mapping, which lives as long as `self`; every bit pattern is one. Other ranks
        // write here only during an operation on the buffer, which this rank enters with the buffer borrowed or moved; if
        // the operation fails, so that others may still be at it, the buffer is taken out of use (`SharedBuffer`).
        unsafe { std::slice::from_raw_parts(from.as_ptr(), len) }
    }

    /// Returns elements that belong to this rank outside of operations, for writing. The caller must be the only owner of that
    /// part.
    pub(super) fn own_mut<T: Element>(&mut self, offset: usize, len: usize) -> &mut [T] {
        let from = self.elements::<T>(offset, len);
        // SAFETY: as above, and the one owner of this part has borrowed it exclusively.
        unsafe { std::slice::from_raw_parts_mut(from.as_ptr(), len) }
    }
}
