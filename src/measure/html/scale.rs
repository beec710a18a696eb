//! Where on an axis a value lies, and which values are written there.

/// An axis that begins at 0.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Linear {
    pub(super) max: f64,
    pub(super) ticks: Vec<f64>,
}

impl Linear {
    /// An axis that has room for all of these; what is not finite is left out.
    pub(super) fn over(values: impl IntoIterator<Item = f64>) -> Linear {
        let most = values.into_iter().filter(|value| value.is_finite()).fold(0.0, f64::max);
        // Beyond that, steps would lose their meaning in the limits of a double.
        let most = if most <= 0.0 { 1.0 } else { most.clamp(1e-200, 1e200) };
        let rough = most / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .map(|it| it * power)
            .into_iter()
            .find(|it| *it >= rough * (1.0 - 1e-9));
        let step = step.unwrap_or(10.0 * power);
        let count = (most / step - 1e-9).ceil().max(1.0);
        Linear { max: count * step, ticks: (0..=count as u32).map(|i| f64::from(i) * step).collect() }
    }

    /// As a percentage of the axis; 0 for what is not finite.
    pub(super) fn at(&self, value: f64) -> f64 {
        if value.is_finite() { (value / self.max * 100.0).clamp(0.0, 100.0) } else { 0.0 }
    }
}

/// An axis on which every step is ten times the one before.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Log {
    low: i32,
    high: i32,
}

impl Log {
    /// An axis that has room for all of these. A value that has no logarithm is left out.
    pub(super) fn over(values: impl IntoIterator<Item = f64>) -> Log {
        let all = values.into_iter().filter(|it| it.is_finite() && *it > 0.0).map(|it| it.log10());
        let (low, high) =
            all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), it| (low.min(it), high.max(it)));
        if low > high {
            return Log { low: 0, high: 3 };
        }
        let low = low.floor() as i32;
        Log { low, high: (high.ceil() as i32).max(low + 1) }
    }

    /// As a percentage of the axis; 0 for what has no logarithm.
    pub(super) fn at(&self, value: f64) -> f64 {
        if !value.is_finite() || value <= 0.0 {
            return 0.0;
        }
        let width = f64::from(self.high - self.low);
        ((value.log10() - f64::from(self.low)) / width * 100.0).clamp(0.0, 100.0)
    }

    /// At most seven powers of ten.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let step = (self.high - self.low).div_euclid(7) + 1;
        (self.low..=self.high).step_by(step.max(1) as usize).map(|power| 10f64.powi(power)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_room_for_its_values_and_ends_on_a_step() {
        for most in [1e-300, 3e-9, 0.017, 0.9, 1.0, 2.44, 10.0, 12.7, 99.0, 1e6, 7.7e12, 1e300] {
            let axis = Linear::over([most, f64::NAN, 0.0]);
            assert!(axis.max >= most.min(1e200) && axis.max <= most.max(1e-200) * 2.0, "{most}: {axis:?}");
            assert!((2..=7).contains(&axis.ticks.len()), "{most}: {axis:?}");
            assert!((axis.at(*axis.ticks.last().unwrap()) - 100.0).abs() < 1e-9);
            assert!((0.0..=100.0).contains(&axis.at(most)) && axis.at(f64::NAN) == 0.0);
        }
        for nothing in [vec![], vec![0.0], vec![f64::INFINITY], vec![-1.0]] {
            assert_eq!(Linear::over(nothing).max, 1.0);
        }
    }

    #[test]
    fn powers_of_ten_are_equally_far_apart() {
        let axis = Log::over([3.0, 900.0, 0.0, f64::NAN]);
        assert_eq!(axis.ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert!((axis.at(10.0) - 100.0 / 3.0).abs() < 1e-9);
        assert_eq!((axis.at(0.0), axis.at(1e9)), (0.0, 100.0));
        assert_eq!(Log::over([]).ticks().len(), 4);
        assert_eq!(Log::over([10.0]).ticks().len(), 2);
        assert!(Log::over([1e-300, 1e300]).ticks().len() <= 8);
    }
}
