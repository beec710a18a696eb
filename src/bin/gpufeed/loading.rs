//! Flags that say how to load: the order, the rank, the way, and what may be taken for it.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gpufeed::{
    Backend, BadSamples, Device, IoPriority, LastBatch, Loader, LoaderBuilder, Mixture, Polling, Rank,
    Shuffle, Source, State,
};

use gpufeed::measure::{Stop, Tuning, Tunings, tune_loader, tuning_key};

use crate::options::{DatasetArgs, WrongArguments, parse_size};
use crate::{interrupt, output};

/// How to load.
#[derive(Debug, Args)]
pub(crate) struct LoaderArgs {
    /// Where batches are delivered: auto, host, cuda:N, or cuda:local for the GPU whose number is the local rank; `auto`
    /// takes the first GPU when there is one. Several GPUs (cuda:0,cuda:1) each get every batch, which is read once.
    #[arg(long, default_value = "auto", value_delimiter = ',')]
    device: Vec<DeviceArg>,
    /// The way to read: auto, gds, uring, pread or page-cache.
    #[arg(long, default_value_t = Backend::Auto)]
    pub(crate) backend: Backend,
    /// Fail where reads would not go straight from storage into GPU memory.
    #[arg(long)]
    require_gds: bool,
    /// Samples in a batch of each rank.
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: u64,
    /// Epochs of the whole run. With --resume, those that were gone through before count.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) epochs: u64,
    /// Batches read ahead. [default: what makes 32 MiB, from 2 to 16; two windows with --shuffle blocks]
    #[arg(long, value_name = "N")]
    prefetch: Option<u32>,
    /// Reads in flight at once on each drive that the files are on; for pread and page-cache that many threads. [default:
    /// 16, or what `load --tune` found]
    #[arg(long, value_name = "N")]
    queue_depth: Option<u32>,
    /// The most bytes that one read asks for. [default: what suits the storage, mostly 1MiB, or what `load --tune` found]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    io_bytes: Option<u64>,
    /// Whether to poll for the completions of direct reads by uring, on drives with polled queues (nvme.poll_queues): auto
    /// tries it out with the backend auto, where the dataset is large; always fails where that cannot be; or never.
    #[arg(long, value_name = "WHEN", default_value_t = Polling::Auto)]
    polling: Polling,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// What the flags lead to, on this machine and in this process.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) source: Source,
    /// Bytes of one sample of DATASET.
    pub(crate) sample_bytes: u64,
    rank: Rank,
    devices: Vec<Device>,
    shuffle: Shuffle,
    /// What was found to be fastest for it.
    pub(crate) tuning: Option<Tuning>,
}

/// Which samples come when.
#[derive(Debug, Args)]
#[command(next_help_heading = "Order")]
struct OrderArgs {
    /// How the samples of an epoch are mixed: not at all, over the whole dataset, or in blocks of neighbours, so that reads
    /// stay large.
    #[arg(long, value_enum, default_value_t = ShuffleArg::None)]
    shuffle: ShuffleArg,
    /// For --shuffle blocks: neighbouring samples of a block. [default: what makes 1 MiB, at most 16384]
    #[arg(long, value_name = "N")]
    block: Option<u64>,
    /// For --shuffle blocks: samples that are mixed with each other. [default: 64 blocks]
    #[arg(long, value_name = "N")]
    window: Option<u64>,
    /// The seed of the shuffle.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// What becomes of samples that do not fill a batch of every rank: drop, pad or short.
    #[arg(long, default_value_t = LastBatch::Drop)]
    last_batch: LastBatch,
    /// A dataset with too few samples for any batch gives empty epochs instead of an error.
    #[arg(long)]
    allow_empty: bool,
    /// Mix in another dataset with this weight; DATASET itself has --weight. May be repeated.
    #[arg(long, value_name = "DATASET=WEIGHT", value_parser = parse_mix)]
    mix: Vec<(PathBuf, u64)>,
    /// The weight of DATASET in a mixture.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "mix")]
    weight: u64,
    /// Samples in an epoch of a mixture. [default: as many as all datasets have]
    #[arg(long, value_name = "N", requires = "mix")]
    epoch_samples: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ShuffleArg {
    None,
    Full,
    Blocks,
}

/// Which rank this process is.
#[derive(Debug, Args)]
#[command(next_help_heading = "Ranks")]
struct RankArgs {
    /// The number of this process among those that share the epoch. [default: what torchrun, srun, mpirun or mpiexec say]
    #[arg(long, value_name = "N", requires = "world_size")]
    rank: Option<u32>,
    /// How many processes share the epoch. [default: what the launcher says, else 1]
    #[arg(long, value_name = "N")]
    world_size: Option<u32>,
}

/// What may be taken, and how much is to be left of it for others.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Ask storage for at most this many bytes per second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit_rate: Option<u64>,
    /// The I/O priority of the reads: idle, best-effort:0 (first) to best-effort:7, or realtime:0 to realtime:7.
    #[arg(long, value_name = "CLASS")]
    io_priority: Option<IoPriority>,
    /// Refuse to start if the ring and the staging memory would take more than this.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory_limit: Option<u64>,
    /// The same for host memory alone.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    host_memory_limit: Option<u64>,
    /// The same for the memory of each GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    device_memory_limit: Option<u64>,
    /// If the ring does not fit, take half the prefetch depth, down to 1.
    #[arg(long)]
    shrink_ring: bool,
    /// End with an error if storage does not answer for so long; 0 waits for ever. A file server can be restarted within the default.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    read_timeout: u64,
    /// Leave out up to N samples that cannot be read, and tell which, instead of ending with an error.
    #[arg(long, value_name = "N")]
    skip_bad: Option<u64>,
    /// Zero whatever is in a batch's memory and not of the batch, and memory of a GPU before it is freed.
    #[arg(long)]
    clear_slots: bool,
}

