//! Ranks in processes of their own, as `mpirun` of Open MPI starts them: together they deliver exactly the epoch, also when
//! they are killed in the middle and another number of ranks goes on.
#![cfg(feature = "cli")]

mod common;
mod launchers_common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};

use common::{expected, folder, noise, write_shards};
use gpufeed::{LastBatch, Order, Shuffle, State};
use launchers_common::{command, ended, open_mpi, until};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const GPUFEED: &str = env!("CARGO_BIN_EXE_gpufeed");
const SEED: u64 = 7;

/// Marks the processes of a job, and names the folder that it writes to.
const MARK: &str = "GPUFEED_TEST_JOB";

/// Keeps what a rank says and how it ends, since `mpirun` mixes the one and tells but one of the other. The signal is for
/// the rank; the shell lives on to see how it ends.
const WATCHED: &str = r#"trap : TERM
cd "$GPUFEED_TEST_JOB"
"$@" >stdout.$OMPI_COMM_WORLD_RANK 2>stderr.$OMPI_COMM_WORLD_RANK
status=$?
echo $status >status.$OMPI_COMM_WORLD_RANK
exit $status"#;

/// A dataset, and what its samples are.
struct Data {
    path: PathBuf,
    args: Vec<String>,
    samples: Vec<Vec<u8>>,
    /// Where the dataset is, if it was made for the test.
    _folder: Option<TempDir>,
}

impl Data {
    /// Records that tell which sample they are, in shards of so many.
    fn made(shards: &[u64]) -> Data {
        const RECORD: usize = 1003;
        let folder = folder();
        let samples: Vec<Vec<u8>> = (0..shards.iter().sum())
            .map(|sample: u64| [&sample.to_le_bytes()[..], &noise(sample, RECORD - 8)].concat())
            .collect();
        let mut rest = &samples[..];
        let files: Vec<Vec<u8>> = shards
            .iter()
            .map(|&records| {
                let (these, others) = rest.split_at(records as usize);
                rest = others;
                these.concat()
            })
            .collect();
        write_shards(folder.path(), &files);
        let args = ["--record-bytes".to_string(), RECORD.to_string()].into();
        Data { path: folder.path().into(), args, samples, _folder: Some(folder) }
    }

    /// Images of 64 bytes, each with a label of one.
    fn digits() -> Data {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/digits");
        let column = |name: &str| -> Vec<u8> {
            (0..4).flat_map(|shard| fs::read(path.join(format!("{name}-00{shard}.bin"))).unwrap()).collect()
        };
        let (images, labels) = (column("images"), column("labels"));
        let samples = images.chunks(64).zip(&labels).map(|(image, label)| [image, &[*label]].concat());
        Data { samples: samples.collect(), path, args: Vec::new(), _folder: None }
    }

    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    /// The global batches of an epoch from a position on, by the rules as they are written down.
    fn batches(&self, epoch: u64, global: u64, last: LastBatch) -> Vec<Vec<u64>> {
        expected(self.len(), global, last, &Order::new(self.len(), SEED, epoch, Shuffle::Full))
    }

    /// The samples of an epoch in the order in which they come.
    fn order(&self, epoch: u64) -> Vec<u64> {
        self.batches(epoch, 1, LastBatch::Short).concat()
    }

