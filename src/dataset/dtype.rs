//! Element types of samples.

use crate::error::by_name;
use crate::{Error, Result};

/// The type of one element of a sample, in the machine's (little-endian) byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// Two `F32`: real and imaginary part.
    C64,
    /// Two `F64`: real and imaginary part.
    C128,
}

const ALL: [(Dtype, &str, u64); 15] = [
    (Dtype::Bool, "bool", 1),
    (Dtype::U8, "u8", 1),
    (Dtype::I8, "i8", 1),
    (Dtype::U16, "u16", 2),
    (Dtype::I16, "i16", 2),
    (Dtype::U32, "u32", 4),
    (Dtype::I32, "i32", 4),
    (Dtype::U64, "u64", 8),
    (Dtype::I64, "i64", 8),
    (Dtype::F16, "f16", 2),
    (Dtype::Bf16, "bf16", 2),
    (Dtype::F32, "f32", 4),
    (Dtype::F64, "f64", 8),
    (Dtype::C64, "c64", 8),
    (Dtype::C128, "c128", 16),
];

impl Dtype {
    /// The name used in `dataset.json` and in reports: `u8`, `f32`, `bf16`, ...
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The size of one element in bytes.
    pub fn size(self) -> u64 {
        self.row().2
    }

    /// The alignment in bytes that a slice of elements needs in memory.
    pub(crate) fn alignment(self) -> u64 {
        match self {
            Dtype::C64 => 4,
            Dtype::C128 => 8,
            _ => self.size(),
        }
    }

    fn row(self) -> &'static (Dtype, &'static str, u64) {
        // Every variant has a row: the array's order is the enum's, which `a_dtype_knows_its_row` checks.
        &ALL[self as usize]
    }
}

impl std::str::FromStr for Dtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        by_name("dtype", &ALL, |row| row.1, name).map(|row| row.0)
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dtype_knows_its_row() {
        for (dtype, name, size) in ALL {
            assert_eq!(dtype.name(), name);
            assert_eq!(dtype.size(), size);
            assert_eq!(name.parse::<Dtype>().unwrap(), dtype);
            assert_eq!(dtype.size() % dtype.alignment(), 0);
        }
        assert!("float".parse::<Dtype>().unwrap_err().to_string().contains("known are bool, u8"));
    }
}
