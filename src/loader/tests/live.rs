//! A loader that looks at itself: its numbers add up, and it names what it waits for.

use super::*;

fn work(loader: &mut Loader, data: &Data, step: Duration) -> LoaderStats {
    for batch in loader.epoch(0).unwrap() {
        data.assert_batch(&batch.unwrap());
        std::thread::sleep(step);
    }
    loader.stats().unwrap()
}

#[test]
fn storage_that_is_slow_is_what_the_run_waits_for() {
    for backend in backends() {
        let data = Data::new(4096, &[200]);
        let builder = data.loader().backend(backend).batch_size(10).stats(true).io_bytes(16 << 10);
        let faults = Faults::none().slow(Duration::from_millis(5));
        let mut loader = with(faults, builder).build().unwrap();
        let stats = work(&mut loader, &data, Duration::ZERO);
        assert_eq!(stats.bottleneck(), Bottleneck::Storage, "{stats:?}");
        assert!(stats.waited_for(Wait::Storage) > stats.waited_for(Wait::Slot));
        assert!(stats.stage(Stage::Read).p50 >= Duration::from_millis(4), "{stats:?}");
    }
}

#[test]
fn a_consumer_that_is_slow_is_what_the_run_waits_for() {
    for backend in backends() {
        let data = Data::new(4096, &[200]);
        let builder = data.loader().backend(backend).batch_size(10).stats(true);
        let stats = work(&mut builder.build().unwrap(), &data, Duration::from_millis(60));
        assert_eq!(stats.bottleneck(), Bottleneck::Consumer, "{stats:?}");
        assert!(stats.stage(Stage::Step).p50 >= Duration::from_millis(59), "{stats:?}");
        assert!(stats.waited_for(Wait::Slot) > Duration::ZERO);
    }
}

#[test]
fn a_limit_is_what_the_run_waits_for_if_it_is_low() {
    let data = Data::new(4096, &[60]);
    let builder = data.loader().batch_size(10).stats(true).io_bytes(4096).limit_rate(1 << 20);
    let stats = work(&mut builder.build().unwrap(), &data, Duration::ZERO);
    assert_eq!(stats.bottleneck(), Bottleneck::Limit, "{stats:?}");
}

#[test]
fn counts_and_times_are_those_of_what_was_done() {
    for backend in backends() {
        for shuffle in [Shuffle::None, BLOCKS] {
            let data = Data::new(5000, &[33, 44]);
            let builder = data.loader().backend(backend).batch_size(7).shuffle(shuffle).stats(true);
            let faults = Faults::none();
            let seen = faults.seen();
            let mut loader = with(faults, builder).build().unwrap();
            assert_eq!(loader.stats().unwrap().bottleneck(), Bottleneck::Unknown);
            let half = work(&mut loader, &data, Duration::ZERO);
            assert_eq!(half.batches, 11);
            let reads = look(&seen).started;
            assert_eq!(half.stage(Stage::Read).count, reads);
            for stage in [Stage::Plan, Stage::Read, Stage::BatchWait, Stage::Step] {
                let it = half.stage(stage);
                assert!(it.count > 0 && it.p50 <= it.p99 && it.p99 <= it.max, "{stage:?} {it:?}");
                // To two digits.
                assert!(it.max.mul_f64(it.count as f64 * 1.02) >= it.total, "{stage:?} {it:?}");
            }
            assert_eq!(half.bytes_by_way.total(), 77 * 5000);
            let whole = work(&mut loader, &data, Duration::ZERO);
            let rest = whole.since(&half);
            assert_eq!((rest.batches, rest.bytes_by_way.total()), (11, 77 * 5000));
            assert_eq!(rest.stage(Stage::Read).count, look(&seen).started - reads);
            assert!(rest.elapsed + half.elapsed == whole.elapsed);
        }
    }
}

#[test]
fn a_loader_that_was_not_asked_says_nothing() {
    let data = Data::new(4096, &[20]);
    let mut loader = data.loader().batch_size(10).build().unwrap();
    data.assert_epoch(&mut loader, 0, &stored(&data));
    assert!(
        loader.stats().is_none() && loader.trace_json().is_none() && loader.stats_handle().stats().is_none()
    );
    let mut loader = data.loader().batch_size(10).stats(true).build().unwrap();
    data.assert_epoch(&mut loader, 0, &stored(&data));
    assert!(loader.stats().is_some() && loader.trace_json().is_none());
}

#[test]
fn metrics_are_lines_that_prometheus_reads() {
    let data = Data::new(4096, &[20]);
    let mut loader = data.loader().batch_size(10).stats(true).build().unwrap();
    let stats = work(&mut loader, &data, Duration::ZERO);
    let text = stats.to_prometheus(&[("rank", "3"), ("job", "a \"b\"\\\n")]);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        assert!(
            name.starts_with("gpufeed_") && name.contains("{rank=\"3\",job=\"a \\\"b\\\"\\\\\\n\""),
            "{line}"
        );
    }
    assert!(text.contains("gpufeed_batches_total{rank=\"3\",job=\"a \\\"b\\\"\\\\\\n\"} 2\n"), "{text}");
    assert!(stats.to_prometheus(&[]).contains("\ngpufeed_batches_total 2\n"));
    assert!(stats.to_prometheus(&[]).contains("gpufeed_wait_seconds_total{for=\"storage\"}"));
}

#[test]
fn a_trace_is_json_of_spans_that_lie_within_the_run() {
    let data = Data::new(4096, &[40]);
    let mut loader = data.loader().batch_size(10).shuffle(Shuffle::Full).trace(true).build().unwrap();
    let stats = work(&mut loader, &data, Duration::ZERO);
    let trace: serde_json::Value = serde_json::from_str(&loader.trace_json().unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |name: &str, phase: &str| {
        events.iter().filter(|it| it["name"] == name && it["ph"] == phase).collect::<Vec<_>>()
    };
    assert_eq!(of("read", "b").len() as u64, stats.stage(Stage::Read).count);
    assert_eq!(of("read", "b").len(), of("read", "e").len());
    assert_eq!((of("batch_wait", "X").len(), of("step", "X").len()), (4, 4));
    assert!(!of("plan", "X").is_empty());
    let most = stats.elapsed.as_secs_f64() * 1e6;
    for event in events.iter().filter(|it| it["ph"] != "M") {
        let from = event["ts"].as_f64().unwrap();
        let until = from + event["dur"].as_f64().unwrap_or(0.0);
        assert!(0.0 <= from && until <= most + 1.0, "{event}");
    }
    let waits: Vec<u64> =
        of("batch_wait", "X").iter().map(|it| it["args"]["batch"].as_u64().unwrap()).collect();
    assert_eq!(waits, [0, 1, 2, 3]);
}
