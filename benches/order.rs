//! What it costs to find the sample of a position: `cargo bench --bench order`.
//!
//! Positions are taken in steps through the whole epoch, so that nothing is known of the one before.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gpufeed::{Order, Shuffle};

/// Positions in one measured step.
const POSITIONS: u64 = 4096;

fn sample_of_a_position(c: &mut Criterion) {
    let mut group = c.benchmark_group("order");
    group.throughput(Throughput::Elements(POSITIONS));
    let shuffles = [
        ("full", Shuffle::Full),
        ("blocks", Shuffle::Blocks { block: 64, window: 4096 }),
        ("none", Shuffle::None),
    ];
    for (name, shuffle) in shuffles {
        // A small domain and one whose numbers need 40 bits: neither may depend on how many samples there are.
        for samples in [1_000_000u64, 1_000_000_000_000] {
            let order = Order::new(samples, 7, 1, shuffle);
            let step = samples / POSITIONS;
            group.bench_with_input(BenchmarkId::new(name, samples), &order, |bencher, order| {
                bencher.iter(|| {
                    (0..POSITIONS)
                        .map(|i| order.sample(black_box(i * step)).unwrap_or(0))
                        .fold(0, u64::wrapping_add)
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, sample_of_a_position);
criterion_main!(benches);
