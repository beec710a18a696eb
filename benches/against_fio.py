#!/usr/bin/env python3
"""Measures `gpufeed load` beside fio on the same files.

    against_fio.py --data DIR                                      every case and backend, 5 rounds
    against_fio.py --data DIR --cases seq --backends uring         one case, one backend
    against_fio.py --data DIR --markdown > entry.md                an entry for RECORD.md

Cases:
  seq        cold, front to back; fio reads 1 MiB blocks with io_uring and direct I/O, 16 in flight
  shuffled   cold, one record at a time in shuffled order; fio reads random blocks of a record's size, 16 in flight
  warm       front to back with every page in the page cache; fio reads 1 MiB blocks with pread through the cache

fio looks at no byte that it reads, so it stands for what the disk (or the page cache) can give at that moment. Disks
drift, so fio runs right before every run of gpufeed and the ratio is taken pair by pair; the order of the backends
rotates from round to round. All figures are medians over the rounds, with (min-max).

Before a cold run: sync, POSIX_FADV_DONTNEED on every file and, as root, drop_caches. What that did is checked, not
believed: the cached fraction of the files' bytes is measured right before and right after every run. A direct read
leaves it as it was; a run that did not start cold (or warm) is named below the table. drop_caches empties the page
cache of the whole machine.

CPU seconds are user + system, given twice: as the program counts its own (gpufeed's cpu_seconds, fio's usr_cpu and
sys_cpu of the job) and as the kernel counts the whole process, start included. The CPU column takes the larger one
for gpufeed, and the job's for fio, whose start costs it some 0.2 s that have nothing to do with reading. RSS is
gpufeed's peak_rss_bytes less pinned_bytes and device_bytes: what it needs beyond its buffers.

Needs Linux, Python 3.9 and fio 3.x; nothing else.
"""
import argparse
import collections
import contextlib
import ctypes
import datetime
import errno
import json
import mmap
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time

GIB = 2**30
MIB = 2**20
CASES = ["seq", "shuffled", "warm"]
BACKENDS = ["uring", "pread", "page-cache", "auto"]
DIRECT_WAYS = {"gds", "uring_direct", "pread_direct"}
# A fraction of the files' bytes: below it a change in the page cache is a stray page, not a way that bytes took.
STRAY = 0.005


def main():
    args = arguments()
    files = shards(args.data)
    total = sum(os.path.getsize(file) for file in files)
    if not total:
        sys.exit(f"no data in {args.data}")
    notes = Notes()
    for file in files:
        if os.path.getsize(file) % args.record_bytes:
            notes.add(f"file sizes are not a multiple of --record-bytes ({os.path.basename(file)} and maybe others)")
            break

    pairs = []
    for number in range(args.rounds):
        for case in args.cases:
            shift = number % len(args.backends)
            for backend in args.backends[shift:] + args.backends[:shift]:
                pair = run_pair(args, files, case, backend, notes)
                pairs.append(pair)
                print(f"round {number + 1}/{args.rounds} {case} {backend}: {progress(pair)}", file=sys.stderr)
                if args.out:
                    with open(args.out, "a") as out:
                        out.write(json.dumps({"round": number, **pair._asdict()}) + "\n")

    rows = [row(args, case, backend, pairs) for case in args.cases for backend in args.backends]
    report(args, files, total, rows, notes, failures(pairs))
    sys.exit(any("error" in run for pair in pairs for run in (pair.fio, pair.gpufeed)))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpufeed", default="target/release/gpufeed", metavar="PATH")
    parser.add_argument("--data", required=True, metavar="DIR", help="a folder of shards of fixed-size records")
    parser.add_argument("--record-bytes", type=int, default=150528, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--cases", type=comma_list(CASES), default=CASES, help=f"default: {','.join(CASES)}")
    parser.add_argument("--backends", type=comma_list(BACKENDS + ["gds"]), default=BACKENDS,
                        help=f"for every case; default: {','.join(BACKENDS)}")
    parser.add_argument("--extra", type=shlex.split, default=[], metavar="ARGS",
                        help="more arguments for gpufeed load, as one word: --extra='--prefetch 8'")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="for one run (default: 600)")
    parser.add_argument("--markdown", action="store_true", help="print an entry for RECORD.md")
    parser.add_argument("--out", metavar="FILE", help="append every pair of runs as a line of JSON")
    args = parser.parse_args()
    if args.record_bytes < 1 or args.rounds < 1:
        parser.error("--record-bytes and --rounds start at 1")
    return args


