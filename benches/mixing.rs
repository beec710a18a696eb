//! How well each shuffle mixes, in numbers that do not depend on the machine. No timing: `cargo bench --bench mixing`.
//!
//! Optional arguments: samples, batch size, block (`cargo bench --bench mixing -- 1048576 256 64`).

use std::collections::HashSet;

use gpufeed::{Order, Shuffle};

/// Means over this many epochs.
const EPOCHS: u64 = 4;

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let at = |i: usize, default: u64| numbers.get(i).copied().unwrap_or(default).max(1);
    let (samples, batch, block) = (at(0, 1 << 20), at(1, 256), at(2, 64));
    println!("{samples} samples, batches of {batch}, blocks of {block}, means of {EPOCHS} epochs");
    println!();
    println!("| shuffle | way of a sample | neighbours in one batch | blocks in a batch | met again |");
    println!("| --- | --- | --- | --- | --- |");
    let windows = [1, 4, 16, 64, 256, 1024].map(|blocks| Shuffle::Blocks { block, window: blocks * block });
    for shuffle in [Shuffle::None].into_iter().chain(windows).chain([Shuffle::Full]) {
        let it = measure(samples, batch, block, shuffle);
        println!(
            "| `{shuffle}` | {:.1} % | {:.2} % | {:.1} | {:.3} % |",
            100.0 * it.way,
            100.0 * it.neighbours,
            it.blocks,
            100.0 * it.again
        );
    }
}

struct Mixing {
    /// How far a sample comes from where it is stored, as a share of the dataset: a third, if any place is equally likely.
    way: f64,
    /// Of the pairs of samples that are stored side by side, how many come in one batch.
    neighbours: f64,
    /// How many blocks the samples of a batch are of.
    blocks: f64,
    /// Of the pairs of samples that come in one batch, how many came in one batch in the epoch before.
    again: f64,
}

fn measure(samples: u64, batch: u64, block: u64, shuffle: Shuffle) -> Mixing {
    let batches_of = |epoch| -> Vec<u64> {
        let order = Order::new(samples, 7, epoch, shuffle);
        let mut batch_of = vec![0; samples as usize];
        for position in 0..samples {
            if let Some(sample) = order.sample(position) {
                batch_of[sample as usize] = position / batch;
            }
        }
        batch_of
    };
    let mut before = batches_of(0);
    let (mut way, mut together, mut blocks, mut met, mut pairs) = (0.0, 0u64, 0usize, 0u64, 0u64);
    for epoch in 1..=EPOCHS {
        let order = Order::new(samples, 7, epoch, shuffle);
        let all: Vec<u64> = (0..samples).filter_map(|position| order.sample(position)).collect();
        way += (0..).zip(&all).map(|(position, sample)| sample.abs_diff(position) as f64).sum::<f64>();
        for chunk in all.chunks(batch as usize) {
            blocks += chunk.iter().map(|sample| sample / block).collect::<HashSet<_>>().len();
            // Pairs that were together: among as many as came in one batch, all with each other.
            let mut earlier: Vec<u64> = chunk.iter().map(|sample| before[*sample as usize]).collect();
            earlier.sort_unstable();
            let choose = |n: u64| n * n.saturating_sub(1) / 2;
            pairs += choose(chunk.len() as u64);
            met += earlier.chunk_by(|a, b| a == b).map(|same| choose(same.len() as u64)).sum::<u64>();
        }
        let now = batches_of(epoch);
        together += now.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
        before = now;
    }
    let (epochs, batches) = (EPOCHS as f64, samples.div_ceil(batch) as f64);
    Mixing {
        way: way / samples as f64 / samples as f64 / epochs,
        neighbours: together as f64 / samples.saturating_sub(1).max(1) as f64 / epochs,
        blocks: blocks as f64 / batches / epochs,
        again: met as f64 / pairs.max(1) as f64,
    }
}