#[derive(Debug, Clone, Copy)]
enum DeviceArg {
    Named(Device),
    Local,
}

impl FromStr for DeviceArg {
    type Err = gpufeed::Error;

    fn from_str(name: &str) -> gpufeed::Result<Self> {
        match name {
            "cuda:local" => Ok(DeviceArg::Local),
            _ => name.parse().map(DeviceArg::Named),
        }
    }
}

impl LoaderArgs {
    /// Finds out the rank.
    pub(crate) fn rank(&self) -> anyhow::Result<Rank> {
        self.rank.find()
    }

    /// Whether the command line itself says the rank, so that it is another one for each.
    pub(crate) fn rank_by_hand(&self) -> bool {
        self.rank.rank.is_some()
    }

    /// Opens what else is mixed in, and builds the loader.
    pub(crate) fn build(
        &self,
        data: &DatasetArgs,
        rank: &Rank,
        resume: Option<State>,
        (trace, tune): (bool, Tune),
    ) -> anyhow::Result<(Loader, Option<Tuning>)> {
        let mut found = self.find(data, rank)?;
        found.tuning = match tune {
            Tune::Never => None,
            Tune::Found(tuning) => Some(tuning),
            Tune::Remembered => {
                let key = tuning_key(&found.source, &found.devices, found.shuffle);
                Tunings::of_user().and_then(|tunings| {
                    let unused = |error| eprintln!("note: what was tuned before is not used: {error}");
                    tunings.get(&key).map_err(unused).ok().flatten()
                })
            }
        };
        let mut builder = self.apply(&found, Loader::builder(found.source.clone())).trace(trace);
        if let Some(state) = resume {
            builder = builder.resume(state);
        }
        let loader = builder.build()?;
        let ranks = rank.local_world_size().unwrap_or(1);
        if found.devices == [Device::Auto]
            && ranks > 1
            && matches!(loader.report().devices[..], [Device::Cuda(_)])
        {
            eprintln!(
                "note: all {ranks} ranks of this host deliver to the first GPU; --device cuda:local gives each its own"
            );
        }
        Ok((loader, found.tuning))
    }

    /// Finds what is fastest on this disk, and remembers it.
    pub(crate) fn tune(&self, data: &DatasetArgs, rank: &Rank) -> anyhow::Result<Tuning> {
        let found = self.find(data, rank)?;
        let stop = Stop::new();
        let asked = stop.clone();
        interrupt::calls(move || asked.stop());
        let configure = |builder| self.apply(&found, builder);
        let tuning = tune_loader(found.source.clone(), configure, TUNING, &stop)?;
        eprintln!("{}", told(&tuning));
        match Tunings::of_user() {
            Some(tunings) => {
                tunings.put(&tuning_key(&found.source, &found.devices, found.shuffle), &tuning)?;
            }
            None => {
                eprintln!("note: it is not remembered, since neither XDG_CACHE_HOME nor HOME names a folder")
            }
        }
        Ok(tuning)
    }

    /// Finds out the devices, and opens DATASET and what else is mixed in.
    pub(crate) fn find(&self, data: &DatasetArgs, rank: &Rank) -> anyhow::Result<Found> {
        let devices: Vec<Device> = self
            .device
            .iter()
            .map(|device| match device {
                DeviceArg::Named(device) => Ok(*device),
                DeviceArg::Local => rank.device(),
            })
            .collect::<gpufeed::Result<_>>()?;
        let timeout = self.limits.read_timeout();
        let dataset = data.open(timeout)?;
        let sample_bytes = dataset.sample_bytes();
        let shuffle = self.order.shuffle(sample_bytes)?;
        let source = match self.order.mix.as_slice() {
            [] => Source::from(dataset),
            others => {
                let mut parts = vec![(dataset, self.order.weight)];
                for (path, weight) in others {
                    parts.push((data.open_at(path, timeout)?, *weight));
                }
                let mixture = Mixture::new(parts)?;
                match self.order.epoch_samples {
                    Some(samples) => mixture.epoch_samples(samples)?.into(),
                    None => mixture.into(),
                }
            }
        };
        Ok(Found { source, sample_bytes, rank: rank.clone(), devices, shuffle, tuning: None })
    }

