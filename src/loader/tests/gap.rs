//! Batches that are planned together, of which one cannot be planned and a later one cannot be filled.

use super::*;

#[test]
fn a_batch_that_cannot_be_planned_before_one_that_has_no_good_sample_ends_the_epoch_with_its_error() {
    // Each batch is one sample in a file of its own, and three batches are planned together.
    let data = Data::new(8192, &[1; 6]);
    let shuffle = Shuffle::Blocks { block: 1, window: 3 };
    let order = Order::new(6, 0, 1, shuffle);
    let [good, missing, bad] = [0, 1, 2].map(|position| order.sample(position).unwrap());
    let inode = data.inode(bad as usize);
    let faults =
        Faults::new(move |read| if read.inode == inode { Fate::Fail(libc::EIO) } else { Fate::Pass });
    let builder = data.loader().batch_size(1).shuffle(shuffle).prefetch(5);
    let builder = builder.bad_samples(BadSamples::Skip { limit: 1 });
    let mut loader = with(faults, builder).build().unwrap();
    // In this epoch the sample is found out.
    assert_eq!(loader.epoch(0).unwrap().filter(Result::is_err).count(), 1);
    assert_eq!(loader.report().bad_samples.len(), 1);

    // In the next one it is known when its batch is planned, after one whose file has gone.
    fs::remove_file(&data.paths[missing as usize]).unwrap();
    let stop = loader.stop_handle();
    let (over, waiting) = crossbeam_channel::bounded::<()>(0);
    std::thread::scope(|scope| {
        // Rather than wait for ever.
        scope.spawn(move || {
            if waiting.recv_timeout(Duration::from_secs(10)).is_err_and(|it| it.is_timeout()) {
                stop.stop();
            }
        });
        let mut epoch = loader.epoch(1).unwrap();
        assert_eq!(epoch.next().unwrap().unwrap().samples(), [good]);
        let error = epoch.next().unwrap().unwrap_err();
        drop(over);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_eq!(error.path(), Some(data.paths[missing as usize].as_path()));
    });
}
