//! What a reader of the figures has to know about the machine.

use std::fs;
use std::path::Path;

use super::report::Machine;
use crate::memory::cuda::Context;
use crate::storage::scheduler_of;
use crate::{Dataset, Device};

/// The machine, with the disk that the dataset's first file is on. The GPUs come when it is known which are used.
pub(super) fn describe(dataset: &Dataset) -> Machine {
    let first = dataset.files().first();
    let device = first.map(|shard| shard.identity().device);
    let path = first.and_then(|shard| fs::canonicalize(shard.path()).ok()).unwrap_or_default();
    let mounts = read("/proc/self/mountinfo");
    Machine {
        cpu: cpu(&read("/proc/cpuinfo")).unwrap_or_else(|| std::env::consts::ARCH.into()),
        processors: std::thread::available_parallelism().map_or(0, |n| n.get() as u64),
        memory_bytes: memory(&read("/proc/meminfo")).unwrap_or(0),
        kernel: format!(
            "{} {}",
            read("/proc/sys/kernel/ostype").trim(),
            read("/proc/sys/kernel/osrelease").trim()
        ),
        gpus: Vec::new(),
        filesystem: device.and_then(|it| file_system(&mounts, it, &path)).unwrap_or("unknown".into()),
        disk: device.and_then(disk),
        gpufeed: env!("CARGO_PKG_VERSION").into(),
    }
}

/// The names of the GPUs among these devices.
pub(super) fn gpus(devices: &[Device]) -> Vec<String> {
    let name = |device: &Device| match device {
        Device::Cuda(ordinal) => Context::open(*ordinal).and_then(|context| context.name()).ok(),
        _ => None,
    };
    devices.iter().filter_map(name).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn cpu(cpuinfo: &str) -> Option<String> {
    let value = |line: &str| line.split_once(':').map(|(_, value)| value.trim().to_string());
    cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(value)
        .filter(|name| !name.is_empty())
}

fn memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The type of the mounted file system that files with this `st_dev` are on, else of the one that the path is below:
/// btrfs gives each subvolume a device number of its own, which no mount has.
fn file_system(mountinfo: &str, device: u64, path: &Path) -> Option<String> {
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        Some((fields.next()?, fields.nth(1)?, kind.split(' ').next()?))
    });
    let by_device = mounts.clone().find(|(device, ..)| *device == wanted);
    let by_path =
        || mounts.filter(|(_, point, _)| path.starts_with(point)).max_by_key(|(_, point, _)| point.len());
    by_device.or_else(by_path).map(|(.., kind)| kind.to_string())
}

/// Name, model and scheduler of a block device.
fn disk(device: u64) -> Option<String> {
    let folder = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    let name = fs::canonicalize(&folder).ok()?.file_name()?.to_string_lossy().into_owned();
    let model = ["device/model", "../device/model"]
        .iter()
        .find_map(|model| fs::read_to_string(Path::new(&folder).join(model)).ok())
        .map(|model| format!(" {}", model.trim()));
    let scheduler = scheduler_of(device).map(|it| format!(", scheduler {it}"));
    Some(format!("{name}{}{}", model.unwrap_or_default(), scheduler.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu("processor\t: 0\nmodel name\t: Some CPU\n"), Some("Some CPU".into()));
        assert_eq!(cpu("processor\t: 0\n"), None);
        assert_eq!(memory("MemTotal:       24117248 kB\nMemFree: 1 kB\n"), Some(24_117_248 * 1024));
        let mounts = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n23 22 0:21 / /dev/shm rw shared:3 - tmpfs shm rw\n";
        assert_eq!(file_system(mounts, libc::makedev(254, 0), Path::new("")).as_deref(), Some("ext4"));
        assert_eq!(file_system(mounts, libc::makedev(0, 21), Path::new("/x")).as_deref(), Some("tmpfs"));
        assert_eq!(
            file_system(mounts, libc::makedev(0, 99), Path::new("/dev/shm/x")).as_deref(),
            Some("tmpfs")
        );
        assert_eq!(file_system(mounts, libc::makedev(0, 99), Path::new("x")), None);
    }
}