def comma_list(known):
    def parse(text):
        items = [item for item in text.split(",") if item]
        unknown = [item for item in items if item not in known]
        if unknown or not items or len(set(items)) < len(items):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of different words from {','.join(known)}")
        return items
    return parse


def shards(folder):
    """The folder's files in byte order of their names, without hidden ones and descriptions."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_file()]
    except OSError as error:
        sys.exit(f"cannot list {folder}: {error.strerror}")
    names = [entry.name for entry in entries if not entry.name.startswith(".") and not entry.name.endswith(".json")]
    return [os.path.join(folder, name) for name in sorted(names, key=os.fsencode)]


# --- the two commands ---


def gpufeed_command(args, case, backend):
    order = ["--shuffle", "full", "--seed", "7"] if case == "shuffled" else ["--shuffle", "none"]
    return [args.gpufeed, "load", args.data, "--record-bytes", str(args.record_bytes), *order, "--batch-size", "64",
            "--backend", backend, "--device", "host", "--no-tuning", *args.extra, "--json"]


def fio_command(args, case, files):
    # --invalidate=0: the caches are prepared and checked here, not by fio.
    common = ["fio", "--name=reference", "--output-format=json", "--thread", "--readonly", "--invalidate=0"]
    direct = ["--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1"]
    how = {
        "seq": [*direct, "--rw=read", "--bs=1M", "--iodepth=16", "--file_service_type=sequential"],
        "shuffled": [*direct, "--rw=randread", f"--bs={random_block(args.record_bytes)}", "--iodepth=16",
                     "--file_service_type=random", "--randseed=7"],
        "warm": ["--ioengine=psync", "--direct=0", "--rw=read", "--bs=1M", "--file_service_type=sequential"],
    }[case]
    return [*common, *how, "--filename=" + ":".join(file.replace(":", "\\:") for file in files)]


def random_block(record_bytes):
    """The record's size in whole sectors, as direct I/O wants it."""
    return -(-record_bytes // 512) * 512


# --- runs ---

Pair = collections.namedtuple("Pair", "case backend fio gpufeed")


def run_pair(args, files, case, backend, notes):
    def reference():
        return run_fio(args, case, files)

    def load():
        return run_gpufeed(args, case, backend)

    fio = between_residency(reference, files, case, "fio", notes)
    gpufeed = between_residency(load, files, case, backend, notes)
    ways = {way for way, count in gpufeed.get("bytes_by_way", {}).items() if count}
    if "error" not in fio and case != "warm" and abs(fio["cached_after"] - fio["cached_before"]) > STRAY:
        notes.add(f"{case}, fio: a direct run changed what is cached")
    if ways and ways <= DIRECT_WAYS and abs(gpufeed["cached_after"] - gpufeed["cached_before"]) > STRAY:
        notes.add(f"{case}, {backend}: says that it read direct ({', '.join(sorted(ways))}), "
                  "but changed what is cached")
    return Pair(case, backend, fio, gpufeed)


def between_residency(work, files, case, who, notes):
    (fill_cache if case == "warm" else drop_cache)(files, notes)
    before = cached_fraction(files, notes)
    run = work()
    run["cached_before"], run["cached_after"] = before, cached_fraction(files, notes)
    if case == "warm" and before < 1 - STRAY:
        notes.add(f"warm, {who}: a run began with only {before:.1%} cached")
    if case != "warm" and before > STRAY:
        notes.add(f"{case}, {who}: a run began with {before:.1%} cached, so it was not cold")
    return run


def run_fio(args, case, files):
    child = run_child(fio_command(args, case, files), args.timeout)
    if "error" in child:
        return child
    try:
        # fio prints its warnings before the object, on stdout too.
        job = json.loads(child["stdout"][child["stdout"].index("{"):])["jobs"][0]
        read = job["read"]
        own_cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
        useful = args.record_bytes / random_block(args.record_bytes) if case == "shuffled" else 1
        run = figures(read["io_bytes"] * useful, read["runtime"] / 1000, own_cpu, child)
        run["cpu"] = own_cpu
        return run
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return {"error": f"fio's output is not understood ({type(error).__name__}: {error})"}


def run_gpufeed(args, case, backend):
    child = run_child(gpufeed_command(args, case, backend), args.timeout)
    if "error" in child:
        return child
    try:
        result = json.loads(child["stdout"])
        run = figures(result["bytes"], result["seconds"], result["cpu_seconds"], child)
        run["cpu"] = max(run["cpu_own"], run["cpu_process"])
        run["rss_beyond_buffers"] = result["peak_rss_bytes"] - result["pinned_bytes"] - result["device_bytes"]
        kept = ("backend", "bytes_by_way", "samples", "batches", "peak_rss_bytes", "pinned_bytes", "device_bytes")
        run.update((key, result[key]) for key in kept)
    except (ValueError, KeyError, TypeError) as error:
        return {"error": f"gpufeed's output is not understood ({type(error).__name__}: {error})"}
    if run["seconds"] > run["wall_seconds"]:
        return {"error": f"gpufeed says {run['seconds']} s, but the process lived {run['wall_seconds']:.3f} s"}
    return run


def figures(count, seconds, own_cpu, child):
    if count <= 0 or seconds <= 0:
        raise ValueError(f"{count} bytes in {seconds} s")
    return {"bytes": count, "seconds": seconds, "wall_seconds": child["wall_seconds"], "cpu_own": own_cpu,
            "cpu_process": child["cpu_seconds"]}


def run_child(command, timeout):
    """stdout, wall_seconds and cpu_seconds (user + system, threads included) of a command, or its error."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.monotonic()
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        except OSError as error:
            return {"error": f"cannot start {command[0]}: {error.strerror}"}
        late = threading.Event()
        timer = threading.Timer(timeout, lambda: (late.set(), os.kill(child.pid, 9)))
        timer.daemon = True
        timer.start()
        try:
            # WNOWAIT keeps the ended child's pid taken until the timer, which may kill that pid, is gone.
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        except KeyboardInterrupt:
            child.kill()
            raise
        finally:
            wall = time.monotonic() - began
            timer.cancel()
            timer.join()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        out.seek(0)
        err.seek(0)
        stdout, stderr = out.read(), err.read()
    if late.is_set():
        return {"error": f"killed after {timeout:g} s"}
    if child.returncode:
        lines = (stderr.strip() or stdout.strip() or "no message").splitlines()
        return {"error": f"exit status {child.returncode}: {' | '.join(lines[-3:])}"}
    return {"stdout": stdout, "wall_seconds": wall, "cpu_seconds": usage.ru_utime + usage.ru_stime}


# --- the page cache ---

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
PAGE = mmap.PAGESIZE
# The same number on every architecture (Linux 6.5 and newer).
SYS_CACHESTAT = 451


def drop_cache(files, notes):
    os.sync()
    for file in files:
        with opened(file) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        with open("/proc/sys/vm/drop_caches", "w") as control:
            control.write("1\n")
    except OSError as error:
        notes.add(f"drop_caches was not used ({error.strerror}): only these files' own pages were dropped")


def fill_cache(files, notes):
    buffer = bytearray(8 * MIB)
    for file in files:
        with open(file, "rb", buffering=0) as reader:
            while reader.readinto(buffer):
                pass


def cached_fraction(files, notes):
    """The part of the files' pages that the page cache holds, from 0 to 1."""
    cached = pages = 0
    for file in files:
        with opened(file) as fd:
            size = os.fstat(fd).st_size
            if not size:
                continue
            found = cached_by_cachestat(fd)
            if found is None:
                notes.add("cached fractions are from mincore; it tells the truth only about files one may write")
                found = cached_by_mincore(fd, size)
            cached += found
            pages += -(-size // PAGE)
    return min(1.0, cached / pages)


def cached_by_cachestat(fd):
    """Cached pages of an open file, or None where the kernel does not say."""
    whole_file = (ctypes.c_uint64 * 2)(0, 0)
    # nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted
    counts = (ctypes.c_uint64 * 5)()
    done = LIBC.syscall(ctypes.c_long(SYS_CACHESTAT), ctypes.c_uint(fd), whole_file, counts, ctypes.c_uint(0))
    if done == 0:
        return counts[0]
    if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP):
        return None
    raise OSError(ctypes.get_errno(), "cachestat failed")


def cached_by_mincore(fd, size):
    address = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap failed")
    try:
        resident = (ctypes.c_ubyte * -(-size // PAGE))()
        if LIBC.mincore(address, size, resident):
            raise OSError(ctypes.get_errno(), "mincore failed")
        return sum(byte & 1 for byte in bytes(resident))
    finally:
        LIBC.munmap(address, size)


@contextlib.contextmanager
def opened(file):
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


# --- the report ---

HEAD = ["case", "backend", "GiB/s", "fio GiB/s", "ratio to fio", "CPU s/GiB", "own/process", "fio CPU s/GiB",
        "job/process", "RSS, MiB", "cached, %", "fio cached, %", "bytes by way", "runs"]


def row(args, case, backend, pairs):
    mine = [pair for pair in pairs if (pair.case, pair.backend) == (case, backend)]
    runs = [pair.gpufeed for pair in mine if "error" not in pair.gpufeed]
    fios = [pair.fio for pair in mine if "error" not in pair.fio]
    both = [pair for pair in mine if "error" not in pair.gpufeed and "error" not in pair.fio]
    taken = sorted({run["backend"] for run in runs})
    name = backend if taken in ([], [backend]) else f"{backend} -> {', '.join(taken)}"
    return [
        case,
        name,
        spread(map(rate, runs), ".2f"),
        spread(map(rate, fios), ".2f"),
        spread((rate(pair.gpufeed) / rate(pair.fio) for pair in both), ".3f"),
        spread((per_gib(run, "cpu") for run in runs), ".3f"),
        own_and_process(runs),
        spread((per_gib(run, "cpu") for run in fios), ".3f"),
        own_and_process(fios),
        spread((run["rss_beyond_buffers"] / MIB for run in runs), ".1f"),
        cached(runs),
        cached(fios),
        by_way(runs),
        f"{len(runs)}/{len(mine)}" if len(fios) == len(mine) else f"{len(runs)}/{len(mine)}, fio {len(fios)}",
    ]


def rate(run):
    return run["bytes"] / GIB / run["seconds"]


def per_gib(run, key):
    return run[key] / (run["bytes"] / GIB)


def spread(values, form):
    values = list(values)
    if not values:
        return "-"
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def own_and_process(runs):
    if not runs:
        return "-"
    medians = (statistics.median(per_gib(run, key) for run in runs) for key in ("cpu_own", "cpu_process"))
    return "/".join(f"{median:.3f}" for median in medians)


def cached(runs):
    """Before and after, each the range over the runs."""
    if not runs:
        return "-"

    def over(key):
        low, high = (f"{bound(run[key] for run in runs) * 100:.1f}" for bound in (min, max))
        return low if low == high else f"{low}-{high}"
    return f"{over('cached_before')} to {over('cached_after')}"


def by_way(runs):
    """Bytes that took each way in one run; the range where runs differ."""
    counts = collections.defaultdict(set)
    for run in runs:
        for way, count in run["bytes_by_way"].items():
            counts[way].add(count)
    shown = []
    for way, seen in counts.items():
        if any(seen):
            low, high = min(seen), max(seen)
            shown.append(f"{way} {low}" if low == high else f"{way} {low}-{high}")
    return ", ".join(shown) or "-"


def failures(pairs):
    """Every error, with how often it came."""
    counted = collections.Counter()
    for pair in pairs:
        for who, run in (("fio beside " + pair.backend, pair.fio), (pair.backend, pair.gpufeed)):
            if "error" in run:
                counted[f"{pair.case}, {who}: {run['error']}"] += 1
    return [f"{message} (x{times})" for message, times in counted.items()]


def progress(pair):
    def one(run):
        return run.get("error") or f"{rate(run):.2f} GiB/s"
    return f"fio {one(pair.fio)}, gpufeed {one(pair.gpufeed)}"


def report(args, files, total, rows, notes, failed):
    about = [
        ("date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("machine", f"{cpu_model()}, {os.cpu_count()} CPUs, {memory_gib():.1f} GiB of memory"),
        ("kernel", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("storage", storage(args.data)),
        ("data", f"{len(files)} files, {total} bytes, records of {args.record_bytes} bytes"),
        ("versions", f"{first_line([args.gpufeed, '--version'])}; {first_line(['fio', '--version'])}"),
        ("rounds", f"{args.rounds}; each figure is the median (min-max)"),
    ]
    commands = [("this", " ".join(map(shlex.quote, [sys.argv[0], *sys.argv[1:]])))]
    for case in args.cases:
        commands.append((f"{case}, gpufeed", shlex.join(gpufeed_command(args, case, "BACKEND"))))
        # The files are named one by one; the folder says the same in less space.
        named = fio_command(args, case, [])
        commands.append((f"{case}, fio", shlex.join(named[:-1]) + f" --filename=<every file of {args.data}>"))
    (print_markdown if args.markdown else print_text)(about, commands, rows, notes.lines, failed)


def print_text(about, commands, rows, notes, failed):
    for key, value in about + commands:
        print(f"{key + ':':19} {value}")
    print()
    table = [HEAD, *rows]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEAD))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    for title, lines in (("notes", notes), ("failed runs", failed)):
        if lines:
            print(f"\n{title}:")
            print("\n".join(f"  {line}" for line in lines))


def print_markdown(about, commands, rows, notes, failed):
    print(f"## {about[0][1]}: gpufeed beside fio\n")
    for key, value in about[1:]:
        print(f"- {key}: {value}")
    print("\n```text")
    for key, value in commands:
        print(f"# {key}\n{value}")
    print("```\n")
    for line in [HEAD, ["---"] * len(HEAD), *rows]:
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |")
    print("\nRSS is the peak less pinned and device buffers. Cached: the part of the files' bytes in the page cache "
          "before and after a run.")
    for title, lines in (("Notes", notes), ("Failed runs", failed)):
        if lines:
            print(f"\n{title}:\n")
            print("\n".join(f"- {line}" for line in lines))


class Notes:
    """Things a reader of the figures must know, each once."""

    def __init__(self):
        self.lines = []

    def add(self, line):
        if line not in self.lines:
            self.lines.append(line)


def cpu_model():
    with contextlib.suppress(OSError):
        for line in open("/proc/cpuinfo"):
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown CPU"


def memory_gib():
    return os.sysconf("SC_PHYS_PAGES") * PAGE / GIB


def storage(folder):
    """The folder's filesystem and, where sysfs tells, its block device."""
    try:
        device = os.stat(folder).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        found = "unknown filesystem"
        for line in open("/proc/self/mountinfo"):
            fields = line.split()
            if fields[2] == number:
                after = fields[fields.index("-") + 1:]
                found = f"{after[0]} on {after[1]}"
                break
        block = pathlib.Path("/sys/dev/block", number).resolve()
        disk = block if (block / "queue").is_dir() else block.parent
        facts = []
        for label, name in (("", "device/model"), ("scheduler ", "queue/scheduler"),
                            ("logical block ", "queue/logical_block_size")):
            with contextlib.suppress(OSError):
                facts.append(label + (disk / name).read_text().strip())
        return ", ".join([found, *facts])
    except (OSError, ValueError, IndexError) as error:
        return f"unknown ({error})"


def first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
        return (done.stdout.strip() or done.stderr.strip()).splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return f"{os.path.basename(command[0])} (version unknown)"


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
