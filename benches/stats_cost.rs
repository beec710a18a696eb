//! What it costs that a loader looks at itself: epochs with and without `stats`, in turn, over records that are in the page
//! cache, where a read takes least time. `cargo bench --bench stats_cost -- 'DATA/*.bin' 4096`

use std::sync::Arc;
use std::time::Instant;

use gpufeed::{Dataset, Dtype, Loader, Shuffle};

const ROUNDS: u64 = 12;

fn main() -> gpufeed::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let [files, record_bytes] = &arguments[..] else {
        println!("name a pattern of files, and the bytes of a record");
        return Ok(());
    };
    let record_bytes = record_bytes.parse().unwrap_or(4096);
    let dataset = Dataset::builder().records("data", files.as_str(), Dtype::U8, &[record_bytes]).build()?;
    let dataset = Arc::new(dataset);
    let mut seconds = [vec![], vec![]];
    for round in 0..ROUNDS {
        // Which comes first changes from round to round.
        for on in [round % 2 == 0, round % 2 == 1] {
            let builder = Loader::builder(Arc::clone(&dataset)).shuffle(Shuffle::Full).batch_size(64);
            let mut loader = builder.stats(on).build()?;
            let start = Instant::now();
            for batch in loader.epoch(round)? {
                drop(batch?);
            }
            seconds[usize::from(on)].push(start.elapsed().as_secs_f64());
        }
    }
    for (name, all) in ["without", "with"].iter().zip(&mut seconds) {
        all.sort_by(f64::total_cmp);
        let median = f64::midpoint(all[all.len() / 2 - 1], all[all.len() / 2]);
        println!("{name:8} {median:.4} s ({:.4} to {:.4})", all[0], all[all.len() - 1]);
    }
    Ok(())
}
