//! Epochs, loaders and batches are dropped at any moment, with reads and copies in flight, in any order.

mod cuda_common;

use std::time::Duration;

use cuda_common::{Data, Dice, HELD, backends, child};
use gpufeed::cudarc::driver::CudaContext;
use gpufeed::{Backend, Batch, Device, Loader, Shuffle};

/// How often things are dropped in all. Fewer where a checker of memory slows everything down.
fn rounds() -> u64 {
    std::env::var("GPUFEED_DROP_ROUNDS").map_or(1000, |text| text.parse().unwrap())
}

/// The backends to drop in the middle of; `GPUFEED_DROP_BACKEND` names one.
fn chosen() -> Vec<Backend> {
    std::env::var("GPUFEED_DROP_BACKEND").map_or_else(|_| backends(), |name| vec![name.parse().unwrap()])
}

/// One round: a loader, some epochs of it, and everything dropped whenever the dice say so.
fn round(data: &Data, backend: Backend, dice: &mut Dice, devices: &[Device]) {
    let builder = data.loader().devices(devices).backend(backend).shuffle(Shuffle::Full);
    let builder = builder.batch_size(16).queue_depth(64).io_bytes(4096);
    let builder = builder.prefetch(3 + dice.roll(3) as u32).lend_timeout(Duration::from_secs(60));
    let mut loader = builder.build().unwrap();
    let contexts: Vec<_> = devices
        .iter()
        .filter_map(|device| match device {
            Device::Cuda(ordinal) => Some(CudaContext::new(*ordinal as usize).unwrap()),
            _ => None,
        })
        .collect();
    let stream = contexts.first().map(|context| context.new_stream().unwrap());
    let mut kept: Vec<Batch> = Vec::new();
    // What is kept leaves the ring one slot.
    let room = loader.prefetch() as usize;
    for epoch in 0..1 + dice.roll(2) {
        let mut batches = loader.epoch(epoch).unwrap();
        for _ in 0..dice.roll(5) {
            let Some(batch) = batches.next() else { break };
            let batch = batch.unwrap();
            if let (Some(stream), true) = (&stream, dice.roll(2) == 0) {
                batch.wait_on(stream).unwrap();
            }
            if dice.roll(4) == 0 {
                data.assert_batch(&batch);
            }
            if dice.roll(3) == 0 && kept.len() < room {
                kept.push(batch);
            }
        }
        if dice.roll(2) == 0 {
            std::thread::sleep(Duration::from_micros(dice.roll(400)));
        }
    }
    match dice.roll(4) {
        0 => {
            let _ = loader.epoch(9).unwrap();
            drop(loader);
        }
        1 => {
            drop(kept.pop());
            drop(loader);
        }
        2 => drop(stream),
        _ => kept.iter().for_each(|batch| data.assert_batch(batch)),
    }
}

fn drop_at_any_moment(devices: &[Device]) {
    let data = Data::new(500, 2048);
    let chosen = chosen();
    let rounds = rounds();
    for (which, &backend) in chosen.iter().enumerate() {
        let mut dice = Dice(which as u64 + 1);
        for _ in 0..rounds / chosen.len() as u64 {
            round(&data, backend, &mut dice, devices);
        }
    }
}

#[test]
fn anything_is_dropped_at_any_moment_on_a_gpu() {
    child!(&[("CUDA_EMULATOR_DELAY", "random:21:20")], || drop_at_any_moment(&[Device::Cuda(0)]));
}

#[test]
fn anything_is_dropped_at_any_moment_on_the_host() {
    child!(&[], || drop_at_any_moment(&[Device::Host]));
}

#[test]
fn anything_is_dropped_while_the_device_holds_all_work_back() {
    child!(&[("CUDA_EMULATOR_DELAY", HELD)], || {
        let data = Data::new(100, 1024);
        let mut dice = Dice(5);
        for _ in 0..25 {
            backends().into_iter().for_each(|backend| round(&data, backend, &mut dice, &[Device::Cuda(0)]));
        }
    });
}

#[test]
fn anything_is_dropped_while_batches_go_to_several_gpus() {
    let environment = [("CUDA_EMULATOR_DEVICES", "2"), ("CUDA_EMULATOR_DELAY", "random:22:500")];
    child!(&environment, || {
        let data = Data::new(100, 1024);
        let mut dice = Dice(6);
        let devices = [Device::Cuda(1), Device::Cuda(0)];
        for _ in 0..25 {
            backends().into_iter().for_each(|backend| round(&data, backend, &mut dice, &devices));
        }
    });
}

#[test]
fn a_loader_and_its_batches_are_dropped_by_different_threads() {
    child!(&[("CUDA_EMULATOR_DELAY", "random:23:1000")], || {
        let data = Data::new(100, 1024);
        let mut dice = Dice(7);
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        for backend in backends() {
            for _ in 0..15 {
                let mut loader: Loader =
                    data.loader().backend(backend).queue_depth(64).prefetch(6).build().unwrap();
                let batches: Vec<_> = loader.epoch(0).unwrap().take(6).map(Result::unwrap).collect();
                std::thread::scope(|scope| {
                    for batch in batches {
                        let (stream, pause) = (&stream, Duration::from_micros(dice.roll(500)));
                        scope.spawn(move || {
                            batch.wait_on(stream).unwrap();
                            std::thread::sleep(pause);
                            drop(batch);
                        });
                    }
                    std::thread::sleep(Duration::from_micros(dice.roll(500)));
                    drop(loader);
                });
            }
        }
    });
}
