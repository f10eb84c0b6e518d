//! Reading buffers of other ranks of this host in place. `unsafe` for that.
//!
//! Between threads of one process this is a copy. Between processes the system copies (`process_vm_readv`, cross memory attach) if
//! it allows one process to read another. Some security policies forbid it, so ranks test it at set-up.

#![allow(unsafe_code)]

use crate::dtype::{Element, ReduceOp};
use crate::reduce::reduce_into;

/// Returns the address of a buffer's first byte, as other ranks need it.
pub(crate) fn expose<T: Element>(values: &mut [T]) -> usize {
    // Exposed, so that the compiler knows that others read the memory that this rank later writes through the slice.
    values.as_mut_ptr().expose_provenance()
}

/// Access to the buffers of each rank of the host, by place.
#[derive(Debug, Clone)]
pub(crate) struct CrossMemory(Vec<Owner>);

#[derive(Debug, Clone, Copy)]
enum Owner {
    /// It is a thread of this process.
    Thread,
    /// It is this process.
    Process(libc::pid_t),
}

impl CrossMemory {
    /// Access to ranks that are threads of this process.
    pub(crate) fn threads(world: usize) -> Self {
        Self(vec![Owner::Thread; world])
    }

    /// Access to ranks that are these processes.
    pub(crate) fn processes(processes: &[u32]) -> Self {
        let owner = |process: &u32| {
            if *process == std::process::id() {
                Owner::Thread
            } else {
                Owner::Process(*process as libc::pid_t)
            }
        };
        Self(processes.iter().map(owner).collect())
    }

    /// True if a rank is a thread of this process, so that memory that it frees is gone.
    pub(crate) fn is_here(&self, rank: usize) -> bool {
        matches!(self.0[rank], Owner::Thread)
    }

    /// Copies bytes at an address of a rank; false if the system refuses.
    ///
    /// The rank must have exposed that memory and keep it until this returns.
    pub(crate) fn read(&self, rank: usize, address: usize, to: &mut [u8]) -> bool {
        match self.0[rank] {
            Owner::Thread => {
                let from = std::ptr::with_exposed_provenance::<u8>(address);
                // SAFETY: the rank is a thread of this process. It published the address of a buffer that it has borrowed
                // exclusively and that contains the bytes read here, since all ranks have compared the operation and its count
                // before. Of a gather only the rank's own chunk is read, which may be all that exists. It returns the buffer only
                // after this rank has reported that it has read, or, if it fails, after this rank's mark that it is reading is
                // gone. The protocol of `exposed` keeps writers away from the range during the call. The own buffer is another one.
                unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
                true
            }
            Owner::Process(process) => {
                let mut done = 0;
                while done < to.len() {
                    let rest = &mut to[done..];
                    let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
                    let remote = libc::iovec {
                        iov_base: std::ptr::without_provenance_mut(address + done),
                        iov_len: rest.len(),
                    };
                    // SAFETY: `local` is a slice that is borrowed exclusively; the system checks `remote`, which it reads in
                    // the other process, and fails where there is nothing.
                    let read = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
                    match usize::try_from(read) {
                        Ok(read) if read > 0 => done += read,
                        _ => return false,
                    }
                }
                true
            }
        }
    }

    /// acc ← acc ∘ the elements at an address of a rank; false if the system refuses. `scratch` has as many bytes as `acc`. The
    /// requirements of [`CrossMemory::read`] apply.
    pub(in crate::shared) fn reduce<T: Element>(
        &self,
        rank: usize,
        address: usize,
        op: ReduceOp,
        acc: &mut [T],
        scratch: &mut [u64],
    ) -> bool {
        if self.is_here(rank) && address.is_multiple_of(align_of::<T>()) {
            let from = std::ptr::with_exposed_provenance::<T>(address);
            // SAFETY: as for `read`; aligned as just checked, and every bit pattern is an element.
            let other = unsafe { std::slice::from_raw_parts(from, acc.len()) };
            reduce_into(op, acc, other);
            return true;
        }
        let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(scratch)[..size_of_val(acc)];
        let there = self.read(rank, address, bytes);
        if there {
            reduce_into(op, acc, bytemuck::cast_slice::<u8, T>(bytes));
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_itself_and_nothing_that_is_not_there() {
        let mut values = vec![1.5_f32, -2.0, 7.0];
        let address = expose(&mut values);
        // By the system, as if it were another process.
        for cross_memory in
            [CrossMemory::threads(1), CrossMemory(vec![Owner::Process(std::process::id() as libc::pid_t)])]
        {
            let mut bytes = [0; 8];
            assert!(cross_memory.read(0, address + 4, &mut bytes));
            assert_eq!(bytemuck::cast_slice::<u8, f32>(&bytes), [-2.0, 7.0]);
            let mut acc = [1.0_f32, 1.0, 1.0];
            assert!(cross_memory.reduce(0, address, ReduceOp::Sum, &mut acc, &mut [0; 2]));
            assert_eq!(acc, [2.5, -1.0, 8.0]);
        }
        let by_system = CrossMemory(vec![Owner::Process(std::process::id() as libc::pid_t)]);
        assert!(!by_system.read(0, 64, &mut [0; 8]), "nothing lies at the start of memory");
    }
}
