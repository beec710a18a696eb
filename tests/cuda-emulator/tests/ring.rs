//! What the emulator is for: a ring of slots that is kept right, and one that is not.

mod common;

use common::Cuda;

const SLOTS: usize = 3;
const LEN: usize = 64 << 10;
const ROUNDS: usize = 60;

/// Fills device slots from pinned chunks on one stream and reads them on another, as a loader does, and answers how
/// many rounds delivered wrong bytes. `wait` is whether a chunk and a slot are waited for before they are reused.
fn wrong_rounds(cuda: &Cuda, wait: bool) -> usize {
    let (copies, consumer) = (cuda.stream(), cuda.stream());
    let chunks: Vec<&mut [u8]> = (0..SLOTS).map(|_| cuda.pinned(LEN, 0)).collect();
    let results: Vec<&mut [u8]> = (0..ROUNDS).map(|_| cuda.pinned(LEN, 0)).collect();
    let slots: Vec<u64> = (0..SLOTS).map(|_| cuda.allocate(LEN)).collect();
    let filled: Vec<usize> = (0..SLOTS).map(|_| cuda.event()).collect();
    let used: Vec<usize> = (0..SLOTS).map(|_| cuda.event()).collect();
    let mut chunks = chunks;
    for (round, result) in results.iter().enumerate() {
        let slot = round % SLOTS;
        if wait {
            // The chunk is free once its last copy is done; the slot, once the consumer has passed.
            ok!(cuda.cuEventSynchronize(filled[slot]));
            ok!(cuda.cuStreamWaitEvent(copies, used[slot], 0));
        }
        chunks[slot].fill(round as u8 + 1);
        ok!(cuda.cuMemcpyHtoDAsync_v2(slots[slot], chunks[slot].as_ptr() as usize, LEN, copies));
        ok!(cuda.cuEventRecord(filled[slot], copies));
        ok!(cuda.cuStreamWaitEvent(consumer, filled[slot], 0));
        ok!(cuda.cuMemcpyDtoHAsync_v2(result.as_ptr() as usize, slots[slot], LEN, consumer));
        ok!(cuda.cuEventRecord(used[slot], consumer));
    }
    ok!(cuda.cuCtxSynchronize());
    (0..ROUNDS).filter(|round| results[*round].iter().any(|byte| usize::from(*byte) != round + 1)).count()
}

#[test]
fn a_ring_that_waits_for_its_events_delivers_right_bytes_at_any_delay() {
    for delay in ["none", "random:1:300", "random:2:300", "adversarial:5", "adversarial:3600000"] {
        child!(&[("CUDA_EMULATOR_DELAY", delay)], || {
            assert_eq!(wrong_rounds(&Cuda::ready(), true), 0);
        })
        .clean();
    }
}

#[test]
fn a_ring_that_reuses_its_chunks_too_early_delivers_wrong_bytes() {
    child!(&[("CUDA_EMULATOR_DELAY", "adversarial:3600000")], || {
        // All copies are held until the end, so that each slot only ever sees its chunk's last bytes.
        assert_eq!(wrong_rounds(&Cuda::ready(), false), ROUNDS - SLOTS);
    })
    .clean();
}

#[test]
fn many_threads_with_rings_of_their_own_do_not_disturb_each_other() {
    child!(&[("CUDA_EMULATOR_DELAY", "random:4:100"), ("CUDA_EMULATOR_DEVICES", "2")], || {
        let cuda = Cuda::open();
        ok!(cuda.cuInit(0));
        let threads: Vec<_> = (0..6)
            .map(|index| {
                std::thread::spawn(move || {
                    cuda.bind(index % 2);
                    assert_eq!(wrong_rounds(&cuda, true), 0);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    })
    .clean();
}