    /// Sets all that the flags say.
    pub(crate) fn apply(&self, found: &Found, builder: LoaderBuilder) -> LoaderBuilder {
        let mut builder = builder
            .devices(&found.devices)
            .require_gds(self.require_gds)
            .backend(self.backend)
            .polling(self.polling)
            .batch_size(self.batch_size)
            .shuffle(found.shuffle)
            .seed(self.order.seed)
            .last_batch(self.order.last_batch)
            .allow_empty_epochs(self.order.allow_empty)
            .rank(found.rank.clone())
            .stats(true);
        if let Some(tuning) = &found.tuning {
            builder = builder.tuned(tuning);
        }
        if let Some(reads) = self.queue_depth {
            builder = builder.queue_depth(reads);
        }
        if let Some(bytes) = self.io_bytes {
            builder = builder.io_bytes(bytes);
        }
        builder = self.limits.apply(builder);
        match self.prefetch {
            Some(batches) => builder.prefetch(batches),
            None => builder,
        }
    }
}

/// How long tuning may take.
const TUNING: Duration = Duration::from_secs(45);

/// Whether to look for the settings that suit the disk.
#[derive(Debug)]
pub(crate) enum Tune {
    Never,
    /// Take those that were found before.
    Remembered,
    /// Take these.
    Found(Tuning),
}

fn told(tuning: &Tuning) -> String {
    let default = tuning.default_gib_per_s.median;
    let what = match tuning.faster {
        true => format!(
            "{} with I/Os of {} and {} in flight reads {:.2} GiB/s, by default it is {default:.2}, in turn",
            tuning.backend,
            output::size(tuning.io_bytes),
            tuning.queue_depth,
            tuning.gib_per_s.median
        ),
        false => format!("nothing is faster beyond noise than the default, which reads {default:.2} GiB/s"),
    };
    format!("tuned in {:.0} s: {what}", tuning.took_seconds)
}

impl OrderArgs {
    fn shuffle(&self, sample_bytes: u64) -> anyhow::Result<Shuffle> {
        let only_blocks = self.block.is_some() || self.window.is_some();
        Ok(match self.shuffle {
            ShuffleArg::None | ShuffleArg::Full if only_blocks => {
                let what = "--block and --window are for --shuffle blocks";
                return Err(WrongArguments(what.into()).into());
            }
            ShuffleArg::None => Shuffle::None,
            ShuffleArg::Full => Shuffle::Full,
            ShuffleArg::Blocks => {
                let Shuffle::Blocks { block, .. } = Shuffle::blocks_of(sample_bytes) else {
                    return Ok(Shuffle::Full);
                };
                let block = self.block.unwrap_or(block);
                let window = self.window.unwrap_or(block.saturating_mul(64));
                Shuffle::Blocks { block, window }
            }
        })
    }
}

impl RankArgs {
    /// The rank by hand, else by the launcher. Where both say something, they must agree.
    fn find(&self) -> anyhow::Result<Rank> {
        let detected = Rank::detect_with_world_size(self.world_size);
        match (self.rank, self.world_size) {
            (Some(rank), Some(world_size)) => {
                let by_hand = Rank::new(rank, world_size)?;
                let Some(detected) = detected? else { return Ok(by_hand) };
                by_hand.check_against(&detected)?;
                // The launcher knows more: the local rank, and the job.
                Ok(if detected.world_size() == world_size { detected } else { by_hand })
            }
            (_, Some(world_size)) if world_size != 1 => match detected? {
                Some(detected) => Ok(detected),
                None => Err(WrongArguments(format!(
                    "--world-size is {world_size}, and no launcher says which of them this process is; --rank does"
                ))
                .into()),
            },
            _ => Ok(detected?.unwrap_or(Rank::single())),
        }
    }
}

impl LimitArgs {
    fn read_timeout(&self) -> Duration {
        Duration::from_secs(self.read_timeout)
    }

    fn apply(&self, mut builder: LoaderBuilder) -> LoaderBuilder {
        builder = builder.shrink_ring(self.shrink_ring).clear_slots(self.clear_slots);
        builder = builder.read_timeout(self.read_timeout());
        if let Some(limit) = self.skip_bad {
            builder = builder.bad_samples(BadSamples::Skip { limit });
        }
        if let Some(rate) = self.limit_rate {
            builder = builder.limit_rate(rate);
        }
        if let Some(priority) = self.io_priority {
            builder = builder.io_priority(priority);
        }
        if let Some(bytes) = self.memory_limit {
            builder = builder.memory_limit(bytes);
        }
        if let Some(bytes) = self.host_memory_limit {
            builder = builder.host_memory_limit(bytes);
        }
        if let Some(bytes) = self.device_memory_limit {
            builder = builder.device_memory_limit(bytes);
        }
        builder
    }
}

/// `path/to/dataset=3`.
fn parse_mix(text: &str) -> Result<(PathBuf, u64), String> {
    let parsed = text.rsplit_once('=').and_then(|(path, weight)| Some((path.into(), weight.parse().ok()?)));
    parsed.ok_or_else(|| format!("{text:?} is not DATASET=WEIGHT, with a whole number for the weight"))
}
