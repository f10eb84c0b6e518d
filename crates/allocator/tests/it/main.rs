//! Memory that is freed and allocated again.
#![cfg(target_os = "linux")]

use std::time::Duration;
use std::{fs, thread};

#[global_allocator]
static ALLOCATOR: phalanx_allocator::Allocator = phalanx_allocator::Allocator;

/// Pages of this process that the system has cleared so far.
fn cleared_pages() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("on Linux");
    let behind_name = stat.rsplit(')').next().expect("the name ends");
    behind_name.split_whitespace().nth(7).and_then(|count| count.parse().ok()).expect("minor faults")
}

#[test]
fn freed_memory_is_kept_longer_than_a_second() {
    const LEN: usize = 16 << 20;
    let step = || vec![1.0_f32; LEN].iter().sum::<f32>();
    assert_eq!(step(), LEN as f32);
    let before = cleared_pages();
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(1200));
        assert_eq!(step(), LEN as f32);
    }
    let pages = (LEN * 4 / (2 << 20)) as u64;
    let cleared = cleared_pages() - before;
    assert!(cleared < pages, "{cleared} pages were cleared again; the memory has {pages} of the largest");
}
