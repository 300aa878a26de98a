//! What a processor can do, and what code wants of it.

use oxyfuel_base::{Result, err};
use serde::{Deserialize, Serialize};

macro_rules! features {
    ($($field:ident $name:literal $doc:literal;)*) => {
        /// Instruction sets of x86-64, in the groups that code generation cares about.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct CpuFeatures { $(#[doc = $doc] pub $field: bool,)* }

        impl CpuFeatures {
            /// Those of a set that are there, by their names for people.
            pub fn names(self) -> Vec<&'static str> {
                let all = [$(($name, self.$field)),*];
                all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
            }

            /// What is needed and not here.
            #[must_use]
            pub fn missing(self, needed: Self) -> Self {
                Self { $($field: needed.$field && !self.$field,)* }
            }
        }
    };
}

features! {
    avx2        "avx2"        "AVX2 with FMA and F16C: the lowest level with machine code.";
    avx_vnni    "avx-vnni"    "int8 dot product in the encoding of AVX2.";
    avx512      "avx512"      "AVX-512 F, BW, DQ and VL together.";
    avx512_bf16 "avx512-bf16" "AVX-512 conversions to bf16 and bf16 dot product.";
    avx512_fp16 "avx512-fp16" "AVX-512 arithmetic on f16.";
    avx512_vnni "avx512-vnni" "AVX-512 int8 dot product.";
    amx_tile    "amx-tile"    "AMX tiles exist and the system has given this process permission to use them.";
    amx_bf16    "amx-bf16"    "AMX bf16 product.";
    amx_int8    "amx-int8"    "AMX int8 product.";
}

impl CpuFeatures {
    /// An error where a processor with these does not run code that needs those; `code` says whose.
    pub fn check(self, needed: Self, code: &str) -> Result<()> {
        let missing = self.missing(needed).names();
        if missing.is_empty() {
            return Ok(());
        }
        Err(err!(
            UnsupportedDevice,
            "{code} needs {}, which this processor or its system does not offer",
            missing.join(", ")
        )
        .help("leave the target open, or name one that `oxyfuel targets` shows to run here"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::Code;

    #[test]
    fn what_is_missing_is_named() {
        let old = CpuFeatures {
            avx2: true,
            ..CpuFeatures::default()
        };
        let new = CpuFeatures {
            avx512: true,
            amx_tile: true,
            ..old
        };
        assert!(new.check(old, "code").is_ok());
        assert!(old.check(CpuFeatures::default(), "code").is_ok());
        let error = old.check(new, "code of another machine").unwrap_err();
        assert_eq!(error.code, Code::UnsupportedDevice);
        assert_eq!(
            error.message,
            "code of another machine needs avx512, amx-tile, which this processor or its system does not offer"
        );
        assert!(error.help.unwrap().contains("oxyfuel targets"));
    }
}