    fn digest(&self, order: &[u64]) -> String {
        let mut hash = Sha256::new();
        order.iter().for_each(|&sample| hash.update(&self.samples[sample as usize]));
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What each rank has of these global batches: its row in each, and of one that is not full its even share.
fn dealt(batches: &[Vec<u64>], ranks: usize, size: usize) -> Vec<Vec<u64>> {
    let rows = |batch: &[u64], rank: usize| match batch.len() == ranks * size {
        true => batch[rank * size..(rank + 1) * size].to_vec(),
        false => batch[batch.len() * rank / ranks..batch.len() * (rank + 1) / ranks].to_vec(),
    };
    (0..ranks).map(|rank| batches.iter().flat_map(|batch| rows(batch, rank)).collect()).collect()
}

/// A folder in memory, where there is one: a state is on disk soon there.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Ranks of a job that have these arguments.
struct Part {
    ranks: u32,
    args: Vec<String>,
}

/// `gpufeed load` on so many ranks.
fn load(ranks: u32, data: &Data, args: &[&str]) -> Part {
    let path = data.path.to_str().unwrap();
    let shuffle = ["--shuffle", "full", "--seed"].map(String::from);
    let mut all: Vec<String> = vec!["load".into(), path.into(), "--json".into(), "--digest".into()];
    all.extend(data.args.iter().cloned().chain(shuffle).chain([SEED.to_string()]));
    all.extend(args.iter().map(|arg| arg.to_string()));
    Part { ranks, args: all }
}

/// A job under `mpirun`. Nothing of it is left when this is dropped.
struct Job {
    mpirun: Child,
    /// What its ranks write.
    out: TempDir,
    ranks: u32,
}

/// What became of a rank.
#[derive(Debug)]
struct Rank {
    /// The exit status; none if it was killed together with what watched it.
    status: Option<i32>,
    stdout: String,
    stderr: String,
    /// The samples that it wrote down.
    order: Vec<u64>,
}

impl Rank {
    fn json(&self) -> Value {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap()
    }
}

impl Job {
    /// Starts it. `{out}` in the arguments is the folder that the job writes to; `watched` is whether to keep what ranks say
    /// and how they end.
    fn start(mpirun: [&str; 2], parts: &[Part], watched: bool, settings: &[(&str, &str)]) -> Job {
        let out = scratch();
        let path = out.path().to_str().unwrap();
        let mut job = command(&mpirun);
        for (i, part) in parts.iter().enumerate() {
            job.args((i > 0).then_some(":")).args(["-n", &part.ranks.to_string()]);
            if watched {
                job.args(["sh", "-c", WATCHED, "sh"]);
            }
            job.arg(GPUFEED).args(part.args.iter().map(|arg| arg.replace("{out}", path)));
        }
        let mpirun = job
            .env(MARK, path)
            .envs(settings.iter().copied())
            // Where it keeps what it needs itself: when it is killed, it does not remove that.
            .env("TMPDIR", path)
            .stdout(Stdio::null())
            .stderr(if watched { Stdio::null() } else { Stdio::inherit() })
            .spawn()
            .unwrap();
        Job { mpirun, out, ranks: parts.iter().map(|part| part.ranks).sum() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.out.path().join(name)
    }

    /// The processes of the job, `mpirun` among them.
    fn processes(&self) -> Vec<libc::pid_t> {
        let mark = format!("{MARK}={}", self.out.path().display());
        let has = |environment: Vec<u8>| environment.split(|byte| *byte == 0).any(|it| it == mark.as_bytes());
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|entry| fs::read(entry.path().join("environ")).is_ok_and(has))
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    /// The process that is this rank.
    fn process_of(&self, rank: u32) -> libc::pid_t {
        let variable = format!("OMPI_COMM_WORLD_RANK={rank}");
        let program = fs::metadata(GPUFEED).unwrap();
        let is_it = |process: &libc::pid_t| {
            let folder = Path::new("/proc").join(process.to_string());
            let environment = fs::read(folder.join("environ")).unwrap_or_default();
            let runs = fs::metadata(folder.join("exe"));
            runs.is_ok_and(|runs| (runs.dev(), runs.ino()) == (program.dev(), program.ino()))
                && environment.split(|byte| *byte == 0).any(|it| it == variable.as_bytes())
        };
        self.processes().into_iter().find(is_it).expect("the rank is there")
    }

    /// Kills all of it, as a machine that goes down does, and waits until it is gone.
    fn kill(&mut self) {
        // First, since it would tell the ranks to end.
        let _ = self.mpirun.kill();
        until("the job to be gone", || {
            let left = self.processes();
            left.iter().for_each(|process| signal(*process, libc::SIGKILL));
            let _ = self.mpirun.try_wait();
            left.is_empty().then_some(())
        });
        let _ = self.mpirun.wait();
    }

    /// Waits for its end; nothing of it may stay behind.
    fn end(&mut self) -> (ExitStatus, Vec<Rank>) {
        let status = ended(&mut self.mpirun, "mpirun");
        until("processes that are left of a job", || self.processes().is_empty().then_some(()));
        (status, self.all())
    }

    fn all(&self) -> Vec<Rank> {
        (0..self.ranks).map(|rank| self.rank(rank)).collect()
    }

    /// What a rank has written so far.
    fn rank(&self, rank: u32) -> Rank {
        let text = |name: &str| fs::read_to_string(self.file(&format!("{name}.{rank}"))).unwrap_or_default();
        Rank {
            status: text("status").trim().parse().ok(),
            stdout: text("stdout"),
            stderr: text("stderr"),
            order: text("order").lines().map(|line| line.parse().unwrap()).collect(),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Of a test that failed: its processes would go on for minutes.
        if !matches!(self.mpirun.try_wait(), Ok(Some(_))) {
            let _ = self.mpirun.kill();
            let _ = self.mpirun.wait();
        }
        self.processes().into_iter().for_each(|process| signal(process, libc::SIGKILL));
    }
}

fn signal(process: libc::pid_t, signal: libc::c_int) {
    // SAFETY: it takes numbers only. The process was a moment ago one that this test has started.
    unsafe { libc::kill(process, signal) };
}

/// A job that does its work: what its ranks delivered, in the order of ranks, against what they should.
#[track_caller]
fn delivers(mut job: Job, data: &Data, batches: &[Vec<u64>], size: usize) {
    let (status, ranks) = job.end();
    assert!(status.success(), "{status}: {:?}", ranks.iter().map(|rank| &rank.stderr).collect::<Vec<_>>());
    let (first, world) = (ranks[0].json(), ranks.len());
    for (number, (rank, order)) in ranks.iter().zip(dealt(batches, world, size)).enumerate() {
        let json = rank.json();
        assert_eq!(rank.order, order, "rank {number}");
        assert_eq!(json["digest"], data.digest(&order), "rank {number} has other bytes");
        assert_eq!((&json["rank"], &json["world_size"]), (&number.into(), &world.into()));
        assert_eq!(json["launcher"], "openmpi");
        assert_eq!((&json["batches"], &json["samples"]), (&batches.len().into(), &order.len().into()));
        assert_eq!((&json["agreement"], &json["state"]), (&first["agreement"], &first["state"]));
        // Notes tell if ranks could not be compared.
        assert_eq!(json["notes"], Value::Array(Vec::new()));
        assert_eq!(rank.stderr, "");
    }
}

fn sorted(mut samples: Vec<u64>) -> Vec<u64> {
    samples.sort_unstable();
    samples
}

#[test]
fn four_ranks_deliver_together_exactly_the_epoch() {
    let Some(mpirun) = open_mpi() else { return };
    let (made, digits) = (Data::made(&[301, 1, 250, 449]), Data::digits());
    for (data, size, last) in [
        (&made, 8, LastBatch::Short),
        (&made, 8, LastBatch::Drop),
        (&made, 8, LastBatch::Pad),
        (&digits, 16, LastBatch::Short),
    ] {
        let n = data.len();
        let epochs: Vec<_> = [0, 1].map(|epoch| data.batches(epoch, 4 * size, last)).into();
        for epoch in &epochs {
            let mut union = sorted(epoch.concat());
            match last {
                LastBatch::Short => assert_eq!(union, (0..n).collect::<Vec<_>>()),
                LastBatch::Drop => assert_eq!(union.len() as u64, n - n % (4 * size)),
                LastBatch::Pad => assert_eq!(union.len() as u64, n.next_multiple_of(4 * size)),
            }
            union.dedup();
            assert_eq!(union.len() as u64, if last == LastBatch::Drop { n - n % (4 * size) } else { n });
        }
        let size_text = size.to_string();
        let args = [
            "--epochs",
            "2",
            "--batch-size",
            &size_text,
            "--last-batch",
            last.name(),
            "--order-out",
            "{out}/order.{rank}",
        ];
        let job = Job::start(mpirun, &[load(4, data, &args)], true, &[]);
        delivers(job, data, &epochs.concat(), size as usize);
    }
}

/// So slow that an epoch of `long()` takes minutes.
const SLOWLY: [&str; 8] =
    ["--backend", "page-cache", "--io-bytes", "4096", "--prefetch", "1", "--limit-rate", "4KiB"];

fn long() -> Data {
    Data::made(&[1500, 7, 1200, 1300])
}

/// How a job ends before its time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// All of it is killed.
    Killed,
    /// `mpirun` is asked to end.
    Asked,
    /// One rank is killed, and `mpirun` asks the others to end.
    OneKilled,
}

/// Ends a job of 4 ranks in the middle of an epoch, and goes on with `ranks` from the state of the rank that was least far.
fn ends_and_goes_on(end: End, ranks: usize, sizes: &[usize]) {
    const GLOBAL: u64 = 12;
    let Some(mpirun) = open_mpi() else { return };
    let data = long();
    let args = [
        &SLOWLY[..],
        &["--batch-size", "3", "--last-batch", "short", "--order-out", "{out}/order.{rank}"],
        &["--state-out", "{out}/state.{rank}", "--state-every", "1"],
    ]
    .concat();
    // Not all ranks are at the same place: two are twice as fast.
    let mut faster = args.clone();
    faster[7] = "8KiB";
    let settings = [
        // Seconds from one signal to the next, the last of which is SIGKILL: enough for a machine that does much else.
        ("OMPI_MCA_odls_base_sigkill_timeout", "5"),
        ("PRTE_MCA_odls_base_sigkill_timeout", "5"),
    ];
    let parts = [load(2, &data, &args), load(2, &data, &faster)];
    let mut job = Job::start(mpirun, &parts, end != End::Killed, &settings);
    let state_of = |job: &Job, rank: u32| State::read(job.file(&format!("state.{rank}")));
    until("every rank to deliver some batches", || {
        assert!(job.mpirun.try_wait().unwrap().is_none(), "the job ended too early: {:?}", job.rank(0));
        let far = |rank| state_of(&job, rank).is_ok_and(|state| state.position() >= 3 * GLOBAL);
        (0..4).all(far).then_some(())
    });
    let ended = match end {
        End::Killed => {
            job.kill();
            job.all()
        }
        End::Asked | End::OneKilled => {
            let (process, by) = match end {
                End::OneKilled => (job.process_of(2), libc::SIGKILL),
                _ => (job.mpirun.id() as libc::pid_t, libc::SIGTERM),
            };
            signal(process, by);
            let (status, ended) = job.end();
            assert!(!status.success());
            ended
        }
    };

    let states: Vec<State> = (0..4).map(|rank| state_of(&job, rank).unwrap()).collect();
    for (number, (rank, state)) in ended.iter().zip(&states).enumerate() {
        assert!(state.epoch() == 0 && state.position() % GLOBAL == 0 && state.position() < data.len());
        let recorded = rank.order.len() as u64 * 4;
        if end == End::Killed || (end == End::OneKilled && number == 2) {
            // It may have been on the way from the one to the other.
            assert!(recorded >= state.position(), "rank {number}");
        } else {
            assert_eq!((rank.status, &*rank.stdout), (Some(130), ""), "rank {number}: {}", rank.stderr);
            assert!(rank.stderr.contains("interrupted"), "{}", rank.stderr);
            assert_eq!(recorded, state.position(), "rank {number}");
        }
    }
    // A crash may leave a temporary file, but nobody else does.
    if end == End::Asked {
        let left: Vec<_> = fs::read_dir(job.out.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.iter().all(|path| path.extension().is_none_or(|it| it != "tmp")), "{left:?}");
    }

    // What a job that keeps its ranks in step would have.
    let (least, state) = states.iter().enumerate().min_by_key(|(_, state)| state.position()).unwrap();
    let position = state.position();
    let mut first = data.order(0);
    let rest = first.split_off(position as usize);
    let batches: Vec<Vec<u64>> = first.chunks(GLOBAL as usize).map(<[u64]>::to_vec).collect();
    let mut union = Vec::new();
    for (rank, mine) in ended.iter().zip(dealt(&batches, 4, 3)) {
        assert_eq!(rank.order[..mine.len()], mine);
        union.extend(mine);
    }
    union.extend(&rest);
    assert_eq!(sorted(union), (0..data.len()).collect::<Vec<_>>());

    for &size in sizes {
        // A few samples that are left over could not be dealt to all ranks.
        let global = |size: usize| (size * ranks) as u64;
        let even = |samples: u64, size| {
            let over = samples % global(size);
            over == 0 || over >= ranks as u64
        };
        let size =
            (size..).find(|&size| even(data.len() - position, size) && even(data.len(), size)).unwrap();
        let (size_text, from) = (size.to_string(), job.file(&format!("state.{least}")));
        let args = [
            "--resume",
            from.to_str().unwrap(),
            "--epochs",
            "2",
            "--batch-size",
            &size_text,
            "--last-batch",
            "short",
            "--order-out",
            "{out}/order.{rank}",
        ];
        let next_job = Job::start(mpirun, &[load(ranks as u32, &data, &args)], true, &[]);
        let rest = rest.chunks(global(size) as usize).map(<[u64]>::to_vec);
        let next = data.batches(1, global(size), LastBatch::Short);
        assert_eq!(sorted(next.concat()), (0..data.len()).collect::<Vec<_>>());
        delivers(next_job, &data, &rest.chain(next).collect::<Vec<_>>(), size);
    }
}

#[test]
fn three_ranks_go_on_where_four_were_killed() {
    ends_and_goes_on(End::Killed, 3, &[4, 5]);
}

#[test]
fn three_ranks_go_on_where_four_were_asked_to_end() {
    ends_and_goes_on(End::Asked, 3, &[4]);
}

#[test]
fn five_ranks_go_on_where_one_of_four_was_killed() {
    ends_and_goes_on(End::OneKilled, 5, &[3]);
}

/// Lets a rank that exits with an error not be the end of the others.
const EACH_TO_ITS_END: [(&str, &str); 2] =
    [("OMPI_MCA_orte_abort_on_non_zero_status", "0"), ("PRTE_MCA_prte_abort_on_non_zero_status", "0")];

/// The state of a run alone of this dataset after so many samples.
fn state_after(samples: u64, data: &Data, out: &Path) -> String {
    let path = out.join(format!("after-{samples}")).to_str().unwrap().to_string();
    let size = samples.to_string();
    let args = ["--batch-size", &size, "--max-batches", "1", "--state-out", &path];
    let output = command(&[GPUFEED]).args(load(1, data, &args).args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

#[test]
fn a_rank_that_feeds_otherwise_than_the_others_ends_the_job() {
    let Some(mpirun) = open_mpi() else { return };
    let (data, other, out) = (long(), Data::made(&[1500, 8, 1200, 1300]), scratch());
    let (here, there) = (state_after(12, &data, out.path()), state_after(24, &data, out.path()));
    let fingerprint = |data: &Data, state: u64| {
        State::read(state_after(state, data, out.path())).unwrap().fingerprint().to_string()
    };
    let fingerprints = [fingerprint(&data, 36), fingerprint(&other, 48)];
    let with = |data: &Data, ranks: u32, args: &[&str]| {
        load(
            ranks,
            data,
            &[&SLOWLY[..], &["--batch-size", "3", "--order-out", "{out}/order.{rank}"], args].concat(),
        )
    };
    let seed = |seed: &str| {
        let mut part = with(&data, 1, &[]);
        let at = part.args.iter().position(|arg| arg == "--seed").unwrap();
        part.args[at + 1] = seed.into();
        part
    };
    for (parts, words) in [
        ([with(&data, 3, &[]), seed("8")], ["with seed 7", "with seed 8"].map(String::from)),
        (
            [with(&other, 1, &[]), with(&data, 3, &[])],
            fingerprints.map(|it| format!("dataset fingerprint {it}")),
        ),
        // Each its own state, and they are not at the same place.
        (
            [with(&data, 2, &["--resume", &here]), with(&data, 2, &["--resume", &there])],
            ["with first position 12", "with first position 24"].map(String::from),
        ),
    ] {
        let (status, ranks) = Job::start(mpirun, &parts, true, &[]).end();
        assert!(!status.success());
        let told = |rank: &&Rank| words.iter().all(|words| rank.stderr.contains(words));
        let found: Vec<_> = ranks.iter().filter(told).collect();
        assert!(
            found.iter().any(|rank| rank.status == Some(2) && rank.stdout.is_empty()),
            "{words:?}: {ranks:?}"
        );
        // The others were asked to end, or killed before they were watched.
        assert!(ranks.iter().all(|rank| rank.status != Some(0)), "{ranks:?}");
    }
}

#[test]
fn all_ranks_refuse_the_state_of_another_dataset() {
    let Some(mpirun) = open_mpi() else { return };
    let (digits, data, out) = (Data::digits(), Data::made(&[301, 1, 250, 449]), scratch());
    let state = state_after(12, &digits, out.path());
    let before = fs::read(&state).unwrap();
    // A run usually writes its state to where it was resumed from.
    let args =
        ["--batch-size", "3", "--resume", &state, "--state-out", &state, "--order-out", "{out}/order.{rank}"];
    let mut job = Job::start(mpirun, &[load(4, &data, &args)], true, &EACH_TO_ITS_END);
    let (_, ranks) = job.end();
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!((rank.status, &*rank.stdout), (Some(2), ""), "{}", rank.stderr);
        let words = "the state is of another run, and samples would be lost or repeated: its dataset has the fingerprint";
        assert!(rank.stderr.contains(words), "{}", rank.stderr);
        assert!(!job.file(&format!("order.{number}")).exists());
    }
    assert_eq!(fs::read(&state).unwrap(), before);
}

#[test]
fn an_order_of_several_ranks_needs_a_file_for_each() {
    let Some(mpirun) = open_mpi() else { return };
    let data = Data::digits();
    let mut job =
        Job::start(mpirun, &[load(4, &data, &["--order-out", "{out}/order"])], true, &EACH_TO_ITS_END);
    for rank in job.end().1 {
        assert_eq!((rank.status, &*rank.stdout), (Some(2), ""), "{}", rank.stderr);
        let (path, ranks) = (job.file("order"), "all 4 ranks would write this file");
        let example = format!("as in {}.{{rank}}", path.display());
        assert!(rank.stderr.contains(ranks) && rank.stderr.contains(&example), "{}", rank.stderr);
        assert!(!path.exists());
    }
}

#[test]
fn a_state_that_is_one_file_for_all_ranks_is_that_of_rank_0() {
    let Some(mpirun) = open_mpi() else { return };
    let data = Data::digits();
    let args =
        ["--batch-size", "16", "--max-batches", "3", "--state-out", "{out}/state", "--state-every", "1"];
    // The others go further, and that is not what is kept.
    let further = args.map(|arg| if arg == "3" { "5" } else { arg });
    let mut job = Job::start(mpirun, &[load(1, &data, &args), load(3, &data, &further)], true, &[]);
    let (status, ranks) = job.end();
    assert!(status.success(), "{ranks:?}");
    for (number, rank) in ranks.iter().enumerate() {
        let batches = if number == 0 { 3 } else { 5 };
        assert_eq!(rank.json()["state"]["position"], batches * 64);
        assert_eq!(
            rank.stderr.contains("note: rank 0 alone writes the state to"),
            number == 0,
            "{}",
            rank.stderr
        );
    }
    assert_eq!(State::read(job.file("state")).unwrap().position(), 3 * 64);
}

#[test]
fn ranks_by_hand_write_to_the_paths_that_they_are_given() {
    let (data, out) = (Data::digits(), scratch());
    let name = |name: &str| out.path().join(name).to_str().unwrap().to_string();
    for (order, state, written) in
        [("order", "state", ["order", "state"]), ("{rank}.order", "state-{rank}", ["1.order", "state-1"])]
    {
        let (order, state) = (name(order), name(state));
        let args = ["--rank", "1", "--world-size", "2", "--order-out", &order, "--state-out", &state];
        let output = command(&[GPUFEED]).args(load(1, &data, &args).args).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let [order, state] = written.map(|path| out.path().join(path));
        let mine = dealt(&data.batches(0, 128, LastBatch::Drop), 2, 64).remove(1);
        let lines: Vec<String> = mine.iter().map(u64::to_string).collect();
        assert_eq!(fs::read_to_string(order).unwrap().lines().collect::<Vec<_>>(), lines);
        assert_eq!(State::read(state).unwrap().epoch(), 1);
    }
    // Where ranks go on is not another place for each.
    let args = ["--rank", "1", "--world-size", "2", "--resume", &name("state-{rank}")];
    let output = command(&[GPUFEED]).args(load(1, &data, &args).args).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("all ranks go on from one state"), "{output:?}");
    // Alone it is rank 0.
    let args = ["--order-out", &name("alone.{rank}")];
    assert!(command(&[GPUFEED]).args(load(1, &data, &args).args).output().unwrap().status.success());
    assert!(out.path().join("alone.0").exists());
}

#[test]
fn a_signal_that_comes_twice_loses_nothing() {
    // A state on a real disk takes a moment.
    let (data, out) = (long(), folder());
    let [order, state] = ["order", "state"].map(|name| out.path().join(name));
    // From the terminal, and from a launcher that passes on what the terminal has sent it.
    let args =
        [&SLOWLY[..], &["--order-out", order.to_str().unwrap(), "--state-out", state.to_str().unwrap()]];
    let mut child = command(&[GPUFEED])
        .args(load(1, &data, &[&args.concat()[..], &["--batch-size", "1"]].concat()).args)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // It is made when all is ready to be stopped.
    until("the run to begin", || order.exists().then_some(()));
    for number in [libc::SIGINT, libc::SIGTERM] {
        signal(child.id() as libc::pid_t, number);
    }
    assert_eq!(ended(&mut child, "the run").code(), Some(130));
    let lines = fs::read_to_string(&order).unwrap().lines().count() as u64;
    assert_eq!(State::read(&state).unwrap().position(), lines);
}
