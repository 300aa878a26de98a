//! Rust types that are elements of tensors.

use half::{bf16, f16};
use oxyfuel_base::DType;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type with the same meaning as a [`DType`].
pub trait Element: Copy + Send + Sync + std::fmt::Debug + sealed::Sealed + 'static {
    /// The type's name in tensors.
    const DTYPE: DType;

    /// Reads an element from its bytes in memory; `bytes` has `DTYPE.size()` of them.
    fn read(bytes: &[u8]) -> Self;

    /// Writes an element to its bytes in memory; `bytes` has `DTYPE.size()` of them.
    fn write(self, bytes: &mut [u8]);
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<Self>()];
                array.copy_from_slice(bytes);
                Self::from_ne_bytes(array)
            }

            #[inline]
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

elements!(f64 => F64, f32 => F32, f16 => F16, bf16 => BF16, i64 => I64, i32 => I32, i16 => I16, i8 => I8);
elements!(u64 => U64, u32 => U32, u16 => U16, u8 => U8);

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;

    fn read(bytes: &[u8]) -> Self {
        // A foreign bool may be any byte.
        bytes.iter().any(|byte| *byte != 0)
    }

    fn write(self, bytes: &mut [u8]) {
        bytes.fill(u8::from(self));
    }
}
